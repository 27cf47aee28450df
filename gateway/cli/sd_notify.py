"""Messages to the service manager of the process (sd_notify(3)), such as systemd with `Type=notify-reload`."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from gateway.aio.clock import SystemClock

_VARIABLE: Final = "NOTIFY_SOCKET"
_LONGEST_STATUS: Final = 500


class ServiceManager:
    """The service manager that the environment names.  Without one, no messages are sent."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        path = environ.get(_VARIABLE, "")
        # An abstract socket's address has @ in place of its leading zero byte.
        self._address = f"\0{path[1:]}" if path.startswith("@") else path

    def __repr__(self) -> str:
        return f"<ServiceManager at {self._address!r}>"

    def ready(self, status: str = "") -> None:
        """Report that the start or a reload is done."""
        self._send("READY=1", *([f"STATUS={status[:_LONGEST_STATUS]}"] if status else []))

    def reloading(self) -> None:
        """Report that a reload begins. systemd distinguishes reloads by their time."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={int(SystemClock().now() * 1e6)}")

    def hand_over(self, pid: int) -> None:
        """Report that another process is the service's main process from now on."""
        self._send(f"MAINPID={pid}")

    def stopping(self) -> None:
        """Report that the drain begins."""
        self._send("STOPPING=1", "STATUS=draining")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        # A service manager that does not listen must not stop the gateway.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.setblocking(False)
            sock.sendto("\n".join(lines).encode(), self._address)

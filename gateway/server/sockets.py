"""Sockets to listen at that the event loop does not make: in the file system, and those that systemd hands over."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

_FIRST_FD: Final = 3
_MOST_FDS: Final = 1_024
_UNNAMED: Final = "unknown"


class UnixSocket:
    """A bound socket in the file system, and its file."""

    def __init__(self, path: str, mode: str) -> None:
        """OSError where there is a file that is no socket, or somebody listens on it.  A socket that nobody listens on
        any more is removed first."""
        self.path = Path(path)
        _remove_stale(self.path)
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Nobody can connect before it listens, and by then it has its mode.
            self.sock.bind(path)
            self.path.chmod(int(mode, 8))
            self._made = _identity(self.path)
        except BaseException:
            self.sock.close()
            raise

    def remove(self) -> None:
        """Remove the file, unless another one is there by now."""
        with suppress(OSError):
            if _identity(self.path) == self._made:
                self.path.unlink()


def _identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "there is a file that is no socket", str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # A full backlog answers at once as well.
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:
            pass
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), str(path))


def handed_over(environ: Mapping[str, str], pid: int) -> list[tuple[str, int]]:
    """Names and descriptors of the sockets that this process was started with (sd_listen_fds); none where they are
    another process's.  ValueError where the environment says nonsense."""
    if environ.get("LISTEN_PID") != str(pid):
        return []
    said = environ.get("LISTEN_FDS", "0")
    if not said.isdecimal() or int(said) > _MOST_FDS:
        raise ValueError(f"LISTEN_FDS is {said!r}")
    names = environ["LISTEN_FDNAMES"].split(":") if "LISTEN_FDNAMES" in environ else []
    if names and len(names) != int(said):
        raise ValueError(f"LISTEN_FDNAMES has {len(names)} names for {said} sockets")
    return [(names[index] if names else _UNNAMED, _FIRST_FD + index) for index in range(int(said))]


def chosen(fds: Iterable[tuple[str, int]], name: str, others: Iterable[str]) -> list[int]:
    """The descriptors that a listener takes: those of a name, or with none those that no other listener names."""
    taken = set(others)
    return [fd for called, fd in fds if (called == name if name else called not in taken)]


def adopt(fd: int) -> socket.socket:
    """A socket that was handed over, to listen at.  OSError where it is none that listens for streams."""
    sock = socket.socket(fileno=os.dup(fd))
    is_listening = sock.type == socket.SOCK_STREAM and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if not is_listening:
        sock.close()
        raise OSError(errno.EINVAL, f"descriptor {fd} is no socket that listens for streams")
    os.set_inheritable(sock.fileno(), False)
    return sock

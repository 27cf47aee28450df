"""Child processes: started on a core, awaited until their port accepts, ended by their own pid."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadtest.bench.machine import BenchError, family, pinned

_START_S = 20.0
_STOP_S = 5.0


@dataclass(frozen=True, slots=True)
class Child:
    """A server that accepts on `port`."""

    name: str
    port: int
    pid: int
    secure_port: int = 0
    """The port that accepts TLS; 0 without TLS."""

    @property
    def pids(self) -> tuple[int, ...]:
        """The started process and its current descendants; some servers accept before they have forked."""
        return family(self.pid)

    @property
    def worker(self) -> int:
        """The process that serves: the youngest descendant."""
        return self.pids[-1]


@contextmanager
def running(
    name: str, argv: Sequence[str | Path], port: int, core: int, log: Path, secure_port: int = 0
) -> Iterator[Child]:
    """A child on `core` until the end of the block.  Raises BenchError, with its last line, when it does not start."""
    with log.open("wb") as output, pinned(core):
        process = subprocess.Popen(
            [str(arg) for arg in argv], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        _wait_for(name, process, port, log)
        yield Child(name, port, process.pid, secure_port)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(name: str, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    raise BenchError(f"{name} does not accept on port {port}: {lines[-1] if lines else 'no output'}")


def free_ports(count: int) -> list[int]:
    """Ports without a listener."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()

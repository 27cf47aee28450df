"""A program and all that it starts, as one thing to kill: the processes of one session, as Linux calls it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

BOUND_S: Final = 240.0
PATIENCE_S: Final = 10.0


class Program:
    """Python's module with arguments, in a session of its own; what it says goes to `log`."""

    def __init__(self, module: str, arguments: Sequence[str], log: Path) -> None:
        with log.open("wb") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments], stdout=said, stderr=said, start_new_session=True
            )

    def workers(self) -> set[int]:
        """Spark's Python workers."""
        processes = self._processes()
        daemons = {pid for pid, (_, command) in processes.items() if _is_of_daemon(command)}
        return {pid for pid in daemons if processes[pid][0] in daemons}

    def kill_workers(self) -> int:
        """SIGKILL to Spark's Python workers; how many there were."""
        workers = self.workers()
        for pid in workers:
            _kill(pid)
        return len(workers)

    def wait(self) -> int:
        """The status it leaves with."""
        return self._process.wait(3 * BOUND_S)

    def kill(self) -> None:
        """SIGKILL to the driver: its Python and its Java.  Their workers are left to find out."""
        for pid, (_, command) in self._processes().items():
            if not _is_of_daemon(command):
                _kill(pid)
        self._process.wait(BOUND_S)

    def end(self) -> None:
        """Wait for all that it has started to be gone; what has not found out by then is killed too."""
        while left := self._processes():
            for pid in left:
                if not _is_gone(pid, PATIENCE_S):
                    _kill(pid)
                    assert _is_gone(pid, BOUND_S)
        self._process.wait(BOUND_S)

    def _processes(self) -> dict[int, tuple[int, str]]:
        """Of the session: pid to its parent and command."""
        found: dict[int, tuple[int, str]] = {}
        for folder in Path("/proc").iterdir():
            if not folder.name.isdecimal():
                continue
            try:
                state, parent, _, session, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(session) == self._process.pid and state != "Z":
                found[int(folder.name)] = (int(parent), command)
        return found


def _is_gone(pid: int, within_s: float) -> bool:
    try:
        watch = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watch], [], [], within_s)[0])
    finally:
        os.close(watch)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _is_of_daemon(command: str) -> bool:
    """Whether this is the daemon that forks Spark's Python workers, or one of them."""
    # Java's command line names the module too, among its settings.
    return any(f" -m {module} " in command for module in ("pyspark.daemon", "gateway.pipeline.worker_daemon"))

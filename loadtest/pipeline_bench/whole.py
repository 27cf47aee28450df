"""The whole of `durable-gateway pipeline run`, as its user waits for it: from its start to its end, with Spark's."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_PR_SET_CHILD_SUBREAPER: Final = 36
_BOUND_S: Final = 3_600.0
_LOOK_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Whole:
    """Seconds that passed, processor seconds of all processes, and the machine's load (1 min) before."""

    wall_s: float
    cpu_s: float
    load: float


def measure_run(log: Path, folder: Path, master: str) -> Whole:
    """Run all steps over the files of `log`, into `folder`."""
    # Java and its workers outlive the command for a moment; they become children of this process (prctl(2)).
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    command = [sys.executable, "-m", "gateway", "pipeline", "run", str(log), "--master", master]
    for flag, name in (("--lake", "lake"), ("--plan", "plan.json"), ("--report", "report.html")):
        command += [flag, str(folder / name)]
    # Time of processes that an earlier command has left would be counted, too.
    _wait_for_all()
    spent = Spent()
    is_over = threading.Event()
    looking = threading.Thread(target=spent.watch, args=(is_over,))
    looking.start()
    try:
        load, began = os.getloadavg()[0], time.perf_counter()
        subprocess.run(command, check=True, timeout=_BOUND_S, capture_output=True)
        wall_s = time.perf_counter() - began
        _wait_for_all()
    finally:
        is_over.set()
        looking.join()
    return Whole(wall_s, spent.total_s, load)


def _wait_for_all() -> None:
    """Wait until all children of this process have ended."""
    with suppress(ChildProcessError):
        while True:
            os.wait()


@dataclass(slots=True)
class Spent:
    """Processor time of this process's descendants, looked up again and again: Spark's daemon ignores SIGCHLD, so the
    kernel adds the time of a worker that has ended to no other process (`getrusage(2)`)."""

    _ticks: dict[tuple[int, str], int] = field(default_factory=dict)
    """By pid and start time, which together are one process."""

    @property
    def total_s(self) -> float:
        """Seconds so far; of each process that has ended, less its last tenth of a second at most."""
        return sum(self._ticks.values()) / os.sysconf("SC_CLK_TCK")

    def watch(self, is_over: threading.Event) -> None:
        """Look up the times until `is_over` is set."""
        while not is_over.wait(_LOOK_S):
            self.look()

    def look(self) -> None:
        """Look up the times once."""
        found = {pid: (parent, started, ticks) for pid, parent, started, ticks in _processes()}
        ours, grown = {os.getpid()}, True
        while grown:
            more = {pid for pid, (parent, *_) in found.items() if parent in ours} - ours
            ours, grown = ours | more, bool(more)
        for pid in ours & found.keys() - {os.getpid()}:
            _, started, ticks = found[pid]
            self._ticks[pid, started] = ticks


def _processes() -> Iterator[tuple[int, int, str, int]]:
    """Pid, parent, start time and ticks of each process (proc_pid_stat(5))."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                # The name, in parentheses, may have spaces in it.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                yield int(entry.name), int(fields[1]), fields[19], int(fields[11]) + int(fields[12])

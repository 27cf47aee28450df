"""The machine under the benchmark: its cores, its processes' time and memory.

Linux only: affinity and /proc are the instruments.
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_CPUCLOCK_SCHED = 2


class BenchError(Exception):
    """A benchmark cannot run, or its result would be meaningless; the text is one line."""


@dataclass(frozen=True, slots=True)
class Cores:
    """The core of the server and the core of the load.  Origins run on a third core if there is one, else on that of
    the load."""

    server: int
    load: int
    origin: int

    @classmethod
    def of_this_machine(cls) -> Cores:
        """The last cores available to this process, because interrupts tend to go to the first."""
        allowed = sorted(os.sched_getaffinity(0))
        if len(allowed) < 2:
            raise BenchError("two cores are needed: one for the server, one for the load")
        return cls(server=allowed[-1], load=allowed[-2], origin=allowed[-3] if len(allowed) > 2 else allowed[-2])


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """Pin this process, and children it starts in the block, to one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def family(pid: int) -> tuple[int, ...]:
    """A process and all its descendants."""
    children = [
        int(child)
        for task in (_PROC / str(pid) / "task").glob("*/children")
        for child in task.read_text(encoding="ascii").split()
    ]
    return (pid, *(member for child in children for member in family(child)))


def busy_s(pids: Iterable[int]) -> float:
    """Processor time of these processes so far, in seconds: user and kernel, of all their threads ever.

    It is read from the processes' own clocks, because /proc/PID/stat is rounded to a tick of 10 ms.
    """
    return sum(time.clock_gettime_ns(_clock_of(pid)) for pid in pids) / 1e9


def _clock_of(pid: int) -> int:
    """The clock id of a process, as from clock_getcpuclockid(3); Python has it for threads only."""
    return (~pid << 3) | _CPUCLOCK_SCHED


@dataclass(frozen=True, slots=True)
class CoreTime:
    """What a core has given so far, in seconds."""

    busy_s: float
    """Processor time of everything on it, its interrupts and stolen time included."""
    stolen_s: float
    """Time in which something was ready to run and the machine's host had the core (proc_stat(5), `steal`)."""


def core_time(core: int) -> CoreTime:
    """What this core has given.  Raises BenchError if there is none of that number."""
    return parse_core_time((_PROC / "stat").read_text(encoding="ascii"), core)


def parse_core_time(stat: str, core: int) -> CoreTime:
    """The times of a core in the text of /proc/stat."""
    found = re.search(rf"^cpu{core} (.*)$", stat, re.MULTILINE)
    if found is None:
        raise BenchError(f"/proc/stat does not know core {core}")
    user, nice, system, _idle, _iowait, irq, softirq, steal, *_ = map(int, found[1].split())
    return CoreTime((user + nice + system + irq + softirq + steal) / _TICKS_PER_S, steal / _TICKS_PER_S)


@dataclass(frozen=True, slots=True)
class Memory:
    """User-space memory in bytes.  `pss_bytes` counts a page shared by n processes as 1/n."""

    rss_bytes: int
    pss_bytes: int


def memory(pids: Iterable[int]) -> Memory:
    """Total memory of these processes."""
    all_of_them = [parse_smaps_rollup((_PROC / str(pid) / "smaps_rollup").read_text(encoding="ascii")) for pid in pids]
    return Memory(sum(one.rss_bytes for one in all_of_them), sum(one.pss_bytes for one in all_of_them))


def parse_smaps_rollup(text: str) -> Memory:
    """Rss and Pss of /proc/PID/smaps_rollup."""
    found = {name: int(kib) * 1024 for name, kib in re.findall(r"^(Rss|Pss):\s+(\d+) kB", text, re.MULTILINE)}
    return Memory(found["Rss"], found["Pss"])


def description() -> dict[str, str | int]:
    """What readers of the figures have to know of the machine."""
    cpuinfo = (_PROC / "cpuinfo").read_text(encoding="utf-8")
    model = re.search(r"^model name\s*:\s*(.*)", cpuinfo, re.MULTILINE)
    return {
        "cpu": model[1] if model else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_1min": f"{os.getloadavg()[0]:.2f}",
    }

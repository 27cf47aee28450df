"""The whole of `durable-gateway pipeline run`, as its user waits for it: from its start to its end, with Spark's."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PR_SET_CHILD_SUBREAPER: Final = 36
_BOUND_S: Final = 3_600.0


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
    load, before, began = os.getloadavg()[0], _children_s(), time.perf_counter()
    command = [sys.executable, "-m", "gateway", "pipeline", "run", str(log), "--master", master]
    for flag, name in (("--lake", "lake"), ("--plan", "plan.json"), ("--report", "report.html")):
        command += [flag, str(folder / name)]
    subprocess.run(command, check=True, timeout=_BOUND_S, capture_output=True)
    wall_s = time.perf_counter() - began
    try:
        while True:
            os.wait()
    except ChildProcessError:
        pass
    return Whole(wall_s, _children_s() - before, load)


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime

"""The process's memory as the operating system counts it, and the limit of its container."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_STATM: Final = "/proc/self/statm"
_CGROUP: Final = Path("/sys/fs/cgroup")
_PAGE_BYTES: Final = resource.getpagesize()
_NO_LIMIT_BYTES: Final = 1 << 60
"""Version 1 of cgroups uses a number of about this size if there is no limit."""


def resident_bytes() -> int:
    """Return the resident bytes now.  Without `/proc`, the highest value so far."""
    try:
        # Near the limit this is called hundreds of times a second, and a file object would cost three times as much.
        statm = os.open(_STATM, os.O_RDONLY)
        try:
            return int(os.read(statm, 256).split()[1]) * _PAGE_BYTES
        finally:
            os.close(statm)
    except (OSError, ValueError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def container_limit_bytes(root: Path = _CGROUP, own: Path = Path("/proc/self/cgroup")) -> int | None:
    """Return the lowest memory limit of the process's control groups; None without a limit."""
    found = []
    for file in _limit_files(root, own):
        try:
            found.append(int(file.read_text()))
        except (OSError, ValueError):
            # The group does not exist, or its limit is "max".
            continue
    least = min(found, default=_NO_LIMIT_BYTES)
    return least if 0 < least < _NO_LIMIT_BYTES else None


def _limit_files(root: Path, own: Path) -> Iterator[Path]:
    yield root / "memory.max"
    yield root / "memory" / "memory.limit_in_bytes"
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            group = root / path.lstrip("/")
            while group != root and root in group.parents:
                yield group / "memory.max"
                group = group.parent
        elif "memory" in controllers.split(","):
            yield root / "memory" / path.lstrip("/") / "memory.limit_in_bytes"


def return_freed_memory() -> None:
    """Return freed memory that the C library keeps (glibc) to the system.  May take tens of milliseconds."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        pass

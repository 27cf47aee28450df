"""The limits of the process's container, as its control groups state them: memory and processors.

Both versions of control groups are read: cgroup-v2.rst and cgroup-v1/ in the documentation of Linux.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_CGROUP: Final = Path("/sys/fs/cgroup")
_OWN: Final = Path("/proc/self/cgroup")
_NO_LIMIT_BYTES: Final = 1 << 60
"""Version 1 uses a number of about this size if there is no limit."""


def container_limit_bytes(root: Path = _CGROUP, own: Path = _OWN) -> int | None:
    """Return the lowest memory limit of the process's control groups; None without a limit."""
    found = []
    for group, is_second in _groups(root, own, "memory"):
        try:
            found.append(int((group / ("memory.max" if is_second else "memory.limit_in_bytes")).read_text()))
        except (OSError, ValueError):
            # The group does not exist, or its limit is "max".
            continue
    least = min(found, default=_NO_LIMIT_BYTES)
    return least if 0 < least < _NO_LIMIT_BYTES else None


def usable_processors(root: Path = _CGROUP, own: Path = _OWN) -> int:
    """Return how many processors the process may use at once, at least 1.

    A quota of processor time counts as the whole processors in it: a process that spends the quota of a group stops all
    processes of the group until the next period.
    """
    # Other systems than Linux have no affinity.
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for group, is_second in _groups(root, own, "cpu"):
        try:
            if is_second:
                quota, period = (group / "cpu.max").read_text().split()
            else:
                quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            # Without a quota, it is "max" or -1.
            if (granted := int(quota) // int(period)) >= 0:
                processors = min(processors, granted)
        except (OSError, ValueError, ZeroDivisionError):
            continue
    return max(1, processors)


def _groups(root: Path, own: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """Return the folders of the process's control groups that may limit the resource of `controller`, such as memory.
    Each folder comes with a flag: whether it belongs to version 2."""
    yield root, True
    yield root / controller, False
    try:
        lines = own.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            group = root / path.lstrip("/")
            while group != root and root in group.parents:
                yield group, True
                group = group.parent
        elif controller in controllers.split(","):
            yield root / controller / path.lstrip("/"), False

"""Readiness: when the gateway is ready for clients, and when `/readyz` answers 503.

A process is ready while it accepts clients and is not draining.  A gateway with several workers is ready while all of
its workers are ready.  The state of the origins does not matter.  If the origins are down, the gateway still answers
from memory, and all other requests fail at once.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Final

_PROCESS: Final = "gateway"


def is_process_ready(*, is_open: bool, is_draining: bool) -> bool:
    """Return whether a process is ready.  `is_open` states whether its listeners are open."""
    return is_open and not is_draining


def unready_process(*, is_ready: bool) -> list[str]:
    """Return the names of the parts that are not ready, for a gateway of one process; an empty list if it is ready."""
    return [] if is_ready else [_PROCESS]


def unready_workers(slots: Iterable[int], ready: Container[int]) -> list[str]:
    """Return the workers that are not ready.  `slots` has the slots of all workers, and `ready` has the slots of the
    ready workers.

    A worker that does not answer is not ready.
    """
    return [f"worker {slot}" for slot in slots if slot not in ready]


def readiness(unready: Sequence[str], *, is_verbose: bool) -> tuple[int, str]:
    """Return the status and the text of `/readyz`.  If it is verbose, the text lists the workers that are not ready."""
    status, text = (503, "not ready\n") if unready else (200, "ready\n")
    if is_verbose:
        text += "".join(f"[-] {one}\n" for one in unready if one != _PROCESS)
    return status, text

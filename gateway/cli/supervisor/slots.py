"""The slots of the workers.  Decides when the next worker of a slot starts after a death."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.workers.control import ChannelEnd

STEADY_S: Final = 10.0
"""If a serving worker dies this many seconds after its start or later, the earlier deaths in its slot are forgotten."""
LEAST_DELAY_S: Final = 0.1
MOST_DELAY_S: Final = 2.0
START_S: Final = 60.0
"""A worker counts as hanging if it is not prepared this many seconds after its start.  A prepared worker may have to
take another configuration before it may accept connections.  It counts as hanging if it has not taken this
configuration within the same number of seconds."""


class Backoff:
    """The least times between two starts of a slot's workers: none after the first death, then from 0.1 s up to 2 s.

    The times are counted from the worker's start.  If a worker is killed now and then, the next one therefore starts at
    once, and no client waits.  If a worker always dies at its start, there is one start in 2 s.
    """

    def __init__(self) -> None:
        self._deaths = 0

    def after(self, served_s: float) -> float:
        """Count the death of a worker that has served for `served_s` seconds.  Return the delay until the next start in
        seconds."""
        self._deaths = 1 if served_s >= STEADY_S else self._deaths + 1
        if self._deaths == 1:
            return 0.0
        return max(0.0, min(MOST_DELAY_S, LEAST_DELAY_S * 2.0 ** min(self._deaths - 2, 10)) - served_s)


@dataclass(slots=True, eq=False)
class Slot:
    """A slot, and the worker in it."""

    number: int
    generation: int = 0
    """The number of workers that the slot has had."""
    pid: int = 0
    """The worker's process; 0 without one."""
    channel: ChannelEnd | None = None
    began_at: float = 0.0
    is_prepared: bool = False
    """Whether the worker is ready to accept connections once it is allowed to."""
    is_accepting: bool = False
    """Whether the worker has been allowed to accept connections."""
    is_serving: bool = False
    configuration: int = 0
    """The number of the configuration that the worker runs with.  The worker has started with this configuration, or
    has taken it later."""
    hangs_at: float | None = None
    """The time limit for the worker's start, or for taking the configuration that it needs before it may accept
    connections.  None if neither is awaited."""
    is_empty: bool = False
    """Whether the worker has lost its last connection in a drain."""
    upgrade_requests: list[int] = field(default_factory=list)
    """The worker's requests for an upgrade that are still to be answered."""
    failure: dict[str, Any] | None = None
    """Why the worker could not start, as the worker itself has reported it."""
    next_at: float | None = None
    """The time at which the slot's next worker starts; None if the slot has a worker, or will get no further worker."""
    backoff: Backoff = field(default_factory=Backoff)

    def begins(self, now: float) -> None:
        """Record that a worker starts in this slot."""
        self.next_at, self.failure = None, None
        self.generation += 1
        self.began_at = now
        self.hangs_at = now + START_S

    def prepares(self) -> None:
        """Record that the slot's worker is ready to accept connections."""
        self.is_prepared, self.hangs_at = True, None

    def hangs(self) -> None:
        """Record that the slot's worker has exceeded its time limit (`hangs_at`)."""
        self.hangs_at = None
        late = "has not taken the configuration in" if self.is_prepared else "is not ready after"
        self.failure = {"text": f"worker {self.number} {late} {START_S:g} s", "is_misuse": False}

    def ends(self, now: float) -> float:
        """Record the end of the slot's worker.  Return the delay in seconds until the next worker starts."""
        delay_s = self.backoff.after(now - self.began_at if self.is_serving else 0.0)
        self.pid, self.is_prepared, self.is_accepting, self.is_serving, self.hangs_at = 0, False, False, False, None
        self.upgrade_requests.clear()
        self.next_at = now + delay_s
        return delay_s


def may_accept(slots: Sequence[Slot], configuration: int, *, is_starting: bool) -> list[Slot]:
    """Return the slots whose workers may accept connections.

    `configuration` is the number of the configuration that a worker needs before it begins to accept connections.
    While the gateway starts, no worker accepts connections before all workers are ready."""
    ready = [slot for slot in slots if slot.is_prepared and (slot.is_accepting or slot.configuration >= configuration)]
    return [] if is_starting and len(ready) < len(slots) else ready


def end_of(status: int) -> str:
    """Return a description of the end of a process.  `status` is its status from `waitpid`."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"ended with status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = ", perhaps because the machine's memory was full" if -code == signal.SIGKILL else ""
    return f"was ended by {name}{hint}"

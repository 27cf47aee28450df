"""Later tries to share the origins that this worker could not share with the other workers at once.

The workers' table may have had no room for the origin, or its lock was not free in time.  Until the origin is shared,
this worker has a breaker of its own for it.  Rows become free when the other workers no longer use their origins, often
a moment after this worker has taken the same new configuration.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gateway.aio.clock import Clock
from gateway.upstream.breaker import BreakerState
from gateway.upstream.origin_state import Origin
from gateway.workers.shared_origins import SharedOrigins

_AGAIN_S: Final = 5.0
"""The pause after a failed try, in seconds."""
_NEXT_S: Final = 0.02
"""The pause after a successful try."""


class LateSharing:
    """Tries to share one origin after the other.

    A search of a full table takes a millisecond, so there is one try at a time.
    """

    def __init__(self, shared: SharedOrigins, clock: Clock) -> None:
        self._shared = shared
        self._clock = clock
        self._alone: list[Origin] = []
        """The origins that are not shared.  The next one to try is the first."""
        self._is_due = False
        """Whether a timer runs."""

    def __repr__(self) -> str:
        return f"<LateSharing of {len(self._alone)} origins>"

    def begin(self, origins: Iterable[Origin]) -> None:
        """Share those of the origins, which this worker uses, that are not shared yet."""
        self._alone = [one for one in origins if one.is_alone]
        self._later(_AGAIN_S)

    def _later(self, after_s: float) -> None:
        if self._alone and not self._is_due:
            self._is_due = True
            self._clock.call_later(after_s, self._try_next)

    def _try_next(self) -> None:
        self._is_due = False
        if not self._alone:
            return
        origin, row = self._alone.pop(0), None
        if origin.breaker.state is BreakerState.CLOSED:
            row = self._shared.join(origin.authority)
        if row is None:
            self._alone.append(origin)
        else:
            origin.share(row)
        self._later(_AGAIN_S if row is None else _NEXT_S)

"""The pace of walks that make no progress.

Without a pause, an origin whose answers are empty and never say that they reach the tail would be asked again as fast
as it answers, for as long as one reader waits.  So each empty answer delays the next fetch of the stream, which all its
readers share: the first few cost no pause, then the pause doubles.  An answer with few bytes is progress, and legal
where messages are small, so only the rate of such answers is bounded.  An answer with a usual number of bytes, or one
that reaches the tail, ends either pause.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from gateway.limits.memory import evict_oldest
from gateway.tape.stream import Stream

LITTLE_BYTES: Final = 256
"""An answer short of the tail with fewer bytes is little progress."""
LITTLE_PER_S: Final = 200.0
"""Answers with little progress that a stream's fetches may bring in a second, after the first `LITTLE_BURST`."""
LITTLE_BURST: Final = 256
"""Answers with little progress that may come at once without a pause."""
_FREE: Final = 8
"""Consecutive empty answers that cause no pause."""
_FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0
_FORGET_S: Final = 10.0
"""After this time without a fetch, in seconds, the earlier answers of a stream are forgotten."""
_MOST_STREAMS: Final = 4_096
"""The most streams that are paced at once; the oldest are forgotten."""


@dataclass(slots=True)
class _Walk:
    empty: int = 0
    """Consecutive empty answers."""
    little: float = 0.0
    """The level of a leaky bucket of answers with few bytes or none, which leaks `LITTLE_PER_S`."""
    at: float = 0.0
    """When the latest fetch ended (monotonic seconds)."""
    pause_s: float = 0.0
    """Seconds from then until the next fetch may be sent."""


class WalkPace:
    """The progress of the latest fetches of each stream.  All times are monotonic seconds."""

    def __init__(self) -> None:
        self._walks: OrderedDict[Stream, _Walk] = OrderedDict()

    def __repr__(self) -> str:
        return f"<WalkPace of {len(self._walks)} streams>"

    def pause_s(self, stream: Stream, now: float) -> float:
        """How long the next fetch of the stream has to wait."""
        walk = self._walks.get(stream)
        return max(0.0, walk.at + walk.pause_s - now) if walk is not None else 0.0

    def ended(self, stream: Stream, size: int, now: float, *, is_up_to_date: bool) -> None:
        """Record that a fetch of the stream has brought `size` bytes."""
        if is_up_to_date or size >= LITTLE_BYTES:
            self._walks.pop(stream, None)
            return
        walk = self._walks.pop(stream, None)
        if walk is None or now - walk.at > _FORGET_S:
            walk = _Walk()
        walk.empty = walk.empty + 1 if not size else 0
        walk.little = max(0.0, walk.little - (now - walk.at) * LITTLE_PER_S) + 1
        walk.little = min(walk.little, LITTLE_BURST + LITTLE_PER_S * LONGEST_PAUSE_S)
        walk.at = now
        walk.pause_s = max(0.0, (walk.little - LITTLE_BURST) / LITTLE_PER_S)
        if walk.empty > _FREE:
            walk.pause_s = min(LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(walk.empty - _FREE - 1, 10))
        self._walks[stream] = walk
        evict_oldest(self._walks, _MOST_STREAMS)

"""The pace of walks that make no progress.

An origin whose answers are empty and never say that they reach the tail would be asked again as fast as it answers,
for as long as one reader waits.  Each such fetch of a stream delays the next one, all its readers' fetches being
shared: the first few are free, then the pause doubles.  An answer with few bytes is progress, and lawful where messages
are small: such answers are bounded by their rate alone.  Bytes in a usual number, or an answer that reaches the tail,
end either pause.
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
"""Such answers a second that a stream's fetches may bring, after the first `LITTLE_BURST`."""
LITTLE_BURST: Final = 256
"""Such answers at once that delay nothing."""
_FREE: Final = 8
"""Empty answers in a row that delay nothing."""
_FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0
_FORGET_S: Final = 10.0
"""After so long without a fetch the next one is the first."""
_MOST_STREAMS: Final = 4_096
"""Streams that are paced at once; the oldest are forgotten."""


@dataclass(slots=True)
class _Walk:
    empty: int = 0
    """Empty answers in a row."""
    little: float = 0.0
    """The level of a bucket of answers with little in them, or nothing, that leaks `LITTLE_PER_S`."""
    at: float = 0.0
    """When the latest of them ended (monotonic seconds)."""
    pause_s: float = 0.0
    """How long after that the next fetch may be sent."""


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
        """A fetch of the stream has brought `size` bytes."""
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

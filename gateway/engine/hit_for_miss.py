"""Hit-for-miss: remembers requests whose answers may not be shared, so that readers do not queue for one answer.

One such reply stops the sharing of that shape of request: one offset, read live or not.  If an origin answers
`MOST_SHAPES` shapes of one stream like that, all live or all other reads of it are relayed at once.  Both memories are
bounded in time and number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from cachetools import TTLCache

from gateway.protocol.stream_key import StreamKey

MOST_SHAPES = 4
"""Shapes of a stream's live, or other, reads that must prove unshareable before all of that kind are relayed."""
_REMEMBERED = 10_000


class Shape(NamedTuple):
    """What in a read's request, besides its stream, determines the origin's answer."""

    is_live: bool
    start: str | None
    """The offset; None for every offset."""


class Unshared:
    """Request shapes that may not be shared, each for `remember_s` after its latest proof.  Owner: a route.

    `now` gives monotonic seconds.
    """

    def __init__(self, remember_s: float, now: Callable[[], float]) -> None:
        self._reasons: TTLCache[tuple[StreamKey, Shape], str] = TTLCache(_REMEMBERED, max(remember_s, 1e-9), timer=now)
        self._counts: TTLCache[tuple[StreamKey, bool], int] = TTLCache(_REMEMBERED, max(remember_s, 1e-9), timer=now)

    def __len__(self) -> int:
        return len(self._reasons)

    def __repr__(self) -> str:
        return f"<Unshared {len(self)} shapes>"

    def add(self, key: StreamKey, shape: Shape, reason: str) -> None:
        """Remember that the origin's answer to such a request may not be shared."""
        if (key, shape) not in self._reasons:
            count = self._counts.get((key, shape.is_live), 0) + 1
            self._counts[key, shape.is_live] = count
            if count >= MOST_SHAPES:
                self._reasons[key, Shape(shape.is_live, None)] = reason
        self._reasons[key, shape] = reason

    def reason(self, key: StreamKey, shape: Shape) -> str | None:
        """Why such a request may not be shared; None if it may."""
        if not self._reasons:
            return None
        return self._reasons.get((key, shape)) or self._reasons.get((key, Shape(shape.is_live, None)))

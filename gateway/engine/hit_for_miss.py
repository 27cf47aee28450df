"""Hit-for-miss: requests whose answers proved not to be for sharing, so that readers of such do not queue for one.

One odd reply stops the sharing of that one shape of request: one offset, read live or not.  An origin that answers
`MOST_SHAPES` different ones of a stream like that means all reads of the kind; then they are relayed without a try.
Both are remembered for a bounded time and number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from cachetools import TTLCache

from gateway.protocol.stream_key import StreamKey

MOST_SHAPES = 4
"""Shapes of one stream's reads, live or not, that may prove unshareable before all of them are taken for such."""
_REMEMBERED = 10_000


class Shape(NamedTuple):
    """What of a read's request shapes the origin's answer, beside its stream."""

    is_live: bool
    start: str | None
    """The offset; None for every one."""


class Unshared:
    """Shapes of requests that are not to be shared, each for `remember_s` from its latest proof.  One owner: a route.

    `now` gives monotonic seconds.
    """

    def __init__(self, remember_s: float, now: Callable[[], float]) -> None:
        self._reasons: TTLCache[tuple[StreamKey, Shape], str] = TTLCache(_REMEMBERED, max(remember_s, 1e-9), timer=now)
        self._counts: TTLCache[tuple[StreamKey, bool], int] = TTLCache(_REMEMBERED, max(remember_s, 1e-9), timer=now)

    def __len__(self) -> int:
        return len(self._reasons)

    def add(self, key: StreamKey, shape: Shape, reason: str) -> None:
        """The origin's answer to such a request is not for sharing."""
        if (key, shape) not in self._reasons:
            count = self._counts.get((key, shape.is_live), 0) + 1
            self._counts[key, shape.is_live] = count
            if count >= MOST_SHAPES:
                self._reasons[key, Shape(shape.is_live, None)] = reason
        self._reasons[key, shape] = reason

    def reason(self, key: StreamKey, shape: Shape) -> str | None:
        """Why such a request is not to be shared; None where it may be."""
        if not self._reasons:
            return None
        return self._reasons.get((key, shape)) or self._reasons.get((key, Shape(shape.is_live, None)))

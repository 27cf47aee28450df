"""Offsets beyond a stream's tail: an origin answers a read from one with the tail, as long as the tail is before it."""

from __future__ import annotations

from typing import Final

from gateway.protocol.offsets import is_before

MAX_BEYOND: Final = 16
"""The most offsets beyond the tail that are remembered for one stream."""


class OffsetsBeyond(dict[str, None]):
    """Offsets that the origin treats as beyond its tail, until the tail passes them; oldest first, at most
    `MAX_BEYOND`."""

    __slots__ = ()

    def record(self, offset: str) -> None:
        """The origin treats `offset` as beyond its tail."""
        self[offset] = None
        if len(self) > MAX_BEYOND:
            del self[next(iter(self))]

    def passed(self, tail: str) -> None:
        """The tail has moved to `tail`: forget the offsets that are not beyond it any more."""
        for offset in [offset for offset in self if not is_before(tail, offset)]:
            del self[offset]

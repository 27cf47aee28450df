"""What the origin has said of where a stream's tail is."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from gateway.protocol.offsets import is_before
from gateway.protocol.stream_version import Version


class Sighting(NamedTuple):
    """The origin's statement of where the stream's tail is, and how long it may be repeated (monotonic seconds).

    Until `fresh_until` an answer may claim to end at the tail.  Until `stale_until` the bytes up to it may be sent
    without that claim, while the origin is asked again (RFC 5861 §3).
    """

    at: str
    seen_at: float
    """When the request that reported it was sent, or when the live request was last heard from."""
    fresh_until: float
    stale_until: float = -math.inf


class FirstTail(NamedTuple):
    """The tail that the origin has named to a live read before it began."""

    at: str
    version: Version
    """The stream's version when the origin was asked."""


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

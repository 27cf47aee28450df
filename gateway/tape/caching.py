"""An origin's Cache-Control, as it applies to a stream's bytes (RFC 9111).

A reply that reaches the tail states the tail as well as bytes.  Its `no-cache` is for the tail, which changes: origins
say so on every such reply.  Its lifetime and `must-revalidate` are for the bytes as well, unless a reply that stops
short of the tail has stated its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gateway.protocol.freshness import Reuse


@dataclass(slots=True, eq=False)
class Caching:
    """The directives of the latest replies to reads of one stream.  Owner: the `Stream`."""

    cache_control: str | None = None
    """The Cache-Control of replies that stop short of the tail; None if they have none."""
    fresh_s: float = math.inf
    """How long bytes may be reused (section 4.2.1); inf if no reply says."""
    must_revalidate: bool = False
    """Whether they must not be reused once that has passed, even while the origin fails (section 5.2.2.2)."""
    is_of_bytes: bool = False
    """Whether these two are from a reply that stops short of the tail."""
    is_verbatim: bool = False
    """Whether the bytes must not be coded (`no-transform`, section 5.2.2.6)."""

    def record(self, cache_control: str | None, reuse: Reuse, *, up_to_date: bool) -> None:
        """Record the Cache-Control of a reply, and what it says of bytes.  The reply reaches the tail or stops short of
        it."""
        self.is_verbatim = reuse.is_verbatim
        if not up_to_date:
            self.cache_control = cache_control
            self.is_of_bytes = True
        elif self.is_of_bytes:
            return
        lifetime_s = reuse.lifetime_s
        if not up_to_date:
            self.fresh_s = lifetime_s
        else:
            # None at all is the same as `no-cache`.  Until `stale-while-revalidate` has passed, a request for the tail
            # is in the background, and so must not wait for the bytes either.
            self.fresh_s = lifetime_s + reuse.stale_s if lifetime_s else math.inf
        self.must_revalidate = reuse.forbids_stale and not (up_to_date and not lifetime_s)

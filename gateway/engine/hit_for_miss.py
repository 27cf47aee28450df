"""Hit-for-miss: remembers which reads have answers that must not be shared, so that such a read is relayed at once and
does not wait for a shared fetch.

`Unshared` remembers request shapes.  The shape of a GET is its offset and the kind of read (live or not).  All HEADs
have one shape.  After one unshareable reply, requests of that shape are relayed at once.  After `MOST_SHAPES`
unshareable shapes of live reads of one stream, all live reads of this stream are relayed.  The same rule applies to the
stream's other reads, which are counted separately.  If the reply to the gateway's own live request must not be shared,
all live reads of the stream are relayed.

`DeniedOrigins` remembers web origins (the Origin header, CORS) that may not read a path.  The origin would never send
its permission (Access-Control-Allow-Origin) to such a web origin.  Reads from it can therefore share the replies to
requests without an Origin header.  Only the reply to a relayed read with the web origin's Origin header proves a
denial, because shared fetches have no Origin header.

Both memories are bounded in time and size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from cachetools import TTLCache

from gateway.protocol.sharing import Group, StreamKey
from gateway.tape.costs import key_cost, texts_cost
from gateway.upstream.flight import METADATA

MOST_SHAPES = 4
"""If this many shapes of live reads of a stream prove unshareable, all its live reads are relayed.  The same number
applies to its other reads."""
_MOST_BYTES: Final = 1 << 23
"""The size limit of each of the two caches of `Unshared`.  Clients choose the length of names and queries."""


class Shape(NamedTuple):
    """The parts of a read, other than its stream, on which the origin's answer depends."""

    is_live: bool
    start: str | None
    """The offset, or `METADATA` for a HEAD; None means every offset."""


HEAD: Final = Shape(False, METADATA)
"""The shape of a HEAD."""
ANY_LIVE: Final = Shape(True, None)
"""The shape of every live read."""


class _Reason(NamedTuple):
    text: str
    cost: int
    """Size charged for the entry, in bytes."""


class _Count(NamedTuple):
    shapes: int
    cost: int
    """Size charged for the entry, in bytes."""


def _cost(entry: _Reason | _Count) -> int:
    return entry.cost


class Unshared:
    """Request shapes whose answers must not be shared.  Each shape is kept for `remember_s` seconds after its latest
    unshareable reply.

    Each route owns one object of this class.  `now` returns monotonic seconds.
    """

    def __init__(self, remember_s: float, now: Callable[[], float]) -> None:
        remember_s = max(remember_s, 1e-9)
        self._reasons: TTLCache[tuple[StreamKey, Shape], _Reason] = TTLCache(_MOST_BYTES, remember_s, now, _cost)
        self._counts: TTLCache[tuple[StreamKey, bool], _Count] = TTLCache(_MOST_BYTES, remember_s, now, _cost)
        self.may_have_any = False
        """False while the cache is empty.  Every read checks this first, because the check is fast."""

    def __len__(self) -> int:
        return len(self._reasons)

    def __repr__(self) -> str:
        return f"<Unshared {len(self)} shapes>"

    def remember(self, key: StreamKey, shape: Shape, reason: str) -> None:
        """Record that the origin's answer to a request of this shape must not be shared."""
        entry = _Reason(reason, key_cost(key) + texts_cost([shape.start, reason]))
        if (key, shape) not in self._reasons and shape not in (HEAD, ANY_LIVE):
            known = self._counts.get((key, shape.is_live))
            count = 1 if known is None else known.shapes + 1
            self._counts[key, shape.is_live] = _Count(count, key_cost(key))
            if count >= MOST_SHAPES:
                self._reasons[key, Shape(shape.is_live, None)] = entry
        self._reasons[key, shape] = entry
        self.may_have_any = True

    def reason(self, key: StreamKey, shape: Shape) -> str | None:
        """Return why the answer to a request of this shape must not be shared; None if the answer may be shared."""
        if not self.may_have_any:
            return None
        if not self._reasons:
            self.may_have_any = False
            return None
        entry = self._reasons.get((key, shape)) or self._reasons.get((key, Shape(shape.is_live, None)))
        return entry.text if entry is not None else None


_MOST_DENIED_BYTES: Final = 1 << 20
"""The size limit of `DeniedOrigins`.  Clients can invent web origins of any length."""


class DeniedOrigins:
    """Pairs of a path and a web origin that may not read the path.  A pair is kept for `remember_s` seconds after the
    latest proof of the denial.

    Each route owns one object of this class.  `now` returns monotonic seconds.
    """

    def __init__(self, remember_s: float, now: Callable[[], float]) -> None:
        self._costs: TTLCache[tuple[Group, str], int] = TTLCache(_MOST_DENIED_BYTES, max(remember_s, 1e-9), now, int)

    def __len__(self) -> int:
        return len(self._costs)

    def __repr__(self) -> str:
        return f"<DeniedOrigins {len(self)} pairs>"

    def has(self, group: Group, web_origin: str) -> bool:
        """Return whether the origin is known to deny this web origin."""
        return (group, web_origin) in self._costs

    def remember(self, group: Group, web_origin: str) -> None:
        """Record that the origin denies this web origin."""
        cost = texts_cost([*group, web_origin])
        if cost <= _MOST_DENIED_BYTES:
            self._costs[group, web_origin] = cost

    def discard(self, group: Group, web_origin: str) -> None:
        """Remove the record of a denial, because the origin allows this web origin."""
        self._costs.pop((group, web_origin), None)

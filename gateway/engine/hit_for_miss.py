"""Hit-for-miss: remembers requests whose answers may not be shared, so that readers do not queue for one answer.

One such reply stops the sharing of that shape of request: one offset, read live or not, or HEAD.  If an origin answers
`MOST_SHAPES` shapes of one stream like that, all live or all other reads of it are relayed at once.  Such an answer to
the stream's live request stops the sharing of all its live reads, also when the topic is over.  Both memories are
bounded in time and number.

Web origins that an origin does not allow to read a stream are remembered too: their reads share as those without an
Origin header do.  A shared reply without Access-Control-Allow-Origin does not show that, because its request had no
Origin header.  The reply to a relayed read with that header does, for that web origin and that path: servers may set
CORS up by path.  The memory is bounded in time and number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from cachetools import TTLCache

from gateway.protocol.sharing import Group, StreamKey
from gateway.tape.costs import key_cost, texts_cost
from gateway.upstream.flight import METADATA

MOST_SHAPES = 4
"""Shapes of a stream's live, or other, reads that must prove unshareable before all of that kind are relayed."""
_MOST_BYTES: Final = 1 << 23
"""Each of the two memories is charged at most this much: names and queries are as long as clients make them."""


class Shape(NamedTuple):
    """The parts of a read's request, besides its stream, that determine the origin's answer."""

    is_live: bool
    start: str | None
    """The offset, or `METADATA` for a HEAD; None for every offset."""


HEAD: Final = Shape(False, METADATA)
"""The shape of a HEAD."""
ANY_LIVE: Final = Shape(True, None)
"""The shape of every live read."""


class _Reason(NamedTuple):
    text: str
    cost: int
    """Bytes charged for the entry."""


class _Count(NamedTuple):
    shapes: int
    cost: int
    """Bytes charged for the entry."""


def _cost(entry: _Reason | _Count) -> int:
    return entry.cost


class Unshared:
    """Request shapes that may not be shared, each for `remember_s` after its latest proof.  Owner: a route.

    `now` gives monotonic seconds.
    """

    def __init__(self, remember_s: float, now: Callable[[], float]) -> None:
        remember_s = max(remember_s, 1e-9)
        self._reasons: TTLCache[tuple[StreamKey, Shape], _Reason] = TTLCache(_MOST_BYTES, remember_s, now, _cost)
        self._counts: TTLCache[tuple[StreamKey, bool], _Count] = TTLCache(_MOST_BYTES, remember_s, now, _cost)
        self.may_have_any = False
        """False while nothing is remembered, which is most of the time and is asked for every read."""

    def __len__(self) -> int:
        return len(self._reasons)

    def __repr__(self) -> str:
        return f"<Unshared {len(self)} shapes>"

    def remember(self, key: StreamKey, shape: Shape, reason: str) -> None:
        """Remember that the origin's answer to such a request may not be shared."""
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
        """Why such a request may not be shared; None if it may."""
        if not self.may_have_any:
            return None
        if not self._reasons:
            self.may_have_any = False
            return None
        entry = self._reasons.get((key, shape)) or self._reasons.get((key, Shape(shape.is_live, None)))
        return entry.text if entry is not None else None


_MOST_DENIED_BYTES: Final = 1 << 20
"""The memory is charged at most this much: clients may invent web origins, and as long ones as they like."""


class DeniedOrigins:
    """Pairs of a path and a web origin that is not allowed there, each for `remember_s` after its latest proof.

    Owner: a route.  `now` gives monotonic seconds.
    """

    def __init__(self, remember_s: float, now: Callable[[], float]) -> None:
        self._costs: TTLCache[tuple[Group, str], int] = TTLCache(_MOST_DENIED_BYTES, max(remember_s, 1e-9), now, int)

    def __len__(self) -> int:
        return len(self._costs)

    def __repr__(self) -> str:
        return f"<DeniedOrigins {len(self)} pairs>"

    def has(self, group: Group, web_origin: str) -> bool:
        """Whether the origin is known not to allow this web origin."""
        return (group, web_origin) in self._costs

    def remember(self, group: Group, web_origin: str) -> None:
        """Remember that the origin does not allow this web origin."""
        cost = texts_cost([*group, web_origin])
        if cost <= _MOST_DENIED_BYTES:
            self._costs[group, web_origin] = cost

    def discard(self, group: Group, web_origin: str) -> None:
        """Forget it: the origin allows this web origin."""
        self._costs.pop((group, web_origin), None)

"""Web origins that an origin does not allow to read a stream: their reads share as those without an Origin header do.

A shared reply without Access-Control-Allow-Origin does not show that, because its request had no Origin header.  The
reply to a relayed read with that header does, for that web origin and that path: servers may set CORS up by path.  The
memory is bounded in time and number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cachetools import TTLCache

from gateway.protocol.stream_key import Group
from gateway.tape.facts_cost import texts_cost

_MOST_BYTES: Final = 1 << 20
"""The memory is charged at most this much: clients may invent web origins, and as long ones as they like."""


class DeniedOrigins:
    """Pairs of a path and a web origin that is not allowed there, each for `remember_s` after its latest proof.

    Owner: a route.  `now` gives monotonic seconds.
    """

    def __init__(self, remember_s: float, now: Callable[[], float]) -> None:
        self._costs: TTLCache[tuple[Group, str], int] = TTLCache(_MOST_BYTES, max(remember_s, 1e-9), now, int)

    def __len__(self) -> int:
        return len(self._costs)

    def __repr__(self) -> str:
        return f"<DeniedOrigins {len(self)} pairs>"

    def has(self, group: Group, web_origin: str) -> bool:
        """Whether the origin is known not to allow this web origin."""
        return (group, web_origin) in self._costs

    def add(self, group: Group, web_origin: str) -> None:
        """Remember that the origin does not allow this web origin."""
        cost = texts_cost([*group, web_origin])
        if cost <= _MOST_BYTES:
            self._costs[group, web_origin] = cost

    def discard(self, group: Group, web_origin: str) -> None:
        """Forget it: the origin allows this web origin."""
        self._costs.pop((group, web_origin), None)

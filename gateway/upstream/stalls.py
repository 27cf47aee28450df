"""Replies that their readers do not take: they give their slots back when other requests wait for one.

A reply is read no faster than its readers take it, so slow readers of large bodies hold connections to the origin.
Nothing is wrong with that as long as there are others.  When a request waits for a slot, the slowest of these replies
are asked to give theirs back: a shared fetch reads on into memory as far as the cache has room for it, and otherwise,
as any relayed reply, it is dropped together with its readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from gateway.upstream.slots import Lane

PATIENCE_S: Final = 1.0
"""A reply is not asked before this time has passed since its head."""
MOST_AT_ONCE: Final = 32
"""The most replies that are asked at a time."""


class Stallable(Protocol):
    """A reply that may stall."""

    is_stalled: bool
    """Whether its reader takes no more for now."""
    lane: Lane | None
    """The lane whose slot it holds; None if it holds none."""
    on_reclaim: Callable[[], object]
    """Called when it is to give its slot back."""

    def rate(self, now: float) -> float:
        """Bytes a second that its reader has taken since the head; infinite if the head has just come."""


class Stalls:
    """The replies of one pool that have stalled and are not closed."""

    def __init__(self) -> None:
        self._replies: dict[Stallable, None] = {}

    def __repr__(self) -> str:
        return f"<Stalls {len(self._replies)} replies>"

    def __len__(self) -> int:
        return len(self._replies)

    def add(self, reply: Stallable) -> None:
        """The reply has stalled; `discard` must follow."""
        self._replies[reply] = None

    def discard(self, reply: Stallable) -> None:
        """The reply is closed."""
        self._replies.pop(reply, None)

    def reclaim(self, blocked: Iterable[Lane], now: float) -> int:
        """Ask the slowest stalled replies for as many slots as requests wait for in lanes that have none left; returns
        how many were asked."""
        asked = 0
        slowest: list[tuple[float, int, Stallable]] = []
        for lane in blocked:
            if not slowest:
                found = enumerate(reply for reply in self._replies if reply.is_stalled and reply.lane is not None)
                slowest = sorted((reply.rate(now), number, reply) for number, reply in found)
            used_up = {share for share in lane.shares if share.taken >= share.limit}
            wanted = lane.waiting
            for rate, _, reply in slowest:
                if not wanted or asked >= MOST_AT_ONCE or rate == float("inf"):
                    break
                if reply.is_stalled and reply.lane is not None and not used_up.isdisjoint(reply.lane.shares):
                    reply.is_stalled = False
                    reply.on_reclaim()
                    wanted -= 1
                    asked += 1
        return asked

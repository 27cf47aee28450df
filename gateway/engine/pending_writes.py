"""Pending writes: those that the origin may do at any moment.

A write is pending from when it is sent until it is answered.  A PUT or DELETE that has no answer may have been done, or
may still be done, so it stays pending for `UNANSWERED_S`, or until a write is acknowledged after which nothing is held
that could be of an earlier stream.  Writes belong to the path, and not to the records of its streams: a record that is
begun later is in the same doubt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from cachetools import TTLCache

from gateway.engine.relayed_request import SentRequest
from gateway.protocol.mode import Mode
from gateway.protocol.stream_key import Group
from gateway.tape.facts_cost import texts_cost

UNANSWERED_S: Final = 600.0
"""An origin that has not answered a write has done it by then, or never does it."""
_MOST_BYTES: Final = 1 << 20
"""What is remembered of them is charged at most this much: paths are as long as clients make them."""


class _Unanswered(NamedTuple):
    modes: frozenset[Mode] = frozenset()
    """PUT, DELETE or both."""
    cost: int = 0
    """Bytes charged for the entry."""


class PendingWrites:
    """The writes of each path that the origin may do at any moment.  `now` gives monotonic seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._under_way: dict[Group, set[SentRequest]] = {}
        """Writes that have been sent and not answered."""
        self._unanswered: TTLCache[Group, _Unanswered] = TTLCache(
            _MOST_BYTES, UNANSWERED_S, timer=now, getsizeof=lambda unanswered: unanswered.cost
        )

    def __len__(self) -> int:
        """How many are under way."""
        return sum(map(len, self._under_way.values()))

    def __repr__(self) -> str:
        return f"<PendingWrites {len(self)} under way, {len(self._unanswered)} paths unanswered>"

    def begin(self, write: SentRequest) -> None:
        """A write is about to be sent; `end` must follow."""
        self._under_way.setdefault(write.request.group, set()).add(write)

    def end(self, write: SentRequest) -> None:
        """The write was answered, or will never be."""
        group = write.request.group
        writes = self._under_way[group]
        writes.discard(write)
        if not writes:
            del self._under_way[group]

    def remember(self, write: SentRequest) -> None:
        """A PUT or DELETE has no answer."""
        group = write.request.group
        modes = self._unanswered.get(group, _Unanswered()).modes | {write.request.mode}
        self._unanswered[group] = _Unanswered(modes, texts_cost(group))

    def settle(self, group: Group) -> None:
        """What had no answer does not matter any more: nothing is held of the path's earlier streams."""
        self._unanswered.pop(group, None)

    def overtake(self, group: Group) -> None:
        """A write may have ended the path's stream: the others may be answered for that one or for the next."""
        for write in self._under_way.get(group, ()):
            write.is_overtaken = True

    def may_be_deleted(self, group: Group) -> bool:
        """Whether a DELETE of the path is pending."""
        return Mode.DELETE in self._modes(group)

    def beside(self, write: SentRequest) -> frozenset[Mode]:
        """The modes of the pending writes to the path, without this one."""
        return self._modes(write.request.group, write)

    def _modes(self, group: Group, write: SentRequest | None = None) -> frozenset[Mode]:
        under_way = {other.request.mode for other in self._under_way.get(group, ()) if other is not write}
        return self._unanswered.get(group, _Unanswered()).modes | under_way

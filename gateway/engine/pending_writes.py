"""Pending writes: those that the origin may do at any moment.

A write is pending from when it is sent until it is answered.  One that may create or delete the stream and had no
answer may have been done, or may still be done: it stays pending until a write is acknowledged after which nothing is
held that could be of an earlier stream.  Writes belong to the path, and not to the records of its streams, so a record
that is begun later is in the same doubt.

While one that deletes and one that creates are pending, the origin may have made the stream anew at any offset, and no
answer needs to tell.  A DELETE alone leaves no stream that could be taken for the one before, and a PUT alone finds the
stream there: anyone can send one of them, slowly, and what readers hold stays.
"""

from __future__ import annotations

from typing import Final

from gateway.engine.relayed_request import APPENDS, DELETES, NO_CHANGE, Change, SentRequest
from gateway.protocol.sharing import Group
from gateway.tape.facts_cost import texts_cost

_MOST_BYTES: Final = 1 << 20
"""What is remembered of unanswered writes is charged at most this much: paths are as long as clients make them."""
_ENTRY_COST: Final = 300
"""Bytes charged per path in addition to its texts: a tuple and an entry."""


class PendingWrites:
    """The writes of each path that the origin may do at any moment."""

    def __init__(self) -> None:
        self._under_way: dict[Group, set[SentRequest]] = {}
        """Writes that have been sent and not answered."""
        self._changes: dict[Group, dict[Change, int]] = {}
        """How many of them may do what; an append that can do neither is not counted."""
        self._unanswered: dict[Group, Change] = {}
        """What writes that had no answer may have done, the latest last."""
        self._cost = 0
        self.epoch = 0
        """Counts starts and ends of writes of all paths: an answer that spans one of them may predate the write."""

    def __len__(self) -> int:
        """How many are under way."""
        return sum(map(len, self._under_way.values()))

    def __repr__(self) -> str:
        return f"<PendingWrites {len(self)} under way, {len(self._unanswered)} paths unanswered>"

    def begin(self, write: SentRequest) -> None:
        """A write is about to be sent; `end` must follow."""
        self.epoch += 1
        group, change = write.request.group, write.change
        writes = self._under_way.get(group)
        if writes is None:
            self._under_way[group] = {write}
        else:
            writes.add(write)
        if change:
            counts = self._changes.setdefault(group, {})
            counts[change] = counts.get(change, 0) + 1

    def end(self, write: SentRequest) -> None:
        """The write was answered, or will never be."""
        self.epoch += 1
        group = write.request.group
        writes = self._under_way[group]
        writes.discard(write)
        if not writes:
            del self._under_way[group]
        if write.change:
            counts = self._changes[group]
            counts[write.change] -= 1
            if not counts[write.change]:
                del counts[write.change]
                if not counts:
                    del self._changes[group]

    def is_under_way(self, group: Group) -> bool:
        """Whether a write to the path is under way: what the origin refuses, it may take at any moment."""
        return group in self._under_way

    def remember(self, write: SentRequest) -> list[Group]:
        """A write that may create or delete the stream has no answer.

        Returns the paths whose unanswered writes are forgotten for it, because too many are remembered: their streams
        are to be doubted.
        """
        group = write.request.group
        change = self._unanswered.get(group, NO_CHANGE) | write.change
        self.settle(group)
        self._unanswered[group] = change
        self._cost += _cost(group)
        displaced = []
        while self._cost > _MOST_BYTES:
            oldest, change = next(iter(self._unanswered.items()))
            self.settle(oldest)
            # While an origin fails, appends to many streams do, and hardly ever is one of these deleted meanwhile.
            if change != APPENDS or self.change(oldest) & DELETES:
                displaced.append(oldest)
        return displaced

    def settle(self, group: Group) -> None:
        """What had no answer does not matter any more: nothing is held of the path's earlier streams."""
        if self._unanswered.pop(group, None) is not None:
            self._cost -= _cost(group)

    def overtake(self, group: Group) -> None:
        """A write may have ended the path's stream: the others may be answered for that one or for the next."""
        for write in self._under_way.get(group, ()):
            write.is_overtaken = True

    def change(self, group: Group, *, beside: SentRequest | None = None) -> Change:
        """The changes that the path's pending writes, except `beside`, may make or have made."""
        change = self._unanswered.get(group, NO_CHANGE)
        if not self._changes:
            return change
        # Not write by write: as many may be under way as clients send.
        for other, count in self._changes.get(group, {}).items():
            if count > (beside is not None and beside.change == other):
                change |= other
        return change


def _cost(group: Group) -> int:
    return _ENTRY_COST + texts_cost(group)

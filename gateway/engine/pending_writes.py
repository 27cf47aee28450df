"""Pending writes: writes that the origin may execute at any moment, and their effect on answers from memory.

A write is *pending* while the origin may still execute it.  This is the time from its sending to its answer.  If a
write that may create or delete the stream gets no answer, it stays pending, because the origin may have executed it or
may execute it later.  Such a write is pending until a later write is acknowledged and the gateway has dropped all bytes
that may belong to an earlier stream.  Pending writes are recorded by path and not by stream record, so that they also
concern records that are created later.

While a write to a path is under way, reads of the path are answered from memory as usual, but no remembered 404 or 410
is sent (`gateway.engine.negative_cache`).  When the write ends, `gateway.engine.writes` changes the versions of the
path's streams.  These versions determine how `gateway.tape.decide` answers later reads.

While a DELETE and a creating write are both pending, the origin may re-create the stream without any reply that shows
the re-creation.  While only one of these kinds is pending, the stream cannot be re-created: after a DELETE there is no
stream, and a PUT finds the existing stream.  If a client sends many slow writes of one kind, the gateway therefore
drops no bytes.
"""

from __future__ import annotations

from typing import Final

from gateway.engine.relayed_request import APPENDS, DELETES, NO_CHANGE, Change, SentRequest
from gateway.protocol.sharing import Group
from gateway.tape.costs import texts_cost

_MOST_BYTES: Final = 1 << 20
"""The size limit of the record of unanswered writes.  It is in bytes, because clients choose the length of paths."""
_ENTRY_COST: Final = 300
"""The size in bytes that is charged for each path in addition to its strings: a tuple and a dictionary entry."""


def may_remake(change: Change) -> bool:
    """Return whether writes with this combined effect may delete the stream and create it again."""
    return bool(change & DELETES) and change != DELETES


class PendingWrites:
    """The pending writes of each path: the writes that the origin may execute at any moment."""

    def __init__(self) -> None:
        self._under_way: dict[Group, set[SentRequest]] = {}
        """Writes that have been sent and not answered yet."""
        self._changes: dict[Group, dict[Change, int]] = {}
        """The number of writes in `_under_way` with each effect.  Writes without effect are not counted."""
        self._unanswered: dict[Group, Change] = {}
        """The combined effects of each path's unanswered writes, latest path last."""
        self._cost = 0
        self.epoch = 0
        """The number of starts and ends of writes to all paths.  If this number changes during a request, the reply may
        be older than a write."""

    def __len__(self) -> int:
        """The number of writes under way."""
        return sum(map(len, self._under_way.values()))

    def __repr__(self) -> str:
        return f"<PendingWrites {len(self)} under way, {len(self._unanswered)} paths unanswered>"

    def add_write(self, write: SentRequest) -> None:
        """Record that a write is about to be sent; `remove_write` must follow."""
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

    def remove_write(self, write: SentRequest) -> None:
        """Record that a write has been answered, or will never be answered."""
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
        """Return whether a write to the path is under way.  During this time, a remembered refusal of the origin may
        become wrong at any moment."""
        return group in self._under_way

    def remember(self, write: SentRequest) -> list[Group]:
        """Record that a write that may create or delete the stream has got no answer.

        If the record of unanswered writes is full, other paths are removed from it.  Returns the removed paths whose
        streams may have been re-created.  The caller must assume that they were.
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
            # A failing origin leaves many appends unanswered.  A stream whose pending writes are only appends cannot
            # have been deleted, so its path is left out of the result.
            if change != APPENDS or self.change(oldest) & DELETES:
                displaced.append(oldest)
        return displaced

    def settle(self, group: Group) -> None:
        """Remove the path's unanswered writes, because no bytes of its earlier streams are kept."""
        if self._unanswered.pop(group, None) is not None:
            self._cost -= _cost(group)

    def overtake(self, group: Group) -> None:
        """Mark all writes under way to the path as overtaken, because another write may have ended the stream to which
        they were sent."""
        for write in self._under_way.get(group, ()):
            write.is_overtaken = True

    def change(self, group: Group, *, beside: SentRequest | None = None) -> Change:
        """Return the combined effects of the path's pending writes other than `beside`."""
        change = self._unanswered.get(group, NO_CHANGE)
        if not self._changes:
            return change
        # Use the counts, because a loop over the writes might be long: clients may have any number of writes under way.
        for other, count in self._changes.get(group, {}).items():
            if count > (beside is not None and beside.change == other):
                change |= other
        return change


def _cost(group: Group) -> int:
    return _ENTRY_COST + texts_cost(group)

"""How a member of a fleet learns of the writes that other members relay.

A client's next read reaches the same member as its write did.  That member may ask another one, the owner of the
stream.  The members share no memory, so each member counts the writes that it relays, and sends the count for the
path's cell with each request to an owner (`gateway.protocol.fleet_headers`).  A write is counted before a byte of its
answer leaves.  All workers of a member count together, because the worker that asks need not be the one that has
relayed the write.

The owner keeps the count that it saw last, for each path and member.  If the next count is greater, the owner asks the
origin before it answers.  If one of the new writes was acknowledged, the bytes in its memory may lack this write, and
are not sent even if the origin fails.  Paths with equal hashes share a cell, so some counted writes may concern other
paths.  The question to the origin is then needless.

An earlier process of the same member may have relayed any writes without a request to this owner.  All of these were
acknowledged before the owner first heard of the later process.  So at the first request of each process for a path, the
owner drops the bytes that it has held since before that time, because the stream may have been made again.  If it has
met the earlier process, that one may still be ending.  The owner then asks the origin before it answers, even if it
holds only later bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from sys import intern
from typing import Final, Protocol

from gateway.engine.fleet_processes import Met
from gateway.engine.relayed_request import NO_CHANGE, SentRequest
from gateway.protocol.fleet_headers import ACKNOWLEDGED, MemberField, WriteCount
from gateway.protocol.mode import Mode
from gateway.protocol.sharing import Group
from gateway.upstream.reply import Reply
from gateway.workers.member_owners import MemberOwners
from gateway.workers.write_counts import WriteCounts

_MOST_KNOWN: Final = 1 << 14
"""The most counts of other members that an owner remembers, of some 300 bytes each."""
_MOST_CELLS: Final = 1 << 10
"""The most paths whose cells are remembered.  Paths may be long."""
_NONE: Final = WriteCount()


class CountedWrites:
    """The counts of the writes that this member relays."""

    def __init__(self, owners: MemberOwners, counts: WriteCounts | None = None) -> None:
        """`counts` are those of all workers; None if this process has no other workers."""
        self._counts = counts or WriteCounts()
        self.index_of: Final = lru_cache(_MOST_CELLS)(lambda group: owners.cell_of(*group))
        """Returns the cell of a path."""

    def __repr__(self) -> str:
        return f"<CountedWrites {self._counts!r}>"

    def count(self, group: Group) -> WriteCount:
        """Return the present counts for the path."""
        return WriteCount(*self._counts.of(self.index_of(group)))

    def look(self, group: Group) -> None:
        """Do nothing: the requests of other members bring their counts."""

    def begun(self, write: SentRequest) -> None:
        """Do nothing: a write counts at its end."""

    def answered(self, write: SentRequest, reply: Reply) -> None:
        """Count a write whose answer has arrived, before a byte of the answer leaves."""
        if reply.status >= 500:
            self.unanswered(write, may_be_done=not write.is_cut_short)
        elif reply.status < 300:
            is_append = write.request.mode is Mode.APPEND or (write.request.mode is Mode.CREATE and reply.status != 201)
            self._add(write, is_append=is_append and not write.is_overtaken, is_acknowledged=True)
        else:
            # A refused write changes nothing.  But a refusal may name the tail of a closed stream, and a DELETE that
            # finds no stream may be the repetition of one that was executed.
            self._add(write, is_append=write.change == NO_CHANGE or reply.status not in (404, 410))

    def unanswered(self, write: SentRequest, *, may_be_done: bool) -> None:
        """Count a write that has got no answer.  `may_be_done`: the origin may have executed it."""
        if may_be_done:
            self._add(write, is_append=write.request.mode is Mode.APPEND and write.change == NO_CHANGE)

    def _add(self, write: SentRequest, *, is_append: bool, is_acknowledged: bool = False) -> None:
        number = ACKNOWLEDGED if is_append and is_acknowledged else 1
        self._counts.add(self.index_of(write.request.group), is_append=is_append, number=number)


class RecordedWrites(Protocol):
    """Records the writes of this process for others, and applies the writes of others:
    `gateway.engine.others_writes.OthersWrites`, for example."""

    def look(self, group: Group) -> None: ...

    def begun(self, write: SentRequest) -> None: ...

    def answered(self, write: SentRequest, reply: Reply) -> None: ...

    def unanswered(self, write: SentRequest, *, may_be_done: bool) -> None: ...


class WritesOfWorker:
    """The writes of one worker of a member: counted for other members, and recorded for the other workers.

    A write is counted first.  So a worker that learns of it by the record asks the owner with the new count."""

    def __init__(self, counts: CountedWrites, others: RecordedWrites) -> None:
        self._counts = counts
        self._others = others
        self.look: Final = others.look
        """Applies the writes of other workers to a path."""
        self.begun: Final = others.begun
        """Records that a write is about to be sent."""

    def __repr__(self) -> str:
        return f"<WritesOfWorker {self._counts!r}, {self._others!r}>"

    def answered(self, write: SentRequest, reply: Reply) -> None:
        """Record a write whose answer has arrived, before a byte of the answer leaves."""
        self._counts.answered(write, reply)
        self._others.answered(write, reply)

    def unanswered(self, write: SentRequest, *, may_be_done: bool) -> None:
        """Record a write that has got no answer."""
        self._counts.unanswered(write, may_be_done=may_be_done)
        self._others.unanswered(write, may_be_done=may_be_done)


class ApplyingMemberWrites(Protocol):
    """Applies writes: `gateway.engine.writes.Writes`."""

    def apply_appends(self, group: Group, *, are_acknowledged: bool) -> None: ...

    def apply_anything(self, group: Group) -> None: ...

    def apply_earlier(self, group: Group, before: float) -> None: ...


class SeenWrites:
    """The counts that other members have sent, and their effects on this member's memory."""

    def __init__(self, applying: Callable[[], ApplyingMemberWrites], most: int = _MOST_KNOWN) -> None:
        """At most `most` counts are remembered."""
        self._applying = applying
        self._most = most
        self._seen: dict[bytes, tuple[str, WriteCount]] = {}
        """The process and its latest count, by a digest of member and path.  The latest entry is last."""

    def __repr__(self) -> str:
        return f"<SeenWrites {len(self._seen)} counts>"

    def look(self, sender: MemberField, group: Group, met: Met) -> None:
        """Apply the writes that the sender of a request has relayed to the path since its last request for it.

        `met` states how this member has met the sender's process.
        """
        name, instance, now = sender.name, sender.instance, sender.writes
        # Clients choose the paths, so keep no path.
        key = blake2b("\0".join((name, *group)).encode("utf-8", "surrogateescape"), digest_size=16).digest()
        entry = self._seen.pop(key, None)
        if entry is None and len(self._seen) >= self._most:
            del self._seen[next(iter(self._seen))]
        is_known = entry is not None and entry[0] == instance
        before = entry[1] if entry is not None and is_known else _NONE
        # A request may have been overtaken by a later one on another connection.
        latest = WriteCount(max(before.appends, now.appends), max(before.others, now.others))
        self._seen[key] = intern(instance), latest
        are_acknowledged = now.acknowledged > before.acknowledged
        if now.others > before.others:
            self._applying().apply_anything(group)
        elif not is_known:
            self._applying().apply_earlier(group, met.at)
            if now.appends or met.is_successor:
                self._applying().apply_appends(group, are_acknowledged=are_acknowledged or met.is_successor)
        elif now.appends > before.appends:
            self._applying().apply_appends(group, are_acknowledged=are_acknowledged)

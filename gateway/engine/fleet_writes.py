"""Informs the owner of a stream about the writes that other members of the fleet relay.

After a write, the client's next read reaches the same member.  If another member owns the stream, the first member asks
this owner.  The members share no memory.  Each member therefore counts the writes that it relays, and sends the count
for the path's cell with each request to an owner (`gateway.protocol.fleet_headers`).  A write is counted before a byte
of its answer is sent.  All workers of a member share one count, because the worker that asks the owner may be another
one than the worker that has relayed the write.

For each path and member, the owner remembers the latest count.  If the next count is greater, the owner asks the origin
before it answers.  If one of the new writes was acknowledged, the bytes in the owner's memory may lack this write, so
they are not sent even if the origin fails.  Paths with equal hashes share a cell.  If a counted write concerns another
path, the origin is asked needlessly, which does no harm.

The owner may have read a new append already.  To find out, it uses only its own clock.  Each member numbers its
acknowledged appends, and sends the greatest number with each request and each probe.  For each number, the owner
remembers the time at which it first received the number or a greater one (`HeardAppends`).  The append with this number
was acknowledged before that time.  If the owner has sent a request to the origin after that time, and the reply has
stated the stream's tail, then the append ends at this tail or before it.  Bytes up to this tail are then sent while the
origin fails.

When a member has started again, its earlier process may have relayed writes without a request to this owner.  All of
these writes were acknowledged before the owner's first contact with the later process, and one of them may have
re-created the stream.  At the first request of a process for a path, the owner therefore drops all bytes that were in
its memory before this first contact.  If the owner knows the earlier process, that process may still be ending.  The
owner then also asks the origin before it answers, even if it has only later bytes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from math import inf
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
"""The most counts of other members that an owner remembers.  Each takes about 300 bytes."""
_MOST_CELLS: Final = 1 << 10
"""The most paths whose cells are remembered.  The number is small, because paths may be long."""
_MOST_NUMBERS: Final = 64
"""The most numbers of appends of one process whose times an owner remembers."""
_MOST_HEARD: Final = 256
"""The most members whose numbers of appends an owner remembers."""
_NONE: Final = WriteCount()


class CountedWrites:
    """The counts of the writes that this member relays."""

    def __init__(self, owners: MemberOwners, counts: WriteCounts | None = None) -> None:
        """`counts` are the counts that all workers share; None if this process is the only worker."""
        self._counts = counts or WriteCounts()
        self.index_of: Final = lru_cache(_MOST_CELLS)(lambda group: owners.cell_of(*group))
        """Returns the cell of a path."""

    def __repr__(self) -> str:
        return f"<CountedWrites {self._counts!r}>"

    def count(self, group: Group) -> WriteCount:
        """Return the present counts for the path."""
        return WriteCount(*self._counts.of(self.index_of(group)))

    def appended(self) -> int:
        """Return the number of all acknowledged appends."""
        return self._counts.appended()

    def look(self, group: Group) -> None:
        """Do nothing: the requests of other members bring their counts."""

    def begun(self, write: SentRequest) -> None:
        """Do nothing: a write is counted at its end."""

    def answered(self, write: SentRequest, reply: Reply) -> None:
        """Count a write whose answer has arrived, before a byte of the answer is sent."""
        if reply.status >= 500:
            self.unanswered(write, may_be_done=not write.is_cut_short)
        elif reply.status < 300:
            is_append = write.request.mode is Mode.APPEND or (write.request.mode is Mode.CREATE and reply.status != 201)
            self._add(write, is_append=is_append and not write.is_overtaken, is_acknowledged=True)
        else:
            # A refused write changes nothing, but must be counted in two cases.  A refusal may state the tail of a
            # closed stream.  A DELETE that finds no stream may repeat an earlier DELETE that was executed.
            self._add(write, is_append=write.change == NO_CHANGE or reply.status not in (404, 410))

    def unanswered(self, write: SentRequest, *, may_be_done: bool) -> None:
        """Count a write that has got no answer.  `may_be_done` states whether the origin may have executed it."""
        if may_be_done:
            self._add(write, is_append=write.request.mode is Mode.APPEND and write.change == NO_CHANGE)

    def _add(self, write: SentRequest, *, is_append: bool, is_acknowledged: bool = False) -> None:
        index, number = self.index_of(write.request.group), 1
        if is_append and is_acknowledged:
            self._counts.number(index)
            number = ACKNOWLEDGED
        self._counts.add(index, is_append=is_append, number=number)


class RecordedWrites(Protocol):
    """Records the writes of this process for others, and applies the writes of others:
    `gateway.engine.others_writes.OthersWrites`, for example."""

    def look(self, group: Group) -> None: ...

    def begun(self, write: SentRequest) -> None: ...

    def answered(self, write: SentRequest, reply: Reply) -> None: ...

    def unanswered(self, write: SentRequest, *, may_be_done: bool) -> None: ...


class WritesOfWorker:
    """The writes of one worker of a member: counted for other members, and recorded for the other workers.

    A write is counted before it is recorded.  A worker that has read the record therefore asks the owner with the new
    count."""

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
        """Record a write whose answer has arrived, before a byte of the answer is sent."""
        self._counts.answered(write, reply)
        self._others.answered(write, reply)

    def unanswered(self, write: SentRequest, *, may_be_done: bool) -> None:
        """Record a write that has got no answer."""
        self._counts.unanswered(write, may_be_done=may_be_done)
        self._others.unanswered(write, may_be_done=may_be_done)


class ApplyingMemberWrites(Protocol):
    """Applies writes: `gateway.engine.writes.Writes`."""

    def apply_appends(self, group: Group, acknowledged_by: float | None) -> None: ...

    def apply_anything(self, group: Group) -> None: ...

    def apply_earlier(self, group: Group, before: float) -> None: ...


class HeardAppends:
    """The times at which this process first received the numbers of other members' acknowledged appends."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._heard: dict[str, tuple[str, list[tuple[int, float]]]] = {}
        """By the name of each member: its process, and growing numbers with the times of their first arrival (monotonic
        seconds).  The member heard of last comes last."""

    def __repr__(self) -> str:
        return f"<HeardAppends of {len(self._heard)} members>"

    def hear(self, sender: MemberField) -> None:
        """Record the number in a request."""
        if not sender.appended:
            return
        instance, numbers = self._heard.pop(sender.name, ("", []))
        if instance != sender.instance:
            instance, numbers = intern(sender.instance), []
        if not numbers or sender.appended > numbers[-1][0]:
            numbers.append((sender.appended, self._now()))
            if len(numbers) > _MOST_NUMBERS:
                # Drop every second number.  The time of the next greater number, which is later, also holds for it.
                del numbers[-2::-2]
        self._heard[sender.name] = instance, numbers
        if len(self._heard) > _MOST_HEARD:
            del self._heard[next(iter(self._heard))]

    def by(self, name: str, instance: str, number: int) -> float:
        """Return a time by which a member's process had seen the append with this number acknowledged (monotonic
        seconds).  It may be later than in truth, but not earlier."""
        heard = self._heard.get(name)
        if not number or heard is None or heard[0] != instance:
            return self._now()
        at = bisect_left(heard[1], (number, -inf))
        return heard[1][at][1] if at < len(heard[1]) else self._now()


class SeenWrites:
    """The counts that other members have sent, and their effects on this member's memory."""

    def __init__(
        self, applying: Callable[[], ApplyingMemberWrites], now: Callable[[], float], most: int = _MOST_KNOWN
    ) -> None:
        """At most `most` counts are remembered."""
        self._applying = applying
        self._heard = HeardAppends(now)
        self.hear: Final = self._heard.hear
        """Records the number of the latest acknowledged append of the sender of a request or of a probe."""
        self._most = most
        self._seen: dict[bytes, tuple[str, WriteCount]] = {}
        """The process and its latest count, by a digest of member and path.  The latest entry is last."""

    def __repr__(self) -> str:
        return f"<SeenWrites {len(self._seen)} counts>"

    def look(self, sender: MemberField, group: Group, met: Met) -> None:
        """Apply the writes that the sender of a request has relayed to the path since its last request for it.

        `met` is the first contact of this member with the sender's process.
        """
        name, instance, now = sender.name, sender.instance, sender.writes
        # Keep a digest instead of the path, because clients choose the length of paths.
        key = blake2b("\0".join((name, *group)).encode("utf-8", "surrogateescape"), digest_size=16).digest()
        entry = self._seen.pop(key, None)
        if entry is None and len(self._seen) >= self._most:
            del self._seen[next(iter(self._seen))]
        is_known = entry is not None and entry[0] == instance
        before = entry[1] if entry is not None and is_known else _NONE
        # A later request, with greater counts, may have arrived first on another connection.
        latest = WriteCount(max(before.appends, now.appends), max(before.others, now.others))
        self._seen[key] = intern(instance), latest
        by = self._heard.by(name, instance, now.latest) if now.acknowledged > before.acknowledged else None
        if not is_known and met.is_successor:
            # The earlier process may be relaying appends even now.
            by = inf
        if now.others > before.others:
            self._applying().apply_anything(group)
        elif not is_known:
            self._applying().apply_earlier(group, met.at)
            if now.appends or met.is_successor:
                self._applying().apply_appends(group, by)
        elif now.appends > before.appends:
            self._applying().apply_appends(group, by)

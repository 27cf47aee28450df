"""The work in progress for one S2 stream: fetches and questions that its readers share, and its live topic.

A *fetch* brings the records from one start on.  A reader joins a fetch that has not been sent: the reply's statement of
the tail is then fresh for this reader too.  A later reader uses only the records of the fetch, and asks again for those
that it still needs.

The records held may come from a stream that has been deleted.  Before new records are joined to them, the records at
the joint are requested again, either by the same read, which then begins one record earlier, or by another read after
it.  So no run of records mixes two streams.  Other new records may lie apart from the records held.  Before they are
stored, the last record held is requested again, unless the origin has recently confirmed the stream (`verify`).

Everything the origin says is compared with the records held: a tail that has moved back, or another record at the same
number, means that the stream was deleted and created again.  Then the record of the stream ends, and its readers begin
again with the new stream (`TailMovedBack`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from gateway.aio.clock import Clock
from gateway.aio.tasks import Tasks
from gateway.engine.s2.fetch import S2Fetch, S2Fetched, S2Fetches, S2Origin, S2Question, S2Source
from gateway.engine.s2.topic import S2Batch, S2Topic
from gateway.errors import ShortOfMemory, TailMovedBack
from gateway.limits.queues import Askers
from gateway.s2.read_query import FromSeqNum, Start
from gateway.s2.records import ReadBatch, Record, StreamPosition, metered_bytes, total_metered_bytes
from gateway.tape.record_stream import RecordStream
from gateway.tape.records import UNARY, Limits, RecordsReplaced
from gateway.tape.store import TapeStore
from gateway.tape.stream import End
from gateway.upstream.s2_client import MOST_OVERLAP_BYTES, AtTail, FoundRecords, S2Outcome, S2Refused

T = TypeVar("T")


def _is_nothing(outcome: S2Outcome) -> bool:
    """Whether the outcome has no records: none is left before the tail, or a limit is too small for the first
    record."""
    return isinstance(outcome, FoundRecords) and not outcome.records


VERIFIED_S: Final = 10.0
"""How long further records of a stream are stored without verification after the origin has confirmed the stream."""


_MOST_BATCHES: Final = 16
"""Bound on the batches that one turn of the event loop keeps."""


@dataclass(frozen=True, slots=True)
class S2Shared:
    """The parts that all streams share."""

    origin: S2Origin
    store: TapeStore
    clock: Clock
    tasks: Tasks
    soon: Callable[[Callable[[], object]], object]
    """Calls a function at the end of the event loop's turn."""


class S2Stream:
    """One stream in use.  Owner: the `S2Streams` table."""

    def __init__(self, shared: S2Shared, stream: RecordStream, source: S2Source) -> None:
        self._shared = shared
        self.stream = stream
        self.tape = stream.records
        self.source = source
        """The source by which the stream is requested for all its readers."""
        self.is_source_refused = False
        """Whether the origin has refused its credentials."""
        self.users = 0
        self.topic: S2Topic | None = None
        self._batches: dict[tuple[int, Limits, StreamPosition | None], tuple[S2Batch, bool]] = {}
        """The batches that readers were given in this turn of the event loop."""
        self._fetches = S2Fetches(shared.tasks, stream.key.group.path)

    def __repr__(self) -> str:
        return f"<S2Stream {self.stream.key.group.path} {self.tape!r}, {self.users} users, {self._fetches!r}>"

    @property
    def end_seq_num(self) -> int:
        """The sequence number after the last record that is known to exist."""
        return max(self.tape.end_seq_num, self.topic.position if self.topic is not None else 0)

    @property
    def is_confirming(self) -> bool:
        """Whether the origin is being asked to confirm the records held."""
        return self._fetches.is_asking(S2Question.CONFIRMATION)

    def check(self) -> None:
        """Raise TailMovedBack if the stream has ended.  Records read from it must not be joined with later ones."""
        if self.stream.ended is not None:
            raise TailMovedBack

    def _checked(self, found: T) -> T:
        """Check the stream before the origin's reply is used.  An error is returned unchecked, because it may itself
        have ended the stream."""
        if not isinstance(found, S2Refused):
            self.check()
        return found

    def batch(self, at: int, limits: Limits, tail: StreamPosition | None) -> tuple[S2Batch, bool]:
        """The records held from `at` on within the limits, and whether a limit was reached.  `tail` is the tail that
        may be stated to the reader.

        Readers that ask for the same records in one turn of the event loop share the batch, and so its encodings.  This
        is common, because all sessions on a connection go on at once when it has room again.
        """
        key = at, limits, tail
        found = self._batches.get(key)
        if found is None:
            part = self.tape.read(at, limits)
            found = S2Batch.of(at, part, tail), part.is_closed
            if part.records and len(self._batches) < _MOST_BATCHES:
                if not self._batches:
                    self._shared.soon(self._batches.clear)
                self._batches[key] = found
        return found

    # -- the tail

    def trusted_tail(self, trust_s: float) -> StreamPosition | None:
        """The tail, if the live session has stated it in the last `trust_s` seconds; else None."""
        topic = self.topic
        if not trust_s or topic is None or self._shared.clock.now() - topic.heard_at > trust_s:
            return None
        return topic.tail

    async def tail(self, client: str) -> StreamPosition | S2Refused:
        """The tail, as the origin states it in reply to a question sent after this call, for a client of this net.

        Raises a GatewayError.
        """
        return await self._ask_tail(S2Question.TAIL, self._shared.origin.tail, client)

    async def checked_tail(self, client: str) -> StreamPosition | S2Refused:
        """Like `tail`, by S2's own check of the tail."""
        return await self._ask_tail(S2Question.CHECKED_TAIL, self._shared.origin.checked_tail, client)

    async def _ask_tail(
        self,
        question: S2Question,
        ask: Callable[[S2Source, Askers], Awaitable[AtTail | S2Refused]],
        client: str,
    ) -> StreamPosition | S2Refused:
        async def send(askers: Askers) -> AtTail | S2Refused:
            end = self.end_seq_num
            found = await ask(self.source, askers)
            self.stream.contacted(self._shared.clock.now())
            if isinstance(found, S2Refused):
                self.refused(found)
            else:
                self.sees(found.tail, end)
            return found

        found = await self._fetches.ask_question(question, send, client)
        assert isinstance(found, AtTail | S2Refused)
        self._checked(found)
        return found.tail if isinstance(found, AtTail) else found

    # -- records

    async def fetch(self, start: Start, limits: Limits, client: str) -> S2Fetched:
        """Records from `start` on, where none are held, for a client of this net.

        Raises a GatewayError: ShortOfMemory if nothing may be fetched, TailMovedBack if the stream has been created
        again.
        """
        wanted = Limits(limits.count, limits.bytes).within(UNARY.count or 0, UNARY.bytes or 0)
        fetch, is_fresh = self._join(start, wanted, client)
        outcome = await fetch.result()
        assert outcome is not None, "an answer has records, the tail or an error"
        if is_fresh:
            self._checked(outcome)
        else:
            # The fetch may have been answered before this reader came.  If it found no stream, or an earlier stream of
            # this name, its outcome is not valid for this reader.
            self.check()
            outcome = await self.confirmed(client) or outcome
        # A first record that is too large for the fetch is also too large for this reader, whose limits are no larger.
        covers = fetch.limits.covers(wanted) and not fetch.is_overlapping
        is_all = is_fresh and (covers or _is_nothing(outcome))
        return S2Fetched(outcome, is_fresh, is_all)

    async def fetch_or_tail(self, start: Start, limits: Limits, client: str) -> S2Fetched:
        """Like `fetch`, for a reader that may wait: `AtTail` also if no record is left between the start and the
        tail."""
        fetched = await self.fetch(start, limits, client)
        if not fetched.is_all or not _is_nothing(fetched.outcome):
            return fetched
        while True:
            # Ask for the tail first, so that a record appended afterwards is not missed.
            tail = await self.tail(client)
            if isinstance(tail, S2Refused):
                return S2Fetched(tail, is_fresh=True, is_all=True)
            fetched = await self.fetch(start, Limits(1), client)
            if fetched.is_fresh:
                if not _is_nothing(fetched.outcome):
                    # A record is new, or is too large for the reader's limits.  The reader finds out which.
                    return fetched._replace(is_all=False)
                self._learn(start, AtTail(tail), 0)
                return S2Fetched(AtTail(tail), is_fresh=True, is_all=False)

    def _join(self, start: Start, wanted: Limits, client: str) -> tuple[S2Fetch, bool]:
        """The fetch that a reader waits for, and whether it is still to be sent."""
        earlier = self._fetches.bringing(start)
        if earlier is not None and (earlier.is_sent or earlier.start != start):
            earlier.askers.add_client(client)
            return earlier, False
        if earlier is None and not self._shared.store.may_grow:
            raise ShortOfMemory
        return self._fetches.join_fetch(start, wanted, self._send, client), True

    async def _send(self, fetch: S2Fetch) -> S2Outcome:
        start = fetch.start
        assert start is not None
        if isinstance(start, FromSeqNum):
            # Records held already are not fetched again.
            gap = self.tape.covered_from(start.seq_num) - start.seq_num
            fetch.limits = fetch.limits.within(max(1, gap), UNARY.bytes or 0)
        end = self.end_seq_num
        if self.stream.is_doubted or not self._is_joining(start):
            refused = await self.verify(end, fetch.askers)
            if refused is not None:
                return refused
        outcome = await self._read(fetch, start, end)
        if _is_nothing(outcome) and isinstance(start, FromSeqNum) and fetch.limits.bytes == UNARY.bytes:
            # No record exceeds these limits, so none is left between the start and the tail.
            self._shared.store.trim_records(self.stream, max(start.seq_num + 1, end))
        return outcome

    def _is_joining(self, start: Start) -> bool:
        """Whether records read from `start` touch held ones before it."""
        return isinstance(start, FromSeqNum) and start.seq_num > 0 and self.tape.covers(start.seq_num - 1)

    async def _read(self, fetch: S2Fetch, start: Start, end: int) -> S2Outcome:
        """Ask for records, and store them if they belong to the stream whose records are held; `end` is as for
        `verify`.

        Raises a GatewayError; TailMovedBack if they belong to another stream.
        """
        limits = fetch.limits
        if (held := self._overlap(start, limits)) is not None:
            earlier = FromSeqNum(held.seq_num)
            found = await self._read_joined(
                earlier,
                Limits(1 + (limits.count or 0), limits.bytes).within(UNARY.count or 0, UNARY.bytes or 0),
                end,
                fetch,
            )
            if not isinstance(found, FoundRecords):
                return found
            found = FoundRecords(tuple(record for record in found.records if record.seq_num > held.seq_num))
            if found.records:
                fetch.is_overlapping = True
                self.stream.verified(self._shared.clock.now())
                return found
        return await self._read_joined(start, limits, end, fetch)

    def _overlap(self, start: Start, limits: Limits) -> Record | None:
        """The record held before `start`, if the read is to begin with that one.  This is so if the last answer was as
        long as its limits allowed, because more records are then likely to follow.  If none follow, the reply would
        bring this record alone and not the tail.
        """
        if not isinstance(start, FromSeqNum) or start.seq_num != self.stream.full_to:
            return None
        held = self.tape.record(start.seq_num - 1)
        return held if held is not None and metered_bytes(held) <= MOST_OVERLAP_BYTES else None

    async def _read_joined(self, start: Start, limits: Limits, end: int, fetch: S2Fetch) -> S2Outcome:
        askers = fetch.askers
        earlier = self.tape.neighbours(start.seq_num) if isinstance(start, FromSeqNum) else ()
        outcome = await self._shared.origin.read(self.source, start, limits, askers)
        if isinstance(outcome, FoundRecords) and outcome.records:
            records = outcome.records
            first = start.seq_num if isinstance(start, FromSeqNum) else records[0].seq_num
            if (refused := await self._confirm_joints(first, records, earlier, askers)) is not None:
                return refused
            is_full = len(records) == limits.count or 2 * total_metered_bytes(records) >= (limits.bytes or 0)
            self.stream.full_to = records[-1].seq_num + 1 if is_full else 0
        return self._learn(start, outcome, end)

    async def _confirm_joints(
        self, start: int, records: tuple[Record, ...], earlier: tuple[Record, ...], askers: Askers
    ) -> S2Refused | None:
        """Request again the records where `records` join those held; `earlier` were held before `records` were
        requested.

        A deleted stream never comes back.  A record that is there both before and after the read therefore shows that
        `records` are from its stream.  If a neighbour was stored only during the read, the records on both sides of the
        joint are requested.  Returns the origin's error if it refuses.  Raises a GatewayError; TailMovedBack if a
        record is another one.
        """
        confirmed: set[int] = set()
        while joint := next(
            (one for one in self.tape.joints(start, records) if one.held.seq_num not in confirmed), None
        ):
            for record in (joint.held,) if joint.held in earlier else joint:
                again = FromSeqNum(record.seq_num)
                outcome = await self._shared.origin.read(self.source, again, Limits(1), askers)
                self.check()
                if isinstance(outcome, FoundRecords):
                    found = outcome.records[0] if outcome.records else None
                    if found is not None and found.seq_num == record.seq_num and found != record:
                        self.replaced()
                    if found is not None and found.seq_num > record.seq_num:
                        self._shared.store.trim_records(self.stream, found.seq_num)
                elif isinstance(refused := self._learn(again, outcome, record.seq_num + 1), S2Refused):
                    return refused
            confirmed.add(joint.held.seq_num)
            self.stream.verified(self._shared.clock.now())
        return None

    async def verify(self, end: int, askers: Askers) -> S2Refused | None:
        """Request the last record held again, unless the stream was confirmed lately and is not in doubt.  `end` is an
        earlier value of `end_seq_num`.

        Returns the origin's error if it refuses.  Raises a GatewayError; TailMovedBack if it is another record.
        """
        held, doubts = self.tape.last, self.stream.doubts
        is_sure = not self.stream.is_doubted and self._shared.clock.now() - self.stream.verified_at <= VERIFIED_S
        if held is None or is_sure:
            return None
        start = FromSeqNum(held.seq_num)
        outcome = self._learn(start, await self._shared.origin.read(self.source, start, Limits(1), askers), end)
        if isinstance(outcome, S2Refused):
            return outcome
        # If the last record has been trimmed, all records held have been trimmed.
        self.stream.verified(self._shared.clock.now(), doubts)
        return None

    async def confirmed(self, client: str) -> S2Refused | None:
        """Have the origin confirm the records held, for a client of this net, if they are in doubt.

        Returns its error if it refuses.  Raises a GatewayError; TailMovedBack if they are of another stream.
        """
        if not self.stream.is_doubted:
            return None
        refused = await self._fetches.ask_question(
            S2Question.CONFIRMATION, lambda askers: self.verify(self.end_seq_num, askers), client
        )
        assert refused is None or isinstance(refused, S2Refused)
        return self._checked(refused)

    def _learn(self, start: Start, outcome: S2Outcome, end: int) -> S2Outcome:
        """Store the origin's reply; `end` is the value of `end_seq_num` when the request was sent."""
        self.stream.contacted(self._shared.clock.now())
        if isinstance(outcome, S2Refused):
            self.refused(outcome)
        elif isinstance(outcome, AtTail):
            self.sees(outcome.tail, end)
            if isinstance(start, FromSeqNum) and start.seq_num < outcome.tail.seq_num:
                self._shared.store.trim_records(self.stream, outcome.tail.seq_num)
        elif outcome.records:
            self.store(start.seq_num if isinstance(start, FromSeqNum) else outcome.records[0].seq_num, outcome.records)
        return outcome

    def store(self, start: int, records: tuple[Record, ...]) -> None:
        """Store the records of a read from `start`.  Raises TailMovedBack if they are from another stream."""
        now = self._shared.clock.now()
        if not self.tape.block_count:
            self.stream.verified(now)
        try:
            self._shared.store.store_records(self.stream, start, records, now)
        except RecordsReplaced:
            self.replaced()

    def store_batch(self, batch: ReadBatch) -> None:
        """Store a batch of the topic's session.  Raises TailMovedBack if it is from another stream.

        The topic ends with the stream, so the stream has not ended.
        """
        assert self.topic is not None
        self.store(self.topic.position, batch.records)
        # A session reads one stream only, from its beginning to its end.
        self.stream.verified(self._shared.clock.now())

    def compare(self, record: Record, position: StreamPosition) -> None:
        """Compare a record that the origin has sent again with the one held; it must be the last before `position`.
        Raises TailMovedBack if it is from another stream."""
        held = self.tape.record(record.seq_num)
        is_it = record.seq_num == position.seq_num - 1 and record.timestamp == position.timestamp
        if not is_it or (held is not None and held != record):
            self.replaced()

    def sees(self, tail: StreamPosition, end: int) -> None:
        """Use the tail that the origin has stated; `end` is the value of `end_seq_num` when the request was sent.
        Raises TailMovedBack if the tail is from another stream."""
        if tail.seq_num < end or self.tape.contradicts(tail, end):
            self.replaced()
        if self.tape.record(tail.seq_num - 1) is not None:
            self.stream.verified(self._shared.clock.now())

    def refused(self, error: S2Refused) -> None:
        """The origin has answered with an error."""
        if error.status in (401, 403):
            self.is_source_refused = True
        elif error.is_absent:
            self._shared.store.drop_stream(self.stream, End.DELETED)

    def replaced(self) -> None:
        """The stream has been created again.  Raises TailMovedBack."""
        self._shared.store.drop_stream(self.stream, End.RECREATED)
        raise TailMovedBack

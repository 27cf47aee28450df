"""One S2 stream in use: the requests to the origin that its readers share, and its live topic.

A *fetch* reads records from one start.  A reader may join a fetch that has not been sent yet, because the tail in the
reply will be fresh for this reader too.  A later reader uses only the records of the fetch, and sends another request
if it needs more.

A stream can be deleted and re-created under its name.  The records in memory may then belong to the earlier stream, and
must not be mixed with records of the new stream.  Two checks prevent that.  If new records adjoin records in memory,
the adjoining record is read again: by the same request, which then begins one record earlier, or by another request
afterwards.  If the new records do not adjoin records in memory, the last record in memory is read again first.  The
second check is left out if the origin has recently confirmed the stream (`verify`).

In addition, each reply is compared with the records in memory.  A tail that has moved back, or a different record with
the same number, shows that the stream was re-created.  The stream's record then ends, and its readers start again with
the new stream (`TailMovedBack`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from gateway.aio.clock import Clock
from gateway.aio.tasks import Tasks
from gateway.engine.s2.fetch import S2Fetch, S2Fetched, S2Fetches, S2Origin, S2Question, S2Source
from gateway.engine.s2.topic import S2Batch, S2Topic
from gateway.errors import ShortOfMemory, TailMovedBack
from gateway.limits.queues import Askers
from gateway.protocol.sharing import StreamKey
from gateway.s2.read_query import FromSeqNum, Start
from gateway.s2.records import ReadBatch, Record, StreamPosition, metered_bytes, total_metered_bytes
from gateway.tape.record_stream import RecordStream
from gateway.tape.record_tape import UNARY, Limits, RecordsReplaced
from gateway.tape.store import TapeStore
from gateway.tape.stream import End
from gateway.upstream.s2_client import MOST_OVERLAP_BYTES, AtTail, FoundRecords, S2Outcome, S2Refused

T = TypeVar("T")


def _is_nothing(outcome: S2Outcome) -> bool:
    """Return whether the outcome is a reply without records.

    Either no record is left before the tail, or the first record exceeds a limit.
    """
    return isinstance(outcome, FoundRecords) and not outcome.records


VERIFIED_S: Final = 10.0
"""How long after a confirmation further records are stored without another confirmation, in seconds."""


_MOST_BATCHES: Final = 16
"""The most batches kept in one turn of the event loop."""


@dataclass(frozen=True, slots=True)
class S2Shared:
    """Objects that all streams share."""

    origin: S2Origin
    store: TapeStore
    clock: Clock
    tasks: Tasks
    soon: Callable[[Callable[[], object]], object]
    """Schedules a function for the end of the event loop's turn."""
    ended: Callable[[StreamKey], object] = lambda key: None
    """Called when the origin has shown that a stream with known records has ended, so that other workers learn it."""


class S2Stream:
    """One stream in use, owned by the `S2Streams` table."""

    def __init__(self, shared: S2Shared, stream: RecordStream, source: S2Source) -> None:
        self._shared = shared
        self.stream = stream
        self.tape = stream.records
        self.source = source
        """The upstream source used for all readers of the stream."""
        self.is_source_refused = False
        """Whether the origin has refused the credentials of `source`."""
        self.users = 0
        self.topic: S2Topic | None = None
        self._batches: dict[tuple[int, Limits, StreamPosition | None], tuple[S2Batch, bool]] = {}
        """The batches made in this turn of the event loop, and for each batch whether a limit was reached."""
        self._fetches = S2Fetches(shared.tasks, stream.key.group.path)

    def __repr__(self) -> str:
        return f"<S2Stream {self.stream.key.group.path} {self.tape!r}, {self.users} users, {self._fetches!r}>"

    @property
    def end_seq_num(self) -> int:
        """The sequence number after the last known record."""
        return max(self.tape.end_seq_num, self.topic.position if self.topic is not None else 0)

    @property
    def is_confirming(self) -> bool:
        """Whether the origin is being asked to confirm the records in memory."""
        return self._fetches.is_asking(S2Question.CONFIRMATION)

    def check(self) -> None:
        """Raise TailMovedBack if the stream has ended.  Its records must not be joined with records of a later
        stream."""
        if self.stream.ended is not None:
            raise TailMovedBack

    def _checked(self, found: T) -> T:
        """Return a reply after checking that the stream has not ended.

        An error is returned unchecked, because it may itself have ended the stream.
        """
        if not isinstance(found, S2Refused):
            self.check()
        return found

    def batch(self, at: int, limits: Limits, tail: StreamPosition | None) -> tuple[S2Batch, bool]:
        """Return the records in memory from `at` on within the limits, and whether a limit was reached.

        `tail` is the tail that may be stated to the reader.  Readers that ask for the same records in one turn of the
        event loop share the batch and its encodings.  Such requests are common, because all sessions of an HTTP/2
        connection continue together when the connection has room again.
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
        """Return the tail if the live session has stated it in the last `trust_s` seconds, else None."""
        topic = self.topic
        if not trust_s or topic is None or self._shared.clock.now() - topic.heard_at > trust_s:
            return None
        return topic.tail

    async def tail(self, client: str) -> StreamPosition | S2Refused:
        """Ask the origin for the tail, in a request sent after this call, for a client in the network `client`.

        Raises a GatewayError.
        """
        return await self._ask_tail(S2Question.TAIL, self._shared.origin.tail, client)

    async def checked_tail(self, client: str) -> StreamPosition | S2Refused:
        """Like `tail`, but by S2's tail check, which may need another permission than a read."""
        return await self._ask_tail(S2Question.CHECKED_TAIL, self._shared.origin.checked_tail, client)

    async def _ask_tail(
        self,
        question: S2Question,
        ask: Callable[[S2Source, Askers], Awaitable[AtTail | S2Refused]],
        client: str,
    ) -> StreamPosition | S2Refused:
        async def send(askers: Askers) -> AtTail | S2Refused:
            end = self.end_seq_num
            found = await self._ask(lambda source: ask(source, askers), end)
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

    async def _ask(self, ask: Callable[[S2Source], Awaitable[T]], end: int) -> T:
        """Return the answer to a question; `end` is the value of `end_seq_num` now.

        A tail from the memory of the stream's owner, another worker, may be older than this worker's facts.  Then only
        the origin can show whether the stream was re-created.
        """
        found = await ask(self.source)
        if isinstance(found, AtTail) and found.is_remembered and self.tape.contradicts(found.tail, end):
            found = await ask(replace(self.source, shared=None))
        return found

    # -- records

    async def fetch(self, start: Start, limits: Limits, client: str) -> S2Fetched:
        """Fetch records from `start` on that are not in memory, for a client in the network `client`.

        Raises a GatewayError: ShortOfMemory if nothing may be fetched, TailMovedBack if the stream was re-created.
        """
        wanted = Limits(limits.count, limits.bytes).within(UNARY.count or 0, UNARY.bytes or 0)
        fetch, is_fresh = self._join(start, wanted, client)
        outcome = await fetch.result()
        assert outcome is not None, "an answer has records, the tail or an error"
        if is_fresh:
            self._checked(outcome)
        else:
            # The fetch may have been answered before this reader arrived.  If the fetch found no stream, or an earlier
            # stream with this name, its outcome is not valid for this reader.
            self.check()
            outcome = await self.confirmed(client) or outcome
        # If the first record exceeds the fetch's limits, it exceeds this reader's limits, which are no larger.
        covers = fetch.limits.covers(wanted) and not fetch.is_overlapping
        is_all = is_fresh and (covers or _is_nothing(outcome))
        return S2Fetched(outcome, is_fresh, is_all)

    async def fetch_or_tail(self, start: Start, limits: Limits, client: str) -> S2Fetched:
        """Like `fetch`, for a reader that may wait.

        The outcome is `AtTail` even if the records between the start and the tail have been trimmed.
        """
        fetched = await self.fetch(start, limits, client)
        if not fetched.is_all or not _is_nothing(fetched.outcome):
            return fetched
        while True:
            # Ask for the tail first: a record appended after that is then found by the fetch.
            tail = await self.tail(client)
            if isinstance(tail, S2Refused):
                return S2Fetched(tail, is_fresh=True, is_all=True)
            fetched = await self.fetch(start, Limits(1), client)
            if fetched.is_fresh:
                if not _is_nothing(fetched.outcome):
                    # There is a new record, or a record that exceeds the reader's limits.  The reader's next fetch
                    # shows which case applies.
                    return fetched._replace(is_all=False)
                self._learn(start, AtTail(tail), 0)
                return S2Fetched(AtTail(tail), is_fresh=True, is_all=False)

    def _join(self, start: Start, wanted: Limits, client: str) -> tuple[S2Fetch, bool]:
        """Return the fetch that a reader must wait for, and whether that fetch is still to be sent."""
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
            # Stop where the records in memory continue.
            gap = self.tape.covered_from(start.seq_num) - start.seq_num
            fetch.limits = fetch.limits.within(max(1, gap), UNARY.bytes or 0)
        end = self.end_seq_num
        if self.stream.is_doubted or not self._is_joining(start):
            refused = await self.verify(end, fetch.askers)
            if refused is not None:
                return refused
        outcome = await self._read(fetch, start, end)
        if _is_nothing(outcome) and isinstance(start, FromSeqNum) and fetch.limits.bytes == UNARY.bytes:
            # No record exceeds these limits, so all records between the start and the tail have been trimmed.
            self._shared.store.trim_records(self.stream, max(start.seq_num + 1, end))
        return outcome

    def _is_joining(self, start: Start) -> bool:
        """Return whether records read from `start` adjoin records in memory before it."""
        return isinstance(start, FromSeqNum) and start.seq_num > 0 and self.tape.covers(start.seq_num - 1)

    async def _read(self, fetch: S2Fetch, start: Start, end: int) -> S2Outcome:
        """Request records, and store them if they belong to the stream in memory.

        `end` is as for `verify`.  Raises a GatewayError; TailMovedBack if the records belong to another stream.
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
        """Return the record before `start` if the read should begin with that record, to save a second request; else
        None.

        The overlap is used if the last reply was as long as its limits allowed, so that more records are likely.
        Without more records, the reply would contain only the overlapping record and not the tail.
        """
        if not isinstance(start, FromSeqNum) or start.seq_num != self.stream.full_to:
            return None
        held = self.tape.record(start.seq_num - 1)
        return held if held is not None and metered_bytes(held) <= MOST_OVERLAP_BYTES else None

    async def _read_joined(self, start: Start, limits: Limits, end: int, fetch: S2Fetch) -> S2Outcome:
        askers = fetch.askers
        earlier = self.tape.neighbours(start.seq_num) if isinstance(start, FromSeqNum) else ()
        outcome = await self._ask(lambda source: self._shared.origin.read(source, start, limits, askers), end)
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
        """Read again the records in memory that adjoin `records`.

        `earlier` are the neighbours that were in memory before `records` were requested.  A deleted stream never comes
        back.  So a record that is found both before and after the read proves that `records` belong to the same stream
        as this record.  If a neighbour was stored only during the read, the records on both sides are read again.

        Returns the origin's error if the origin refuses.  Raises a GatewayError; TailMovedBack if a record has changed.
        """
        confirmed: set[int] = set()
        while joint := next(
            (one for one in self.tape.joints(start, records) if one.held.seq_num not in confirmed), None
        ):
            for record in (joint.held,) if joint.held in earlier else joint:
                again = FromSeqNum(record.seq_num)
                outcome = await self._read_again(record, record.seq_num + 1, askers)
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

    async def _read_again(self, record: Record, end: int, askers: Askers) -> S2Outcome:
        start, origin = FromSeqNum(record.seq_num), self._shared.origin
        return await self._ask(lambda source: origin.read(source, start, Limits(1), askers), end)

    async def verify(self, end: int, askers: Askers) -> S2Refused | None:
        """Read the last record in memory again, unless the stream was confirmed recently and no write casts doubt on
        it.

        `end` is an earlier value of `end_seq_num`.  Returns the origin's error if the origin refuses.  Raises a
        GatewayError; TailMovedBack if the record has changed.
        """
        held, doubts = self.tape.last, self.stream.doubts
        is_sure = not self.stream.is_doubted and self._shared.clock.now() - self.stream.verified_at <= VERIFIED_S
        if held is None or is_sure:
            return None
        start = FromSeqNum(held.seq_num)
        outcome = self._learn(start, await self._read_again(held, end, askers), end)
        if isinstance(outcome, S2Refused):
            return outcome
        # If the last record has been trimmed, all records in memory have been trimmed.
        self.stream.verified(self._shared.clock.now(), doubts)
        return None

    async def confirmed(self, client: str) -> S2Refused | None:
        """Ask the origin to confirm the records in memory if a write has cast doubt on them.

        `client` is the client's network.  Returns the origin's error if the origin refuses.  Raises a GatewayError;
        TailMovedBack if the records belong to another stream.
        """
        if not self.stream.is_doubted:
            return None
        refused = await self._fetches.ask_question(
            S2Question.CONFIRMATION, lambda askers: self.verify(self.end_seq_num, askers), client
        )
        assert refused is None or isinstance(refused, S2Refused)
        return self._checked(refused)

    def _learn(self, start: Start, outcome: S2Outcome, end: int) -> S2Outcome:
        """Apply the origin's reply; `end` is the value of `end_seq_num` when the request was sent."""
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
        """Store the records of a read from `start`.  Raises TailMovedBack if the records belong to another stream."""
        now = self._shared.clock.now()
        if not self.tape.block_count:
            self.stream.verified(now)
        try:
            self._shared.store.store_records(self.stream, start, records, now)
        except RecordsReplaced:
            self.replaced()

    def store_batch(self, batch: ReadBatch) -> None:
        """Store a batch of the live session.  Must be called while the stream has a topic.  Raises TailMovedBack if the
        batch belongs to another stream."""
        assert self.topic is not None
        self.store(self.topic.position, batch.records)
        # A session reads one stream only, so each of its batches confirms the stream.
        self.stream.verified(self._shared.clock.now())

    def compare(self, record: Record, position: StreamPosition) -> None:
        """Compare a record that was read again with the record in memory.  `position` has the sequence number after the
        record in memory, and the timestamp of the record in memory.

        Raises TailMovedBack if the record belongs to another stream.
        """
        held = self.tape.record(record.seq_num)
        is_it = record.seq_num == position.seq_num - 1 and record.timestamp == position.timestamp
        if not is_it or (held is not None and held != record):
            self.replaced()

    def sees(self, tail: StreamPosition, end: int) -> None:
        """Check the tail that the origin has stated; `end` is the value of `end_seq_num` when the request was sent.

        Raises TailMovedBack if the tail belongs to another stream.
        """
        if self.tape.contradicts(tail, end):
            self.replaced()
        if self.tape.record(tail.seq_num - 1) is not None:
            self.stream.verified(self._shared.clock.now())

    def refused(self, error: S2Refused) -> None:
        """Apply an error answer of the origin to the stream's record."""
        if error.status in (401, 403):
            self.is_source_refused = True
        elif error.is_absent:
            self._end(End.DELETED)

    def replaced(self) -> None:
        """Drop the stream's record, because the stream was re-created.  Raises TailMovedBack."""
        self._end(End.RECREATED)
        raise TailMovedBack

    def _end(self, why: End) -> None:
        # Requests for unknown names must not fill the write log.
        is_known = self.end_seq_num > 0
        if self._shared.store.drop_stream(self.stream, why) and is_known:
            self._shared.ended(self.stream.key)

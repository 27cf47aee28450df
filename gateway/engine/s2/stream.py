"""The work under way for one S2 stream: fetches and questions that its readers share, and its live topic.

A *fetch* brings the records from one start on.  A reader joins a fetch that has not been sent: what it says about the
tail is then fresh for the reader too.  A reader that comes later waits for the fetch only for its records, and asks
anew for what it still misses.

Records held may be those of a stream that is gone.  Before others are joined to them, the ones at the joint are asked
for again: together with their successors, by a read that begins one record earlier, or after these.  So no run of
records is ever of two streams.  Before records are stored that do not touch the others, the last one held is asked for
again if the origin has not confirmed the stream lately (`verify`).

Everything the origin says is compared with the records held: a tail that has moved back, or another record at the
same number, means that the stream was deleted and created again.  Then the record of the stream ends, and its readers
begin anew with the stream that there is now (`TailMovedBack`).
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
    """Whether it is what S2 answers where nothing is left before the tail, or a limit is too small for the first
    record."""
    return isinstance(outcome, FoundRecords) and not outcome.records


VERIFIED_S: Final = 10.0
"""How long after the origin has confirmed a stream more of its records are stored without asking for one again."""


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
        """By which the readers that share the stream ask for it."""
        self.is_source_refused = False
        """Whether the origin has refused its credentials."""
        self.users = 0
        self.topic: S2Topic | None = None
        self._batches: dict[tuple[int, Limits, StreamPosition | None], tuple[S2Batch, bool]] = {}
        """The parts that readers were given in this turn of the event loop."""
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
        """Raise TailMovedBack if the stream has ended, so that nothing read of it may be joined with what comes."""
        if self.stream.ended is not None:
            raise TailMovedBack

    def _checked(self, found: T) -> T:
        """The same for what the origin has said.  An error is itself what may have ended the stream."""
        if not isinstance(found, S2Refused):
            self.check()
        return found

    def batch(self, at: int, limits: Limits, tail: StreamPosition | None) -> tuple[S2Batch, bool]:
        """What is held from `at` on within the limits, and whether it is a limit that stopped it; `tail` is the tail as
        the reader may be told it.

        Readers that ask for the same in one turn of the event loop share the batch, and so its encodings: when a
        connection has room again, all sessions on it go on at once.
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
        """The tail as the live session said it in the last `trust_s` seconds; None if it did not, or if that is 0."""
        topic = self.topic
        if not trust_s or topic is None or self._shared.clock.now() - topic.heard_at > trust_s:
            return None
        return topic.tail

    async def tail(self, client: str) -> StreamPosition | S2Refused:
        """The tail, as the origin says it to a question sent after this call, for a client of this net.

        Raises a GatewayError.
        """
        return await self._ask_tail(S2Question.TAIL, self._shared.origin.tail, client)

    async def checked_tail(self, client: str) -> StreamPosition | S2Refused:
        """The same by S2's own check of the tail."""
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
            # It may have been answered before this reader came: what it says of a stream that was not there, or that
            # another has taken the place of, is not for this reader.
            self.check()
            outcome = await self.confirmed(client) or outcome
        # If the first record was larger than the fetch's bytes, it is larger than those wanted, which are no more.
        covers = fetch.limits.covers(wanted) and not fetch.is_overlapping
        is_all = is_fresh and (covers or _is_nothing(outcome))
        return S2Fetched(outcome, is_fresh, is_all)

    async def fetch_or_tail(self, start: Start, limits: Limits, client: str) -> S2Fetched:
        """The same for a reader that may wait: `AtTail` also if no record is left between the start and the tail."""
        fetched = await self.fetch(start, limits, client)
        if not fetched.is_all or not _is_nothing(fetched.outcome):
            return fetched
        while True:
            # The tail first: what is appended after this question is then not passed over.
            tail = await self.tail(client)
            if isinstance(tail, S2Refused):
                return S2Fetched(tail, is_fresh=True, is_all=True)
            fetched = await self.fetch(start, Limits(1), client)
            if fetched.is_fresh:
                if not _is_nothing(fetched.outcome):
                    # A record is new, or too large for the reader's limits: that is for the reader to see.
                    return fetched._replace(is_all=False)
                self._learn(start, AtTail(tail), 0)
                return S2Fetched(AtTail(tail), is_fresh=True, is_all=False)

    def _join(self, start: Start, wanted: Limits, client: str) -> tuple[S2Fetch, bool]:
        """The fetch that a reader waits for, and whether it is sent after now."""
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
            # What is held already is not fetched again.
            gap = self.tape.covered_from(start.seq_num) - start.seq_num
            fetch.limits = fetch.limits.within(max(1, gap), UNARY.bytes or 0)
        end = self.end_seq_num
        if self.stream.is_doubted or not self._is_joining(start):
            refused = await self.verify(end, fetch.askers)
            if refused is not None:
                return refused
        outcome = await self._read(fetch, start, end)
        if _is_nothing(outcome) and isinstance(start, FromSeqNum) and fetch.limits.bytes == UNARY.bytes:
            # No record is too large, so none is left from the start to the tail.
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
        """The record held before `start` if the read is to begin with it: the last answer was as long as its limits
        allowed, so more records are likely to follow.  Where none do, a read of it alone would say less than the tail.
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
        """Ask for the records again at which `records` would be joined to those held; `earlier` were held before
        `records` were asked for.

        A stream that is gone never comes back.  So a record that is there before and after `records` were read shows
        that they are of its stream.  If one has been stored only since, both sides of the joint are asked for.

        Returns the origin's error if it refuses.  Raises a GatewayError; TailMovedBack if a record is another one.
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
        """Ask for the last record held again, unless the stream was confirmed lately and is not in doubt; `end` is what
        `end_seq_num` was before.

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
        # If it has been trimmed, so has everything that was held.
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
        """Store what the origin said; `end` is where the stream ended as far as was known when it was asked."""
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
        """Store what a read from `start` has brought.  Raises TailMovedBack if it is of another stream."""
        now = self._shared.clock.now()
        if not self.tape.block_count:
            self.stream.verified(now)
        try:
            self._shared.store.store_records(self.stream, start, records, now)
        except RecordsReplaced:
            self.replaced()

    def store_batch(self, batch: ReadBatch) -> None:
        """Store what the topic's session has brought.  Raises TailMovedBack if it is of another stream.

        The topic ends with the stream, so the stream is there.
        """
        assert self.topic is not None
        self.store(self.topic.position, batch.records)
        # The session is one stream's from its beginning.
        self.stream.verified(self._shared.clock.now())

    def compare(self, record: Record, position: StreamPosition) -> None:
        """The origin has sent the record before this position of the stream again.  Raises TailMovedBack if it is of
        another stream."""
        held = self.tape.record(record.seq_num)
        is_it = record.seq_num == position.seq_num - 1 and record.timestamp == position.timestamp
        if not is_it or (held is not None and held != record):
            self.replaced()

    def sees(self, tail: StreamPosition, end: int) -> None:
        """The origin has said its tail; `end` is what `end_seq_num` was when it was asked.  Raises TailMovedBack if it
        is of another stream."""
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

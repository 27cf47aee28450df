"""What is under way for one S2 stream: fetches and questions that its readers share, and its live topic.

A *fetch* brings the records from one start on.  A reader joins a fetch that has not been sent: what it says about the
tail is then fresh for the reader too.  A reader that comes later waits for the fetch only for its records, and asks
anew for what it still misses.

Records that were held for some time may be those of a stream that is gone.  Before more are joined to them, one is
asked for again (`_verify`).

Everything the origin says is compared with the records held: a tail that has moved back, or another timestamp at the
same number, means that the stream was deleted and created again.  Then the record of the stream ends, and its readers
begin anew with the stream that there is now (`TailMovedBack`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from gateway.aio.clock import Clock
from gateway.aio.tasks import Tasks
from gateway.engine.s2.origin import AtTail, Found, OriginReads, Outcome, Refused, Source
from gateway.engine.s2.questions import Question, SharedQuestion
from gateway.engine.s2.topic import Topic
from gateway.errors import GatewayError, TailMovedBack, UpstreamUnreachable, bare
from gateway.s2.read_query import FromSeqNum, Start
from gateway.s2.records import ReadBatch, Record, StreamPosition
from gateway.tape.records import UNARY, Limits, RecordsReplaced, RecordTape
from gateway.tape.store import TapeStore
from gateway.tape.stream import End, Stream

T = TypeVar("T")

VERIFIED_S: Final = 10.0
"""How long after the origin has confirmed a stream its records are joined with others without asking for one again."""


class Fetched(NamedTuple):
    """What a fetch has brought one reader."""

    outcome: Outcome
    is_fresh: bool
    """Whether it was sent after the reader's request had arrived."""
    is_all: bool
    """Whether it is also all that the origin had, within the reader's limits."""


@dataclass(slots=True, eq=False)
class _Fetch:
    start: Start
    limits: Limits
    question: Question[Outcome]

    def spans(self, seq_num: int) -> bool:
        """Whether it may bring the record at `seq_num`, after others."""
        first = self.start.seq_num if isinstance(self.start, FromSeqNum) else seq_num
        return first < seq_num < first + (self.limits.count or 0)


@dataclass(frozen=True, slots=True)
class Shared:
    """What all streams have in common."""

    origin: OriginReads
    store: TapeStore
    clock: Clock
    tasks: Tasks


class S2Stream:
    """One stream in use.  Owner: the `S2Streams` table."""

    def __init__(self, shared: Shared, stream: Stream, tape: RecordTape, source: Source) -> None:
        self._shared = shared
        self.stream = stream
        self.tape = tape
        self.source = source
        """By which the readers that share the stream ask for it."""
        self.is_source_refused = False
        """Whether the origin has refused its credentials."""
        self.users = 0
        self.topic: Topic | None = None
        self._fetches: dict[Start, _Fetch] = {}
        name = stream.key.group.path
        self._tail = SharedQuestion(self._ask_tail, shared.tasks, f"tail of {name}")
        self._checked_tail = SharedQuestion(self._ask_checked_tail, shared.tasks, f"check tail of {name}")

    def __repr__(self) -> str:
        return (
            f"<S2Stream {self.stream.key.group.path} {self.tape!r}, {len(self._fetches)} fetches, {self.users} users>"
        )

    @property
    def end(self) -> int:
        """The sequence number after the last record that is known to exist."""
        return max(self.tape.end, self.topic.position if self.topic is not None else 0)

    def check(self) -> None:
        """Raise TailMovedBack if the stream has ended, so that nothing read of it may be joined with what comes."""
        if self.stream.ended is not None:
            raise TailMovedBack

    def _checked(self, found: T) -> T:
        """The same for what the origin has said.  An error is itself what may have ended the stream."""
        if not isinstance(found, Refused):
            self.check()
        return found

    # -- the tail

    def trusted_tail(self, trust_s: float) -> StreamPosition | None:
        """The tail as the live session said it in the last `trust_s` seconds; None if it did not, or if that is 0."""
        topic = self.topic
        if not trust_s or topic is None or self._shared.clock.now() - topic.heard_at > trust_s:
            return None
        return topic.tail

    async def tail(self) -> StreamPosition | Refused:
        """The tail, as the origin says it to a question sent after this call.  Raises a GatewayError."""
        return self._checked(await self._tail.ask())

    async def checked_tail(self) -> StreamPosition | Refused:
        """The same by S2's own check of the tail."""
        return self._checked(await self._checked_tail.ask())

    async def _ask_tail(self) -> StreamPosition | Refused:
        end = self.end
        return self._sees_tail(await self._shared.origin.tail(self.source), end)

    async def _ask_checked_tail(self) -> StreamPosition | Refused:
        end = self.end
        return self._sees_tail(await self._shared.origin.checked_tail(self.source), end)

    def _sees_tail(self, found: StreamPosition | Refused, end: int) -> StreamPosition | Refused:
        self.stream.contacted(self._shared.clock.now())
        if isinstance(found, Refused):
            self.refused(found)
        else:
            self.sees(found, end)
        return found

    # -- records

    async def fetch(self, start: Start, limits: Limits) -> Fetched:
        """Records from `start` on, where none are held.  Raises a GatewayError; TailMovedBack if the stream has been
        created again."""
        wanted = Limits(limits.count, limits.bytes).within(UNARY.count or 0, UNARY.bytes or 0)
        fetch, is_fresh = self._join(start, wanted)
        question = fetch.question
        question.waiting += 1
        try:
            while not question.is_over:
                await question.changed.wait()
        finally:
            question.waiting -= 1
        if question.error is not None:
            raise question.error.anew()
        outcome = self._checked(question.answer[0])
        # Without records the first was larger than the fetch's bytes, which are at least those wanted.
        is_all = is_fresh and (fetch.limits.covers(wanted) or outcome == Found(()))
        return Fetched(outcome, is_fresh, is_all)

    def _join(self, start: Start, wanted: Limits) -> tuple[_Fetch, bool]:
        """The fetch that a reader waits for, and whether it is sent after now."""
        fetch = self._fetches.get(start)
        if fetch is None and isinstance(start, FromSeqNum):
            fetch = next((one for one in self._fetches.values() if one.spans(start.seq_num)), None)
        if fetch is None:
            fetch = self._fetches[start] = _Fetch(start, wanted, Question())
            # The task begins in the next turn of the loop, so all who come in this one share the fetch.
            self._shared.tasks.start(self._run(fetch), f"fetch {self.stream.key.group.path}")
            return fetch, True
        is_fresh = fetch.start == start and not fetch.question.is_sent
        if is_fresh and not fetch.limits.covers(wanted):
            fetch.limits = Limits(
                max(fetch.limits.count or 0, wanted.count or 0), max(fetch.limits.bytes or 0, wanted.bytes or 0)
            )
        return fetch, is_fresh

    async def _run(self, fetch: _Fetch) -> None:
        question, start = fetch.question, fetch.start
        question.is_sent = True
        if isinstance(start, FromSeqNum):
            # What is held already is not fetched again.
            gap = self.tape.covered_from(start.seq_num) - start.seq_num
            fetch.limits = fetch.limits.within(max(1, gap), UNARY.bytes or 0)
        end = self.end
        try:
            await self._verify(start, end)
            outcome = await self._shared.origin.read(self.source, start, fetch.limits)
            question.answer.append(self._learn(start, outcome, end))
        except GatewayError as error:
            question.error = bare(error)
        finally:
            del self._fetches[start]
            if not question.is_over:
                question.error = UpstreamUnreachable("Fetch was given up")
            question.changed.fire()

    async def _verify(self, start: Start, end: int) -> None:
        """Ask for the record before the start again, if it is held and the stream was not confirmed lately.

        Raises a GatewayError; TailMovedBack if it is another record.
        """
        held = self.tape.record(start.seq_num - 1) if isinstance(start, FromSeqNum) else None
        if held is None or self._shared.clock.now() - self.tape.verified_at <= VERIFIED_S:
            return
        outcome = await self._shared.origin.read(self.source, FromSeqNum(held.seq_num), Limits(1))
        if isinstance(outcome, AtTail):
            self.sees(outcome.tail, end)
        elif isinstance(outcome, Found) and outcome.records:
            # A later record is the first that a trim has left.
            first = outcome.records[0]
            if first.seq_num == held.seq_num and first.timestamp != held.timestamp:
                self.replaced()
            self.tape.verified_at = self._shared.clock.now()

    def _learn(self, start: Start, outcome: Outcome, end: int) -> Outcome:
        """Store what the origin said; `end` is where the stream ended as far as was known when it was asked."""
        self.stream.contacted(self._shared.clock.now())
        if isinstance(outcome, Refused):
            self.refused(outcome)
        elif isinstance(outcome, AtTail):
            self.sees(outcome.tail, end)
        elif outcome.records:
            self.store(start.seq_num if isinstance(start, FromSeqNum) else outcome.records[0].seq_num, outcome.records)
        return outcome

    def store(self, start: int, records: tuple[Record, ...]) -> None:
        """Store what a read from `start` has brought.  Raises TailMovedBack if it is of another stream."""
        now = self._shared.clock.now()
        if not self.tape.block_count:
            self.tape.verified_at = now
        try:
            self._shared.store.store_records(self.stream, start, records, now)
        except RecordsReplaced:
            self.replaced()

    def store_batch(self, batch: ReadBatch) -> None:
        """Store what the topic's session has brought.  Raises TailMovedBack if it is of another stream."""
        assert self.topic is not None
        self.check()
        self.store(self.topic.position, batch.records)
        # The session is one stream's from its beginning.
        self.tape.verified_at = self._shared.clock.now()

    def sees(self, tail: StreamPosition, end: int) -> None:
        """The origin has said its tail; `end` is what `end` was when it was asked.  Raises TailMovedBack if it is of
        another stream."""
        if tail.seq_num < end or self.tape.contradicts(tail, end):
            self.replaced()
        if self.tape.covers(tail.seq_num - 1):
            self.tape.verified_at = self._shared.clock.now()

    def refused(self, error: Refused) -> None:
        """The origin has answered with an error."""
        if error.status in (401, 403):
            self.is_source_refused = True
        elif error.status in (404, 409):
            # A read conflicts with nothing but a deletion that is under way.
            self._shared.store.drop(self.stream, End.DELETED)

    def replaced(self) -> None:
        """The stream has been created again.  Raises TailMovedBack."""
        self._shared.store.drop(self.stream, End.RECREATED)
        raise TailMovedBack

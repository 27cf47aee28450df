"""One unary read: answered from memory, then from the origin, then by waiting at the tail.

A read whose limit is reached within the records in memory is answered at once (`held_answer`).  For any other read, the
origin is asked for the records that follow the records in memory.  If the request to the origin was sent after the
client's request arrived, the answer ends with the origin's reply.  If the request allows a wait, a read without any
record waits on the stream's topic, the group of readers at the tail.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from multidict import CIMultiDict

from gateway.aio.clock import Clock
from gateway.engine.answer import BodyRun
from gateway.engine.s2.reader import DRAINING
from gateway.engine.s2.request import S2Form, S2Read, S2ReadRecords, S2ReplyKind
from gateway.engine.s2.stream import S2Stream
from gateway.engine.s2.streams import S2Streams
from gateway.engine.s2.topic import S2Batch, S2Topic
from gateway.errors import TailMovedBack
from gateway.protocol.cache_status import Outcome
from gateway.s2 import json_format, protobuf
from gateway.s2.errors import unwritten_body
from gateway.s2.read_query import FromSeqNum
from gateway.s2.records import Record, StreamPosition
from gateway.tape.decide import Awaited, Question
from gateway.tape.decide_records import RecordAnswer, RecordProgress, decide_records
from gateway.tape.record_stream import RecordStream
from gateway.tape.record_tape import Limits, Part, cut
from gateway.tape.stream import Stream
from gateway.upstream.s2_client import AtTail, FoundRecords, S2Refused


@dataclass(frozen=True, slots=True)
class S2Answer:
    """A complete response."""

    status: int
    headers: CIMultiDict[str]
    body: bytes
    outcome: Outcome
    span: tuple[int, int] | None = None
    """The batch's first sequence number, and the number after its last; None if the answer is not a batch."""
    run: BodyRun | None = None
    """The records in the answer, if the answer may be repeated while they are in memory."""


def json_answer(status: int, body: bytes, outcome: Outcome, span: tuple[int, int] | None = None) -> S2Answer:
    """Return a JSON answer."""
    return S2Answer(status, CIMultiDict({"Content-Type": json_format.CONTENT_TYPE}), body, outcome, span)


def unwritten_answer(tail: StreamPosition, *, is_trusted: bool) -> S2Answer:
    """Return the 416 for a read whose start is at or after the tail."""
    return json_answer(416, unwritten_body(tail), Outcome.HIT if is_trusted else Outcome.REVALIDATED)


class S2RefusedToAnother(Exception):
    """The origin has refused a shared request, perhaps because of another reader's credentials: relay this read."""


def refused_answer(refused: S2Refused, read: S2Read) -> S2Answer:
    """Return the origin's error as an answer.  Raises S2RefusedToAnother if this reader must not see it."""
    if not read.source.may_be_told(refused):
        raise S2RefusedToAnother
    outcome = Outcome.FAILED if refused.status >= 500 else Outcome.MISS
    return S2Answer(refused.status, refused.headers.copy(), refused.body, outcome)


def batch_answer(batch: S2Batch, form: S2Form, outcome: Outcome) -> S2Answer:
    """Return the answer with this batch."""
    span = batch.start, batch.end
    if form.reply is S2ReplyKind.PROTOBUF:
        headers = CIMultiDict({"Content-Type": protobuf.CONTENT_TYPE})
        return S2Answer(200, headers, protobuf.encode_read_batch(batch.batch), outcome, span)
    return json_answer(200, batch.json(form.format_), outcome, span)


def held_answer(stream: Stream, asked: S2ReadRecords) -> S2Answer | None:
    """Return the answer to a read whose limit is reached within the records in memory; None for other reads.

    Such an answer does not depend on the tail, so it stays valid while the stream is the same.
    """
    start = asked.query.start
    if not isinstance(stream, RecordStream) or not isinstance(start, FromSeqNum):
        return None
    edition = stream.version.edition
    part = stream.records.read(start.seq_num, Limits(asked.query.count, asked.query.bytes, asked.query.until))
    read = RecordProgress(part.end, Limits(), is_confirmed=False, is_complete=part.is_closed)
    if decide_records(stream, read) is not RecordAnswer.RECORDS:
        return None
    answer = batch_answer(S2Batch.of(start.seq_num, part, None), asked.form, Outcome.HIT)
    return replace(answer, run=BodyRun(stream, str(start.seq_num), str(part.end), edition))


class S2UnaryContext(Protocol):
    """Objects that all unary reads of a process share."""

    @property
    def clock(self) -> Clock:
        """The clock for waits."""

    @property
    def streams(self) -> S2Streams:
        """The streams in use."""

    def drains(self, read: S2Read) -> bool:
        """Return whether a drain is on that ends this live read."""


class S2UnaryRead:
    """One unary read of one stream."""

    def __init__(
        self,
        reads: S2UnaryContext,
        stream: S2Stream,
        read: S2Read,
        asked: S2ReadRecords,
        progress: RecordProgress,
        outcome: Outcome,
    ) -> None:
        """`progress` is at the start of the read.  `outcome` shows whether the start was found in memory or by the
        origin."""
        self._reads = reads
        self._stream = stream
        self._read = read
        self._form = asked.form
        self._query = asked.query
        self._found: list[Record] = []
        self._size = 0
        self._topic: S2Topic | None = None
        self._progress = progress
        self._outcome = outcome

    async def answer(self) -> S2Answer:
        """Answer the read.  Raises a GatewayError."""
        try:
            return await self._walk(self._progress)
        finally:
            if self._topic is not None:
                self._reads.streams.detach(self._topic, self._read.linger_s)

    async def _walk(self, progress: RecordProgress) -> S2Answer:
        stream = self._stream
        refused: S2Refused | None = None
        while refused is None:
            self._take(stream.tape.read(progress.at, progress.left))
            if progress.tail is None and progress.topic is None:
                progress.trust(stream.trusted_tail(self._read.trust_s))
            match decide_records(stream.stream, progress):
                case RecordAnswer.RECORDS:
                    return self._batch()
                case RecordAnswer.UNWRITTEN:
                    assert progress.tail is not None
                    return unwritten_answer(progress.tail, is_trusted=progress.is_tail_trusted)
                case RecordAnswer.GONE:
                    raise TailMovedBack
                case Awaited.CHANGE:
                    refused = await self._wait(progress)
                case question:
                    refused = await self._ask(question, progress)
        return refused_answer(refused, self._read)

    def _take(self, part: Part) -> None:
        """Add records to the answer."""
        progress = self._progress
        if not self._found:
            self._start = progress.at
        self._found += part.records
        self._size += part.size
        progress.came_to(part.end)
        progress.left = progress.left.after(len(part.records), part.size)
        progress.has_records |= bool(part.records)
        progress.is_complete |= part.is_closed

    async def _ask(self, question: Question, progress: RecordProgress) -> S2Refused | None:
        """Ask the origin for more records and add them; return the origin's error if the origin refuses."""
        fetch = self._stream.fetch_or_tail if question is Question.TAIL else self._stream.fetch
        fetched = await fetch(FromSeqNum(progress.at), progress.left, self._read.client)
        if progress.topic is None:
            self._outcome = Outcome.JOINED if self._found else Outcome.MISS if fetched.is_fresh else Outcome.COLLAPSED
        match fetched.outcome:
            case S2Refused() as refused:
                return refused
            case FoundRecords(records):
                end = records[-1].seq_num + 1 if records else progress.at
                self._take(cut(records, progress.at, end, progress.left))
                progress.is_complete |= fetched.is_all
            case AtTail(tail):
                if fetched.is_fresh:
                    progress.found_tail(tail, is_clamped=self._query.is_clamped)
        return None

    async def _wait(self, progress: RecordProgress) -> S2Refused | None:
        """Wait at the tail for records; return the error if no records can come, else None."""
        clock, topic = self._reads.clock, self._topic
        if topic is None:
            assert progress.tail is not None
            self._until = clock.now() + (self._query.longest_wait_s or 0)
            self._outcome = Outcome.FOLLOWED
            topic = self._topic = progress.topic = self._reads.streams.attach(
                self._stream, progress.tail, self._read.client
            )
        elif topic.error is not None or self._reads.drains(self._read):
            return topic.error or DRAINING
        else:
            left_s = self._until - clock.now()
            progress.is_complete = left_s <= 0 or not await topic.changed.wait_within(clock, left_s)
        return None

    def _batch(self) -> S2Answer:
        part = Part(tuple(self._found), self._size, self._progress.at, is_closed=True)
        tail = self._topic.tail if self._topic is not None else None
        return batch_answer(S2Batch.of(self._start, part, tail), self._form, self._outcome)

"""One unary read: over the tape, then by what the origin says, and at the tail by waiting.

What a limit stops on the tape is answered from memory, without waiting (`held_answer`).  Where the tape ends, the
origin is asked for what follows; what a fetch sent after the request's arrival brings is all that there is.  A read
that finds nothing, and may wait, waits at the stream's topic.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from multidict import CIMultiDict

from gateway.aio.clock import Clock
from gateway.engine.answer import BodyRun
from gateway.engine.s2.origin import S2Source
from gateway.engine.s2.reader import DRAINING
from gateway.engine.s2.request import S2Form, S2ReadRecords, S2ReplyKind
from gateway.engine.s2.stream import S2Stream
from gateway.engine.s2.streams import S2Streams
from gateway.engine.s2.topic import S2Batch, S2Topic
from gateway.errors import UpstreamBroken
from gateway.protocol.cache_status import Outcome
from gateway.protocol.stream_key import StreamKey
from gateway.s2 import json_format, protobuf
from gateway.s2.errors import unwritten_body
from gateway.s2.read_query import FromSeqNum, FromTailOffset, FromTimestamp, ReadQuery
from gateway.s2.records import Record, StreamPosition
from gateway.tape.record_stream import RecordStream
from gateway.tape.records import Limits, Part, cut
from gateway.tape.stream import Stream
from gateway.upstream.s2_client import AtTail, FoundRecords, S2Refused


@dataclass(frozen=True, slots=True)
class S2Start:
    """The sequence number at which a read starts."""

    at: int
    tail: StreamPosition | None = None
    """The tail, if it was asked for since the request arrived."""
    outcome: Outcome = Outcome.HIT
    """How it was found."""

    @property
    def is_at_tail(self) -> bool:
        """Whether this is known to be the tail, or beyond it."""
        return self.tail is not None and self.at >= self.tail.seq_num


def if_at(at: int, tail: StreamPosition | None) -> StreamPosition | None:
    """The tail, if it is here."""
    return tail if tail is not None and tail.seq_num == at else None


async def start_of(stream: S2Stream, query: ReadQuery, read: S2Read) -> S2Start | S2Refused:
    """Where a read starts.  Raises a GatewayError."""
    match query.start:
        case FromSeqNum(seq_num):
            return S2Start(seq_num)
        case FromTailOffset(tail_offset):
            trusted = stream.trusted_tail(read.trust_s)
            tail = trusted or await stream.tail(read.client)
            if isinstance(tail, S2Refused):
                return tail
            outcome = Outcome.REVALIDATED if trusted is None else Outcome.HIT
            return S2Start(max(0, tail.seq_num - tail_offset), tail, outcome)
        case FromTimestamp(timestamp):
            return await _start_at(stream, query, timestamp, read.client)


async def _start_at(stream: S2Stream, query: ReadQuery, timestamp: int, client: str) -> S2Start | S2Refused:
    outcome = Outcome.HIT
    while True:
        at = stream.tape.at_timestamp(timestamp)
        if at is not None:
            return S2Start(at, outcome=outcome)
        fetched = await stream.fetch_or_tail(FromTimestamp(timestamp), Limits(query.count), client)
        outcome = Outcome.MISS if fetched.is_fresh else Outcome.COLLAPSED
        match fetched.outcome:
            case S2Refused() as refused:
                return refused
            case FoundRecords(records) if records:
                return S2Start(records[0].seq_num, outcome=outcome)
            case AtTail(tail) if fetched.is_fresh:
                # A timestamp after the tail's is like a number after it; else no record that late is left.
                beyond = timestamp > tail.timestamp and not query.is_clamped
                return S2Start(tail.seq_num + 1 if beyond else tail.seq_num, tail, Outcome.REVALIDATED)
            case FoundRecords() if fetched.is_fresh:
                raise UpstreamBroken("Origin answered a read with neither records nor the tail")
            case _:
                pass


def limits_of(query: ReadQuery) -> Limits:
    """The limits of a read."""
    return Limits(query.count, query.bytes, query.until)


@dataclass(frozen=True, slots=True)
class S2Read:
    """One client's read, or check of the tail, of one stream."""

    key: StreamKey
    source: S2Source
    client: str
    """The net of the client."""
    linger_s: float
    """How long the stream is followed after its last live reader."""
    trust_s: float = 0.0
    """How long the tail is believed after the live session has said it; 0 if every answer must be linearizable."""


@dataclass(frozen=True, slots=True)
class S2Answer:
    """A whole answer."""

    status: int
    headers: CIMultiDict[str]
    body: bytes
    outcome: Outcome
    span: tuple[int, int] | None = None
    """The sequence numbers from which and to which it goes; None if it is no batch."""
    run: BodyRun | None = None
    """The records that the answer has, if it may be repeated for as long as they are held."""


def json_answer(status: int, body: bytes, outcome: Outcome, span: tuple[int, int] | None = None) -> S2Answer:
    """An answer in JSON."""
    return S2Answer(status, CIMultiDict({"Content-Type": json_format.CONTENT_TYPE}), body, outcome, span)


def unwritten_answer(tail: StreamPosition) -> S2Answer:
    """There is no record at the start or after it."""
    return json_answer(416, unwritten_body(tail), Outcome.REVALIDATED)


class S2RefusedToAnother(Exception):
    """The origin has refused a shared request, which may be due to the credentials of another reader: the read is to be
    relayed."""


def refused_answer(refused: S2Refused, read: S2Read) -> S2Answer:
    """The origin's error, or one in its form.  Raises S2RefusedToAnother."""
    if not read.source.may_be_told(refused):
        raise S2RefusedToAnother
    outcome = Outcome.FAILED if refused.status >= 500 else Outcome.MISS
    return S2Answer(refused.status, refused.headers.copy(), refused.body, outcome)


def batch_answer(batch: S2Batch, form: S2Form, outcome: Outcome) -> S2Answer:
    """The answer with this batch."""
    span = batch.start, batch.end
    if form.reply is S2ReplyKind.PROTOBUF:
        headers = CIMultiDict({"Content-Type": protobuf.CONTENT_TYPE})
        return S2Answer(200, headers, protobuf.encode_read_batch(batch.batch), outcome, span)
    return json_answer(200, batch.json(form.format_), outcome, span)


def held_answer(stream: Stream, asked: S2ReadRecords) -> S2Answer | None:
    """The answer to a read whose range memory holds up to where a limit ends it; None for any other read.

    It depends on the tail in nothing, so it is true for as long as the records are those of the stream.
    """
    start = asked.query.start
    if not isinstance(stream, RecordStream) or stream.needs_revalidation or stream.is_doubted:
        return None
    if not isinstance(start, FromSeqNum):
        return None
    edition = stream.version.edition
    part = stream.records.read(start.seq_num, limits_of(asked.query))
    if not part.is_closed:
        return None
    answer = batch_answer(S2Batch.of(start.seq_num, part, None), asked.form, Outcome.HIT)
    return replace(answer, run=BodyRun(stream, str(start.seq_num), str(part.end), edition))


class S2UnaryContext(Protocol):
    """What all reads of a process share."""

    @property
    def clock(self) -> Clock:
        """Times of waits."""

    @property
    def streams(self) -> S2Streams:
        """The streams in use."""

    @property
    def is_draining(self) -> bool:
        """Whether live reads are to end."""


class S2UnaryRead:
    """One unary read of one stream."""

    def __init__(self, reads: S2UnaryContext, stream: S2Stream, read: S2Read, asked: S2ReadRecords) -> None:
        self._reads = reads
        self._stream = stream
        self._read = read
        self._form = asked.form
        self._query = asked.query
        self._left = limits_of(asked.query)
        self._at = 0
        self._found: list[Record] = []
        self._size = 0
        self._start = 0
        self._outcome = Outcome.HIT

    async def answer(self) -> S2Answer:
        """Answer the read.  Raises a GatewayError."""
        query = self._query
        if (refused := await self._stream.confirmed(self._read.client)) is not None:
            return refused_answer(refused, self._read)
        start = await start_of(self._stream, query, self._read)
        if isinstance(start, S2Refused):
            return refused_answer(start, self._read)
        self._at = self._start = start.at
        self._outcome = start.outcome
        if start.tail is not None and start.is_at_tail:
            return await self._at_tail(start.tail)
        while True:
            if self._take(self._stream.tape.read(self._at, self._left)):
                return self._batch()
            if (trusted := if_at(self._at, self._stream.trusted_tail(self._read.trust_s))) is not None:
                return self._batch() if self._found else await self._at_tail(trusted)
            may_wait = query.longest_wait_s and not self._found
            fetch = self._stream.fetch_or_tail if may_wait else self._stream.fetch
            fetched = await fetch(FromSeqNum(self._at), self._left, self._read.client)
            self._outcome = Outcome.JOINED if self._found else Outcome.MISS if fetched.is_fresh else Outcome.COLLAPSED
            match fetched.outcome:
                case S2Refused() as refused:
                    return refused_answer(refused, self._read)
                case FoundRecords(records):
                    end = records[-1].seq_num + 1 if records else self._at
                    if self._take(cut(records, self._at, end, self._left)) or fetched.is_all:
                        return self._batch()
                case AtTail(tail):
                    if fetched.is_fresh:
                        return self._batch() if self._found else await self._at_tail(tail)

    def _take(self, part: Part) -> bool:
        """Take records; returns whether the read is complete."""
        self._found += part.records
        self._size += part.size
        self._at = part.end
        self._left = self._left.after(len(part.records), part.size)
        return part.is_closed

    async def _at_tail(self, tail: StreamPosition) -> S2Answer:
        """The read has found nothing, and this is the tail."""
        if self._at > tail.seq_num and not self._query.is_clamped:
            return unwritten_answer(tail)
        self._at = self._start = tail.seq_num
        wait_s = self._query.longest_wait_s
        if not wait_s:
            return unwritten_answer(tail)
        streams = self._reads.streams
        topic = streams.attach(self._stream, tail, self._read.client)
        try:
            return await self._wait(topic, wait_s)
        finally:
            streams.detach(topic, self._read.linger_s)

    async def _wait(self, topic: S2Topic, wait_s: float) -> S2Answer:
        """Wait for records at the topic."""
        clock = self._reads.clock
        self._outcome = Outcome.FOLLOWED
        until = clock.now() + wait_s
        while True:
            self._stream.check()
            if self._take(self._stream.tape.read(self._at, self._left)) or self._found:
                return self._batch(topic.tail)
            if topic.error is not None or self._reads.is_draining:
                return refused_answer(topic.error or DRAINING, self._read)
            if topic.position > self._at:
                # What has come was evicted before this read could take it.
                fetched = await self._stream.fetch(FromSeqNum(self._at), self._left, self._read.client)
                match fetched.outcome:
                    case S2Refused() as refused:
                        return refused_answer(refused, self._read)
                    case FoundRecords(records):
                        end = records[-1].seq_num + 1 if records else self._at
                        self._take(cut(records, self._at, end, self._left))
                        return self._batch()
                    case AtTail(tail) if fetched.is_fresh:
                        # It has been trimmed.
                        self._at = self._start = max(self._at, tail.seq_num)
                continue
            left_s = until - clock.now()
            if left_s <= 0 or not await topic.changed.wait_within(clock, left_s):
                return self._batch(topic.tail)

    def _batch(self, tail: StreamPosition | None = None) -> S2Answer:
        part = Part(tuple(self._found), self._size, self._at, is_closed=True)
        return batch_answer(S2Batch.of(self._start, part, tail), self._form, self._outcome)

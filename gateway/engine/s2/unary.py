"""One unary read: over the tape, then by what the origin says, and at the tail by waiting.

What a limit stops on the tape is answered from memory, without waiting (`held_answer`).  Where the tape ends, the
origin is asked for what follows; what a fetch sent after the request's arrival brings is all that there is.  A read
that finds nothing, and may wait, waits at the stream's topic.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from multidict import CIMultiDict

from gateway.aio.clock import Clock
from gateway.engine.answer import BodyRun
from gateway.engine.s2.answer import S2Answer, S2Read, json_answer, refused_answer, unwritten_answer
from gateway.engine.s2.batch import S2Batch
from gateway.engine.s2.reader import DRAINING
from gateway.engine.s2.request import S2Form, S2ReadRecords, S2ReplyKind
from gateway.engine.s2.start import if_at, limits_of, start_of
from gateway.engine.s2.stream import S2Stream
from gateway.engine.s2.streams import S2Streams
from gateway.engine.s2.topic import S2Topic
from gateway.protocol.cache_status import Outcome
from gateway.s2 import protobuf
from gateway.s2.read_query import FromSeqNum
from gateway.s2.records import Record, StreamPosition
from gateway.tape.record_stream import RecordStream
from gateway.tape.records import Part, cut
from gateway.tape.stream import Stream
from gateway.upstream.s2_client import AtTail, FoundRecords, S2Refused


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

"""Reads of S2 streams, from the request to the answer or to the session that gives it.

A unary read goes over the tape from its start.  What a limit stops there is answered from memory.  Where the tape ends,
the origin is asked for what follows; what a fetch sent after the request's arrival brings is all that there is.  A read
that finds nothing, and may wait, waits at the stream's topic.

A read may find that the stream was created again while it went over it.  It then begins anew, because records of two
streams must not be joined.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from multidict import CIMultiDict

from gateway.aio.clock import Clock
from gateway.aio.tasks import Tasks
from gateway.aio.wheel import Wheel
from gateway.engine.s2.batch import Batch
from gateway.engine.s2.origin import AtTail, Found, OriginReads, Refused, Source
from gateway.engine.s2.reader import DRAINING, Session, SessionReader
from gateway.engine.s2.request import ReadRecords, Reply, key_query, parse_basin
from gateway.engine.s2.stream import S2Stream
from gateway.engine.s2.streams import S2Streams
from gateway.engine.s2.topic import Topic
from gateway.errors import GatewayError, ShortOfMemory, TailMovedBack, UpstreamBroken
from gateway.live.places import RelayedLive
from gateway.live.subscriber import Wire
from gateway.protocol.cache_status import Outcome
from gateway.protocol.stream_key import StreamKey
from gateway.s2 import json_format, protobuf
from gateway.s2.errors import unwritten_body
from gateway.s2.read_query import FromSeqNum, FromTailOffset, FromTimestamp, ReadQuery
from gateway.s2.records import Record, StreamPosition
from gateway.tape.records import Limits, Part, cut
from gateway.tape.store import TapeStore
from gateway.tape.stream import End, Stream
from gateway.telemetry.access_record import AccessLog
from gateway.telemetry.metrics import MetricsRecorder
from gateway.upstream.upstream import Upstream

_MOST_BEGINNINGS: Final = 3
"""How often a read begins anew because the stream was created again."""


@dataclass(frozen=True, slots=True)
class S2Read:
    """One client's read, or check of the tail, of one stream."""

    key: StreamKey
    source: Source
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


class S2Reads:
    """Answers reads.  Owner of the streams in use and of the sessions with clients."""

    def __init__(
        self,
        upstream: Upstream,
        store: TapeStore,
        clock: Clock,
        tasks: Tasks,
        metrics: MetricsRecorder,
        rng: random.Random,
        access_log: AccessLog,
        begin_live: Callable[[str], RelayedLive],
        wheel: Wheel,
    ) -> None:
        self.clock = clock
        self.wheel = wheel
        self._store = store
        self._tasks = tasks
        self._rng = rng
        origin = OriginReads(upstream, clock, metrics, access_log)
        self.streams = S2Streams(origin, store, clock, tasks, metrics, rng, begin_live)
        self._sessions: dict[SessionReader, S2Read] = {}
        self._drained_at: float | None = None
        """When the last session is to end, if the gateway is draining (monotonic seconds)."""

    def __repr__(self) -> str:
        return f"<S2Reads {self.streams!r}>"

    @property
    def sessions(self) -> int:
        """Sessions with clients."""
        return len(self._sessions)

    @property
    def may_fetch(self) -> bool:
        """Whether requests that bring more records may be sent; False while the process is short of memory."""
        return self._store.may_grow

    @property
    def readers(self) -> list[SessionReader]:
        """The sessions with clients, oldest first."""
        return list(self._sessions)

    # -- whole answers

    async def check_tail(self, read: S2Read) -> S2Answer:
        """Answer a check of the tail.  Raises a GatewayError."""
        for _ in range(_MOST_BEGINNINGS):
            with self.streams.using(read.key, read.source) as stream:
                tail = stream.trusted_tail(read.trust_s)
                stream.stream.count_reads(1, tail is not None)
                if tail is not None:
                    return _json(200, json_format.encode_tail(tail), Outcome.HIT)
                try:
                    found = await stream.checked_tail()
                except TailMovedBack:
                    continue
            if isinstance(found, Refused):
                return _refused(found)
            return _json(200, json_format.encode_tail(found), Outcome.REVALIDATED)
        raise TailMovedBack

    async def unary(self, read: S2Read, asked: ReadRecords) -> S2Answer:
        """Answer a unary read.  Raises a GatewayError."""
        for _ in range(_MOST_BEGINNINGS):
            with self.streams.using(read.key, read.source) as stream:
                try:
                    answer = await _UnaryRead(self, stream, read, asked).answer()
                except TailMovedBack:
                    continue
                stream.stream.count_reads(1, answer.outcome is Outcome.HIT)
                stream.stream.count_sent(len(answer.body))
                return answer
        raise TailMovedBack

    # -- sessions

    async def open(self, read: S2Read, asked: ReadRecords) -> Session | S2Answer:
        """A session, which `begin` begins, or else `close` must be called with it; or the answer that refuses one.

        Raises a GatewayError.
        """
        for _ in range(_MOST_BEGINNINGS):
            stream = self.streams.open(read.key, read.source)
            try:
                opened = await self._open(stream, read, asked)
            except TailMovedBack:
                self.streams.release(stream)
                continue
            except BaseException:
                self.streams.release(stream)
                raise
            if isinstance(opened, S2Answer):
                self.streams.release(stream)
            else:
                stream.stream.count_reads(1, 0)
            return opened
        raise TailMovedBack

    async def _open(self, stream: S2Stream, read: S2Read, asked: ReadRecords) -> Session | S2Answer:
        query, limits = asked.query, limits_of(asked.query)
        start = await start_of(stream, query, read.trust_s)
        if isinstance(start, Refused):
            return _refused(start)
        at, tail = start.at, start.tail or _if_at(start.at, stream.trusted_tail(read.trust_s))
        while tail is None and not stream.tape.covers(at):
            fetched = await stream.fetch(FromSeqNum(at), limits)
            if isinstance(fetched.outcome, Refused):
                return _refused(fetched.outcome)
            if isinstance(fetched.outcome, Found):
                break
            if fetched.is_fresh:
                tail = fetched.outcome.tail
        if tail is not None:
            if at > tail.seq_num and not query.is_clamped:
                return _unwritten(tail)
            at = min(at, tail.seq_num)
            if at == tail.seq_num and query.longest_wait_s == 0:
                return _unwritten(tail)
        is_there = tail is not None and at == tail.seq_num
        return Session(stream, asked.form, at, limits, query.longest_wait_s, tail if is_there else None)

    def begin(self, read: S2Read, session: Session, wire: Wire) -> SessionReader:
        """Begin a session over `wire`, whose head has been written; `SessionReader.start` must be called."""
        reader = SessionReader(session, wire, self)
        self._sessions[reader] = read
        if self._drained_at is not None:
            self._drain(reader, max(0.0, self._drained_at - self.clock.now()))
        return reader

    def close(self, session: Session) -> None:
        """A session that was opened is not begun."""
        self.streams.release(session.stream)

    # -- called by sessions

    def fetch(self, reader: SessionReader) -> None:
        """Fetch what the reader's position lacks."""
        if self.may_fetch:
            self._tasks.start(self._fetch(reader), "fetch for a session")
        else:
            reader.failed()

    async def _fetch(self, reader: SessionReader) -> None:
        try:
            fetched = await reader.stream.fetch(FromSeqNum(reader.at), reader.wanted)
        except GatewayError:
            reader.failed()
        else:
            reader.fetched(fetched)

    def follow(self, reader: SessionReader, tail: StreamPosition) -> Topic | None:
        """The topic of the reader's stream; None if it cannot be followed."""
        read = self._sessions[reader]
        try:
            return self.streams.attach(reader.stream, tail, read.linger_s, read.source.client)
        except GatewayError:
            return None

    def left(self, reader: SessionReader) -> None:
        """The session has ended."""
        read = self._sessions.pop(reader)
        if reader.topic is not None:
            reader.topic.leave(reader)
            self.streams.detach(reader.stream, reader.topic, read.linger_s)
        self.streams.release(reader.stream)

    # -- the whole

    def forget(self, stream: Stream) -> None:
        """Bytes or records of the stream were dropped."""
        if stream.records is not None:
            self.streams.forget(stream)

    def deleted(self, origin: str, path: str) -> None:
        """A path at this origin was deleted through this gateway: if it is a basin's, so were its streams."""
        basin = parse_basin(path)
        if basin is not None:
            for stream in tuple(self._store):
                key = stream.key
                if stream.records is not None and key.group.origin == origin and key.query == key_query(basin):
                    self._store.drop(stream, End.DELETED)

    def leave(self, spread_s: float, within_s: float) -> None:
        """End every session, spread over `spread_s` seconds, the last of them within `within_s`; end waiting reads."""
        within_s = min(spread_s, within_s)
        self._drained_at = self.clock.now() + within_s
        for reader in tuple(self._sessions):
            self._drain(reader, self._rng.uniform(0, within_s))
        for stream in self.streams:
            if stream.topic is not None:
                stream.topic.changed.fire()

    @property
    def is_draining(self) -> bool:
        """Whether live reads are to end."""
        return self._drained_at is not None

    def _drain(self, reader: SessionReader, delay_s: float) -> None:
        self.clock.call_later(delay_s, lambda: reader.lost(DRAINING))

    def end(self) -> None:
        """End everything; called at shutdown, after the clients have gone."""
        self.streams.close()


@dataclass(frozen=True, slots=True)
class _Start:
    at: int
    tail: StreamPosition | None = None
    """The tail, if a question sent since the request arrived has found it here or before."""


def _if_at(at: int, tail: StreamPosition | None) -> StreamPosition | None:
    """The tail, if it is here."""
    return tail if tail is not None and tail.seq_num == at else None


async def start_of(stream: S2Stream, query: ReadQuery, trust_s: float) -> _Start | Refused:
    """Where a read starts; `trust_s` as in `S2Read`.  Raises a GatewayError."""
    match query.start:
        case FromSeqNum(seq_num):
            return _Start(seq_num)
        case FromTailOffset(tail_offset):
            tail = stream.trusted_tail(trust_s) or await stream.tail()
            if isinstance(tail, Refused):
                return tail
            at = max(0, tail.seq_num - tail_offset)
            return _Start(at, _if_at(at, tail))
        case FromTimestamp(timestamp):
            return await _start_at(stream, query, timestamp)


async def _start_at(stream: S2Stream, query: ReadQuery, timestamp: int) -> _Start | Refused:
    while True:
        at = stream.tape.at_timestamp(timestamp)
        if at is not None:
            return _Start(at)
        fetched = await stream.fetch(FromTimestamp(timestamp), Limits(query.count))
        match fetched.outcome:
            case Refused() as refused:
                return refused
            case Found(records) if records:
                return _Start(records[0].seq_num)
            case AtTail(tail) if fetched.is_fresh:
                # A timestamp after the tail's is like a number after it; else no record that late is left.
                beyond = timestamp > tail.timestamp and not query.is_clamped
                return _Start(tail.seq_num + 1 if beyond else tail.seq_num, tail)
            case Found() if fetched.is_fresh:
                raise UpstreamBroken("Origin answered a read with neither records nor the tail")
            case _:
                pass


class _UnaryRead:
    """One unary read of one stream."""

    def __init__(self, reads: S2Reads, stream: S2Stream, read: S2Read, asked: ReadRecords) -> None:
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
        query = self._query
        asks = not isinstance(query.start, FromSeqNum)
        start = await start_of(self._stream, query, self._read.trust_s)
        if isinstance(start, Refused):
            return _refused(start)
        self._at = self._start = start.at
        if asks:
            self._outcome = Outcome.REVALIDATED
        if start.tail is not None:
            return await self._at_tail(start.tail)
        while True:
            if self._take(self._stream.tape.read(self._at, self._left)):
                return self._batch()
            if (trusted := _if_at(self._at, self._stream.trusted_tail(self._read.trust_s))) is not None:
                return self._batch() if self._found else await self._at_tail(trusted)
            if not self._reads.may_fetch:
                raise ShortOfMemory
            fetched = await self._stream.fetch(FromSeqNum(self._at), self._left)
            self._outcome = Outcome.JOINED if self._found else Outcome.MISS if fetched.is_fresh else Outcome.COLLAPSED
            match fetched.outcome:
                case Refused() as refused:
                    return _refused(refused)
                case Found(records):
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
            return _unwritten(tail)
        self._at = self._start = tail.seq_num
        wait_s = self._query.longest_wait_s
        if not wait_s:
            return _unwritten(tail)
        streams, stream, linger_s = self._reads.streams, self._stream, self._read.linger_s
        topic = streams.attach(stream, tail, linger_s, self._read.source.client)
        try:
            return await self._wait(topic, wait_s)
        finally:
            streams.detach(stream, topic, linger_s)

    async def _wait(self, topic: Topic, wait_s: float) -> S2Answer:
        """Wait for records at the topic."""
        clock = self._reads.clock
        self._outcome = Outcome.FOLLOWED
        until = clock.now() + wait_s
        while True:
            self._stream.check()
            if self._take(self._stream.tape.read(self._at, self._left)) or self._found:
                return self._batch(topic.tail)
            if topic.error is not None or self._reads.is_draining:
                return _refused(topic.error or DRAINING)
            if topic.position > self._at:
                # What has come was evicted before this read could take it.
                fetched = await self._stream.fetch(FromSeqNum(self._at), self._left)
                if isinstance(fetched.outcome, Refused):
                    return _refused(fetched.outcome)
                if isinstance(fetched.outcome, Found):
                    records = fetched.outcome.records
                    self._take(cut(records, self._at, records[-1].seq_num + 1 if records else self._at, self._left))
                    return self._batch()
                continue
            left_s = until - clock.now()
            if left_s <= 0 or not await topic.changed.wait_within(clock, left_s):
                return self._batch(topic.tail)

    def _batch(self, tail: StreamPosition | None = None) -> S2Answer:
        part = Part(tuple(self._found), self._size, self._at, is_closed=True)
        batch = Batch.of(self._start, part, tail)
        if self._form.reply is Reply.PROTOBUF:
            headers = CIMultiDict({"Content-Type": protobuf.CONTENT_TYPE})
            return S2Answer(200, headers, protobuf.encode_read_batch(batch.batch), self._outcome)
        return _json(200, batch.json(self._form.format_), self._outcome)


def limits_of(query: ReadQuery) -> Limits:
    """The limits of a read."""
    return Limits(query.count, query.bytes, query.until)


def _json(status: int, body: bytes, outcome: Outcome) -> S2Answer:
    return S2Answer(status, CIMultiDict({"Content-Type": json_format.CONTENT_TYPE}), body, outcome)


def _unwritten(tail: StreamPosition) -> S2Answer:
    return _json(416, unwritten_body(tail), Outcome.REVALIDATED)


def _refused(refused: Refused) -> S2Answer:
    outcome = Outcome.FAILED if refused.status >= 500 else Outcome.MISS
    return S2Answer(refused.status, refused.headers.copy(), refused.body, outcome)

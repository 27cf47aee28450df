"""Reads of S2 streams, from the request to the answer or the session.

`unary_read.py` answers unary reads, and `reader.py` runs sessions.  If a stream is re-created during a read, the read
starts again, so that no answer mixes records of two streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from multidict import CIMultiDict

from gateway.aio.batches import Batch
from gateway.aio.clock import DETACHED
from gateway.aio.timers import Wheel
from gateway.engine.cold_reads import ColdReadLimit
from gateway.engine.negative_cache import NegativeCache
from gateway.engine.s2.fetch import S2Fetched, S2Origin
from gateway.engine.s2.reader import DRAINING, S2Session, S2SessionReader
from gateway.engine.s2.request import S2Read, S2ReadRecords
from gateway.engine.s2.stream import S2Stream
from gateway.engine.s2.streams import S2Streams
from gateway.engine.s2.topic import S2Topic
from gateway.engine.s2.unary_read import (
    S2Answer,
    S2UnaryRead,
    held_answer,
    json_answer,
    refused_answer,
    unwritten_answer,
)
from gateway.errors import GatewayError, TailMovedBack, UpstreamBroken
from gateway.live.followed_streams import LiveTable
from gateway.live.subscriber import Wire
from gateway.protocol.cache_status import Outcome
from gateway.s2 import json_format, protobuf
from gateway.s2.read_query import FromSeqNum, FromTailOffset, FromTimestamp, ReadQuery
from gateway.s2.records import ReadBatch, StreamPosition
from gateway.tape.decide import Question
from gateway.tape.decide_records import RecordAnswer, RecordProgress, decide_records
from gateway.tape.record_stream import RecordStream
from gateway.tape.record_tape import Limits
from gateway.tape.store import TapeStore
from gateway.tape.stream import Stream
from gateway.telemetry.surroundings import Surroundings
from gateway.upstream.reply import Upstream
from gateway.upstream.s2_client import AtTail, FoundRecords, S2Refused

_MOST_BEGINNINGS: Final = 3
"""How many times a read is started before it fails because its stream is re-created each time."""


async def start_read(stream: S2Stream, query: ReadQuery, read: S2Read) -> tuple[RecordProgress, Outcome] | S2Refused:
    """Resolve the start of a read's query; return the read's progress and the outcome so far.  Raises a
    GatewayError."""
    if (refused := await stream.confirmed(read.client)) is not None:
        return refused
    outcome = Outcome.HIT
    trusted = stream.trusted_tail(read.trust_s)
    progress = RecordProgress(
        0, Limits(query.count, query.bytes, query.until), query.longest_wait_s != 0, query.may_start_at_tail
    )
    match query.start:
        case FromSeqNum(seq_num):
            progress.at = seq_num
            progress.trust(trusted)
        case FromTailOffset(tail_offset):
            tail: StreamPosition | S2Refused | None = trusted
            if tail is None:
                outcome, tail = Outcome.REVALIDATED, await stream.tail(read.client)
            if isinstance(tail, S2Refused):
                return tail
            progress.at, progress.tail = max(0, tail.seq_num - tail_offset), tail
            progress.is_tail_trusted = trusted is not None
        case FromTimestamp(timestamp):
            start = await _start_at(stream, query, timestamp, read.client)
            if isinstance(start, S2Refused):
                return start
            progress.at, progress.tail, outcome = start
            if progress.tail is None:
                # Take the trusted tail as it is now.  The tail from before the fetch may be earlier than the record
                # that was found.
                progress.trust(stream.trusted_tail(read.trust_s))
    return progress, outcome


async def _start_at(
    stream: S2Stream, query: ReadQuery, timestamp: int, client: str
) -> tuple[int, StreamPosition | None, Outcome] | S2Refused:
    outcome = Outcome.HIT
    while True:
        at = stream.tape.at_timestamp(timestamp)
        if at is not None:
            return at, None, outcome
        fetched = await stream.fetch_or_tail(FromTimestamp(timestamp), Limits(query.count), client)
        outcome = Outcome.MISS if fetched.is_fresh else Outcome.COLLAPSED
        match fetched.outcome:
            case S2Refused() as refused:
                return refused
            case FoundRecords(records) if records:
                return records[0].seq_num, None, outcome
            case AtTail(tail) if fetched.is_fresh:
                # A timestamp later than the tail's timestamp counts as a sequence number after the tail.  If the
                # timestamp is not later, the records from that time on have been trimmed.
                beyond = timestamp > tail.timestamp and not query.is_clamped
                return tail.seq_num + 1 if beyond else tail.seq_num, tail, Outcome.REVALIDATED
            case FoundRecords() if fetched.is_fresh:
                raise UpstreamBroken("Origin answered a read with neither records nor the tail")
            case _:
                pass


def _take_fetched(found: tuple[S2SessionReader, S2Fetched]) -> None:
    reader, fetched = found
    reader.fetched(fetched)


def _begin_sending(reader: S2SessionReader) -> None:
    try:
        reader.pump()
    except Exception:
        # The answer has begun, so the error cannot become a response.
        reader.gone()
        raise


class S2Reads:
    """Answers reads.  Owns the streams in use and the sessions with clients."""

    def __init__(
        self,
        upstream: Upstream,
        store: TapeStore,
        surroundings: Surroundings,
        table: LiveTable,
        wheel: Wheel,
        negative_cache: NegativeCache,
        cold_read_limit: ColdReadLimit,
    ) -> None:
        clock = self.clock = surroundings.clock
        self.wheel = wheel
        self._store = store
        self._cold_read_limit = cold_read_limit
        self._tasks = surroundings.tasks
        self._rng = surroundings.rng
        origin = S2Origin(upstream, clock, surroundings.metrics, surroundings.access_log, negative_cache)
        self.streams = S2Streams(origin, store, surroundings, table)
        self._sessions: dict[S2SessionReader, S2Read] = {}
        self._fetched: Batch[tuple[S2SessionReader, S2Fetched]] = Batch(_take_fetched, clock.now)
        """Results of fetches.  They are processed in batches, because one fetch may serve many sessions, each of which
        encodes up to 1 MiB."""
        self._first_pumps: Batch[S2SessionReader] = Batch(_begin_sending, clock.now)
        """Sessions that send their first records in a later turn."""
        self._has_begun = False
        """Whether this turn of the loop has begun a session, so that further sessions wait for the next turn."""
        self._drained_at: float | None = None
        """When the last session must end if the gateway is draining (monotonic seconds); else None."""

    def __repr__(self) -> str:
        return f"<S2Reads {self.streams!r}>"

    @property
    def sessions(self) -> int:
        """The number of sessions with clients."""
        return len(self._sessions)

    @property
    def readers(self) -> list[S2SessionReader]:
        """The sessions with clients, oldest first."""
        return list(self._sessions)

    def _admit(self, read: S2Read) -> None:
        """Count a read of a stream that is not in memory.  Raises TooManyAbsent or TooManyRequests."""
        if self._store.find(read.key) is None and not read.is_handed:
            self._cold_read_limit.admit_read(read.source.configured, read.client)

    # -- whole answers

    async def check_tail(self, read: S2Read) -> S2Answer:
        """Answer a tail check.  Raises a GatewayError or S2RefusedToAnother."""
        found, outcome = await self._tail(read, S2Stream.checked_tail)
        if isinstance(found, S2Refused):
            return refused_answer(found, read)
        return json_answer(200, json_format.encode_tail(found), outcome)

    async def probe_tail(self, read: S2Read) -> S2Answer:
        """Answer a read of no records at the tail, for another worker.  Raises a GatewayError or S2RefusedToAnother."""
        found, outcome = await self._tail(read, S2Stream.tail)
        if isinstance(found, S2Refused):
            return refused_answer(found, read)
        headers = CIMultiDict({"Content-Type": protobuf.CONTENT_TYPE})
        return S2Answer(200, headers, protobuf.encode_read_batch(ReadBatch((), found)), outcome)

    async def _tail(
        self, read: S2Read, ask: Callable[[S2Stream, str], Awaitable[StreamPosition | S2Refused]]
    ) -> tuple[StreamPosition | S2Refused, Outcome]:
        """Return the tail, from memory if it is trusted, else as `ask` finds it."""
        self._admit(read)
        for _ in range(_MOST_BEGINNINGS):
            with self.streams.using(read.key, read.source) as stream:
                tail = stream.trusted_tail(read.trust_s)
                stream.stream.count_reads(1, tail is not None)
                if tail is not None:
                    return tail, Outcome.HIT
                try:
                    return await ask(stream, read.client), Outcome.REVALIDATED
                except TailMovedBack:
                    continue
        raise TailMovedBack

    def held(self, read: S2Read, asked: S2ReadRecords) -> S2Answer | None:
        """Return the answer to a unary read if memory alone gives it and appends cannot change it; else None."""
        record = self._store.find(read.key) if asked.form.is_unary else None
        answer = held_answer(record, asked) if record is not None else None
        if record is not None and answer is not None:
            self._store.open_as(RecordStream, read.key, self.clock.now())
            record.count_reads(1, 1)
            record.sent_bytes += len(answer.body)
        return answer

    async def unary(self, read: S2Read, asked: S2ReadRecords) -> S2Answer:
        """Answer a unary read.  Raises a GatewayError or S2RefusedToAnother."""
        self._admit(read)
        for _ in range(_MOST_BEGINNINGS):
            with self.streams.using(read.key, read.source) as stream:
                try:
                    begun = await start_read(stream, asked.query, read)
                    if isinstance(begun, S2Refused):
                        answer = refused_answer(begun, read)
                    else:
                        answer = await S2UnaryRead(self, stream, read, asked, *begun).answer()
                except TailMovedBack:
                    continue
                stream.stream.count_reads(1, answer.outcome is Outcome.HIT)
                stream.stream.sent_bytes += len(answer.body)
                return answer
        raise TailMovedBack

    # -- sessions

    async def open(self, read: S2Read, asked: S2ReadRecords) -> S2Session | S2Answer:
        """Open a session, or return the answer that refuses it.

        The caller must pass a session to `start_session` or `discard_session`.  Raises a GatewayError or
        S2RefusedToAnother.
        """
        self._admit(read)
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

    async def _open(self, stream: S2Stream, read: S2Read, asked: S2ReadRecords) -> S2Session | S2Answer:
        query = asked.query
        begun = await start_read(stream, query, read)
        if isinstance(begun, S2Refused):
            return refused_answer(begun, read)
        progress, _ = begun
        while not stream.tape.covers(progress.at):
            match decide_records(stream.stream, progress):
                case Question():
                    fetched = await stream.fetch(FromSeqNum(progress.at), progress.left, read.client)
                    if isinstance(fetched.outcome, S2Refused):
                        return refused_answer(fetched.outcome, read)
                    if isinstance(fetched.outcome, FoundRecords):
                        break
                    if fetched.is_fresh:
                        progress.found_tail(fetched.outcome.tail, is_clamped=query.is_clamped)
                case RecordAnswer.UNWRITTEN:
                    assert progress.tail is not None
                    return unwritten_answer(progress.tail, is_trusted=progress.is_tail_trusted)
                case RecordAnswer.GONE:
                    raise TailMovedBack
                case _:
                    break
        # The head of the answer is sent next.  A session that reaches the tail after its head can no longer be refused,
        # so it may end without records.
        progress.may_be_empty = True
        return S2Session(stream, asked.form, progress, query.longest_wait_s)

    def start_session(self, read: S2Read, session: S2Session, wire: Wire) -> S2SessionReader:
        """Start a session over `wire`; the caller must write the head, and then call `begin_sending`."""
        reader = S2SessionReader(session, wire, self)
        self._sessions[reader] = read
        if self._drained_at is not None and self.drains(read):
            self._drain(reader, max(0.0, self._drained_at - self.clock.now()))
        return reader

    def begin_sending(self, reader: S2SessionReader) -> None:
        """Send the session's first records.  In each turn of the loop, the first session sends at once.  The other
        sessions send in a batch, because many of them may have waited for the same fetch."""
        if self._has_begun:
            self._first_pumps.add(reader)
            return
        self._has_begun = True
        asyncio.get_running_loop().call_soon(self._end_turn, context=DETACHED)
        _begin_sending(reader)

    def _end_turn(self) -> None:
        self._has_begun = False

    def discard_session(self, session: S2Session) -> None:
        """Release an opened session that will not be started."""
        self.streams.release(session.stream)

    # -- called by sessions

    def fetch(self, reader: S2SessionReader) -> None:
        """Fetch the records at the reader's position, then call `fetched` or `failed`."""
        self._tasks.start(self._fetch(reader, self._sessions[reader]), "fetch for a session")

    async def _fetch(self, reader: S2SessionReader, read: S2Read) -> None:
        try:
            fetch = reader.stream.fetch_or_tail if reader.read.may_wait else reader.stream.fetch
            fetched = await fetch(FromSeqNum(reader.at), reader.wanted, read.client)
        except GatewayError:
            reader.failed()
        else:
            if isinstance(fetched.outcome, S2Refused) and not read.source.may_be_told(fetched.outcome):
                # The error may concern another client's credentials.  After the client reconnects, its request is
                # relayed with its own credentials.
                reader.failed()
            else:
                self._fetched.add((reader, fetched))

    def follow(self, reader: S2SessionReader, tail: StreamPosition) -> S2Topic | None:
        """Return the topic (the group of live readers) of the reader's stream; None if the stream cannot be
        followed."""
        read = self._sessions[reader]
        try:
            return self.streams.attach(reader.stream, tail, read.client)
        except GatewayError:
            return None

    def session_ended(self, reader: S2SessionReader) -> None:
        """Release the resources of a session that has ended."""
        read = self._sessions.pop(reader)
        if reader.topic is not None:
            reader.topic.detach(reader)
            self.streams.detach(reader.topic, read.linger_s)
        self.streams.release(reader.stream)

    # -- all reads

    def forget_stream(self, stream: Stream) -> None:
        """Handle dropped records: if the stream has ended, its live readers end."""
        self.streams.forget_stream(stream)

    def drain_readers(self, spread_s: float, within_s: float) -> None:
        """End the sessions of clients, spread over `spread_s` seconds, the last within `within_s`; end waiting reads
        now."""
        within_s = min(spread_s, within_s)
        self._drained_at = self.clock.now() + within_s
        for reader, read in tuple(self._sessions.items()):
            if self.drains(read):
                self._drain(reader, self._rng.uniform(0, within_s))
        for stream in self.streams:
            if stream.topic is not None:
                stream.topic.changed.fire()

    def stay(self) -> None:
        """Stop the drain: sessions that have not ended yet stay."""
        self._drained_at = None

    def drains(self, read: S2Read) -> bool:
        """Return whether a drain is under way that ends this live read.  A drain does not end a read that another
        worker has sent, because the clients of that worker would lose the stream."""
        return self._drained_at is not None and not read.is_handed

    def _drain(self, reader: S2SessionReader, delay_s: float) -> None:
        drained_at = self._drained_at

        def end() -> None:
            # Do nothing if the drain was undone, or if another drain has begun.
            if self._drained_at == drained_at:
                reader.lost(DRAINING)

        self.clock.call_later(delay_s, end)

    def shut_down(self) -> None:
        """End everything at shutdown, after the clients have gone."""
        self.streams.close()

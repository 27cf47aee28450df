"""A session with a client against a model: whatever happens, its client is sent the stream, in order and once."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gateway.aio.clock import ManualClock
from gateway.aio.tasks import Tasks
from gateway.aio.timers import Wheel
from gateway.commands.s2_events import EventReader
from gateway.engine.s2.fetch import S2Fetched, S2Origin, S2Source
from gateway.engine.s2.reader import REPLAY_BYTES, S2Session, S2SessionReader
from gateway.engine.s2.request import S2Form, S2ReplyKind
from gateway.engine.s2.stream import S2Shared, S2Stream
from gateway.engine.s2.topic import LOST, S2Topic
from gateway.live.frames import chunk
from gateway.protocol.sharing import Group, Partition, StreamKey
from gateway.s2 import protobuf
from gateway.s2.json_format import Format
from gateway.s2.records import ReadBatch, Record, StreamPosition
from gateway.s2.session import FrameReader, Message, Terminal
from gateway.s2.sse import BatchEvent, Done, Event, Failure, Ping
from gateway.tape.decide_records import RecordProgress
from gateway.tape.eviction import POLICIES
from gateway.tape.record_stream import RecordStream
from gateway.tape.record_tape import Limits, cut
from gateway.tape.store import TapeStore
from gateway.telemetry.access_record import CloseReason
from gateway.telemetry.metrics import NoMetrics
from gateway.upstream.s2_client import AtTail, FoundRecords

KEY = StreamKey(Group("http://o", "/v1/streams/s"), "", Partition("r"))
WAIT_S = 20.0


class FakeWire:
    """A client's connection; it takes what it is sent, and may be full afterwards."""

    carrier = 0

    def __init__(self) -> None:
        self.is_full = False
        self.fills_up = False
        self.live_bytes = 0
        self.live_first_byte_s = 0.0
        self.sent = bytearray()
        self.over_by: CloseReason | None = None

    def send_chunk(self, chunk: bytes, size: int) -> None:
        # Only the few bytes of the end are written to a connection that is full.
        assert not self.is_full or b"[DONE]" in chunk or LOST.body in chunk
        assert self.over_by is None
        head, _, rest = chunk.partition(b"\r\n")
        assert int(head, 16) == size == len(rest) - 2
        self.sent += rest[:-2]
        self.is_full = self.fills_up

    def send_view(self, piece: memoryview) -> None:
        self.send_chunk(chunk(bytes(piece)), len(piece))

    def over(self, reason: CloseReason, *, in_order: bool) -> None:
        assert self.over_by is None
        self.over_by = reason


class Client:
    """What the client makes of the bytes."""

    def __init__(self, form: S2Form, start: int) -> None:
        self._is_sse = form.reply is S2ReplyKind.SSE
        self._events = EventReader(Format.RAW)
        self._frames = FrameReader()
        self.at = start
        self.records: list[Record] = []
        self.size = 0
        self.said_tails: list[StreamPosition] = []
        self.is_done = self.is_failed = False

    def take(self, data: bytes) -> None:
        if self._is_sse:
            for event in self._events.feed(data):
                self._event(event)
        else:
            for frame in self._frames.feed(data):
                if isinstance(frame, Terminal):
                    self.is_failed = True
                else:
                    assert isinstance(frame, Message)
                    self._batch(protobuf.decode_read_batch(frame.body))

    def _event(self, event: Event) -> None:
        match event:
            case BatchEvent(id_, batch):
                self._batch(batch)
                assert (id_.seq_num, id_.count) == (self.at - 1, len(self.records))
            case Ping(_, tail):
                assert tail is not None
                self._batch(ReadBatch((), tail))
            case Failure():
                self.is_failed = True
            case Done():
                self.is_done = True

    def _batch(self, batch: ReadBatch) -> None:
        for record in batch.records:
            assert record.seq_num == self.at
            self.at += 1
            self.records.append(record)
        if batch.tail is not None:
            # A client resumes from the tail.
            assert batch.tail.seq_num == self.at
            self.said_tails.append(batch.tail)


class SessionAgainstModel(RuleBasedStateMachine):
    @initialize(
        reply=st.sampled_from([S2ReplyKind.SSE, S2ReplyKind.SESSION]),
        held=st.integers(0, 5),
        start=st.integers(0, 5),
        limits=st.builds(Limits, st.none() | st.integers(1, 20), st.none(), st.none() | st.integers(1, 60)),
        waits=st.booleans(),
        has_asked=st.booleans(),
    )
    def begin(self, reply: S2ReplyKind, held: int, start: int, limits: Limits, waits: bool, has_asked: bool) -> None:
        self.clock = ManualClock()
        self.wheel = Wheel(self.clock)
        store = TapeStore(10_000_000, POLICIES["lru"](), lambda: "i", NoMetrics())
        self.turn: list[Callable[[], object]] = []
        shared = S2Shared(cast(S2Origin, None), store, self.clock, Tasks(), self.turn.append)
        record = store.open_as(RecordStream, KEY, 0.0)
        record.hold()
        self.store = store
        self.stream = S2Stream(shared, record, cast(S2Source, None))
        self.origin: list[Record] = []
        self.topic: S2Topic | None = None
        self.asked: list[S2SessionReader] = []
        self.append(held)
        start = min(start, held)
        self.start_at = start
        self.limits = limits
        self.wire = FakeWire()
        form = S2Form(reply)
        self.client = Client(form, start)
        self.longest_wait_s = WAIT_S if waits else None if limits == Limits() else 0.0
        # A session that may not wait is not begun at a tail that is known.
        tail = self.tail if has_asked and (start < held or self.longest_wait_s != 0) else None
        read = RecordProgress(start, limits, self.longest_wait_s != 0, may_be_empty=True, tail=tail)
        session = S2Session(self.stream, form, read, self.longest_wait_s)
        self.reader = S2SessionReader(session, self.wire, self)
        self.reader.pump()

    # -- what a session asks of its surroundings

    def fetch(self, reader: S2SessionReader) -> None:
        self.asked.append(reader)

    def follow(self, reader: S2SessionReader, tail: StreamPosition) -> S2Topic:
        if self.topic is None:
            self.topic = self.stream.topic = S2Topic(self.stream.stream, tail, self.turn.append)
        return self.topic

    def session_ended(self, reader: S2SessionReader) -> None:
        if reader.topic is not None:
            reader.topic.detach(reader)

    # -- the origin

    @property
    def tail(self) -> StreamPosition:
        return StreamPosition(len(self.origin), self.origin[-1].timestamp if self.origin else 0)

    @rule(count=st.integers(0, 4))
    def append(self, count: int) -> None:
        for _ in range(count):
            self.origin.append(Record(len(self.origin), 2 * len(self.origin), (), b"x"))

    @precondition(lambda self: self.asked)
    @rule(is_fresh=st.booleans(), count=st.integers(1, 5), has_room=st.booleans())
    def answer_a_fetch(self, is_fresh: bool, count: int, has_room: bool) -> None:
        reader = self.asked.pop()
        wanted = reader.wanted
        part = cut(self.origin[reader.at :][:count], reader.at, len(self.origin), Limits(wanted.count))
        if reader.at < len(self.origin):
            if has_room:
                self.stream.store(reader.at, part.records)
            reader.fetched(S2Fetched(FoundRecords(part.records), is_fresh, is_all=False))
        else:
            reader.fetched(S2Fetched(AtTail(self.tail), is_fresh, is_all=is_fresh))

    @precondition(lambda self: self.topic is not None and self.topic.position < len(self.origin))
    @rule(count=st.integers(1, 4))
    def deliver(self, count: int) -> None:
        assert self.topic is not None
        records = tuple(self.origin[self.topic.position :][:count])
        self.stream.store(self.topic.position, records)
        self.topic.publish(records, self.tail, self.clock.now())

    @rule()
    def end_the_turn(self) -> None:
        while self.turn:
            self.turn.pop(0)()

    @precondition(lambda self: self.topic is not None)
    @rule()
    def say_the_tail(self) -> None:
        assert self.topic is not None
        self.topic.heard(self.tail, self.clock.now())

    @precondition(lambda self: self.topic is not None)
    @rule()
    def lose_the_session(self) -> None:
        assert self.topic is not None
        self.topic.disconnected()

    # -- the surroundings

    @rule()
    def evict(self) -> None:
        self.stream.tape.drop_oldest()

    @rule(fills_up=st.booleans())
    def become_slow(self, fills_up: bool) -> None:
        self.wire.fills_up = fills_up

    @precondition(lambda self: self.wire.is_full and self.wire.over_by is None)
    @rule()
    def make_room(self) -> None:
        self.wire.is_full = False
        self.reader.pump()

    @precondition(lambda self: self.topic is not None)
    @rule()
    def beat(self) -> None:
        assert self.topic is not None
        self.topic.beat()

    @rule(seconds=st.integers(0, 12))
    def let_time_pass(self, seconds: int) -> None:
        if not self.wire.is_full:
            self.clock.advance(seconds)

    # -- what holds

    @invariant()
    def the_client_is_sent_the_stream_in_order_and_once(self) -> None:
        if not hasattr(self, "client"):
            return
        self.client.take(bytes(self.wire.sent))
        self.wire.sent.clear()
        assert self.client.records == self.origin[self.start_at : self.client.at]
        whole = cut(self.origin[self.start_at :], self.start_at, len(self.origin), self.limits)
        assert len(self.client.records) <= len(whole.records)
        assert not self.client.is_failed
        if self.wire.over_by is CloseReason.CLOSED:
            is_all = whole.is_closed and len(self.client.records) == len(whole.records)
            assert is_all or self.longest_wait_s == 0
        elif self.wire.over_by is CloseReason.TIMED_OUT:
            assert self.longest_wait_s == WAIT_S

    def teardown(self) -> None:
        """In the end the client has everything."""
        if not hasattr(self, "client"):
            return
        self.wire.fills_up = False
        for _ in range(200):
            if self.wire.over_by is not None:
                break
            if self.wire.is_full:
                self.make_room()
            elif self.asked:
                self.answer_a_fetch(is_fresh=True, count=5, has_room=True)
            elif self.topic is not None and self.topic.position < len(self.origin):
                self.deliver(4)
            elif self.turn:
                self.end_the_turn()
            else:
                break
            self.the_client_is_sent_the_stream_in_order_and_once()
        whole = cut(self.origin[self.start_at :], self.start_at, len(self.origin), self.limits)
        self.the_client_is_sent_the_stream_in_order_and_once()
        if self.wire.over_by is None:
            assert len(self.client.records) == len(whole.records)
            assert self.topic is not None
            # It learns that it is at the tail once that is known.
            self.topic.heard(self.tail, self.clock.now())
            self.the_client_is_sent_the_stream_in_order_and_once()
            assert self.client.said_tails
            self.topic.lost(LOST)
            self.client.take(bytes(self.wire.sent))
            assert self.client.is_failed


def test_a_session_sends_the_stream_in_order_and_once() -> None:
    run_state_machine_as_test(SessionAgainstModel)


@pytest.mark.parametrize("has_room", [True, False])
def test_the_records_of_a_fetch_are_sent_in_batches_if_they_are_held(has_room: bool) -> None:
    session = SessionAgainstModel()
    session.begin(S2ReplyKind.SESSION, 0, 0, Limits(), waits=False, has_asked=False)
    session.origin = [Record(n, n, (), bytes(REPLAY_BYTES - 100)) for n in range(4)]
    session.answer_a_fetch(is_fresh=True, count=4, has_room=has_room)
    frames = list(FrameReader().feed(bytes(session.wire.sent)))
    assert len(frames) == (4 if has_room else 1)
    session.the_client_is_sent_the_stream_in_order_and_once()
    assert len(session.client.records) == 4

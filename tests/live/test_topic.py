"""Topics with plain values: whether readers are up to date, the bytes they are sent, and the end of their stream."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, groupby
from random import Random
from typing import Any, cast

import pytest

from gateway.aio.clock import ManualClock
from gateway.aio.tasks import Tasks
from gateway.engine.sse import SseOpening
from gateway.limits.accounts import Accounts, client_nets
from gateway.live.followed_streams import LiveTable
from gateway.live.frames import KeptFrames
from gateway.live.subscriber import Subscriber
from gateway.live.topic import MOST_READERS, MOST_S, DeliveryTimes, LiveTimes, OriginAccess, Topic
from gateway.live.topics import LiveTopics
from gateway.protocol.names import START
from gateway.protocol.sharing import Group, Partition, StreamKey
from gateway.tape.eviction import POLICIES
from gateway.tape.store import TapeStore
from gateway.tape.stream import End, Stream
from gateway.telemetry.access_record import CloseReason
from gateway.telemetry.metrics import NoMetrics
from gateway.telemetry.surroundings import Surroundings
from gateway.upstream.reply import Upstream
from tests.tape.test_stream import new_stream
from tests.waiting import pass_turns

TIMES = LiveTimes(lifetime_s=60.0, heartbeat_s=15.0, linger_s=10.0)
ACCESS = cast(OriginAccess, None)


class Reader:
    """A live reader that counts its calls."""

    pumped = 0

    def pump(self) -> None:
        self.pumped += 1


class Wire:
    """A client that takes nothing more once `is_full`."""

    carrier = 0
    live_bytes = 0
    live_first_byte_s = 0.0
    is_full = False

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.ended: CloseReason | None = None

    def send_chunk(self, chunk: bytes, size: int) -> None:
        self.sent.append(chunk)

    def over(self, reason: CloseReason, *, in_order: bool) -> None:
        self.ended = reason


class Wheel:
    """A timer that never fires."""

    def add(self, *_: object) -> int:
        return 0

    def unlink(self, *_: object) -> None:
        pass


class Context:
    """The clock and the timers of subscribers for whom nothing is fetched."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.wheel = Wheel()
        self.drain = self
        self.is_set = False

    def reader_left(self, topic: Topic) -> None:
        pass


def held(stream: Stream) -> Stream:
    """The stream with the bytes up to the tail "4"."""
    stream.learn_type("application/octet-stream")
    stream.tape.store(START, "2", [b"ab"], 100.0)
    stream.tape.store("2", "4", [b"cd"], 100.0)
    stream.tape.reached("4")
    return stream


def topic_of(stream: Stream) -> Topic:
    clock = ManualClock()
    times = DeliveryTimes(NoMetrics(), clock.now, "default")
    return Topic(stream, ACCESS, TIMES, clock.wall, times, KeptFrames())


@pytest.fixture
async def topic() -> Topic:
    """A topic that a follower has confirmed at the tail "4"."""
    found = topic_of(held(new_stream()))
    found.moved("4", 100.0, is_confirmed=True)
    return found


async def test_a_reader_is_up_to_date_at_the_tail_that_the_follower_confirms(topic: Topic) -> None:
    assert topic.is_current("4")
    assert not topic.is_current("2")


async def test_a_lost_follower_confirms_no_tail(topic: Topic) -> None:
    version = topic.stream.version
    topic.lost(101.0, None)
    assert not topic.is_current("4")
    assert not version.same_tail_as(topic.stream.version)


async def test_a_reader_is_not_up_to_date_behind_a_tail_that_a_reply_has_named(topic: Topic) -> None:
    topic.stream.tape.reached("6")
    assert not topic.is_current("4")


async def test_a_reader_is_not_up_to_date_behind_an_acknowledged_write(topic: Topic) -> None:
    topic.stream.acknowledged("6", is_closed=False, query="")
    assert not topic.is_current("4")


async def test_a_client_that_takes_nothing_keeps_its_offset_and_reads_on_from_there(topic: Topic) -> None:
    wire = Wire()
    subscriber = Subscriber(topic, "2", 0, cast(Any, wire), cast(Any, Context()), 100.0, 60.0)
    wire.is_full = True
    subscriber.start()
    assert (subscriber.at, wire.sent) == ("2", [])
    wire.is_full = False
    subscriber.pump()
    assert subscriber.at == "4"
    assert b"cd" in b"".join(wire.sent) or b"Y2Q=" in b"".join(wire.sent)


async def test_a_reader_of_an_ended_stream_is_sent_no_more(topic: Topic) -> None:
    wire = Wire()
    subscriber = Subscriber(topic, "4", 0, cast(Any, wire), cast(Any, Context()), 100.0, 60.0)
    subscriber.start()
    topic.stream.ended = End.DELETED
    topic.end_readers(End.DELETED)
    subscriber.pump()
    assert wire.ended is CloseReason.ENDED


class Lives:
    """The live topics of a store, without an origin."""

    def __init__(self) -> None:
        clock = ManualClock()
        metrics = NoMetrics()
        surroundings = Surroundings(clock, Random(1), Tasks(), metrics)
        self.store = TapeStore(1 << 20, POLICIES["s3-fifo"](), map(str, count()).__next__, metrics)
        table = LiveTable(self.store, surroundings, 10, Accounts(client_nets(32, 64), clock.now))
        self.live = LiveTopics(cast(Upstream, None), self.store, surroundings, table, 1 << 20)
        key = StreamKey(Group("default", "/a"), "", Partition(""))
        self.stream = held(self.store.open(key, clock.now()))


@pytest.fixture
async def lives() -> Lives:
    return Lives()


@pytest.mark.parametrize("end", End)
async def test_live_readers_of_a_dropped_stream_are_woken_and_its_topic_is_gone(lives: Lives, end: End) -> None:
    topic = lives.live.attach(lives.stream, ACCESS, TIMES)
    reader = Reader()
    topic.readers_now.add(cast(Any, reader))
    lives.live.drop_stream(lives.stream, end)
    await pass_turns(1)
    assert (topic.ended, reader.pumped) == (end, 1)
    assert lives.live.find_topic(lives.stream) is None


class Slow:
    """A live reader whose every call takes a while."""

    carrier = 0

    def __init__(self, name: str, clock: ManualClock, served: list[str]) -> None:
        self.name = name
        self._clock = clock
        self._served = served

    def pump(self) -> None:
        self._clock.advance(0.6 * MOST_S)
        self._served.append(self.name)


class Round:
    """A topic with readers that count their calls by name."""

    def __init__(self, metrics: NoMetrics | None = None) -> None:
        self.clock = ManualClock()
        self.times = DeliveryTimes(metrics or NoMetrics(), self.clock.now, "default")
        self.topic = Topic(held(new_stream()), ACCESS, TIMES, self.clock.wall, self.times, KeptFrames())
        self.served: list[str] = []
        self.steps: list[object] = []

    def add(self, name: str) -> Slow:
        reader = Slow(name, self.clock, self.served)
        self.topic.readers_now.add(cast(Any, reader))
        return reader

    async def turn(self) -> set[str]:
        """The readers that the next turn serves."""
        self.served.clear()
        await pass_turns(1)
        return set(self.served)


async def test_a_round_of_slow_readers_takes_several_turns() -> None:
    on = Round()
    for name in "abcde":
        on.add(name)
    on.topic.wake()
    turns = [await on.turn() for _ in range(4)]
    assert [len(served) for served in turns] == [2, 2, 1, 0]
    assert set.union(*turns) == set("abcde")


async def test_a_turn_serves_the_readers_of_a_connection_one_after_the_other() -> None:
    on = Round()
    for number in range(24):
        # Readers of four connections join by turns.
        on.add(str(number % 4)).carrier = number % 4
    wire = Wire()
    wire.carrier = 3
    Subscriber(on.topic, "4", 0, cast(Any, wire), cast(Any, Context()), 100.0, 60.0)
    on.topic.wake()
    order: list[str] = []
    for _ in range(12):
        await on.turn()
        order += on.served
    assert [key for key, _ in groupby(order)] == ["0", "1", "2", "3"]


async def test_another_round_follows_a_round_during_which_news_arrives() -> None:
    on = Round()
    for name in "abcd":
        on.add(name)
    on.topic.wake()
    first = await on.turn()
    on.topic.wake()
    second, third, fourth = [await on.turn() for _ in range(3)]
    assert second == set("abcd") - first
    assert third | fourth == set("abcd")
    assert await on.turn() == set()


async def test_each_round_is_measured_though_news_arrives_during_every_round() -> None:
    measured: list[tuple[int, float]] = []

    class Measured(NoMetrics):
        def delivered(self, readers: int, delay_s: float, route: str = "") -> None:
            measured.append((readers, round(delay_s / MOST_S, 3)))

    on = Round(Measured())
    for name in "abcd":
        on.add(name)
    for _ in range(6):
        on.times.arrived()
        on.topic.wake()
        await on.turn()
    # A round takes two turns of 1.2 ms.  The news that begins a round arrived one turn before it.
    assert measured == [(4, 2.4), (4, 3.6), (4, 3.6)]


class Stepping:
    """A live reader that records the topic's step at `at`, and makes it if there is none."""

    def __init__(self, on: Round) -> None:
        self._on = on

    def pump(self) -> None:
        topic = self._on.topic
        self._on.clock.advance(0.6 * MOST_S)
        self._on.steps.append(topic.steps.setdefault("at", cast(Any, object())))


@pytest.mark.parametrize(
    "change",
    [
        lambda topic: topic.stream.withdrawn(),
        lambda topic: topic.stream.tape.reached("9"),
        lambda topic: topic.stream.lost_tail(),
        lambda topic: setattr(topic, "is_confirmed", not topic.is_confirmed),
        lambda topic: setattr(topic, "not_shareable", object()),
        lambda topic: topic.wake(),
    ],
)
async def test_the_turns_of_a_round_share_a_step_until_anything_changes(change: Callable[[Topic], object]) -> None:
    on = Round()
    on.topic.readers_now |= cast(Any, {Stepping(on) for _ in range(6)})
    on.topic.wake()
    await on.turn()
    assert on.topic.steps == {}, "outside a turn, a reader makes its own step"
    await on.turn()
    assert len(set(on.steps)) == 1
    change(on.topic)
    await on.turn()
    assert len(on.steps) == 6
    assert len(set(on.steps)) == 2


async def test_a_reader_that_has_left_during_a_round_is_not_served() -> None:
    on = Round()
    readers = {on.add(name) for name in "abcd"}
    on.topic.wake()
    first = await on.turn()
    on.topic.readers_now -= cast(Any, readers)
    assert (len(first), await on.turn()) == (2, set())


async def test_a_turn_serves_a_bounded_number_of_quick_readers(topic: Topic) -> None:
    readers = [Reader() for _ in range(MOST_READERS + 1)]
    topic.readers_now |= cast(Any, set(readers))
    await pass_turns(1)
    topic.wake()
    await pass_turns(1)
    assert sum(reader.pumped for reader in readers) == MOST_READERS
    await pass_turns(1)
    assert {reader.pumped for reader in readers} == {1}


CHANGES: dict[str, Callable[[Topic], object]] = {
    "a write is acknowledged": lambda topic: topic.stream.acknowledged("6", is_closed=False, query=""),
    "a write may have been done": lambda topic: topic.stream.mark_stale(),
    "bytes arrive": lambda topic: topic.stream.tape.reached("6"),
    "the stream is closed": lambda topic: topic.stream.tape.reached("4", is_closed=True),
    "the follower is lost": lambda topic: topic.lost(101.0, None),
    "bytes are dropped": lambda topic: topic.stream.withdrawn(),
    "a reply has other headers": lambda topic: setattr(topic.stream, "headers", topic.stream.headers.copy()),
    "the stream ends": lambda topic: topic.end_readers(End.DELETED),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_the_first_part_of_an_sse_answer_is_repeated_until_the_stream_changes(
    topic: Topic, change: Callable[[Topic], object]
) -> None:
    opening = SseOpening(topic, topic.step("4", False, 0), 1_000.0)
    assert opening.topic_at(1_000.9) is topic
    assert opening.topic_at(1_001.0) is None
    change(topic)
    assert opening.topic_at(1_000.9) is None

"""What one SSE reader was sent first, and when the next one may be sent the same."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from weakref import ref

import pytest

from gateway.engine.read import Read
from gateway.engine.sse import SseOpening, Subscription
from gateway.live.subscriber import Subscriber
from gateway.protocol.freshness_headers import Lifetime
from gateway.protocol.mode import Mode
from gateway.tape.stream import End
from gateway.upstream.flight import OriginError
from tests.engine.bench import BinaryOrigin, EngineBench, EventStream, Start, bring, confirm
from tests.memory_upstream import Asked
from tests.waiting import eventually

AT_TAIL = "/s?offset=0002&live=sse"


class Opened:
    """A followed stream with one reader at its tail, and what that reader was sent."""

    def __init__(self, bench: EngineBench, live: Asked, read: Read, opening: SseOpening) -> None:
        self.bench = bench
        self.live = live
        self.read = read
        self.opening = opening

    def reopen(self) -> tuple[EventStream, Subscriber] | None:
        """The next reader that asks for the same, if it may be sent the same."""
        engine, wire = self.bench.engine, EventStream()
        if engine.negative_cache.has_any(self.read.key):
            return None
        subscriber = engine.sse.reopen(self.read, self.opening, wire, self.bench.clock.now())
        if subscriber is None:
            return None
        subscriber.start_after(self.opening.step)
        wire.send_chunk(self.opening.step.data, self.opening.step.size)
        return wire, subscriber


def appendable(origin: BinaryOrigin) -> Callable[[Asked], None]:
    """The origin's answers, and one to an append that leads to 0004, whose bytes are not there yet."""

    def script(asked: Asked) -> None:
        if asked.method == "POST":
            asked.answer(204, {"Stream-Next-Offset": "0004"}, b"")
        else:
            origin(asked)

    return script


async def opened(bench: EngineBench) -> Opened:
    first = asyncio.create_task(bench.subscribe("/s?offset=-1&live=sse"))
    live = await bench.live_request()
    confirm(live, "0002")
    await first
    opening = opening_of(bench, AT_TAIL)
    assert opening is not None
    return Opened(bench, live, bench.read(AT_TAIL, is_live=True), opening)


def opening_of(bench: EngineBench, target: str) -> SseOpening | None:
    read = bench.read(target, is_live=True)
    found = bench.engine.subscribe_at_once(read)
    assert isinstance(found, Subscription)
    wire = EventStream()
    subscriber = found.start(wire)
    subscriber.start()
    return found.sse.opening(subscriber, found.at, bench.clock.wall())


async def test_the_next_reader_is_sent_the_same_in_one_piece_and_reads_on(start: Start) -> None:
    tail = await opened(start(BinaryOrigin(b"ab")))
    fresh = EventStream()
    found = tail.bench.engine.subscribe_at_once(tail.read)
    assert found is not None
    found.start(fresh).start()
    again = tail.reopen()
    assert again is not None
    wire, _ = again
    assert wire.events() == fresh.events()
    bring(tail.live, b"cd", "0004")
    await eventually(lambda: len(wire.events()) == 3, look_s=0)
    assert wire.events() == fresh.events()


async def test_it_is_a_reader_like_any_other(start: Start) -> None:
    tail = await opened(start(BinaryOrigin(b"ab")))
    topic = tail.bench.engine.live.find_topic(tail.bench.stream)
    assert topic is not None
    readers, reads, sent = topic.readers, topic.stream.reads, topic.stream.sent_bytes
    again = tail.reopen()
    assert again is not None
    assert (topic.readers, topic.stream.reads) == (readers + 1, reads + 1)
    assert topic.stream.sent_bytes == sent + tail.opening.step.size
    assert again[1] in topic.readers_now
    again[1].gone()
    assert topic.readers == readers


async def appended(tail: Opened) -> None:
    (await tail.bench.relay(Mode.APPEND, b"cd")).close()


async def brought(tail: Opened) -> None:
    bring(tail.live, b"cd", "0004")
    tape = tail.bench.stream.tape
    await eventually(lambda: tape.tail == "0004", look_s=0)


async def closed(tail: Opened) -> None:
    bring(tail.live, b"cd", "0004", is_closed=True)
    tape = tail.bench.stream.tape
    await eventually(lambda: tape.closed_at == "0004", look_s=0)


async def lost(tail: Opened) -> None:
    tail.live.inflow.finish()
    stream = tail.bench.stream
    await eventually(lambda: not stream.is_followed, look_s=0)


async def another_said_more(tail: Opened) -> None:
    tail.bench.stream.tape.reached("0004", is_closed=False)


async def another_said_closed(tail: Opened) -> None:
    tail.bench.stream.tape.reached("0002", is_closed=True)


async def withdrawn(tail: Opened) -> None:
    tail.bench.stream.withdrawn()


async def ended(tail: Opened) -> None:
    tail.bench.engine.live.drop_stream(tail.bench.stream, End.DELETED)


async def doubted(tail: Opened) -> None:
    tail.bench.stream.mark_stale()


async def forgotten(tail: Opened) -> None:
    tail.bench.engine.store.forget_bytes(tail.bench.stream)


async def unshared(tail: Opened) -> None:
    tail.read.route.unshared.remember(tail.read.key, tail.read.shape, "private")


async def refused(tail: Opened) -> None:
    read = tail.read
    tail.bench.engine.negative_cache.remember(
        read.key,
        tail.read.start,
        OriginError.of_ended(404),
        read.source.headers,
        read.route,
        tail.bench.clock.now(),
        read.source.client,
    )


async def refused_to_the_follower(tail: Opened) -> None:
    topic = tail.bench.engine.live.find_topic(tail.bench.stream)
    assert topic is not None
    topic.is_refused = True


async def a_second_passed(tail: Opened) -> None:
    tail.bench.clock.advance(1 - tail.bench.clock.wall() % 1)


async def expired(tail: Opened) -> None:
    tail.bench.stream.expiry.know(Lifetime(None, tail.bench.clock.wall() - 1))


async def expired_as_far_as_was_known(tail: Opened) -> None:
    await expired(tail)
    tail.bench.stream.expiry.lose()


async def headers_were_replaced(tail: Opened) -> None:
    origin = BinaryOrigin()
    origin.fields = {"X-Content-Type-Options": "nosniff"}
    tail.bench.upstream.script = origin
    await tail.bench.engine.fetches.fresh_head(tail.bench.stream, "0002", tail.read.route, tail.read.source)


async def drained(tail: Opened) -> None:
    tail.bench.engine.drain.begin_drain(1.0, 2.0)


@pytest.mark.parametrize(
    "happened",
    [
        appended,
        brought,
        closed,
        lost,
        another_said_more,
        another_said_closed,
        withdrawn,
        ended,
        doubted,
        forgotten,
        unshared,
        refused,
        refused_to_the_follower,
        expired,
        expired_as_far_as_was_known,
        headers_were_replaced,
        a_second_passed,
        drained,
    ],
)
async def test_after_anything_that_it_was_found_from_the_next_reader_begins_by_itself(
    start: Start, happened: Callable[[Opened], Awaitable[None]]
) -> None:
    tail = await opened(start(appendable(BinaryOrigin(b"ab"))))
    stream = tail.bench.stream
    topic = tail.bench.engine.live.find_topic(stream)
    assert topic is not None
    readers = topic.readers
    await happened(tail)
    assert tail.reopen() is None
    assert topic.readers in (0, readers)


async def test_nor_is_it_valid_before_the_second_that_its_head_names(start: Start) -> None:
    tail = await opened(start(BinaryOrigin(b"ab")))
    assert tail.opening.topic_at(tail.bench.clock.wall() - 1) is None


async def test_a_step_after_which_more_may_follow_is_not_kept(start: Start) -> None:
    tail = await opened(start(appendable(BinaryOrigin(b"ab"))))
    await appended(tail)
    assert opening_of(tail.bench, "/s?offset=-1&live=sse") is None


async def test_the_next_reader_is_told_only_once_that_it_is_up_to_date(start: Start) -> None:
    tail = await opened(start(BinaryOrigin(b"ab")))
    again = tail.reopen()
    assert again is not None
    wire, subscriber = again
    subscriber.pump()
    assert len(wire.events()) == 1
    assert subscriber.least_cursor == tail.opening.step.cursor


async def test_a_reader_that_showed_a_cursor_that_does_not_count_is_given_one_of_its_own(start: Start) -> None:
    bench = start(BinaryOrigin(b"ab"))
    await opened(bench)
    later = int(bench.clock.wall()) + 10_000_000
    assert opening_of(bench, f"{AT_TAIL}&cursor={later}") is not None
    assert opening_of(bench, f"{AT_TAIL}&cursor={2**52 + 1}") is None


async def test_bytes_are_not_kept_with_a_request(start: Start) -> None:
    bench = start(BinaryOrigin(b"a" * 2_000))
    first = asyncio.create_task(bench.subscribe("/s?offset=-1&live=sse"))
    confirm(await bench.live_request(), "2000")
    await first
    assert opening_of(bench, "/s?offset=-1&live=sse") is None
    assert opening_of(bench, "/s?offset=2000&live=sse") is not None


async def test_a_remembered_request_keeps_no_stream_that_is_over(start: Start) -> None:
    tail = await opened(bench := start(BinaryOrigin(b"ab")))
    opening = tail.opening
    topic = bench.engine.live.find_topic(bench.stream)
    assert topic is not None
    gone = ref(topic)
    bench.engine.live.drop_stream(bench.stream, End.DELETED)
    del topic, tail
    # The upstream and the clock of the bench keep what they were given.
    bench.upstream.asked.clear()
    bench.clock.advance(1_000)
    await eventually(lambda: gc.collect() >= 0 and gone() is None, look_s=0)
    assert opening.topic_at(bench.clock.wall()) is None

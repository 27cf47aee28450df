"""The follower: one live request for all readers, its pauses and ends, on a manual clock and without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.aio.signal import Signal
from gateway.engine.answer import Answer
from gateway.engine.sse import Subscription
from gateway.errors import CircuitOpen, UpstreamUnreachable
from gateway.live import follower
from gateway.protocol.freshness_headers import Lifetime
from gateway.protocol.names import SSE_DATA_ENCODING
from gateway.protocol.sse import Control, encode_control, encode_data
from gateway.protocol.worker_headers import HOP_RECORD, Alone, HopSaid
from tests.engine.bench import EngineBench, part_of_stream
from tests.memory_upstream import Asked
from tests.waiting import eventually, pass_turns


class Followed:
    """A followed stream; the test answers its live requests."""

    def __init__(self, **settings: Any) -> None:
        self.bench = EngineBench(self._answer, live_linger_s=0, **settings)
        self.status = self.head_status = 200
        self.tail = "0002"
        self._joining: list[asyncio.Task[Subscription | Answer]] = []

    def _answer(self, asked: Asked) -> None:
        if asked.method == "HEAD" and self.head_status != 200:
            asked.answer(self.head_status)
        elif not asked.is_live and self.status != 200:
            asked.answer(self.status)
        elif not asked.is_live:
            body = b"ab" if asked.query.get("offset", "-1") == "-1" else b""
            part_of_stream(body, self.tail, Content_Type="application/octet-stream")(asked)

    @property
    def live(self) -> list[Asked]:
        return [asked for asked in self.bench.upstream.asked if asked.is_live]

    @property
    def heads(self) -> list[Asked]:
        return [asked for asked in self.bench.upstream.asked if asked.method == "HEAD"]

    @property
    def position(self) -> str | None:
        """The tail as the live request has confirmed it; None while it is unconfirmed."""
        topic = self.bench.engine.live.find_topic(self.bench.stream)
        return topic.position if topic is not None and topic.is_confirmed else None

    def join(self) -> None:
        """Add a live reader; it is admitted once the follower is confirmed, or after a short wait."""
        read = self.bench.read("/s?offset=-1&live=sse", is_live=True)
        self._joining.append(asyncio.create_task(self.bench.engine.open_sse(read)))

    async def asked(self, count: int) -> Asked:
        """The `count`-th live request, however long the follower pauses before it."""

        def has_arrived() -> bool:
            if len(self.live) < count:
                self.bench.clock.advance(0.05)
            return len(self.live) >= count

        await eventually(has_arrived)
        return self.live[count - 1]

    async def close(self) -> None:
        for joining in self._joining:
            joining.cancel()
        for opened in await asyncio.gather(*self._joining, return_exceptions=True):
            if isinstance(opened, Subscription | Answer):
                opened.close()
        await self.bench.close()


@pytest.fixture
async def followed() -> AsyncIterator[Followed]:
    made = Followed()
    yield made
    await made.close()


def begin(asked: Asked, at: str, **fields: str) -> None:
    """Open an SSE answer that confirms the offset `at` as the tail."""
    asked.begin(200, {"Content-Type": "text/event-stream", SSE_DATA_ENCODING: "base64", **fields})
    asked.inflow.say(encode_control(Control(at, "1", True, False)))


@pytest.mark.parametrize(
    ("content_type", "suits"),
    [(None, False), ("application/json", True), ("application/octet-stream", True), ("text/plain", False)],
)
def test_sse_brings_no_bytes_of_a_stream_whose_type_is_unknown(content_type: str | None, suits: bool) -> None:
    assert follower._suits_sse(content_type) is suits


async def test_one_live_request_serves_all_readers_and_moves_the_topic(followed: Followed) -> None:
    for _ in range(5):
        followed.join()
    asked = await followed.asked(1)
    assert (asked.query["offset"], asked.query["live"]) == ("0002", "sse")
    begin(asked, "0002")
    await eventually(lambda: followed.position == "0002")
    asked.inflow.say(encode_data(b"cd", base64=True) + encode_control(Control("0004", "2", True, False)))
    await eventually(lambda: followed.position == "0004")
    assert followed.bench.stream.tape.tail == "0004"
    assert repr(followed.bench.engine.live) == "1 topics, 1 followed, 5 readers"
    assert len(followed.live) == 1


async def test_a_live_request_sent_after_a_write_of_unknown_end_brings_all_bytes_up_to_the_tail(
    followed: Followed,
) -> None:
    followed.join()
    begin(first := await followed.asked(1), "0002")
    await eventually(lambda: followed.position == "0002")
    stream, live = followed.bench.stream, followed.bench.engine.live
    stream.acknowledged_without_offset()
    first.inflow.say(encode_data(b"cd", base64=True) + encode_control(Control("0004", "2", True, False)))
    await eventually(lambda: followed.position == "0004")
    assert stream.may_lack_acknowledged("0004")
    followed.tail = "0004"
    live.restart(stream)
    begin(await followed.asked(2), "0004")
    await eventually(lambda: followed.position == "0004")
    assert [stream.may_lack_acknowledged(token) for token in ("0002", "0004")] == [True, False]


@pytest.mark.parametrize("record", ["junk", HopSaid("1.1.1", 1.0, alone=Alone("x", True, False)).rendered()])
async def test_an_origin_does_not_speak_as_another_worker(followed: Followed, record: str) -> None:
    followed.join()
    begin(await followed.asked(1), "0002", **{HOP_RECORD: record})
    await eventually(lambda: followed.position == "0002")
    assert followed.bench.stream.elsewhere is None


async def test_pauses_between_failed_connections_grow_up_to_a_bound(followed: Followed) -> None:
    followed.join()
    pauses: list[float] = []
    for number in range(1, 12):
        asked = await followed.asked(number)
        asked.fail(UpstreamUnreachable())
        began = followed.bench.clock.now()
        await followed.asked(number + 1)
        pauses.append(followed.bench.clock.now() - began)
    assert pauses[0] < 1.0
    assert all(2.4 < pause < 6.0 for pause in pauses[-3:])


async def test_the_first_loss_of_another_workers_answer_makes_no_reader_wait(followed: Followed) -> None:
    """It costs the origin nothing, which the owner of the stream spares.  Further losses are followed by pauses."""
    followed.join()
    asked = await followed.asked(1)
    asked.said = HopSaid("0.1.9", followed.bench.clock.now())
    begin(asked, "0002")
    await eventually(lambda: followed.position == "0002")
    asked.fail(UpstreamUnreachable())
    await eventually(lambda: len(followed.live) == 2)
    followed.live[1].said = asked.said
    begin(followed.live[1], "0002")
    await eventually(lambda: followed.position == "0002")
    followed.live[1].fail(UpstreamUnreachable())
    await eventually(lambda: followed.position is None)
    await pass_turns()
    assert len(followed.live) == 2
    await followed.asked(3)


async def test_the_live_answer_of_a_known_record_needs_no_head(followed: Followed) -> None:
    followed.join()
    said = HopSaid("0.1.9", followed.bench.clock.now(), "life", "name", lifetime=Lifetime(None, None))
    heads: list[int] = []
    for number, record in enumerate([said, said, said._replace(owner="1.1.8"), said._replace(owner="1.1.8")], 1):
        asked = await followed.asked(number)
        asked.said = record
        begin(asked, "0002")
        await eventually(lambda: followed.position == "0002")
        heads.append(sum(one.method == "HEAD" for one in followed.bench.upstream.asked))
        # A connection that has lasted is no failure.
        followed.bench.clock.advance(2.0)
        asked.fail(UpstreamUnreachable())
        await eventually(lambda: followed.position is None)
    assert heads == [1, 1, 2, 2]


async def test_what_an_owner_sends_from_memory_is_as_old_as_it_states_and_what_follows_is_new(
    followed: Followed,
) -> None:
    followed.join()
    asked, clock = await followed.asked(1), followed.bench.clock
    asked.said = HopSaid("0.1.9", clock.now() - 30, "life", "name")
    begin(asked, "0002")
    await eventually(lambda: followed.position == "0002")
    stream = followed.bench.stream
    assert stream.sighting is not None
    assert stream.sighting.seen_at == clock.now() - 30
    clock.advance(5)
    asked.inflow.say(encode_data(b"cd", base64=True) + encode_control(Control("0004", "2", True, False)))
    await eventually(lambda: followed.position == "0004")
    assert stream.sighting.seen_at == stream.confirmed_at("0002") == clock.now()


async def test_bytes_that_the_owner_has_in_memory_are_as_old_as_it_states(followed: Followed) -> None:
    followed.join()
    asked, clock = await followed.asked(1), followed.bench.clock
    asked.said = HopSaid("0.1.9", clock.now() - 30, "life", "name")
    asked.begin(200, {"Content-Type": "text/event-stream", SSE_DATA_ENCODING: "base64"})
    await eventually(lambda: len(followed.bench.upstream.asked) > 1)
    # The catch-up read of the reader has confirmed the beginning.
    followed.bench.stream.confirmed.clear()
    asked.inflow.say(encode_data(b"cd", base64=True) + encode_control(Control("0004", "1", False, False)))
    asked.inflow.say(encode_data(b"ef", base64=True) + encode_control(Control("0006", "2", True, False)))
    await eventually(lambda: followed.position == "0006")
    assert followed.bench.stream.confirmed_at("0002") == clock.now() - 30


async def test_other_workers_ask_again_for_what_the_owner_has_in_memory(followed: Followed) -> None:
    """They were told another age of the bytes when their answers began, and the events have no ages."""
    bench = followed.bench
    subscribing = asyncio.create_task(bench.subscribe("/s?offset=-1&live=sse", is_handed=True))
    asked, clock = await followed.asked(1), bench.clock
    asked.said = HopSaid("0.1.9", clock.now() - 30, "life", "name")
    # The owner waits for a silent origin before it sends its bytes.
    await pass_turns()
    clock.advance(2)
    _, subscriber = await subscribing
    topic, cut = subscriber.topic, list[str]()
    topic.hand(subscriber, lambda: cut.append("cut"))
    asked.begin(200, {"Content-Type": "text/event-stream", SSE_DATA_ENCODING: "base64"})
    asked.inflow.say(encode_data(b"cd", base64=True) + encode_control(Control("0004", "2", True, False)))
    await eventually(lambda: followed.position == "0004")
    assert cut == ["cut"]
    topic.hand(subscriber, lambda: cut.append("cut again"))
    asked.inflow.say(encode_data(b"ef", base64=True) + encode_control(Control("0006", "3", True, False)))
    await eventually(lambda: followed.position == "0006")
    assert cut == ["cut"]
    # They know this tail already, so they are sent nothing when the live request is sent again.
    clock.advance(5)
    asked.inflow.finish()
    again = await followed.asked(2)
    again.said = asked.said._replace(as_of=clock.now() - 30)
    begin(again, "0006")
    await eventually(lambda: followed.position == "0006")
    assert cut == ["cut"]


async def test_another_worker_that_waits_for_the_tail_asks_again_if_it_is_an_old_one(followed: Followed) -> None:
    """It has joined between two live requests, so its answer has stated no tail and no age of one."""
    bench, clock = followed.bench, followed.bench.clock
    followed.join()
    asked = await followed.asked(1)
    begin(asked, "0002")
    await eventually(lambda: followed.position == "0002")
    clock.advance(5)
    asked.inflow.finish()
    again = await followed.asked(2)
    subscribing = asyncio.create_task(bench.subscribe("/s?offset=0002&live=sse", is_handed=True))
    # The owner waits for a silent origin before it repeats the tail that it has in memory.
    await pass_turns()
    clock.advance(2)
    wire, subscriber = await subscribing
    assert '"upToDate":true' not in wire.said.decode()
    cut = list[str]()
    subscriber.topic.hand(subscriber, lambda: cut.append("cut"))
    again.said = HopSaid("0.1.9", clock.now() - 30, "life", "name", lifetime=Lifetime(None, None))
    begin(again, "0002")
    await eventually(lambda: followed.position == "0002")
    assert cut == ["cut"]


@pytest.mark.parametrize("age_s", [0, 30])
async def test_other_workers_go_on_if_another_member_waits_for_the_origin(age_s: int) -> None:
    """Its statement is dated by the request, because it has another clock, and a long-poll waits for its answer."""

    def answer(asked: Asked) -> None:
        if not asked.is_live:
            part_of_stream(b"ab" if asked.query.get("offset", "-1") == "-1" else b"", "0002")(asked)

    bench = EngineBench(answer)
    try:
        await bench.body()
        polling = asyncio.create_task(bench.poll("/s?offset=0002", is_handed=True))
        asked, clock = await bench.live_request(), bench.clock
        assert asked.query["live"] == "long-poll"
        await polling
        topic = bench.engine.live.find_topic(bench.stream)
        assert topic is not None
        (reader,) = topic.readers_now
        cut = list[str]()
        topic.hand(reader, lambda: cut.append("cut"))
        asked.said = HopSaid("0.1.9", clock.now() - age_s, "life", "name", lifetime=Lifetime(None, None))
        clock.advance(10)
        fields = {"Content-Type": "text/plain", "Stream-Next-Offset": "0003", "Stream-Up-To-Date": "true"}
        asked.answer(200, fields, b"c")
        await eventually(lambda: bench.stream.tape.tail == "0003")
        assert cut == (["cut"] if age_s else [])
    finally:
        await bench.close()


async def test_the_tail_of_a_text_is_as_old_as_the_owner_states() -> None:
    """It is fetched before the first long-poll."""

    def owner(asked: Asked) -> None:
        asked.said = HopSaid("0.1.9", asked_at - 30, "life", "name", lifetime=Lifetime(None, None))
        if not asked.is_live:
            part_of_stream(b"ab" if asked.query.get("offset") == "-1" else b"", "0002")(asked)

    bench = EngineBench(owner)
    asked_at = bench.clock.now()
    try:
        polling = asyncio.create_task(bench.poll("/s?offset=0002"))
        asked = await bench.live_request()
        assert asked.query["live"] == "long-poll"
        assert bench.stream.sighting is not None
        assert bench.stream.sighting.seen_at == asked_at - 30
        bench.upstream.script = lambda asked: None
        asked.answer(
            200, {"Content-Type": "text/plain", "Stream-Next-Offset": "0003", "Stream-Up-To-Date": "true"}, b"c"
        )
        await polling
    finally:
        await bench.close()


async def test_bytes_that_the_owner_has_dropped_are_dropped(followed: Followed) -> None:
    followed.join()
    said = HopSaid("0.1.9", followed.bench.clock.now(), "life", "name")
    asked = await followed.asked(1)
    asked.said = said
    begin(asked, "0002")
    asked.inflow.say(encode_data(b"cd", base64=True) + encode_control(Control("0004", "2", True, False)))
    await eventually(lambda: followed.position == "0004")
    assert followed.bench.stream.block_count
    asked.fail(UpstreamUnreachable())
    again = await followed.asked(2)
    heads = len(followed.heads)
    again.said, followed.tail = said._replace(name="other"), "0004"
    begin(again, "0004")
    await eventually(lambda: followed.position == "0004")
    assert not followed.bench.stream.block_count
    assert len(followed.heads) == heads + 1, "the metadata may be of another stream, too"


async def test_a_follower_goes_on_when_its_origin_is_back(followed: Followed) -> None:
    """It does not wait for the end of its pause, which may be seconds away."""
    followed.join()
    recovered = Signal()
    for number in range(1, 10):
        (await followed.asked(number)).fail(CircuitOpen(1.0, recovered))
    await eventually(lambda: len(recovered) == 1)
    recovered.fire()
    await pass_turns()
    followed.bench.clock.advance(0.5)
    await eventually(lambda: len(followed.live) == 10)


async def test_a_lost_connection_is_resumed_where_it_ended(followed: Followed) -> None:
    followed.join()
    asked = await followed.asked(1)
    begin(asked, "0002")
    asked.inflow.say(encode_data(b"cd", base64=True) + encode_control(Control("0004", "2", True, False)))
    # A data event without its control event does not count.
    asked.inflow.say(encode_data(b"ef", base64=True))
    await eventually(lambda: followed.position == "0004")
    followed.tail = "0004"
    asked.fail(UpstreamUnreachable())
    await eventually(lambda: followed.position is None)
    again = await followed.asked(2)
    assert again.query["offset"] == "0004"
    begin(again, "0004")
    await eventually(lambda: followed.position == "0004")


@pytest.mark.parametrize("status", [404, 410])
async def test_a_stream_that_has_ended_is_no_longer_followed(followed: Followed, status: int) -> None:
    followed.join()
    asked = await followed.asked(1)
    followed.status = status
    asked.answer(status)
    stream = followed.bench.stream
    await eventually(lambda: stream.ended is not None)
    followed.bench.clock.advance(60.0)
    assert len(followed.live) == 1


@pytest.mark.parametrize("head_status", [200, 401, 403])
async def test_a_stream_that_is_trimmed_beyond_the_live_request_is_followed_from_where_it_begins(
    followed: Followed, head_status: int
) -> None:
    followed.join()
    asked = await followed.asked(1)
    # A refused HEAD does not show that the stream is gone.
    followed.tail, followed.head_status = "0006", head_status
    asked.answer(410)
    assert (await followed.asked(2)).query["offset"] == "0006"


async def test_a_closed_stream_needs_no_live_request(followed: Followed) -> None:
    followed.join()
    asked = await followed.asked(1)
    begin(asked, "0002")
    asked.inflow.say(encode_control(Control("0002", None, True, True)))
    await eventually(lambda: followed.bench.stream.tape.closed_at == "0002")
    await eventually(lambda: not followed.bench.engine.tasks)
    followed.bench.clock.advance(60.0)
    assert len(followed.live) == 1


async def test_an_origin_without_sse_is_long_polled(followed: Followed) -> None:
    followed.join()
    (await followed.asked(1)).answer(406)
    asked = await followed.asked(2)
    assert asked.query["live"] == "long-poll"
    asked.answer(
        200,
        {"Content-Type": "application/octet-stream", "Stream-Next-Offset": "0004", "Stream-Up-To-Date": "true"},
        b"cd",
    )
    await eventually(lambda: followed.position == "0004")
    assert (await followed.asked(3)).query["offset"] == "0004"


MOST_HELD = 1 << 16


@pytest.fixture
async def bounded() -> AsyncIterator[Followed]:
    made = Followed(max_flight_bytes=MOST_HELD)
    yield made
    await made.close()


async def test_events_without_a_control_event_are_held_up_to_a_bound_and_then_fetched(bounded: Followed) -> None:
    """An origin that sends data and never says where it ends must not fill the memory."""
    followed = bounded
    followed.join()
    asked = await followed.asked(1)
    begin(asked, "0002")
    await eventually(lambda: followed.position == "0002")
    sent = 0
    while not asked.inflow.is_over and sent < 4 * MOST_HELD:
        asked.inflow.say(encode_data(b"x" * (MOST_HELD // 16), base64=True))
        sent += MOST_HELD // 16
        await pass_turns()
    assert sent <= 2 * MOST_HELD
    again = await followed.asked(2)
    assert again.query["live"] == "long-poll"
    again.begin(200, {"Content-Type": "application/octet-stream", "Stream-Next-Offset": "0009"})
    sent = 0
    while not again.inflow.is_over and sent < 4 * MOST_HELD:
        again.inflow.say(b"x" * (MOST_HELD // 16))
        sent += MOST_HELD // 16
        await pass_turns()
    assert sent <= 2 * MOST_HELD
    assert followed.bench.stream.tape.tail == "0002"


@pytest.mark.parametrize("data", [b"", b"xy"])
async def test_events_are_held_up_to_a_bound_however_small_they_are(bounded: Followed, data: bytes) -> None:
    bounded.join()
    asked = await bounded.asked(1)
    begin(asked, "0002")
    await eventually(lambda: bounded.position == "0002")
    asked.inflow.say(encode_data(data, base64=True) * (MOST_HELD // 32))
    again = await bounded.asked(2)
    assert again.query["live"] == "long-poll"

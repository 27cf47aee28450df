"""Which streams are followed: from the first live reader to the linger after the last, and never more than allowed."""

from __future__ import annotations

import asyncio

import pytest

from gateway.engine.sse import Subscription
from gateway.errors import TooManyFollowed
from gateway.protocol.mode import Mode
from gateway.tape.stream import End
from tests.engine.bench import BinaryOrigin, EngineBench, EventStream, Start, bring, confirm
from tests.memory_upstream import Asked
from tests.waiting import eventually, pass_turns


async def reading(bench: EngineBench, number: int = 1) -> tuple[EventStream, Asked]:
    """An SSE reader, and the confirmed live request that is the stream's."""
    opening = asyncio.create_task(bench.subscribe("/s?offset=-1&live=sse"))
    live = await bench.live_request(number)
    confirm(live, "0002")
    wire, _ = await opening
    return wire, live


def leave(bench: EngineBench) -> None:
    for topic in bench.engine.live.topics():
        for reader in tuple(topic.readers_now):
            reader.gone()


async def test_a_reader_who_comes_within_the_linger_finds_the_stream_followed(start: Start) -> None:
    bench = start(BinaryOrigin(), live_linger_s=10)
    await reading(bench)
    leave(bench)
    bench.clock.advance(9)
    await bench.subscribe("/s?offset=0002&live=sse")
    bench.clock.advance(9)
    await pass_turns()
    assert repr(bench.engine.live) == "1 topics, 1 followed, 1 readers"
    assert len(bench.live) == 1


async def test_after_the_linger_nothing_of_the_topic_is_left_and_the_tape_is(start: Start) -> None:
    bench = start(BinaryOrigin(), live_linger_s=10)
    _, live = await reading(bench)
    leave(bench)
    bench.clock.advance(10.1)
    await eventually(lambda: not bench.engine.tasks, look_s=0)
    assert repr(bench.engine.live) == "0 topics, 0 followed, 0 readers"
    assert (bench.stream.holds, bench.stream.is_followed, bench.stream.has_topic) == (0, False, False)
    assert bench.stream.tape.read("-1", 10).pieces == (b"ab",)
    assert not live.inflow.has_ended


async def test_no_more_streams_are_followed_than_allowed(start: Start) -> None:
    bench = start(BinaryOrigin(), followed_streams=1)
    await reading(bench)
    with pytest.raises(TooManyFollowed):
        await bench.engine.open_sse(bench.read("/other?offset=-1&live=sse", is_live=True))
    assert repr(bench.engine.live) == "1 topics, 1 followed, 1 readers"
    assert len(bench.live) == 1


async def test_an_absolute_end_is_kept_though_the_live_request_stays_open(start: Start) -> None:
    origin = BinaryOrigin()
    bench = start(origin, sse_lifetime_s=600)
    origin.fields = {"Stream-Expires-At": "2026-09-21T14:14:20Z"}
    assert bench.clock.wall() == 1_790_000_000.0  # 14:13:20
    await bench.engine.head(bench.read("/s"))
    await bench.body()
    await bench.body()
    wire, _ = await reading(bench)
    stream = bench.stream
    assert stream.expiry.lifetime is not None
    bench.clock.advance(59)
    assert wire.ended == []
    bench.clock.advance(2)
    await eventually(lambda: bool(wire.ended), look_s=0)
    assert stream.ended is End.EXPIRED
    assert repr(bench.engine.live) == "0 topics, 0 followed, 0 readers"


@pytest.mark.parametrize("has_write", [False, True])
async def test_an_absolute_end_that_proves_to_be_earlier_is_kept(start: Start, has_write: bool) -> None:
    """Even if a write was acknowledged while the origin was asked."""
    origin = BinaryOrigin()
    bench = start(origin, sse_lifetime_s=600)
    origin.fields = {"Stream-Expires-At": "2026-09-21T14:14:20Z"}
    wire, _ = await reading(bench)
    stream = bench.stream
    origin.fields = {"Stream-Expires-At": "2026-09-21T14:13:40Z"}
    bench.upstream.script = lambda asked: None
    topic = bench.engine.live.find_topic(stream)
    assert topic is not None
    asking = asyncio.ensure_future(topic.access.fetch(None))
    asked = await bench.until(len(bench.upstream.asked) + 1)
    if has_write:
        stream.acknowledged("0002", is_closed=False, query="")
    origin(asked)
    await asking
    bench.clock.advance(21)
    await eventually(lambda: bool(wire.ended), look_s=0)
    assert stream.ended is End.EXPIRED


async def test_a_live_request_that_is_doubted_is_begun_anew_once_a_second_at_most(start: Start) -> None:
    bench = start(BinaryOrigin())
    await reading(bench)
    for _ in range(5):
        bench.engine.live.revalidate(bench.stream)
    confirm(await bench.live_request(2), "0002")
    await pass_turns()
    assert len(bench.live) == 2
    bench.clock.advance(1.1)
    confirm(await bench.live_request(3), "0002")
    await pass_turns()
    assert len(bench.live) == 3


async def test_a_follower_that_does_not_bring_what_was_acknowledged_is_taken_for_stalled(start: Start) -> None:
    origin = BinaryOrigin(b"ab")
    bench = start(origin)
    wire, _ = await reading(bench)
    origin.body += b"cd"
    bench.stream.acknowledged("0004", is_closed=False, query="")
    bench.engine.live.expect(bench.stream)
    bench.clock.advance(0.9)
    await pass_turns()
    assert len(bench.live) == 1
    bench.clock.advance(0.2)
    again = await bench.live_request(2)
    assert again.query["offset"] == "0004" or bench.stream.tape.tail == "0004"
    await eventually(lambda: wire.said.count(b"event: data") == 2, look_s=0)


async def test_readers_are_sent_off_when_the_registry_closes(start: Start) -> None:
    bench = start(BinaryOrigin())
    await reading(bench)
    bench.engine.live_table.close()
    await eventually(lambda: not bench.engine.tasks, look_s=0)
    assert repr(bench.engine.live) == "0 topics, 0 followed, 0 readers"


async def test_events_that_arrive_in_one_turn_go_out_as_one_write(start: Start) -> None:
    bench = start(BinaryOrigin(b"ab"))
    wire, live = await reading(bench)
    for at, data in ((4, b"cd"), (6, b"ef"), (8, b"gh")):
        bring(live, data, f"{at:04d}")
    await eventually(lambda: bench.stream.tape.tail == "0008", look_s=0)
    await pass_turns()
    assert wire.said.count(b"event: data") == 2


async def test_readers_get_the_closed_end_that_a_stalled_live_request_does_not_bring(start: Start) -> None:
    """A closed stream is not followed again, so nothing but a fetch can bring its last bytes."""
    origin = BinaryOrigin()
    bench = start(origin, sse_lifetime_s=3600)
    wire, _ = await reading(bench)
    origin.body += b"cd"
    origin.is_closed = True
    bench.clock.advance(60)
    # This read is named the closed end, waits in vain for the live request to bring it, and has it begun anew.
    read = asyncio.create_task(bench.body("/s?offset=0002"))
    for _ in range(20):
        await pass_turns()
        bench.clock.advance(0.1)
    assert await read == (200, b"cd")
    await pass_turns()
    assert [data for name, data in wire.events() if name == "data"] == ["YWI=", "Y2Q="]
    assert wire.ended


async def test_a_live_request_that_is_not_answered_is_no_reason_to_fetch_what_no_reader_wants(start: Start) -> None:
    """A reader at the tail of a stream of which nothing is held, and a write acknowledged meanwhile."""
    origin = BinaryOrigin(b"ab")
    bench = start(origin, sse_lifetime_s=3600)
    opening = asyncio.create_task(bench.subscribe("/s?offset=0002&live=sse"))
    await bench.live_request()
    bench.clock.advance(1.1)
    wire, _ = await opening
    origin.body += b"cd"
    bench.upstream.script = lambda asked: (
        asked.answer(204, {"Stream-Next-Offset": origin.tail}) if asked.method == "POST" else origin(asked)
    )
    (await bench.relay(Mode.APPEND, b"cd")).close()
    bench.clock.advance(1.1)
    await eventually(lambda: wire.said.count(b"event: data") == 1, look_s=0)
    assert "-1" not in [asked.query.get("offset") for asked in bench.upstream.asked]


async def test_a_topic_whose_last_reader_fails_on_a_beat_beats_no_more(start: Start) -> None:
    origin = BinaryOrigin()
    origin.is_closed = True
    bench = start(origin)
    wire = EventStream()
    found = await bench.engine.open_sse(bench.read("/s?offset=-1&live=sse", is_live=True))
    assert isinstance(found, Subscription)
    subscriber = found.start(wire)
    # A client that takes nothing, so that the end of the stream has not been sent.
    wire.is_full = True
    subscriber.start()
    wire.is_full = False
    wire.send_chunk = None  # type: ignore[method-assign, assignment]
    before = bench.clock.pending
    for _ in range(40):
        bench.clock.advance(1)
    assert wire.ended
    assert repr(bench.engine.live) == "0 topics, 0 followed, 0 readers"
    # The topic's beat was one of the timers.
    assert bench.clock.pending < before


@pytest.mark.parametrize(("has_client", "is_used"), [(True, False), (False, True)])
async def test_a_refused_topic_uses_another_workers_access_once_its_clients_have_left(
    start: Start, has_client: bool, is_used: bool
) -> None:
    bench = start(BinaryOrigin(), live_linger_s=60)
    await reading(bench)
    [topic] = bench.engine.live.topics()
    topic.is_refused = True
    if not has_client:
        leave(bench)
    await bench.subscribe("/s?offset=0002&live=sse", is_handed=True)
    assert topic.access.source.is_handed is is_used
    assert topic.is_refused is not is_used

"""SSE without a connection: replay, live events, what a slow client is spared, and how a response ends."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from gateway.engine.confirming import MOST_WAIT_S
from gateway.engine.read import Uncacheable
from gateway.engine.sse import Subscription
from gateway.errors import UpstreamUnreachable
from gateway.live.subscriber import Subscriber
from gateway.protocol.cache_status import Outcome
from gateway.protocol.freshness_headers import Lifetime
from gateway.protocol.mode import Mode
from gateway.protocol.worker_headers import HopSaid, Remembered
from gateway.tape.origin_statements import LEAST_GAP_S
from gateway.telemetry.access_record import CloseReason
from tests.engine.bench import BINARY, BinaryOrigin, EngineBench, EventStream, Start, bring, confirm, owned_elsewhere
from tests.memory_upstream import Asked
from tests.waiting import eventually, pass_turns

TRUST_S = 60
"""The default of `trust_s`."""


def controls(wire: EventStream) -> list[dict[str, Any]]:
    return [json.loads(data) for name, data in wire.events() if name == "control"]


def datas(wire: EventStream) -> list[str]:
    return [base64.b64decode(data).decode() for name, data in wire.events() if name == "data"]


async def subscribed(bench: EngineBench, offset: str = "-1") -> tuple[EventStream, Subscriber, Asked]:
    """A client at the tail of a stream that is followed."""
    opening = asyncio.create_task(bench.subscribe(f"/s?offset={offset}&live=sse"))
    live = await bench.live_request()
    confirm(live, "0002")
    wire, subscriber = await opening
    return wire, subscriber, live


async def test_a_replay_ends_in_one_control_event_that_says_where_the_tail_is(start: Start) -> None:
    wire, _, _ = await subscribed(start(BinaryOrigin(b"ab")))
    assert datas(wire) == ["ab"]
    (control,) = controls(wire)
    assert (control["streamNextOffset"], control["upToDate"]) == ("0002", True)
    assert control["streamCursor"].isdigit()


async def test_a_reader_is_not_up_to_date_where_an_acknowledged_append_is_still_to_come(start: Start) -> None:
    bench = start(BinaryOrigin(b"ab"))
    _, _, live = await subscribed(bench)
    bench.upstream.script = lambda asked: asked.answer(204, {"Stream-Next-Offset": "0004"})
    (await bench.relay(Mode.APPEND, b"cd")).close()
    wire, _ = await bench.subscribe("/s?offset=-1&live=sse")
    assert [control.get("upToDate", False) for control in controls(wire)] == [False]
    bring(live, b"cd", "0004")
    await eventually(lambda: datas(wire) == ["ab", "cd"], look_s=0)
    assert controls(wire)[-1]["upToDate"]


async def test_a_reader_of_facts_in_the_owners_memory_waits_for_the_follower_to_confirm_the_tail(start: Start) -> None:
    def owner(asked: Asked) -> None:
        if asked.method == "HEAD":
            facts = Remembered(BINARY["Content-Type"], "0002", False, 100.0, False, False, (), ())
            said = HopSaid("1.1.1", 100.0, "life", identity="id", is_stale=True, lifetime=Lifetime(None, None))
            asked.said = said._replace(remembered=facts)
            asked.answer(200)

    bench = start(owner)
    opening = asyncio.create_task(bench.subscribe("/s?offset=0002&live=sse"))
    live = await bench.live_request()
    await pass_turns()
    assert not opening.done()
    confirm(live, "0002")
    wire, _ = await opening
    assert [(control["streamNextOffset"], control["upToDate"]) for control in controls(wire)] == [("0002", True)]
    assert [asked.method for asked in bench.upstream.asked if not asked.is_live] == ["HEAD"]


@pytest.mark.parametrize("why", ["silent", "failed"])
async def test_bytes_that_the_origin_does_not_confirm_end_at_the_tail_that_the_live_request_has_named(
    start: Start, why: str
) -> None:
    bench = start(BinaryOrigin(b"ab"), retry_attempts=0, trust_s=2.0)
    await subscribed(bench)
    bench.clock.advance(3)
    bench.upstream.script = lambda asked: None if why == "silent" else asked.fail(UpstreamUnreachable())
    opening = asyncio.create_task(bench.engine.open_sse(bench.read("/s?offset=-1&live=sse", is_live=True)))
    await pass_turns()
    if why == "silent":
        assert not opening.done()
        bench.clock.advance(MOST_WAIT_S)
    found = await opening
    assert isinstance(found, Subscription)
    assert found.outcome is Outcome.STALE_IF_ERROR
    wire = EventStream()
    found.start(wire).start()
    assert datas(wire) == ["ab"]
    assert [control["upToDate"] for control in controls(wire)] == [True]


@pytest.mark.parametrize("age_s", [0, TRUST_S + 1])
@pytest.mark.parametrize("knows_stream", [False, True])
async def test_a_reader_of_bytes_in_the_owners_memory_is_told_if_the_origin_had_to_confirm_them(
    start: Start, age_s: float, knows_stream: bool
) -> None:
    """The worker has none of the bytes itself."""

    bench = owned_elsewhere(start, age_s)
    if knows_stream:
        (await bench.engine.head(bench.read("/s")) or await bench.engine.fetched_head(bench.read("/s"))).close()
    opening = asyncio.create_task(bench.engine.open_sse(bench.read("/s?offset=-1&live=sse", is_live=True)))
    confirm(await bench.live_request(), "0002")
    found = await opening
    assert isinstance(found, Subscription)
    assert found.outcome is (Outcome.STALE_IF_ERROR if age_s else Outcome.FOLLOWED)
    wire = EventStream()
    found.start(wire).start()
    assert datas(wire) == ["ab"]


async def test_bytes_that_have_just_come_from_the_origin_are_followed_though_bytes_may_not_be_reused(
    start: Start,
) -> None:
    """A confirmation less than a second after another one is not kept."""
    origin = BinaryOrigin(b"ab")
    bench = start(origin, trust_s=0)
    assert await bench.body() == (200, b"ab")
    bench.clock.advance(LEAST_GAP_S / 2)
    origin.body = b"abcd"
    opening = asyncio.create_task(bench.engine.open_sse(bench.read("/s?offset=0002&live=sse", is_live=True)))
    confirm(await bench.live_request(), "0004")
    found = await opening
    assert isinstance(found, Subscription)
    assert found.outcome is Outcome.FOLLOWED
    wire = EventStream()
    found.start(wire).start()
    assert datas(wire) == ["cd"]


async def test_bytes_from_another_cache_are_followed_though_their_fetch_began_before_the_read(start: Start) -> None:
    fetches: list[Asked] = []
    origin = BinaryOrigin(b"ab")
    origin.fields["Age"] = str(10 * TRUST_S)
    bench = start(origin)
    (await bench.engine.fetched_head(bench.read("/s"))).close()
    bench.upstream.script = fetches.append
    first = asyncio.create_task(bench.body())
    await eventually(lambda: len(fetches) == 1, look_s=0)
    bench.upstream.script = origin
    bench.clock.advance(2 * LEAST_GAP_S)
    opening = asyncio.create_task(bench.engine.open_sse(bench.read("/s?offset=-1&live=sse", is_live=True)))
    confirm(await bench.live_request(), "0002")
    await pass_turns()
    origin(fetches[0])
    assert await first == (200, b"ab")
    found = await opening
    assert isinstance(found, Subscription)
    assert found.outcome is Outcome.FOLLOWED
    found.close()


async def _behind(bench: EngineBench, *, is_handed: bool) -> tuple[EventStream, Subscriber]:
    """An SSE reader that has read to 0002, and has to be sent bytes to 0004 that are no longer in memory."""
    subscribing = asyncio.create_task(bench.subscribe("/s?offset=-1&live=sse", is_handed=is_handed))
    live = await bench.live_request()
    confirm(live, "0002")
    wire, subscriber = await subscribing
    wire.is_full = True
    bring(live, b"cd", "0004")
    await eventually(lambda: bench.stream.tape.tail == "0004")
    bench.clock.advance(2 * LEAST_GAP_S)
    bench.engine.store.forget_bytes(bench.stream)
    return wire, subscriber


@pytest.mark.parametrize("is_handed", [False, True])
async def test_another_worker_asks_again_for_bytes_that_were_fetched_and_are_old(start: Start, is_handed: bool) -> None:
    """It would take the bytes in events for bytes that come from the origin now."""
    origin = BinaryOrigin(b"ab")
    bench = start(origin)
    wire, subscriber = await _behind(bench, is_handed=is_handed)
    origin.body, origin.fields["Age"] = b"abcd", "30"
    wire.is_full = False
    subscriber.pump()
    await eventually(lambda: bool(wire.ended) or datas(wire) == ["ab", "cd"])
    assert datas(wire) == (["ab"] if is_handed else ["ab", "cd"])
    assert wire.ended == ([(CloseReason.FAILED, True)] if is_handed else [])


async def test_another_worker_goes_on_after_a_fetch_of_new_bytes_whose_confirmation_is_not_kept(start: Start) -> None:
    """Another confirmation has been kept less than `LEAST_GAP_S` before, and the fetch takes a moment."""
    origin = BinaryOrigin(b"ab")
    bench = start(origin)
    wire, subscriber = await _behind(bench, is_handed=True)
    bench.stream.confirm("0002", bench.clock.now() - 0.95 * LEAST_GAP_S)
    origin.body = b"abcd"

    def slow(asked: Asked) -> None:
        bench.clock.advance(0.1 * LEAST_GAP_S)
        origin(asked)

    bench.upstream.script = slow
    wire.is_full = False
    subscriber.pump()
    await eventually(lambda: bool(wire.ended) or datas(wire) == ["ab", "cd"])
    assert (datas(wire), wire.ended) == (["ab", "cd"], [])


class TestFirstReader:
    """The first reader of a stream, on a route whose live answers have proved to be shareable."""

    async def test_it_is_told_the_tail_that_its_own_fetch_named_while_the_follower_connects(self, start: Start) -> None:
        bench = start(BinaryOrigin(b"ab"))
        await subscribed(bench)
        wire, _ = await bench.subscribe("/t?offset=-1&live=sse")
        assert datas(wire) == ["ab"]
        assert [control["upToDate"] for control in controls(wire)] == [True]
        live = await bench.live_request(2)
        confirm(live, "0002")
        bring(live, b"cd", "0004")
        await eventually(lambda: datas(wire) == ["ab", "cd"], look_s=0)
        # What the follower confirms has been said.
        assert [control["streamNextOffset"] for control in controls(wire)] == ["0002", "0004"]

    @pytest.mark.parametrize("offset", ["now", "0002"])
    async def test_so_is_a_reader_that_begins_at_the_tail(self, start: Start, offset: str) -> None:
        bench = start(BinaryOrigin(b"ab"))
        await subscribed(bench)
        wire, _ = await bench.subscribe(f"/t?offset={offset}&live=sse")
        assert [(control["streamNextOffset"], control["upToDate"]) for control in controls(wire)] == [("0002", True)]

    async def test_it_is_not_told_a_tail_that_an_append_has_passed_since(self, start: Start) -> None:
        def script(asked: Asked) -> None:
            if asked.method == "POST":
                asked.answer(204, {"Stream-Next-Offset": "0004"}, b"")
            else:
                origin(asked)

        origin = BinaryOrigin(b"ab")
        bench = start(script)
        # On /t, so that the append, to /s, is to the stream of the reader after it.
        opening = asyncio.create_task(bench.subscribe("/t?offset=-1&live=sse"))
        confirm(await bench.live_request(), "0002")
        await opening
        found = await bench.engine.open_sse(bench.read("/s?offset=-1&live=sse", is_live=True))
        assert isinstance(found, Subscription)
        (await bench.relay(Mode.APPEND, b"cd")).close()
        wire = EventStream()
        found.start(wire).start()
        assert datas(wire) == ["ab"]
        assert [control.get("upToDate", False) for control in controls(wire)] == [False]

    @pytest.mark.parametrize(("offset", "settings"), [("-1", {}), ("now", {}), ("-1", {"trust_s": 0.0})])
    async def test_it_ends_if_the_live_answer_may_not_be_shared_and_the_next_ones_are_relayed(
        self, start: Start, offset: str, settings: dict[str, float]
    ) -> None:
        bench = start(BinaryOrigin(b"ab"), **settings)
        await subscribed(bench)
        wire, _ = await bench.subscribe(f"/t?offset={offset}&live=sse")
        personal = {"Content-Type": "text/event-stream", "Cache-Control": "private"}
        (await bench.live_request(2)).begin(200, personal)
        await eventually(lambda: wire.ended == [(CloseReason.FAILED, True)], look_s=0)
        for number, path in ((3, "/t"), (4, "/u"), (5, "/t")):
            opening = asyncio.create_task(bench.subscribe(f"{path}?offset={offset}&live=sse"))
            (await bench.live_request(number)).begin(200, personal)
            with pytest.raises(Uncacheable):
                await opening

    async def test_where_some_streams_may_be_shared_and_others_not_only_the_first_is_cut(self, start: Start) -> None:
        bench = start(BinaryOrigin(b"ab"))
        await subscribed(bench)
        personal = {"Content-Type": "text/event-stream", "Cache-Control": "private"}
        wire, _ = await bench.subscribe("/private?offset=-1&live=sse")
        (await bench.live_request(2)).begin(200, personal)
        await eventually(lambda: wire.ended == [(CloseReason.FAILED, True)], look_s=0)
        opening = asyncio.create_task(bench.subscribe("/shared?offset=-1&live=sse"))
        confirm(await bench.live_request(3), "0002")
        await opening
        opening = asyncio.create_task(bench.subscribe("/private-2?offset=-1&live=sse"))
        (await bench.live_request(4)).begin(200, personal)
        with pytest.raises(Uncacheable):
            await opening
        bench.clock.advance(bench.route.config.hit_for_miss_s)
        await bench.subscribe("/shared-2?offset=-1&live=sse")

    async def test_so_it_is_where_what_may_not_be_shared_is_not_remembered(self, start: Start) -> None:
        bench = start(BinaryOrigin(b"ab"), hit_for_miss_s=0, trust_s=0)
        opening = asyncio.create_task(bench.subscribe("/shared?offset=-1&live=sse"))
        confirm(await bench.live_request(1), "0002")
        await opening
        personal = {"Content-Type": "text/event-stream", "Cache-Control": "private"}
        wire, _ = await bench.subscribe("/private?offset=-1&live=sse")
        (await bench.live_request(2)).begin(200, personal)
        await eventually(lambda: wire.ended == [(CloseReason.FAILED, True)], look_s=0)
        for number in (3, 4):
            opening = asyncio.create_task(bench.subscribe("/private?offset=-1&live=sse"))
            (await bench.live_request(number)).begin(200, personal)
            with pytest.raises(Uncacheable):
                await opening

    async def test_what_is_no_live_answer_shows_nothing_of_live_answers(self, start: Start) -> None:
        """The follower of a text stream begins with a fetch; one of a closed stream is not needed."""
        origin = BinaryOrigin(b"ab")
        origin.fields = {"Content-Type": "text/plain"}
        bench = start(origin)
        await bench.subscribe("/text?offset=-1&live=sse")
        assert not bench.route.shares_live
        bench.route.judge_live(bench.read("/text").key, None)
        origin.is_closed = True
        for _ in range(2):
            await bench.subscribe("/closed?offset=-1&live=sse")
        assert bench.route.shares_live


async def test_every_event_goes_out_once_with_its_control_event(start: Start) -> None:
    bench = start(BinaryOrigin(b"ab"))
    wire, _, live = await subscribed(bench)
    for at, data in ((4, b"cd"), (6, b"ef")):
        bring(live, data, f"{at:04d}")
        await eventually(lambda at=at: controls(wire)[-1]["streamNextOffset"] == f"{at:04d}", look_s=0)
    assert datas(wire) == ["ab", "cd", "ef"]
    assert [name for name, _ in wire.events()] == ["data", "control"] * 3


async def test_a_client_that_takes_nothing_is_written_nothing_and_reads_on_from_the_tape(start: Start) -> None:
    bench = start(BinaryOrigin(b"ab"))
    wire, subscriber, live = await subscribed(bench)
    wire.is_full = True
    before = wire.said
    for at, data in ((4, b"cd"), (6, b"ef"), (8, b"gh")):
        bring(live, data, f"{at:04d}")
    await eventually(lambda: bench.stream.tape.tail == "0008", look_s=0)
    await pass_turns()
    assert wire.said == before
    wire.is_full = False
    subscriber.pump()
    # What came meanwhile is one event, from where the client stands.
    assert datas(wire) == ["ab", "cdefgh"]
    assert controls(wire)[-1]["streamNextOffset"] == "0008"


async def test_a_closed_stream_ends_the_response_in_order(start: Start) -> None:
    bench = start(BinaryOrigin(b"ab"))
    wire, _, live = await subscribed(bench)
    bring(live, b"cd", "0004", is_closed=True)
    await eventually(lambda: bool(wire.ended), look_s=0)
    assert wire.ended == [(CloseReason.CLOSED, True)]
    assert controls(wire)[-1]["streamClosed"] is True
    assert "streamCursor" not in controls(wire)[-1]


async def test_a_slow_reader_is_told_of_a_closure_that_a_purge_has_forgotten(start: Start) -> None:
    """The stream has closed, and nothing follows it, while the last event is still sent in parts."""
    origin = BinaryOrigin(b"ab")
    bench = start(origin)
    wire, subscriber, live = await subscribed(bench)
    wire.is_full = True
    origin.body += b"x" * 800_000
    origin.is_closed = True
    bring(live, origin.body[2:], origin.tail, is_closed=True)
    await eventually(lambda: repr(bench.engine.live) == "1 topics, 0 followed, 1 readers", look_s=0)
    wire.is_full, wire.is_slow = False, True
    subscriber.pump()
    assert bench.engine.purge.drop_stream(bench.stream)
    again = await bench.live_request(2)
    confirm(again, origin.tail, is_closed=True)
    while not wire.ended:
        wire.is_full = False
        subscriber.pump()
        await pass_turns()
    assert wire.ended == [(CloseReason.CLOSED, True)]
    assert controls(wire)[-1]["streamClosed"] is True


async def test_no_more_streams_are_followed_after_a_purge_than_may_be(start: Start) -> None:
    """Slow readers of closed streams, which nothing follows, do not pass the bound when a purge forgets the closure."""
    origin = BinaryOrigin(b"ab")
    origin.is_closed = True
    bench = start(origin, followed_streams=2)
    for number in range(6):
        await bench.body(f"/{number}")
        found = await bench.engine.open_sse(bench.read(f"/{number}?offset=-1&live=sse", is_live=True))
        assert isinstance(found, Subscription)
        wire = EventStream()
        wire.is_full = True
        found.start(wire).start()
    assert repr(bench.engine.live) == "6 topics, 0 followed, 6 readers"
    for stream in list(bench.engine.store):
        assert bench.engine.purge.drop_stream(stream)
    assert repr(bench.engine.live) == "6 topics, 2 followed, 6 readers"


async def test_a_slow_reader_of_a_closed_stream_that_is_made_anew_beyond_the_bound_comes_again(start: Start) -> None:
    """It would not be sent what is appended: there is no room for one more live request."""
    origin = BinaryOrigin(b"ab")
    origin.is_closed = True
    bench = start(origin, followed_streams=1)
    await bench.body()
    found = await bench.engine.open_sse(bench.read("/s?offset=-1&live=sse", is_live=True))
    assert isinstance(found, Subscription)
    wire = EventStream()
    wire.is_full = True
    subscriber = found.start(wire)
    subscriber.start()
    origin.is_closed = False
    stream = bench.stream
    await bench.poll("/t?offset=0002&live=long-poll")
    assert bench.engine.purge.drop_stream(stream)
    await pass_turns()
    wire.is_full = False
    subscriber.pump()
    await eventually(lambda: wire.ended == [(CloseReason.FAILED, True)], look_s=0)


async def test_a_reader_that_begins_after_a_purge_is_sent_the_bytes_of_now(start: Start) -> None:
    """Frames are kept for readers at the same offset; after a purge other bytes may be there."""
    bench = start(BinaryOrigin(b"ab"))
    await subscribed(bench)
    bench.upstream.script = BinaryOrigin(b"cd")
    assert bench.engine.purge.drop_stream(bench.stream)
    confirm(await bench.live_request(2), "0002")
    await pass_turns()
    wire, _ = await bench.subscribe("/s?offset=-1&live=sse")
    assert datas(wire) == ["cd"]


async def test_silence_is_broken_by_comments_at_the_time_of_a_heartbeat(start: Start) -> None:
    bench = start(BinaryOrigin(b"ab"), heartbeat_s=15)
    wire, _, _ = await subscribed(bench)
    before = wire.said
    bench.clock.advance(14)
    assert wire.said == before
    bench.clock.advance(2)
    assert wire.said.startswith(before + b":")
    assert [name for name, _ in wire.events()] == ["data", "control"]


async def test_a_connection_is_ended_in_order_when_it_has_lived_long_enough(start: Start) -> None:
    bench = start(BinaryOrigin(b"ab"), sse_lifetime_s=60)
    wire, _, _ = await subscribed(bench)
    bench.clock.advance(47)
    assert wire.ended == []
    bench.clock.advance(14)
    assert wire.ended == [(CloseReason.LIFETIME, True)]


async def test_a_client_that_leaves_is_forgotten_and_the_stream_after_the_linger(start: Start) -> None:
    bench = start(BinaryOrigin(b"ab"), live_linger_s=5)
    wire, subscriber, live = await subscribed(bench)
    subscriber.gone()
    assert wire.ended == [(CloseReason.LEFT, False)]
    assert repr(bench.engine.live) == "1 topics, 1 followed, 0 readers"
    bench.clock.advance(5.1)
    await eventually(lambda: not bench.engine.tasks, look_s=0)
    assert repr(bench.engine.live) == "0 topics, 0 followed, 0 readers"
    assert len(bench.live) == 1
    assert live is bench.live[0]


async def test_many_clients_cost_the_origin_one_live_request_and_share_its_frames(start: Start) -> None:
    bench = start(BinaryOrigin(b"ab"))
    first, _, live = await subscribed(bench)
    others = [(await bench.subscribe("/s?offset=0002&live=sse"))[0] for _ in range(9)]
    bring(live, b"cd", "0004")
    await eventually(lambda: all("cd" in datas(wire) for wire in (first, *others)), look_s=0)
    assert len(bench.live) == 1
    (topic,) = bench.engine.live.topics()
    assert 0 < topic.frames.kept_bytes < 1_000


async def test_a_drain_ends_each_response_in_order_and_not_all_at_once(start: Start) -> None:
    bench = start(BinaryOrigin(b"ab"))
    first, _, _ = await subscribed(bench)
    wires = [first, *[(await bench.subscribe("/s?offset=0002&live=sse"))[0] for _ in range(19)]]
    bench.clock.advance(2)
    bench.engine.begin_drain(spread_s=10.0)
    left: list[int] = []
    for _ in range(11):
        bench.clock.advance(1.0)
        left.append(sum(not wire.ended for wire in wires))
    assert left[-1] == 0
    assert len(set(left)) > 3
    assert {reason for wire in wires for reason in wire.ended} == {(CloseReason.DRAINED, True)}


async def test_a_drain_leaves_other_workers_that_follow_the_stream(start: Start) -> None:
    bench = start(BinaryOrigin(b"ab"))
    client, _, _ = await subscribed(bench)
    worker, _ = await bench.subscribe("/s?offset=0002&live=sse", is_handed=True)
    bench.engine.begin_drain(0.5, 0.9)
    # A client's read would be refused now, because it could not last a second.
    later, _ = await bench.subscribe("/s?offset=0002&live=sse", is_handed=True)
    bench.clock.advance(5)
    assert (client.ended, worker.ended, later.ended) == ([(CloseReason.DRAINED, True)], [], [])

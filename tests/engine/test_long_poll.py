"""Long-polls without a connection: which ones wait, what wakes them, and their answer at the time-out."""

from __future__ import annotations

import asyncio
import base64

import pytest

from gateway.aio.timers import TICK_S
from gateway.engine.answer import Answer
from gateway.errors import UpstreamUnreachable
from gateway.protocol.cache_status import Outcome
from gateway.protocol.freshness_headers import Lifetime
from gateway.protocol.mode import Mode
from gateway.protocol.worker_headers import HopSaid
from gateway.tape.origin_statements import LEAST_GAP_S
from gateway.tape.stream import End
from tests.engine.bench import BINARY, BinaryOrigin, EngineBench, LongPoll, Start, bring, confirm, owned_elsewhere
from tests.memory_upstream import Asked
from tests.waiting import eventually, pass_turns, time_passing


async def waiting(bench: EngineBench, count: int = 1) -> tuple[list[LongPoll], Asked]:
    """Clients that wait at the tail, and the confirmed live request that is theirs."""
    await bench.body()
    clients = [await bench.poll("/s?offset=0002&live=long-poll") for _ in range(count)]
    live = await bench.live_request()
    confirm(live, "0002")
    await eventually(lambda: all(topic.is_confirmed for topic in bench.engine.live.topics()), look_s=0)
    assert not any(client.answers for client in clients)
    return clients, live


async def test_who_is_behind_is_answered_at_once(start: Start) -> None:
    bench = start(BinaryOrigin(b"abcd"))
    client = await bench.poll("/s?offset=-1&live=long-poll")
    await eventually(lambda: bool(client.answers), look_s=0)
    (answer,) = client.answers
    assert (answer.status, client.bodies, answer.headers["Stream-Next-Offset"]) == (200, [b"abcd"], "0004")
    assert answer.headers["Stream-Cursor"].isdigit()
    assert bench.live == []


async def test_one_event_wakes_all_who_wait_with_the_same_bytes(start: Start) -> None:
    bench = start(BinaryOrigin(b"ab"))
    clients, live = await waiting(bench, 10)
    assert repr(bench.engine.live) == "1 topics, 1 followed, 10 readers"
    bring(live, b"cd", "0004")
    await eventually(lambda: all(client.answers for client in clients), look_s=0)
    assert {client.bodies[0] for client in clients} == {b"cd"}
    assert len({id(client.bodies[0]) for client in clients}) == 1
    assert len(bench.live) == 1
    assert repr(bench.engine.live) == "1 topics, 1 followed, 0 readers"


async def late_poll(bench: EngineBench) -> asyncio.Task[LongPoll]:
    """A client that has yet to read the first bytes, while a client that has read them waits for the follower, which is
    connecting."""
    await bench.poll("/s?offset=-1&live=long-poll")
    await bench.poll("/s?offset=0002&live=long-poll")
    await bench.live_request()
    late = asyncio.get_running_loop().create_task(bench.poll("/s?offset=-1&live=long-poll"))
    await eventually(lambda: sum(topic.readers for topic in bench.engine.live.topics()) == 2, look_s=0)
    await pass_turns()
    return late


@pytest.mark.parametrize("brought", [b"", b"cd"])
async def test_poll_with_held_bytes_learns_the_tail_from_the_follower_that_connects(
    start: Start, brought: bytes
) -> None:
    origin = BinaryOrigin(b"ab")
    bench = start(origin)
    late = await late_poll(bench)
    # The follower brings these bytes, so no other request may fetch them.
    origin.body += brought
    confirm(bench.live[0], "0002")
    bring(bench.live[0], brought, origin.tail)
    client = await late
    assert client.bodies == [b"ab" + brought]
    assert client.answers[0].headers["Stream-Up-To-Date"] == "true"
    assert [asked.query["offset"] for asked in bench.upstream.asked if asked.method == "GET"] == ["-1", "0002"]


@pytest.mark.parametrize("why", ["silent", "failed"])
async def test_poll_with_held_bytes_asks_for_the_tail_if_the_follower_does_not_connect(start: Start, why: str) -> None:
    bench = start(BinaryOrigin(b"ab"))
    late = await late_poll(bench)
    assert not late.done()
    if why == "failed":
        bench.live[0].fail(UpstreamUnreachable())
    else:
        bench.clock.advance(0.5)
    (answer,) = (await late).answers
    assert (answer.status, answer.headers["Stream-Up-To-Date"]) == (200, "true")


@pytest.mark.parametrize("live", ["long-poll", "sse"])
async def test_acknowledged_bytes_are_not_fetched_beside_the_follower_that_connects_before_them(
    start: Start, live: str
) -> None:
    origin = BinaryOrigin(b"ab")

    def script(asked: Asked) -> None:
        if asked.method == "POST":
            asked.answer(204, {"Stream-Next-Offset": "0004"})
        else:
            origin(asked)

    bench = start(script)
    await bench.body()
    await bench.poll("/s?offset=0002&live=long-poll")
    await bench.live_request()
    origin.body += b"cd"
    await bench.relay(Mode.APPEND, b"cd")
    target, loop = f"/s?offset=0002&live={live}", asyncio.get_running_loop()
    polling = loop.create_task(bench.poll(target)) if live == "long-poll" else None
    subscribing = loop.create_task(bench.subscribe(target)) if live == "sse" else None
    (topic,) = bench.engine.live.topics()
    await eventually(lambda: topic.readers == 2, look_s=0)
    await pass_turns()
    confirm(bench.live[0], "0002")
    bring(bench.live[0], b"cd", "0004")
    if polling is not None:
        client = await polling
        await eventually(lambda: client.bodies == [b"cd"], look_s=0)
    if subscribing is not None:
        wire, _ = await subscribing
        await eventually(lambda: ("data", base64.b64encode(b"cd").decode()) in wire.events(), look_s=0)
    assert [asked.query["offset"] for asked in bench.upstream.asked if asked.method == "GET"] == ["-1", "0002"]


@pytest.mark.parametrize("moment", ["it waits for the follower", "it asks for the tail"])
async def test_poll_sends_no_bytes_of_one_stream_under_the_tag_of_another(start: Start, moment: str) -> None:
    """The bytes are forgotten, and another read fetches those of the next stream, while a poll is on its way."""
    origin = BinaryOrigin(b"ab")
    held: list[Asked] = []
    bench = start(origin)
    before = await bench.poll("/s?offset=-1&live=long-poll")
    late = await late_poll(bench)
    if moment == "it asks for the tail":
        bench.upstream.script = lambda asked: held.append(asked) if asked.query["offset"] == "0002" else origin(asked)
        bench.clock.advance(0.5)
        await eventually(lambda: bool(held), look_s=0)
    bench.engine.store.forget_bytes(bench.stream)
    origin.body = b"XYZ"
    assert await bench.body() == (200, b"XYZ")
    bench.upstream.script = origin
    for asked in held:
        origin(asked)
    bench.clock.advance(0.5)
    client, after = await late, await bench.poll("/s?offset=-1&live=long-poll")
    tags = {one.bodies[0]: one.answers[0].headers["ETag"] for one in (before, after)}
    assert tags[b"ab"] != tags[b"XYZ"] == client.answers[0].headers["ETag"]
    assert client.bodies == [b"XYZ"]


async def test_poll_that_waits_for_a_slow_follower_takes_the_origin_for_well(start: Start) -> None:
    """Each answer of the origin takes 0.7 s, so the poll gets its answer after more than `PATIENCE_S`."""
    origin = BinaryOrigin(b"ab")
    bench = start(origin)
    await bench.poll("/s?offset=-1&live=long-poll")
    late = await late_poll(bench)
    held: list[Asked] = []
    bench.upstream.script = held.append
    for passed_s in (0.5, 0.2, 0.3):
        bench.clock.advance(passed_s)
        await pass_turns()
        if passed_s == 0.2:
            confirm(bench.live[0], "0002")
            await pass_turns()
    assert not late.done()
    assert not bench.route.is_silent
    bench.upstream.script = origin
    for asked in held:
        origin(asked)
    (answer,) = (await late).answers
    assert (answer.status, answer.headers["Stream-Up-To-Date"]) == (200, "true")


@pytest.mark.parametrize("age_s", [0, 61])
@pytest.mark.parametrize("knows_stream", [False, True])
async def test_a_poll_with_bytes_in_the_owners_memory_says_so_if_the_origin_had_to_confirm_them(
    start: Start, age_s: float, knows_stream: bool
) -> None:
    """The worker has none of the bytes itself."""

    bench = owned_elsewhere(start, age_s)
    if knows_stream:
        (await bench.engine.head(bench.read("/s")) or await bench.engine.fetched_head(bench.read("/s"))).close()
    client = await bench.poll("/s?offset=-1&live=long-poll")
    assert client.bodies == [b"ab"]
    # The first request for an unknown stream is answered with these bytes.  A later request is one for missing bytes.
    is_stale = age_s > 0 or not knows_stream
    assert [answer.outcome for answer in client.answers] == [Outcome.STALE_IF_ERROR if is_stale else Outcome.MISS]


@pytest.mark.parametrize("is_stale", [False, True])
async def test_a_wait_that_ends_with_bytes_in_the_owners_memory_says_so_if_the_origin_had_to_confirm_them(
    start: Start, is_stale: bool
) -> None:
    """The time runs out while the owner does not answer the live request."""
    body, tail = b"ab", "0002"

    def owner(asked: Asked) -> None:
        if asked.is_live:
            return
        is_first = asked.query.get("offset", "-1") == "-1"
        age_s = 0 if is_first or not is_stale else 61
        said = HopSaid("1.1.1", bench.clock.now() - age_s, "life", identity="id", lifetime=Lifetime(None, None))
        asked.said = said._replace(is_stale=age_s > 0)
        fields = {**BINARY, "Stream-Next-Offset": tail}
        asked.answer(200, fields | ({} if age_s else {"Stream-Up-To-Date": "true"}), body if is_first else body[2:])

    bench = start(owner, long_poll_timeout_s=20)
    assert await bench.body() == (200, b"ab")
    client = await bench.poll("/s?offset=0002&live=long-poll")
    await bench.live_request()
    assert not client.answers
    body, tail = b"abcd", "0004"
    bench.clock.advance(21)
    await eventually(lambda: bool(client.answers))
    assert client.bodies == [b"cd"]
    assert [answer.outcome for answer in client.answers] == [Outcome.STALE_IF_ERROR if is_stale else Outcome.MISS]


async def test_bytes_are_overdue_if_the_owner_has_sent_unconfirmed_bytes_since_they_were_last_confirmed(
    start: Start,
) -> None:
    bench = start(BinaryOrigin(b"abcd"))
    assert await bench.body() == (200, b"abcd")
    read, stream, reads = bench.read("/s?offset=-1&live=long-poll", is_live=True), bench.stream, bench.engine._reads

    def are_overdue() -> bool:
        return reads.are_overdue(read, stream, "-1")

    bench.clock.advance(61)
    assert not are_overdue()
    record = stream.own_record()
    assert not are_overdue()
    record.stale_stored_at = bench.clock.now()
    assert are_overdue()
    assert not reads.are_overdue(read, stream, "0004")
    stream.confirm("-1", bench.clock.now())
    assert not are_overdue()
    bench.clock.advance(59)
    record.stale_stored_at = bench.clock.now()
    assert not are_overdue()


async def test_a_poll_with_bytes_that_have_just_come_from_the_origin_is_a_miss_though_bytes_may_not_be_reused(
    start: Start,
) -> None:
    """A confirmation less than a second after another one is not kept."""
    origin = BinaryOrigin(b"ab")
    bench = start(origin, trust_s=0)
    assert await bench.body() == (200, b"ab")
    bench.clock.advance(LEAST_GAP_S / 2)
    origin.body = b"abcd"
    client = await bench.poll("/s?offset=0002&live=long-poll")
    assert client.bodies == [b"cd"]
    assert [answer.outcome for answer in client.answers] == [Outcome.MISS]


async def test_time_that_runs_out_is_a_204_on_the_followers_word(start: Start) -> None:
    bench = start(BinaryOrigin(b"ab"), long_poll_timeout_s=20)
    (client,), _ = await waiting(bench)
    asked = len(bench.upstream.asked)
    bench.clock.advance(19)
    await pass_turns()
    assert not client.answers
    bench.clock.advance(2)
    (answer,) = client.answers
    assert (answer.status, answer.headers["Stream-Next-Offset"]) == (204, "0002")
    assert answer.headers["Stream-Up-To-Date"] == "true"
    assert len(bench.upstream.asked) == asked


async def test_time_that_runs_out_while_nobody_can_vouch_for_the_tail_is_a_look(start: Start) -> None:
    origin = BinaryOrigin(b"ab")
    bench = start(origin, long_poll_timeout_s=20)
    await bench.body()
    client = await bench.poll("/s?offset=0002&live=long-poll")
    await bench.live_request()
    asked = len(bench.upstream.asked)
    origin.body += b"cd"
    bench.clock.advance(21)
    await eventually(lambda: bool(client.answers), look_s=0)
    assert (client.answers[0].status, client.bodies) == (200, [b"cd"])
    assert len(bench.upstream.asked) > asked


@pytest.mark.parametrize("brought", [b"", b"cd"])
async def test_who_has_asked_when_time_ran_out_is_answered_by_the_follower_if_that_is_sooner(
    start: Start, brought: bytes
) -> None:
    origin = BinaryOrigin(b"ab")
    bench = start(origin, long_poll_timeout_s=1)
    await bench.body()
    client = await bench.poll("/s?offset=0002&live=long-poll")
    live, held = await bench.live_request(), list[Asked]()
    # The follower's question for the lifetime is answered.
    bench.upstream.script = lambda asked: held.append(asked) if asked.query else origin(asked)
    bench.clock.advance(1.1)
    await eventually(lambda: bool(held), look_s=0)
    confirm(live, "0002")
    if brought:
        bring(live, brought, "0004")
    await eventually(lambda: bool(client.answers), look_s=0)
    assert (client.answers[0].status, client.bodies) == ((200, [b"cd"]) if brought else (204, [b""]))
    for asked in held:
        origin(asked)
    await eventually(lambda: not bench.engine.fetches, look_s=0)
    await pass_turns()
    assert (len(client.answers), client.has_left) == (1, False)
    assert repr(bench.engine.live) == "1 topics, 1 followed, 0 readers"


@pytest.mark.parametrize("status", [404, 410])
async def test_a_stream_that_ends_is_told_to_all_who_wait(start: Start, status: int) -> None:
    bench = start(BinaryOrigin(b"ab"))
    clients, live = await waiting(bench, 3)
    live.inflow.finish()
    bench.upstream.script = lambda asked: asked.answer(status)

    def is_told() -> bool:
        bench.clock.advance(0.1)
        return all(client.answers for client in clients)

    await eventually(is_told, look_s=0)
    assert {client.answers[0].status for client in clients} == {status}


async def test_a_ttl_that_others_may_have_renewed_ends_no_one_who_waits(start: Start) -> None:
    origin = BinaryOrigin(b"ab")
    origin.fields["Stream-TTL"] = "2"
    bench = start(origin)
    clients, live = await waiting(bench, 3)
    stream = bench.stream
    # Live requests fail, with growing pauses: at last the origin has not been asked for as long as the TTL.
    bench.upstream.script = lambda asked: asked.fail(UpstreamUnreachable()) if asked.is_live else origin(asked)
    live.inflow.finish()

    def has_expired() -> bool:
        bench.clock.advance(0.1)
        return stream.has_expired(bench.clock.now(), bench.clock.wall())

    await eventually(has_expired, look_s=0)
    assert not any(client.answers for client in clients)
    bench.upstream.script = origin
    asked = len(bench.live)
    # Another client's read asks the origin, which has the stream.
    assert await bench.body() == (200, b"ab")
    async with time_passing(bench.clock):
        confirm(again := await bench.live_request(asked + 1), "0002")
        bring(again, b"cd", "0004")
        await eventually(lambda: all(client.answers for client in clients), look_s=0)
    assert {(client.answers[0].status, *client.bodies) for client in clients} == {(200, b"cd")}


async def test_who_starts_again_on_a_stream_that_was_replaced_is_told_that_his_has_ended(start: Start) -> None:
    bench = start(BinaryOrigin(b"abcd"))
    await bench.body()
    client = await bench.poll("/s?offset=0004&live=long-poll")
    confirm(await bench.live_request(), "0004")
    await eventually(lambda: all(topic.is_confirmed for topic in bench.engine.live.topics()), look_s=0)
    # The stream that is there now takes the client's offset for one before its tail, which sorts before that offset.
    new = BinaryOrigin(b"xyz")

    def replaced(asked: Asked) -> None:
        if asked.query.get("offset") == "0004":
            asked.answer(200, {"Content-Type": "application/octet-stream", "Stream-Next-Offset": "0003"}, b"z")
        else:
            new(asked)

    bench.upstream.script = replaced
    bench.engine.live.drop_stream(bench.stream, End.PURGED)
    await eventually(lambda: bool(client.answers), look_s=0)
    assert client.answers[0].status == 404


async def test_a_stream_that_closes_is_told_as_closed(start: Start) -> None:
    bench = start(BinaryOrigin(b"ab"))
    (client,), live = await waiting(bench)
    bring(live, b"", "0002", is_closed=True)
    await eventually(lambda: bool(client.answers), look_s=0)
    assert (client.answers[0].status, client.answers[0].headers["Stream-Closed"]) == (204, "true")


async def test_a_client_that_has_gone_is_answered_nothing_and_leaves_nothing(start: Start) -> None:
    bench = start(BinaryOrigin(b"ab"), live_linger_s=1)
    (client,), live = await waiting(bench)
    (topic,) = bench.engine.live.topics()
    (waiter,) = topic.readers_now
    waiter.gone()
    assert client.has_left
    bring(live, b"cd", "0004")
    await pass_turns()
    assert client.answers == []
    bench.clock.advance(1.1)
    assert repr(bench.engine.live) == "0 topics, 0 followed, 0 readers"


@pytest.mark.parametrize("by_time", [False, True], ids=["event", "time-out"])
@pytest.mark.parametrize("step", ["render", "send_rendered", "account"])
async def test_clients_whose_answer_cannot_be_given_are_dropped_and_leave_nothing(
    start: Start, monkeypatch: pytest.MonkeyPatch, step: str, by_time: bool
) -> None:
    def fail(self: LongPoll, answer: object) -> None:
        raise RuntimeError(step)

    bench = start(BinaryOrigin(b"ab"), long_poll_timeout_s=20)
    clients, live = await waiting(bench, 3)
    monkeypatch.setattr(LongPoll, step, fail)
    if by_time:
        bench.clock.advance(21)
    else:
        bring(live, b"cd", "0004")
    await eventually(lambda: all(client.has_left for client in clients), look_s=0)
    assert repr(bench.engine.live) == "1 topics, 1 followed, 0 readers"


async def test_a_drain_sends_those_who_wait_off_one_after_the_other(start: Start) -> None:
    bench = start(BinaryOrigin(b"ab"))
    clients, _ = await waiting(bench, 20)
    bench.engine.begin_drain(spread_s=10.0)
    left: list[int] = []
    for _ in range(11):
        bench.clock.advance(1.0)
        await pass_turns()
        left.append(sum(not client.answers for client in clients))
    assert left[-1] == 0
    assert len(set(left)) > 3
    assert {client.answers[0].status for client in clients} == {204}


async def test_a_drain_ends_no_wait_of_another_worker(start: Start) -> None:
    bench = start(BinaryOrigin(b"ab"))
    (client,), live = await waiting(bench)
    earlier = await bench.poll("/s?offset=0002&live=long-poll", is_handed=True)
    bench.engine.begin_drain(0.5, 0.9, is_final=True)
    later = await bench.poll("/s?offset=0002&live=long-poll", is_handed=True)
    bench.clock.advance(2)
    await pass_turns()
    assert [len(one.answers) for one in (client, earlier, later)] == [1, 0, 0]
    bring(live, b"cd", "0004")
    await eventually(lambda: bool(earlier.answers and later.answers), look_s=0)
    assert earlier.bodies == later.bodies == [b"cd"]


@pytest.mark.parametrize("later", [b"", b"cd"], ids=["it would wait again", "it would be answered"])
async def test_a_wait_of_another_worker_is_cut_if_its_stream_is_replaced(start: Start, later: bytes) -> None:
    """The head of an answer would state the record that the wait began with, which is not the record of the bytes."""
    origin = BinaryOrigin(b"ab")
    bench = start(origin)
    await bench.body()
    client = await bench.poll("/s?offset=0002&live=long-poll")
    worker = await bench.poll("/s?offset=0002&live=long-poll", is_handed=True)
    await bench.live_request()
    origin.body += later
    bench.engine.live.drop_stream(bench.stream, End.PURGED)
    await eventually(lambda: worker.has_left and (bool(client.bodies) if later else len(bench.live) == 2), look_s=0)
    assert (worker.answers, client.has_left) == ([], False)
    assert client.bodies == [later] * bool(later)


async def test_a_wait_that_begins_after_the_reads_of_a_final_drain_have_ended_ends_at_once(start: Start) -> None:
    bench = start(BinaryOrigin(b"ab"))
    await waiting(bench)
    bench.engine.begin_drain(4.0, 8.0, is_final=True)
    bench.clock.advance(8.1)
    late = await bench.poll("/s?offset=0002&live=long-poll")
    bench.clock.advance(TICK_S)
    await pass_turns()
    assert [answer.status for answer in late.answers] == [204]


async def test_cursors_only_grow_for_a_client(start: Start) -> None:
    bench = start(BinaryOrigin(b"ab"), long_poll_timeout_s=20)
    (client,), _ = await waiting(bench)
    bench.clock.advance(21)
    first = client.answers[0].headers["Stream-Cursor"]
    again = await bench.poll(f"/s?offset=0002&live=long-poll&cursor={first}")
    await pass_turns()
    bench.clock.advance(21)
    await pass_turns()
    assert int(again.answers[0].headers["Stream-Cursor"]) > int(first)


async def test_a_stream_that_is_deleted_while_a_large_answer_is_fetched_is_a_404(start: Start) -> None:
    origin = BinaryOrigin(b"ab")
    held: list[Asked] = []
    large: list[Asked] = []

    def script(asked: Asked) -> None:
        if held:
            asked.answer(404)
        elif asked.is_live or len(origin.body) == 2:
            origin(asked)
        else:
            # The first fetch proves too large to be stored; the second is the client's own.
            large.append(asked)
            held.extend(large[1:])
            if not held:
                origin(asked)

    bench = start(script, long_poll_timeout_s=20, max_flight_bytes=1_024)
    await bench.body()
    client = await bench.poll("/s?offset=0002&live=long-poll")
    await bench.live_request()
    origin.body += b"c" * 5_000
    bench.clock.advance(21)
    await eventually(lambda: bool(held), look_s=0)
    (stream,) = bench.engine.store
    assert bench.engine.store.drop_stream(stream, End.DELETED)
    origin(held[0])
    await eventually(lambda: bool(client.answers), look_s=0)
    assert client.answers[0].status == 404


@pytest.mark.parametrize("turns", range(12))
async def test_a_closure_that_the_origin_named_is_told_whatever_happens_to_the_record(start: Start, turns: int) -> None:
    origin = BinaryOrigin(b"abcd")
    held: list[Asked] = []

    def script(asked: Asked) -> None:
        (held.append if asked.query.get("offset") == "0009" else origin)(asked)

    bench = start(script)
    await bench.body()
    polling = asyncio.get_running_loop().create_task(bench.poll("/s?offset=0009&live=long-poll"))
    await eventually(lambda: bool(held), look_s=0)
    # An origin answers an offset beyond the tail with the tail.
    held[0].answer(200, {**BINARY, "Stream-Next-Offset": "0004", "Stream-Closed": "true"})
    await pass_turns(turns)
    for stream in list(bench.engine.store):
        bench.engine.store.forget_bytes(stream)
        bench.engine.store.drop_stream(stream, End.PURGED)
    bench.upstream.script = lambda asked: asked.answer(404)
    (answer,) = (await polling).answers
    assert answer.status == 404 or answer.headers["Stream-Closed"] == "true"


@pytest.mark.parametrize("is_trusted", [False, True])
async def test_bytes_that_a_failing_origin_does_not_confirm_are_sent_as_stale(start: Start, is_trusted: bool) -> None:
    """The origin may have trimmed them since it last confirmed them."""

    def script(asked: Asked) -> None:
        body = b"ab" if asked.method == "GET" and asked.query.get("offset") == "-1" else b""
        asked.answer(200, {**BINARY, "Stream-Next-Offset": "0002"}, body)

    bench = start(script, trust_s=2, retry_attempts=0)
    for _ in range(2):
        await bench.body()
    bench.clock.advance(3)
    if is_trusted:
        # This shows that the stream is there, and nothing about its first bytes.
        assert await bench.body("/s?offset=0002") == (200, b"")
    bench.upstream.script = lambda asked: asked.answer(503)
    client = await bench.poll("/s?offset=-1&live=long-poll")
    assert [(answer.status, answer.outcome) for answer in client.answers] == [(200, Outcome.STALE_IF_ERROR)]
    assert client.bodies == [b"ab"]


@pytest.mark.parametrize("live", ["long-poll", "sse"])
@pytest.mark.parametrize("is_trusted", [False, True])
async def test_bytes_that_must_be_revalidated_are_not_sent_if_the_origin_fails(
    start: Start, live: str, is_trusted: bool
) -> None:
    def script(asked: Asked) -> None:
        body = b"ab" if asked.method == "GET" and asked.query.get("offset") == "-1" else b""
        asked.answer(200, {**BINARY, "Stream-Next-Offset": "0002", "Cache-Control": "max-age=1, must-revalidate"}, body)

    bench = start(script, trust_s=2, retry_attempts=0)
    for _ in range(2):
        await bench.body()
    bench.clock.advance(3)
    if is_trusted:
        assert await bench.body("/s?offset=0002") == (200, b"")
    bench.upstream.script = lambda asked: asked.answer(503)
    read = bench.read(f"/s?offset=-1&live={live}", is_live=True)
    answer = await (bench.engine.long_poll if live == "long-poll" else bench.engine.open_sse)(read)
    try:
        assert isinstance(answer, Answer)
        assert answer.status == 503
    finally:
        answer.close()


async def test_bytes_that_an_origin_confirms_after_a_failure_are_not_sent_as_stale(start: Start) -> None:
    def script(asked: Asked) -> None:
        if is_failing and asked.query.get("offset") == "0002":
            asked.answer(503)
        else:
            body = b"ab" if asked.method == "GET" and asked.query.get("offset") == "-1" else b""
            asked.answer(200, {**BINARY, "Stream-Next-Offset": "0002"}, body)

    is_failing = False
    bench = start(script, trust_s=2, retry_attempts=0)
    for _ in range(2):
        await bench.body()
    bench.clock.advance(3)
    # The origin fails to say whether the stream is there, and then confirms its bytes.
    is_failing, count = True, len(bench.upstream.asked)
    client = await bench.poll("/s?offset=-1&live=long-poll")
    assert [asked.query["offset"] for asked in bench.upstream.asked[count:]] == ["0002", "-1"]
    assert [(answer.status, answer.outcome) for answer in client.answers] == [(200, Outcome.HIT)]


async def test_bytes_of_a_stream_about_which_a_failing_origin_was_asked_are_sent_as_stale(start: Start) -> None:
    def script(asked: Asked) -> None:
        if asked.method == "POST":
            asked.fail(UpstreamUnreachable())
        else:
            body = b"ab" if asked.method == "GET" and asked.query.get("offset") == "-1" else b""
            asked.answer(200, {**BINARY, "Stream-Next-Offset": "0002"}, body)

    bench = start(script, retry_attempts=0)
    for _ in range(2):
        await bench.body()
    with pytest.raises(UpstreamUnreachable):
        await bench.relay(Mode.APPEND, b"cd")
    assert bench.stream.needs_revalidation
    # The bytes were confirmed a moment ago.
    bench.upstream.script, count = lambda asked: asked.answer(503), len(bench.upstream.asked)
    client = await bench.poll("/s?offset=-1&live=long-poll")
    assert [asked.query["offset"] for asked in bench.upstream.asked[count:]] == ["0002"]
    assert [(answer.status, answer.outcome) for answer in client.answers] == [(200, Outcome.STALE_IF_ERROR)]


async def test_bytes_that_are_not_confirmed_are_sent_with_the_tail_that_the_live_request_has_named(
    start: Start,
) -> None:
    bench = start(BinaryOrigin(b"ab"), trust_s=2, retry_attempts=0)
    await waiting(bench)
    bench.clock.advance(3)
    bench.upstream.script = lambda asked: asked.answer(503)
    (answer,) = (await bench.poll("/s?offset=-1&live=long-poll")).answers
    assert (answer.status, answer.outcome) == (200, Outcome.STALE_IF_ERROR)
    assert answer.headers["Stream-Up-To-Date"] == "true"


@pytest.mark.parametrize("is_at_the_tail", [False, True])
async def test_the_first_long_poll_of_a_stream_is_a_miss(start: Start, is_at_the_tail: bool) -> None:
    def script(asked: Asked) -> None:
        body = b"ab" if asked.query.get("offset") == "-1" else b""
        named = {"Stream-Up-To-Date": "true"} if is_at_the_tail or not body else {}
        asked.answer(200, {**BINARY, "Stream-Next-Offset": "0002", **named}, body)

    bench = start(script)
    client = await bench.poll("/s?offset=-1&live=long-poll")
    assert [(answer.status, answer.outcome) for answer in client.answers] == [(200, Outcome.MISS)]
    assert client.bodies == [b"ab"]

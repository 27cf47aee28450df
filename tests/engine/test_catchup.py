"""Catch-up reads: what the tape answers alone, what is fetched, and when the tail is looked at."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from gateway.engine.confirming import MOST_WAIT_S
from gateway.engine.read import Uncacheable
from gateway.errors import UpstreamBroken, UpstreamUnavailable
from gateway.protocol.cache_status import Outcome
from gateway.protocol.freshness_headers import Lifetime
from gateway.protocol.mode import Mode
from gateway.protocol.worker_headers import HopSaid
from tests.engine.bench import TEXT, BinaryOrigin, EngineBench, Start, part_of_stream
from tests.memory_upstream import Asked
from tests.waiting import eventually, pass_turns

EXPIRES_AT = datetime(2026, 9, 21, 14, 14, tzinfo=UTC).timestamp()


def asked_of(bench: object) -> list[tuple[str, str | None]]:
    """Method and offset of every request that the origin has had."""
    return [(asked.method, asked.query.get("offset")) for asked in bench.upstream.asked]  # type: ignore[attr-defined]


async def test_what_is_on_the_tape_is_not_fetched_again(start: Start) -> None:
    origin = BinaryOrigin(b"abcd")
    bench = start(origin)
    assert await bench.body() == (200, b"abcd")
    assert asked_of(bench) == [("GET", "-1")]
    origin.body += b"ef"
    assert await bench.body() == (200, b"abcdef")
    # The walk ends where the tape does, and only what lies behind is asked for.
    assert asked_of(bench)[1:] == [("GET", "0004")]


async def test_a_read_at_the_tail_is_one_look_and_no_bytes(start: Start) -> None:
    bench = start(BinaryOrigin(b"abcd"))
    await bench.body()
    answer = await bench.engine.catch_up(bench.read("/s?offset=0004"))
    assert (answer.status, answer.headers["Stream-Next-Offset"], answer.body) == (200, "0004", b"")
    assert answer.headers["Stream-Up-To-Date"] == "true"
    answer.close()
    assert asked_of(bench) == [("GET", "-1"), ("GET", "0004")]


async def test_an_answer_that_stops_short_of_the_tail_is_not_up_to_date(start: Start) -> None:
    """The origin itself had stopped there; what follows is not known."""
    part = {**TEXT, "Stream-Next-Offset": "0002"}
    bench = start(lambda asked: asked.answer(200, part, b"ab" if asked.method == "GET" else b""))
    for outcome in (Outcome.MISS, Outcome.HIT):
        answer = await bench.engine.catch_up(bench.read("/s"))
        assert (answer.outcome, answer.headers["Stream-Next-Offset"]) == (outcome, "0002")
        assert "Stream-Up-To-Date" not in answer.headers
        answer.close()


async def test_an_open_stream_is_not_closed_at_its_tail(start: Start) -> None:
    bench = start(BinaryOrigin(b"abcd"), tail_fresh_s=60)
    for offset in ("-1", "0004", "0004"):
        answer = await bench.engine.catch_up(bench.read(f"/s?offset={offset}"))
        assert answer.headers["Stream-Up-To-Date"] == "true"
        assert "Stream-Closed" not in answer.headers
        answer.close()


async def test_a_closed_stream_is_answered_from_memory_for_as_long_as_it_is_trusted(start: Start) -> None:
    origin = BinaryOrigin(b"abcd")
    origin.is_closed = True
    bench = start(origin, trust_s=60)
    await bench.body()
    await bench.body()
    seen = len(bench.upstream.asked)
    for _ in range(5):
        answer = await bench.engine.catch_up(bench.read("/s?offset=-1"))
        assert (answer.outcome, answer.headers["Stream-Closed"]) == (Outcome.HIT, "true")
        answer.close()
    assert len(bench.upstream.asked) == seen
    bench.clock.advance(61)
    await bench.body()
    assert len(bench.upstream.asked) > seen


async def test_now_is_the_tail_without_a_body(start: Start) -> None:
    bench = start(BinaryOrigin(b"abcd"))
    answer = await bench.engine.catch_up(bench.read("/s?offset=now"))
    assert (answer.status, answer.headers["Stream-Next-Offset"]) == (200, "0004")
    answer.close()
    assert asked_of(bench) == [("GET", "now")]


async def test_a_reader_that_comes_while_bytes_are_fetched_looks_at_the_tail_behind_them(start: Start) -> None:
    """The fetch may have been answered before an append that the later reader knows of."""
    origin = BinaryOrigin(b"abcd")
    bench = start()
    first = asyncio.create_task(bench.body())
    fetch = await bench.until(1)
    second = asyncio.create_task(bench.body())
    await eventually(lambda: bench.engine.fetches.readers == 2, look_s=0)
    origin(fetch)
    assert await first == (200, b"abcd")
    origin.body += b"ef"
    origin(await bench.until(2))
    assert await second == (200, b"abcdef")
    assert asked_of(bench) == [("GET", "-1"), ("GET", "0004")]


@pytest.mark.parametrize(
    ("content_type", "empty", "full"), [("text/plain", b"", b"ab"), ("application/json", b"[]", b"[1]")]
)
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_an_empty_reply_brings_its_second_reader_no_bytes(
    start: Start, content_type: str, empty: bytes, full: bytes, is_chunked: bool
) -> None:
    """`-1` leads to the offset of an empty stream.  Another reader has learned that bytes follow, so an answer
    that ended there would be empty and not up to date."""
    bench = start(lambda asked: asked.answer(405) if asked.method == "HEAD" else None)
    first = asyncio.create_task(bench.body())
    fetch = await bench.until(1)
    second = asyncio.create_task(bench.body())
    await eventually(lambda: bench.engine.fetches.readers == 2, look_s=0)
    append = asyncio.create_task(bench.relay(Mode.APPEND, full))
    (await bench.until(2)).answer(204, {"Stream-Next-Offset": "0002"})
    (await append).close()
    third = asyncio.create_task(bench.body("/s?offset=0000"))
    fields = {"Content-Type": content_type, "Stream-Next-Offset": "0002"}
    later = await bench.until(3)
    later.begin(200, fields)
    await eventually(lambda: bench.stream.tape.is_short("0000"), look_s=0)
    fields |= {"Stream-Next-Offset": "0000", "Stream-Up-To-Date": "true"}
    if is_chunked:
        fetch.begin(200, fields)
        await pass_turns()
        fetch.inflow.say(empty)
        fetch.inflow.finish()
    else:
        fetch.answer(200, fields, empty)
    assert await first == (200, empty)
    await pass_turns()
    later.inflow.say(full)
    later.inflow.finish()
    assert await third == (200, full)
    assert await second == (200, full)
    assert asked_of(bench) == [("GET", "-1"), ("POST", None), ("GET", "0000"), ("HEAD", None)]


@pytest.mark.parametrize("now", [b"xy", b"uvwxyz"])
@pytest.mark.parametrize("offset", ["-1", "0002", "0004"])
async def test_bytes_that_are_forgotten_in_the_middle_of_a_read_are_not_joined_to_those_of_another_stream(
    start: Start, now: bytes, offset: str
) -> None:
    """A DELETE and a PUT whose answers are lost may have put another stream in the place of the one being read."""
    origin = BinaryOrigin(b"abcd")
    bench = start()
    bench.upstream.script = origin
    await bench.body()
    bench.upstream.script = lambda asked: None
    reading = asyncio.create_task(bench.engine.catch_up(bench.read(f"/s?offset={offset}")))
    await bench.until(2)
    for mode in (Mode.DELETE, Mode.CREATE):
        writing = asyncio.create_task(bench.relay(mode))
        (await bench.until(len(bench.upstream.asked) + 1)).fail(UpstreamBroken())
        with pytest.raises(UpstreamBroken):
            await writing
    origin.body = now
    origin(bench.upstream.asked[1])
    bench.upstream.script = origin
    answer = await reading
    body = b"".join([piece async for piece in answer.parts.stream(answer.is_json)]) if answer.parts else answer.body
    answer.close()
    assert body == now[0 if offset == "-1" else int(offset) :]
    assert answer.headers["Stream-Next-Offset"] == origin.tail


async def test_held_bytes_that_were_fetched_after_a_purge_have_the_tag_of_their_incarnation(start: Start) -> None:
    bench = start()
    first = asyncio.create_task(bench.body())
    part_of_stream(b"old", "0003")(await bench.until(1))
    await first
    waiting = asyncio.create_task(bench.engine.catch_up(bench.read("/s")))
    await bench.until(2)
    stream, read = bench.stream, bench.read("/s")
    bench.engine.store.forget_bytes(stream)
    again = asyncio.create_task(bench.engine.fetches.fresh_head(stream, "-1", read.route, read.source))
    part_of_stream(b"new", "0003")(await bench.until(3))
    await again
    bench.clock.advance(MOST_WAIT_S)
    answer = await waiting
    assert answer.parts is not None
    assert answer.parts.held(answer.is_json) == [b"new"]
    assert stream.version.incarnation in answer.headers["ETag"]
    answer.close()


async def test_a_tail_that_may_be_repeated_is_not_looked_at(start: Start) -> None:
    origin = BinaryOrigin(b"abcd")
    bench = start(origin, tail_fresh_s=5, trust_s=60)
    for _ in range(3):
        await bench.body()
    asked = len(bench.upstream.asked)
    origin.body += b"ef"
    assert await bench.body() == (200, b"abcd")
    assert len(bench.upstream.asked) == asked
    bench.clock.advance(5.1)
    assert await bench.body() == (200, b"abcdef")


async def test_a_known_etag_is_answered_without_the_body(start: Start) -> None:

    bench = start(BinaryOrigin(b"abcd"))
    answer = await bench.engine.catch_up(bench.read("/s?offset=-1"))
    tag = answer.headers["ETag"]
    answer.close()
    again = await bench.engine.catch_up(bench.read("/s?offset=-1")._replace(if_none_match=tag))
    assert (again.status, again.body, again.parts) == (304, b"", None)
    again.close()


async def test_what_may_not_be_shared_is_left_to_the_relay(start: Start) -> None:
    bench = start(
        lambda asked: asked.answer(
            200, {**TEXT, "Stream-Next-Offset": "0002", "Stream-Up-To-Date": "true", "Set-Cookie": "a=b"}, b"ab"
        )
    )
    with pytest.raises(Uncacheable, match="Set-Cookie"):
        await bench.engine.catch_up(bench.read("/s?offset=-1"))
    assert bench.engine.store.cost == sum(stream.cost for stream in bench.engine.store)
    assert not any(stream.tape.size for stream in bench.engine.store)


@pytest.mark.parametrize("status", [404, 410])
async def test_a_stream_that_is_no_more_is_forgotten(start: Start, status: int) -> None:
    origin = BinaryOrigin(b"abcd")
    bench = start(origin)
    await bench.body()
    bench.upstream.script = lambda asked: asked.answer(status, TEXT, b"gone")
    assert (await bench.body("/s?offset=0004"))[0] == status
    assert not any(stream.tape.size for stream in bench.engine.store)


async def ask(bench: EngineBench, target: str) -> tuple[int, bytes]:
    if "live" not in target:
        return await bench.body(target)
    client = await bench.poll(target)
    return client.answers[0].status, client.bodies[0]


@pytest.mark.parametrize("target", ["/s?offset=-1", "/s?offset=-1&live=long-poll"])
async def test_a_stream_that_expires_while_the_origin_fails_is_given_no_more(start: Start, target: str) -> None:
    bench = start(BinaryOrigin(b"abcd"), retry_attempts=0)
    await bench.body()
    bench.stream.expiry.know(Lifetime(None, EXPIRES_AT))
    bench.upstream.script = lambda asked: asked.fail(UpstreamBroken())
    bench.clock.advance(39)
    assert await ask(bench, target) == (200, b"abcd")
    bench.upstream.script = lambda asked: None
    asking = asyncio.create_task(ask(bench, target))
    fetch = await bench.until(len(bench.upstream.asked) + 1)
    bench.clock.advance(2)
    fetch.fail(UpstreamBroken())
    (found,) = await asyncio.gather(asking, return_exceptions=True)
    # A long-poll has a topic, which notices the expiry by itself.
    assert isinstance(found, UpstreamBroken) or found == (404, b"Stream not found\n")


@pytest.mark.parametrize("mode", [Mode.CREATE, Mode.DELETE])
@pytest.mark.parametrize("target", ["/s?offset=-1", "/s?offset=-1&live=long-poll"])
async def test_a_stream_that_may_be_another_is_given_no_more_until_its_lifetime_is_known(
    start: Start, mode: Mode, target: str
) -> None:
    """A read has found it since, but the HEAD that would say when it expires has failed."""
    origin = BinaryOrigin(b"abcd")
    bench = start(origin, retry_attempts=0)
    await bench.body()
    bench.stream.expiry.know(Lifetime(None, EXPIRES_AT))
    bench.upstream.script = lambda asked: asked.fail(UpstreamBroken())
    with pytest.raises(UpstreamBroken):
        await bench.relay(mode)
    bench.upstream.script = lambda asked: asked.fail(UpstreamBroken()) if asked.method == "HEAD" else origin(asked)
    assert await bench.body() == (200, b"abcd")
    bench.upstream.script = lambda asked: asked.fail(UpstreamBroken())
    bench.clock.advance(60)
    with pytest.raises(UpstreamBroken):
        await ask(bench, target)


async def test_a_read_from_now_that_finds_the_stream_gone_leaves_no_topic(start: Start) -> None:
    origin = BinaryOrigin(b"ab")

    def script(asked: Asked) -> None:
        if asked.method in ("HEAD", "DELETE"):
            asked.answer(404 if asked.method == "HEAD" else 503)
        elif not asked.is_live:
            origin(asked)

    bench = start(script, retry_attempts=0, follow_above_per_s=0.001)
    await bench.body()
    stream = bench.stream
    (await bench.relay(Mode.DELETE)).close()
    for _ in range(4):
        # So many reads of the tail would have it followed.
        stream.count_tail_read(bench.clock.now(), 0.001)
    reading = asyncio.create_task(bench.body("/s?offset=now"))
    for _ in range(30):
        await pass_turns()
        bench.clock.advance(0.1)
    await reading
    assert stream.ended is not None
    assert all(topic.stream is not stream for topic in bench.engine.live.topics())


@pytest.mark.parametrize(("has_failed", "has_more"), [(False, False), (True, False), (True, True)])
async def test_bytes_in_the_owners_memory_that_lack_an_acknowledged_write_are_not_sent(
    start: Start, has_failed: bool, has_more: bool
) -> None:
    """The owner sends them because the origin fails, and has not learned of the write.  If it has more, this is not the
    end yet."""

    def owner(asked: Asked) -> None:
        if asked.method == "POST":
            asked.answer(204, {"Stream-Next-Offset": "0004"})
            return
        is_read = asked.query.get("offset") == "-1"
        is_stale, is_end = has_failed and is_read, is_read and not has_more
        asked.said = HopSaid("1.1.1", bench.clock.now(), "life", is_stale=is_stale, is_tail_unknown=is_end)
        asked.answer(200, {**TEXT, "Stream-Next-Offset": "0002"}, b"ab" if is_read else b"")

    bench = start(owner)
    assert await bench.body("/s?offset=now") == (200, b"")
    await bench.relay(Mode.APPEND, b"cd")
    if has_failed and not has_more:
        with pytest.raises(UpstreamUnavailable):
            await bench.body()
    else:
        assert await bench.body() == (200, b"ab")


async def test_a_read_during_which_a_write_is_acknowledged_asks_the_owner_again(start: Start) -> None:
    """The owner waits for a slow origin, and then answers from memory.  It does not know of the write yet."""
    reads: list[Asked] = []

    def owner(asked: Asked) -> None:
        match asked.method, asked.query.get("offset"):
            case "POST", _:
                asked.answer(204, {"Stream-Next-Offset": "0004"})
            case _, "-1":
                reads.append(asked)
            case _, "0002":
                asked.answer(200, {**TEXT, "Stream-Next-Offset": "0004", "Stream-Up-To-Date": "true"}, b"cd")
            case _:
                asked.answer(200, {**TEXT, "Stream-Next-Offset": "0002"})

    bench = start(owner)
    assert await bench.body("/s?offset=now") == (200, b"")
    reading = asyncio.create_task(bench.body())
    await eventually(lambda: len(reads) == 1, look_s=0)
    await bench.relay(Mode.APPEND, b"cd")
    reads[0].said = HopSaid("1.1.1", bench.clock.now(), "life", is_stale=True, is_tail_unknown=True)
    reads[0].answer(200, {**TEXT, "Stream-Next-Offset": "0002"}, b"ab")
    assert await reading == (200, b"abcd")

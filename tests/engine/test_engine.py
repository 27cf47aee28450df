"""The engine: which requests it sends to its origins and when, on a manual clock and without sockets."""

from __future__ import annotations

import asyncio

import pytest

from gateway.engine.answer import Answer
from gateway.engine.hit_for_miss import HEAD
from gateway.errors import (
    CircuitOpen,
    GatewayError,
    TooManyRequests,
    UpstreamBroken,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from gateway.protocol.mode import Mode
from tests.engine.bench import TEXT, EngineBench, Start, part_of_stream
from tests.memory_upstream import BOUND_S, Asked
from tests.waiting import eventually, pass_turns

HALF = bytes(1 << 19)
"""Half of a body that is too large to be awaited."""
SIZE = 2 * len(HALF)


async def begun(bench: EngineBench) -> tuple[Asked, Answer]:
    """Start a read; return its upstream request and its answer, once the head has arrived."""
    reading = asyncio.create_task(bench.engine.catch_up(bench.read("/s")))
    asked = await bench.until(1)
    asked.begin(200, {**TEXT, "Stream-Next-Offset": "0010", "Stream-Up-To-Date": "true"}, SIZE)
    async with asyncio.timeout(BOUND_S):
        return asked, await reading


async def test_concurrent_reads_cost_the_origin_one_request(start: Start) -> None:
    bench = start()
    asking = [asyncio.create_task(bench.body()) for _ in range(50)]
    request = await bench.until(1)
    assert repr(bench.engine.fetches) == "1 flights, 50 waiting"
    part_of_stream(b"0123456789", "0010")(request)
    assert set(await asyncio.gather(*asking)) == {(200, b"0123456789")}
    assert [asked.method for asked in bench.upstream.asked] == ["GET"]


async def test_readers_receive_a_body_while_it_arrives(start: Start) -> None:
    bench = start()
    asked, answer = await begun(bench)
    assert answer.parts is not None
    body = answer.parts.stream(is_json=False)
    for _ in range(2):
        asked.inflow.say(HALF)
        assert await anext(body) == HALF
    asked.inflow.finish()
    assert [piece async for piece in body] == []
    answer.close()


@pytest.mark.parametrize("failure", [503, UpstreamUnreachable(), UpstreamTimeout(), UpstreamBroken()])
async def test_a_failed_read_is_retried_after_a_pause(start: Start, failure: int | GatewayError) -> None:
    bench = start()
    reading = asyncio.create_task(bench.body())
    first = await bench.until(1)
    if isinstance(failure, int):
        first.answer(failure)
    else:
        first.fail(failure)
    await eventually(lambda: bench.clock.pending > 0)
    await pass_turns(20)
    assert len(bench.upstream.asked) == 1
    bench.clock.advance(0.2)
    part_of_stream(b"ab", "0002")(await bench.until(2))
    assert await reading == (200, b"ab")
    assert bench.recorder.counts["retry",] == 1


@pytest.mark.parametrize("says", [{"Retry-After": "7"}, {}])
async def test_a_reply_with_retry_after_is_not_retried(start: Start, says: dict[str, str]) -> None:
    bench = start(lambda asked: asked.answer(503, says), retry_attempts=1 if says else 0)
    assert (await bench.body())[0] == 503
    assert len(bench.upstream.asked) == 1


async def test_an_open_circuit_breaker_is_not_retried(start: Start) -> None:
    bench = start(lambda asked: asked.fail(CircuitOpen(3.0)))
    with pytest.raises(CircuitOpen):
        await bench.body()
    assert len(bench.upstream.asked) == 1


async def test_a_truncated_body_is_not_stored(start: Start) -> None:
    bench = start(retry_attempts=0)
    reading = asyncio.create_task(bench.body())
    asked = await bench.until(1)
    asked.begin(200, {**TEXT, "Stream-Next-Offset": "0010"}, 10)
    asked.inflow.say(b"01234")
    asked.fail(UpstreamBroken())
    with pytest.raises(UpstreamBroken):
        await reading
    bench.upstream.script = part_of_stream(b"0123456789", "0010")
    assert await bench.body() == (200, b"0123456789")


async def test_the_last_reader_to_leave_ends_the_fetch(start: Start) -> None:
    bench = start()
    asked, answer = await begun(bench)
    answer.close()
    await eventually(lambda: asked.inflow.is_over and not bench.engine.fetches)


# -- writes


@pytest.mark.parametrize(
    ("error", "doubts"),
    [
        (UpstreamTimeout(), 1),
        (UpstreamUnreachable(), 1),
        (UpstreamUnreachable(is_unsent=True), 0),
        (CircuitOpen(), 0),
    ],
)
async def test_a_write_without_an_answer_marks_the_stream_stale_unless_it_was_never_sent(
    start: Start, error: GatewayError, doubts: int
) -> None:
    bench = start(part_of_stream(b"ab", "0002"))
    await bench.body()
    bench.upstream.script = lambda asked: asked.fail(error)
    with pytest.raises(type(error)):
        await bench.relay(Mode.APPEND, b"c")
    assert bench.stream.version.doubts == doubts


async def test_an_acknowledged_append_is_visible_to_the_next_read(start: Start) -> None:
    bench = start(part_of_stream(b"ab", "0002"), trust_s=60)
    await bench.body()
    bench.upstream.script = lambda asked: asked.answer(204, {"Stream-Next-Offset": "0003"})
    (await bench.relay(Mode.APPEND, b"c")).close()
    bench.upstream.script = part_of_stream(b"c", "0003")
    assert await bench.body() == (200, b"abc")
    assert bench.upstream.asked[-1].query == {"offset": "0002"}


async def test_a_fetch_overtaken_by_a_delete_stores_nothing(start: Start) -> None:
    bench = start()
    fetch, answer = await begun(bench)
    deleting = asyncio.create_task(bench.relay(Mode.DELETE))
    (await bench.until(2)).answer(204)
    (await deleting).close()
    fetch.inflow.say(HALF + HALF)
    fetch.inflow.finish()
    assert answer.parts is not None
    # The fetch's own readers receive all of it; later readers do not.
    assert [piece async for piece in answer.parts.stream(is_json=False)] == [HALF + HALF]
    answer.close()
    bench.upstream.script = lambda asked: asked.answer(404)
    assert (await bench.body())[0] == 404


async def test_a_head_beyond_the_limit_is_refused_also_where_heads_are_relayed(start: Start) -> None:
    bench = start(client_new_streams_per_s=1)
    read = bench.read("/s")
    read = read._replace(source=read.source._replace(client="192.0.2.1"))
    read.route.unshared.remember(read.key, HEAD, "status 307")
    known = [bench.engine.knows(read) for _ in range(8)]
    assert known == sorted(known), "relayed, until the client has read too many new streams"
    assert known[0] is False
    assert known[-1] is True
    with pytest.raises(TooManyRequests):
        await bench.engine.head(read)

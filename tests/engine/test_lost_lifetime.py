"""A write without an answer may have made a stream anew: its lifetime is lost until a HEAD tells it again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from gateway.errors import CircuitOpen, GatewayError, UpstreamBroken
from gateway.protocol.mode import Mode
from gateway.tape.stream import End
from gateway.upstream.breaker import Breaker, BreakerState, Policy
from gateway.upstream.flight import METADATA
from tests.engine.bench import BinaryOrigin, EngineBench, Start, part_of_stream
from tests.memory_upstream import Asked
from tests.waiting import eventually, pass_turns


class Bench:
    """An engine that has read a stream whose lifetime it knows, and then lost."""

    def __init__(self, start: Start, origin: Callable[[Asked], None], status: int = 429, **settings: object) -> None:
        self.origin = origin
        self.refuses = False
        """Whether the origin refuses HEADs with `status`."""
        self._status = status
        self.engine: EngineBench = start(self._answer, **settings)

    def _answer(self, asked: Asked) -> None:
        if asked.method == "DELETE":
            asked.fail(UpstreamBroken())
        elif asked.method == "HEAD" and self.refuses:
            asked.answer(self._status, {"Retry-After": "1"})
        else:
            self.origin(asked)

    async def know(self) -> None:
        """Have the lifetime known."""
        for _ in range(2):
            assert await self.engine.body() == (200, b"ab")

    async def lose(self) -> None:
        """Have it lost, and asked for in vain."""
        await self.know()
        self.refuses = True
        with pytest.raises(UpstreamBroken):
            await self.engine.relay(Mode.DELETE)
        assert await self.engine.body() == (200, b"ab")

    async def pass_time(self, seconds: float) -> None:
        for _ in range(round(2 * seconds)):
            self.engine.clock.advance(0.5)
            await pass_turns()

    @property
    def heads(self) -> int:
        """HEADs that the origin has had."""
        return sum(asked.method == "HEAD" for asked in self.engine.upstream.asked)


def closed() -> BinaryOrigin:
    origin = BinaryOrigin(b"ab")
    origin.is_closed = True
    return origin


def text(**fields: str) -> Callable[[Asked], None]:
    """An origin of a text stream of two bytes, which leaves live requests open."""
    empty, whole = part_of_stream(b"", "0002", **fields), part_of_stream(b"ab", "0002", **fields)

    def answer(asked: Asked) -> None:
        if not asked.is_live:
            (empty if asked.query.get("offset") == "0002" else whole)(asked)

    return answer


@pytest.mark.parametrize("status", [403, 405, 429, 503])
async def test_it_is_asked_for_once_in_a_second(start: Start, status: int) -> None:
    """An origin may refuse every HEAD, or fail for a while."""
    origin = BinaryOrigin(b"ab")

    def script(asked: Asked) -> None:
        if asked.method in ("HEAD", "DELETE"):
            asked.answer(503 if asked.method == "DELETE" else status, {"Retry-After": "1"})
        else:
            origin(asked)

    bench = start(script, retry_attempts=0, follow_above_per_s=0, credentials="shared")
    await bench.body()
    (await bench.relay(Mode.DELETE)).close()
    for _ in range(5):
        assert await bench.body("/s?offset=0002") == (200, b"")
    assert sum(asked.method == "HEAD" for asked in bench.upstream.asked) == 1
    bench.upstream.script = origin
    bench.clock.advance(1)
    assert await bench.body("/s?offset=0002") == (200, b"")
    bench.upstream.script = lambda asked: asked.answer(503, {"Retry-After": "1"})
    # What is held is given while the origin fails again.
    assert await bench.body() == (200, b"ab")


async def test_if_no_head_tells_it_it_is_asked_for_ever_less_often(start: Start) -> None:
    origin = BinaryOrigin(b"ab")
    origin.is_closed = True

    def script(asked: Asked) -> None:
        if asked.method in ("HEAD", "DELETE"):
            asked.answer(503, {"Retry-After": "1"})
        else:
            origin(asked)

    bench = start(script, retry_attempts=0, follow_above_per_s=0)
    await bench.body()
    (await bench.relay(Mode.DELETE)).close()
    for _ in range(120):
        assert await bench.body() == (200, b"ab")
        # Nor do long-polls inside the tape.
        assert (await bench.poll("/s?offset=-1&live=long-poll")).answers
        bench.clock.advance(1)
    assert sum(asked.method == "HEAD" for asked in bench.upstream.asked) == 7


@pytest.mark.parametrize("live", [False, True])
async def test_while_it_is_not_asked_for_the_origin_answers(start: Start, live: bool) -> None:
    """The DELETE that had no answer is done late."""
    bench = Bench(start, closed())
    await bench.lose()
    bench.origin = lambda asked: asked.answer(404)
    bench.engine.clock.advance(0.5)
    if live:
        client = await bench.engine.poll("/s?offset=-1&live=long-poll")
        statuses = [answer.status for answer in client.answers]
    else:
        statuses = [(await bench.engine.body())[0]]
    assert statuses == [404]


async def test_a_follower_goes_on_while_it_is_not_told(start: Start) -> None:
    bench = Bench(start, text())
    await bench.lose()
    await bench.engine.poll("/s?offset=0002&live=long-poll")
    await bench.pass_time(5)
    assert bench.engine.live
    assert bench.heads <= 3


async def test_it_is_asked_for_as_soon_as_the_origin_may_be_asked_again(start: Start) -> None:
    bench = Bench(start, closed())
    await bench.lose()
    told, bench.origin, bench.refuses = bench.origin, lambda asked: asked.fail(CircuitOpen()), False
    for _ in range(80):
        bench.engine.clock.advance(1)
        with pytest.raises(CircuitOpen):
            await bench.engine.body()
    bench.origin = told
    bench.engine.clock.advance(1)
    assert await bench.engine.body() == (200, b"ab")
    assert not bench.engine.stream.expiry.is_lost


@pytest.mark.parametrize(("retries", "gap_s"), [(1, 3.0), (0, 0.05)])
async def test_an_origin_that_fails_its_heads_is_read_again_after_an_outage(
    start: Start, retries: int, gap_s: float
) -> None:
    """The first request after the outage closes the circuit or opens it again.  It must not be a HEAD each time."""
    breaker, is_down, fails_heads = Breaker(Policy(), Random(1), 0.0), False, False

    def script(asked: Asked) -> None:
        now = bench.engine.clock.now()
        if (permit := breaker.admit(now)) is None:
            asked.fail(CircuitOpen())
        elif is_down or (asked.method == "HEAD" and fails_heads):
            breaker.record_failure(permit, now)
            asked.answer(503)
        else:
            breaker.succeeded(permit, now)
            origin(asked)

    async def status() -> int:
        reading = asyncio.create_task(bench.engine.body())
        for _ in range(100):
            await pass_turns()
            if reading.done():
                break
            # A retry waits.
            bench.engine.clock.advance(0.01)
        try:
            return (await reading)[0]
        except GatewayError as error:
            return error.status

    origin = closed()
    bench = Bench(start, script, follow_above_per_s=0, retry_attempts=retries)
    await bench.know()
    with pytest.raises(UpstreamBroken):
        await bench.engine.relay(Mode.DELETE)
    # HEADs fail as everything does, and for longer.
    is_down = fails_heads = True
    for _ in range(20):
        await status()
        bench.engine.clock.advance(0.5)
    assert breaker.state is not BreakerState.CLOSED
    is_down = False
    found = []
    for _ in range(500):
        found.append(await status())
        bench.engine.clock.advance(gap_s)
    assert found.count(200) > 400


async def test_a_head_that_was_sent_before_the_loss_does_not_tell_it(start: Start) -> None:
    origin, late = closed(), list[Asked]()
    bench = Bench(start, lambda asked: late.append(asked) if asked.method == "HEAD" and not late else origin(asked))
    assert await bench.engine.body() == (200, b"ab")
    reading = asyncio.create_task(bench.engine.body())
    await eventually(lambda: bool(late), look_s=0)
    with pytest.raises(UpstreamBroken):
        await bench.engine.relay(Mode.DELETE)
    origin(late[0])
    assert await reading == (200, b"ab")
    assert bench.engine.stream.expiry.is_lost or bench.heads == 2


class Expiring(Bench):
    """A text stream that expires after ten seconds."""

    def __init__(self, start: Start, status: int) -> None:
        super().__init__(start, text(), status, tail_fresh_s=60)
        expires_at = datetime.fromtimestamp(self.engine.clock.wall(), UTC) + timedelta(seconds=10)
        self.origin = text(Stream_Expires_At=f"{expires_at:%Y-%m-%dT%H:%M:%SZ}")

    @property
    def has_expired(self) -> bool:
        return self.engine.stream.has_expired(self.engine.clock.now(), self.engine.clock.wall())


REFUSALS = [403, 405, 429]
"""For good, and for a while."""


@pytest.mark.parametrize("status", [None, *REFUSALS])
async def test_live_readers_end_at_the_expiry_that_was_known_before(start: Start, status: int | None) -> None:
    bench = Expiring(start, status or 0)
    await (bench.lose() if status is not None else bench.know())
    stream = bench.engine.stream
    await bench.engine.poll("/s?offset=0002&live=long-poll")
    await bench.pass_time(20)
    # The stream may be another, which does not end: its readers look again.
    assert stream.ended is (End.EXPIRED if status is None else End.PURGED)


@pytest.mark.parametrize("status", REFUSALS)
async def test_a_stream_expires_as_was_known_before(start: Start, status: int) -> None:
    bench = Expiring(start, status)
    await bench.lose()
    assert not bench.has_expired
    bench.engine.clock.advance(20)
    assert bench.has_expired


@pytest.mark.parametrize("status", [401, *REFUSALS])
async def test_a_head_that_is_refused_leaves_the_lifetime_that_is_known(start: Start, status: int) -> None:
    """Credentials may have expired."""
    bench = Expiring(start, status)
    await bench.know()
    bench.refuses = True
    read = bench.engine.read("/s?offset=-1")
    await bench.engine.engine.fetches.fresh_head(bench.engine.stream, METADATA, read.route, read.source)
    assert bench.heads == 2
    bench.engine.clock.advance(20)
    assert bench.has_expired

"""Streams that expire: a tape never outlives its stream, and a stream with live readers does not expire."""

from datetime import UTC, datetime
from email.utils import formatdate
from typing import Any

import pytest

from gateway.aio.clock import ManualClock
from gateway.origin.app import OriginSettings, RunningOrigin, start_origin
from gateway.origin.counters import Counters
from gateway.origin.faults import Faults
from gateway.origin.requests import Kind
from tests.scenarios.conftest import Edge, Hostile, Start, bounded
from tests.scenarios.hostile import Asked, answer, part_of_stream
from tests.waiting import eventually

TEXT = {"Content-Type": "text/plain"}


@pytest.fixture
def origin_settings() -> OriginSettings:
    """Chunks of 10 bytes: a first part short of the tail is a plain hit, which could outlive its stream."""
    return OriginSettings(max_chunk_bytes=10)


@pytest.fixture
def settings() -> dict[str, Any]:
    return {"trust_s": 3600, "live_linger_s": 5}


async def create(edge: Edge, origin: RunningOrigin, through: str, **headers: str) -> None:
    url = edge.url if through == "gateway" else origin.url
    fields = {**TEXT, **{name.replace("_", "-"): value for name, value in headers.items()}}
    assert (await edge.send_to(url, "PUT", "/s", fields, b"0123456789abcdef")).status == 201


def instant(clock: ManualClock, after_s: float) -> str:
    return datetime.fromtimestamp(clock.wall() + after_s, UTC).isoformat().replace("+00:00", "Z")


@pytest.mark.parametrize("through", ["gateway", "origin"])
async def test_hits_do_not_outlive_an_absolute_expiry(
    edge: Edge, origin: RunningOrigin, counters: Counters, clock: ManualClock, through: str
) -> None:
    await create(edge, origin, through, Stream_Expires_At=instant(clock, 100))
    assert (await edge.get("/s")).body == b"0123456789"
    clock.advance(99)
    hit = await edge.get("/s")
    assert hit.body == b"0123456789"
    assert "; hit" in hit.headers["Cache-Status"]
    clock.advance(1)
    for target in ("/s", "/s?offset=now", "/s?offset=-1&live=long-poll", "/s?offset=-1&live=sse"):
        assert (await edge.get(target)).status == 404
    assert (await edge.get("/s", {"If-None-Match": hit.headers["ETag"]})).status == 404


async def test_a_long_poll_is_answered_with_no_bytes_whose_lifetime_is_not_known(
    edge: Edge, origin: RunningOrigin, counters: Counters, clock: ManualClock
) -> None:
    await create(edge, origin, "origin", Stream_Expires_At=instant(clock, 100))
    # A read does not tell for how long the stream lives.
    assert (await edge.get("/s")).body == b"0123456789"
    clock.advance(100)
    assert (await edge.get("/s?offset=-1&live=long-poll")).status == 404


async def test_a_long_poll_says_that_the_origin_did_not_tell_the_lifetime(
    edge: Edge, origin: RunningOrigin, faults: Faults
) -> None:
    await create(edge, origin, "origin")
    first = await edge.get("/s")
    faults.status(503, kind=Kind.HEAD, times=None)
    async with edge.time_passing():
        answer = await edge.get("/s?offset=-1&live=long-poll")
    assert (answer.body, answer.headers["Cache-Status"]) == (
        first.body,
        "durable-gateway; fwd=stale; detail=stale_if_error",
    )


async def test_long_polls_from_memory_ask_for_the_lifetime_once(
    edge: Edge, origin: RunningOrigin, counters: Counters
) -> None:
    await create(edge, origin, "origin")
    first = await edge.get("/s")
    for _ in range(3):
        assert (await edge.get("/s?offset=-1&live=long-poll")).body == first.body
    assert (counters.requests[Kind.CATCHUP], counters.requests[Kind.HEAD]) == (1, 1)


@pytest.mark.parametrize("through", ["gateway", "origin"])
async def test_hits_do_not_outlive_a_sliding_ttl(
    edge: Edge, origin: RunningOrigin, counters: Counters, clock: ManualClock, through: str
) -> None:
    await create(edge, origin, through, Stream_TTL="100")
    assert (await edge.get("/s")).body == b"0123456789"
    clock.advance(40)
    reads = counters.requests[Kind.CATCHUP]
    hit = await edge.get("/s")
    assert (hit.body, "; hit" in hit.headers["Cache-Status"]) == (b"0123456789", True)
    assert counters.requests[Kind.CATCHUP] == reads
    # Hits renewed nothing at the origin: its window runs from the read at 0 s to 100 s.
    clock.advance(60)
    for target in ("/s", "/s?offset=-1&live=long-poll", "/s?offset=-1&live=sse"):
        assert (await edge.get(target)).status == 404


async def test_a_stream_that_is_read_all_the_time_does_not_expire_behind_the_hits(
    edge: Edge, origin: RunningOrigin, counters: Counters, clock: ManualClock
) -> None:
    await create(edge, origin, "origin", Stream_TTL="100")
    for _ in range(20):
        assert (await edge.get("/s")).body == b"0123456789"
        clock.advance(30)
    assert counters.requests[Kind.CATCHUP] < 20
    assert (await edge.send_to(origin.url, "HEAD", "/s")).status == 200


async def test_the_origin_decides_on_a_sliding_ttl_renewed_by_others(
    edge: Edge, origin: RunningOrigin, clock: ManualClock
) -> None:
    await create(edge, origin, "gateway", Stream_TTL="100")
    assert (await edge.get("/s")).status == 200
    clock.advance(60)
    await edge.send_to(origin.url, "GET", "/s")
    clock.advance(60)
    assert (await edge.get("/s")).body == b"0123456789"


@pytest.mark.parametrize("mode", ["sse", "long-poll"])
@pytest.mark.parametrize("content_type", ["text/plain", "application/octet-stream"])
async def test_a_stream_with_live_readers_does_not_expire(
    edge: Edge, origin: RunningOrigin, counters: Counters, clock: ManualClock, mode: str, content_type: str
) -> None:
    await edge.put("/s", b"01234", content_type, Stream_TTL="40")
    tail = (await edge.get("/s")).next_offset
    topics = edge.gateway.engine.live.topics
    for _ in range(5):
        reader = await edge.begin(f"/s?offset={tail}&live={mode}")
        await eventually(lambda: sum(topic.readers for topic in topics()) == 1)
        await bounded(counters.parked_is(1))
        clock.advance(20)
        # The follower may be between two connections; its pause is shorter than any TTL.
        async with edge.time_passing(0.001):
            await bounded(counters.parked_is(1))
        clock.advance(5.0)
        if mode == "long-poll":
            assert (await reader.answer()).status == 204
        reader.leave()
        await eventually(lambda: sum(topic.readers for topic in topics()) == 0)
    assert (await edge.get("/s")).body == b"01234"


async def test_live_readers_of_an_expired_stream_are_ended(
    edge: Edge, origin: RunningOrigin, counters: Counters, clock: ManualClock
) -> None:
    await create(edge, origin, "gateway", Stream_Expires_At=instant(clock, 20))
    tail = (await edge.send_to(origin.url, "HEAD", "/s")).next_offset
    events = await edge.begin(f"/s?offset={tail}&live=sse")
    assert (await events.head()).status == 200
    polling = await edge.begin(f"/s?offset={tail}&live=long-poll")
    await bounded(counters.parked_is(1))
    clock.advance(20)
    async with edge.time_passing():
        while await events.event() is not None:
            pass
        assert (await polling.answer()).status == 404
    assert (await edge.get("/s")).status == 404


class OtherClock:
    """The test's clock, as a machine has it whose clock is wrong."""

    def __init__(self, clock: ManualClock, ahead_s: float) -> None:
        self._clock = clock
        self._ahead_s = ahead_s
        self.now, self.call_later = clock.now, clock.call_later

    def wall(self) -> float:
        return self._clock.wall() + self._ahead_s


@pytest.mark.parametrize("ahead_s", [-600, -1, 0, 1, 600, 86_400 * 400])
@pytest.mark.parametrize("through", ["gateway", "origin"])
async def test_an_absolute_expiry_counts_by_the_origins_clock(
    start: Start, clock: ManualClock, settings: dict[str, Any], ahead_s: float, through: str
) -> None:
    origin = await start_origin(OriginSettings(max_chunk_bytes=10), clock=OtherClock(clock, ahead_s))
    try:
        edge = await start(origin.url, **settings, sse_lifetime_s=900)
        await create(edge, origin, through, Stream_Expires_At=instant(clock, ahead_s + 300))
        for _ in range(2):
            assert (await edge.get("/s")).body == b"0123456789"
        events = await edge.begin("/s?offset=-1&live=sse")
        assert (await bounded(events.head())).status == 200
        await origin.origin.counters.parked_is(1)
        for _ in range(5):
            clock.advance(297 / 5)
            assert (await edge.get("/s")).body.startswith(b"0123456789")
        assert origin.origin.counters.parked == 1
        clock.advance(3)
        for target in ("/s", "/s?offset=now", "/s?offset=-1&live=sse"):
            assert (await edge.get(target)).status == 404
    finally:
        await origin.stop(grace_s=0)


@pytest.mark.parametrize(
    "date", [None, "", "soon", "Thu, 01 Jan 1970 00:00:00 GMT", "Sun, 06 Nov 2094 08:49:37 GMT", "9" * 500]
)
@pytest.mark.parametrize("after_s", [-300, 300])
async def test_a_useless_date_ends_no_stream_that_the_origin_shows(
    hostile: Hostile, start: Start, clock: ManualClock, settings: dict[str, Any], date: str | None, after_s: float
) -> None:
    fields = {"Stream-Expires-At": instant(clock, after_s), **({"Date": date} if date is not None else {})}

    async def script(asked: Asked, writer: Any) -> None:
        if "offset=0001" in asked.target or asked.method == "HEAD":
            writer.write(part_of_stream(b"" if asked.method == "HEAD" else b"end", "0002", **fields))
        else:
            writer.write(part_of_stream(b"one", "0001", **fields).replace(b"Stream-Up-To-Date: true\r\n", b""))

    origin = await hostile(script, takes_head=True)
    edge = await start(origin.url, **settings)
    for _ in range(4):
        assert (await edge.get("/s")).body == b"one"
    heads = len(origin.asked)
    clock.advance(1)
    assert (await edge.get("/s")).body == b"one"
    assert len(origin.asked) == heads


@pytest.mark.parametrize("ahead_s", [600, -600])
async def test_an_expiry_that_a_personal_head_tells_is_by_the_origins_clock(
    hostile: Hostile, start: Start, clock: ManualClock, ahead_s: int
) -> None:
    expires_at, ends_at = instant(clock, 30 + ahead_s), clock.wall() + 30

    async def script(asked: Asked, writer: Any) -> None:
        if clock.wall() >= ends_at:
            writer.write(answer("404 Not Found", {}))
            return
        date = formatdate(clock.wall() + ahead_s, usegmt=True)
        headers = {**TEXT, "Stream-Next-Offset": "0002", "Stream-Closed": "true", "Date": date}
        if asked.method == "HEAD":
            headers |= {"Set-Cookie": "id=1", "Stream-Expires-At": expires_at, "Content-Length": "2"}
            writer.write(answer("200 OK", headers))
        else:
            writer.write(answer("200 OK", headers | {"Stream-Up-To-Date": "true"}, b"ab"))

    served = await hostile(script, takes_head=True)
    edge = await start(served.url)
    assert [(await edge.get("/s")).status for _ in range(6)] == [200] * 6
    assert len(served.asked) <= 3
    clock.advance(31)
    assert (await edge.get("/s")).status == 404

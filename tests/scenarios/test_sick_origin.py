"""An origin in trouble: only probes reach it, clients are answered at once, and the operator is informed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import aiohttp
import pytest

from gateway.origin.app import OriginSettings, RunningOrigin, start_origin
from gateway.origin.counters import Counters
from gateway.origin.faults import Faults
from gateway.origin.requests import Kind
from gateway.upstream.breaker import BreakerState
from gateway.upstream.origin_pool import OriginState
from gateway.upstream.repeats_and_retries import LITTLE_BURST, LITTLE_PER_S
from tests.effort import examples
from tests.scenarios.conftest import Edge, Hostile, Start, bounded
from tests.scenarios.hostile import Asked, HostileOrigin, answer, part_of_stream
from tests.scenarios.wire import Answer, Wire
from tests.waiting import eventually, pass_turns

SECONDS, EACH_SECOND = 10, examples(100, 500)
STEPS_A_SECOND = 50
MOST_ATTEMPTS = 30


@pytest.fixture
def settings() -> dict[str, Any]:
    return {
        "retry_attempts": 0,
        "client_new_streams_per_s": 0,
        "long_poll_timeout_s": 300,
        "heartbeat_s": 300,
        "sse_lifetime_s": 3_600,
    }


def look(edge: Edge) -> OriginState:
    (state,) = edge.gateway.engine.origins.snapshot()
    return state


class Closing:
    """Accepts connections and closes them at once; counts them."""

    def __init__(self) -> None:
        self.accepted = 0
        self._server: asyncio.Server | None = None

    async def start(self, port: int) -> None:
        self._server = await asyncio.start_server(self._take, "127.0.0.1", port)

    async def _take(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        writer.close()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()


@pytest.fixture
async def closing() -> AsyncIterator[Closing]:
    listener = Closing()
    yield listener
    await listener.stop()


class PollGroup:
    """Clients on a few connections, and the answers they got."""

    def __init__(self, edge: Edge, session: aiohttp.ClientSession) -> None:
        self.edge = edge
        self.session = session
        self.statuses: Counter[int] = Counter()
        self.bad: list[str] = []
        self.unspecific = 0
        """503 answers without Retry-After: the origin's own, relayed."""

    async def ask(self, number: int) -> None:
        """One of several kinds of request."""
        method, path = [("GET", f"/unknown/{number}"), ("GET", "/known"), ("POST", "/known"), ("HEAD", "/known")][
            number % 4
        ]
        body = b"more" if method == "POST" else None
        headers = {"Content-Type": "text/plain"} if body else {}
        url, tls = self.edge.url + path, self.edge.tls or True
        async with self.session.request(method, url, data=body, headers=headers, ssl=tls) as answer:
            text = await answer.read()
            self.statuses[answer.status] += 1
            if answer.status == 503 and int(answer.headers.get("Retry-After", "0")) < 1:
                self.unspecific += 1
            if answer.status == 200 and (text != b"hello" or "Stream-Up-To-Date" in answer.headers):
                self.bad.append(f"{method} {path}: {text!r}")

    async def press(self, seconds: int) -> None:
        """Send requests for this many seconds of the gateway's clock."""
        each_step = EACH_SECOND // STEPS_A_SECOND
        for step in range(seconds * STEPS_A_SECOND):
            # All are answered before time advances, however slow the machine.
            await asyncio.gather(*(self.ask(step * each_step + number) for number in range(each_step)))
            self.edge.clock.advance(1 / STEPS_A_SECOND)


async def lost(origin: RunningOrigin, faults: Faults, closing: Closing) -> Callable[[], int]:
    """The port is closed; no requests can be counted."""
    await origin.stop(grace_s=0)
    return lambda: 0


async def hung_up(origin: RunningOrigin, faults: Faults, closing: Closing) -> Callable[[], int]:
    """A server accepts connections and closes them."""
    port = origin.port
    await origin.stop(grace_s=0)
    await closing.start(port)
    return lambda: closing.accepted


async def failing(origin: RunningOrigin, faults: Faults, closing: Closing) -> Callable[[], int]:
    """The origin answers 503 to everything."""
    faults.status(503, times=None)
    origin.origin.counters.reset()
    return lambda: origin.origin.counters.total_requests


SAID: dict[Callable[..., Any], set[str]] = {
    lost: {"is unreachable: connection refused"},
    hung_up: {"is unreachable: connection lost", "is unreachable: connection reset"},
    failing: {"fails: answered 503"},
}


# The crowd is aiohttp's client, which speaks nothing else.
@pytest.mark.http_1
@pytest.mark.parametrize("trouble", [lost, hung_up, failing])
@pytest.mark.http_1_origin
async def test_an_origin_in_trouble_sees_probes_alone_whatever_is_asked(
    edge: Edge,
    origin: RunningOrigin,
    faults: Faults,
    closing: Closing,
    trouble: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    await edge.put("/known", b"hello")
    assert (await edge.get("/known")).is_up_to_date
    for number in range(20):
        await edge.put(f"/live/{number}", b"", "application/json")
        live = await edge.begin(f"/live/{number}?offset=-1&live=sse")
        await live.head()
    await bounded(origin.origin.counters.parked_is(20))
    seen_there = await trouble(origin, faults, closing)
    before = look(edge).requests
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=100)) as session:
        crowd = PollGroup(edge, session)
        await crowd.press(SECONDS)
    assert sum(crowd.statuses.values()) == SECONDS * EACH_SECOND
    assert crowd.bad == []
    assert crowd.unspecific <= seen_there()
    assert set(crowd.statuses) <= {200, 502, 503}
    # Bytes in memory are served; everything else is refused at once.
    assert crowd.statuses[200] > SECONDS * EACH_SECOND / 5
    assert look(edge).requests - before <= MOST_ATTEMPTS
    assert seen_there() <= MOST_ATTEMPTS
    assert look(edge).refused > SECONDS * EACH_SECOND / 2
    (said,) = (record.message for record in caplog.records)
    assert said.removeprefix(f"origin {origin.url} ") in SAID[trouble]


@pytest.mark.http_1_origin
async def test_when_it_is_back_a_probe_finds_out_and_all_goes_on(
    edge: Edge, origin: RunningOrigin, counters: Counters, caplog: pytest.LogCaptureFixture
) -> None:
    await edge.put("/s", b"hello", "application/octet-stream")
    events = await edge.begin("/s?offset=-1&live=sse")
    await events.head()
    await bounded(counters.parked_is(1))
    port = origin.port
    await origin.stop(grace_s=0)
    async with edge.time_passing():
        await eventually(lambda: look(edge).state is BreakerState.OPEN)
    # While time stands still no probe is due; if it advanced, this write would become one.
    refused = await edge.post("/s", b"lost", "application/octet-stream")
    assert (refused.status, refused.is_one_line_of_text) == (503, True)
    async with edge.time_passing():
        again = await start_origin(OriginSettings(port=port), origin=origin.origin)
        try:
            await eventually(lambda: look(edge).state is BreakerState.CLOSED)
            await bounded(counters.parked_is(1))
            assert (await edge.post("/s", b" again", "application/octet-stream")).status == 204
            assert (await edge.get("/s")).body == b"hello again"
        finally:
            await edge.leave()
            await again.stop(grace_s=0)
    down, up = (record.message for record in caplog.records)
    assert down == f"origin {origin.url} is unreachable: connection refused"
    assert up.startswith(f"origin {origin.url} answers again after ")


async def test_an_idle_gateway_finds_out_by_itself_that_it_is_back(edge: Edge, origin: RunningOrigin) -> None:
    port = origin.port
    await origin.stop(grace_s=0)
    for _ in range(5):
        await edge.send("HEAD", "/s")
    assert look(edge).state is BreakerState.OPEN
    again = await start_origin(OriginSettings(port=port), origin=origin.origin)
    try:
        async with edge.time_passing():
            await eventually(lambda: look(edge).state is BreakerState.CLOSED)
    finally:
        await again.stop(grace_s=0)


async def test_an_origin_that_is_away_is_probed_each_second_and_used_again_by_the_next_probe(
    edge: Edge, origin: RunningOrigin
) -> None:
    # Past the gateway, so that it has no follower whose request may probe.
    await edge.send_to(origin.url, "PUT", "/s", {"Content-Type": "text/plain"}, b"hello")
    port = origin.port
    await origin.stop(grace_s=0)
    await eventually(lambda: refused(edge))
    for number in range(look(edge).requests, look(edge).requests + 30):
        due_in_s = look(edge).retry_in_s
        assert due_in_s is not None
        assert due_in_s <= 1.0
        # Clients are answered at once, and none of their requests is the probe.
        assert (await edge.post("/s", b"more")).status == 503
        assert look(edge).requests == number
        edge.clock.advance(due_in_s)
        await eventually(partial(has_probed, edge, number + 1))
        if look(edge).state is BreakerState.HALF_OPEN:
            edge.clock.advance(1.0)
    again = await start_origin(OriginSettings(port=port), origin=origin.origin)
    try:
        probed = look(edge).requests
        edge.clock.advance(look(edge).retry_in_s or 0.0)
        await eventually(partial(has_probed, edge, probed + 1))
        assert (await edge.post("/s", b" again")).status == 204
        assert look(edge).state is BreakerState.CLOSED
    finally:
        await edge.leave()
        await again.stop(grace_s=0)


def has_probed(edge: Edge, requests: int) -> bool:
    """Whether this many requests were sent to the origin, and all of them are over."""
    return look(edge).requests == requests and not look(edge).in_flight


async def refused(edge: Edge) -> bool:
    """Whether a request finds the origin's circuit breaker open."""
    await edge.send("HEAD", "/s")
    return look(edge).state is BreakerState.OPEN


class Proxied:
    """An application behind a proxy that serves `/` in its own way, whether the application is up or not."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.is_up = True
        self.live = 0
        """Live requests under way."""
        self._down = asyncio.Event()
        self._end = asyncio.Event()

    def take_down(self) -> None:
        self.is_up = False
        self._down.set()

    def end(self) -> None:
        self._end.set()

    async def script(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.target == "/":
            if self.root == "answers":
                writer.write(answer("200 OK", {}))
                return
            if self.root == "is silent":
                await self._end.wait()
            writer.transport.abort()
        elif not self.is_up:
            writer.write(answer("502 Bad Gateway", {}))
        elif "live=sse" in asked.target:
            headers = {"Content-Type": "text/event-stream", "Connection": "close", "Transfer-Encoding": "chunked"}
            event = b'event: control\ndata: {"streamNextOffset":"0001","streamCursor":"1","upToDate":true}\n\n'
            writer.write(answer("200 OK", headers, b"%x\r\n%b\r\n" % (len(event), event)))
            self.live += 1
            await (self._end if self._down.is_set() else self._down).wait()
            self.live -= 1
            writer.transport.abort()
        else:
            body = b"[1]" if asked.method == "GET" else b""
            writer.write(part_of_stream(body, "0001", "application/json"))


@pytest.mark.parametrize("root", ["closes", "is silent", "answers"])
async def test_an_origin_is_used_again_soon_whatever_it_does_with_probes(
    start: Start, hostile: Hostile, root: str
) -> None:
    proxied = Proxied(root)
    origin = await hostile(proxied.script, takes_head=True)
    edge = await start(origin.url)
    proxied.take_down()
    await eventually(lambda: refused(edge))
    proxied.is_up = True
    back = edge.clock.now()
    while (await edge.post("/s", b"more")).status != 200:
        assert edge.clock.now() - back < 2.5
        edge.clock.advance(0.1)
        # A probe that is due has been sent, and its answer is here.
        await eventually(lambda: root == "is silent" or not look(edge).in_flight)
    assert look(edge).state is BreakerState.CLOSED
    proxied.end()


async def test_followers_behind_a_proxy_that_answers_probes_stay_away_while_streams_fail(
    start: Start, hostile: Hostile, caplog: pytest.LogCaptureFixture
) -> None:
    """Without clients of other kinds, one follower at a time finds out whether streams are served."""
    proxied = Proxied("answers")
    origin = await hostile(proxied.script, takes_head=True)
    edge = await start(origin.url)
    for number in range(8):
        live = await edge.begin(f"/s{number}?offset=0001&live=sse")
        await live.head()
    await eventually(lambda: proxied.live == 8)
    before = len(origin.asked)
    proxied.take_down()
    async with edge.time_passing():
        await pass_time(edge, 30.0)
        assert sum(asked.target != "/" for asked in origin.asked[before:]) <= 50
        (said,) = (record.message for record in caplog.records)
        assert said == f"origin {origin.url} fails: answered 502"
        proxied.is_up = True
        back = edge.clock.now()
        await eventually(lambda: proxied.live == 8)
        assert edge.clock.now() - back < 10
    assert look(edge).state is BreakerState.CLOSED
    proxied.end()


@pytest.mark.http_1_origin
async def test_a_refused_write_does_not_make_bytes_stale(edge: Edge, origin: RunningOrigin) -> None:
    """The origin never got the write: bytes in memory are as valid as before."""
    await edge.put("/s", b"hello", Stream_Closed="true")
    assert (await edge.get("/s")).body == b"hello"
    await origin.stop(grace_s=0)
    for method in ("POST", "DELETE", "PUT", "POST", "DELETE", "PUT"):
        refused = await edge.send(method, "/s", {"Content-Type": "text/plain"}, b"x")
        assert refused.status in (502, 503)
        answer = await edge.get("/s")
        assert (answer.status, answer.body, answer.is_closed) == (200, b"hello", True)
    assert look(edge).state is BreakerState.OPEN


async def test_one_stream_that_an_origin_cannot_serve_does_not_cut_off_the_others(edge: Edge, faults: Faults) -> None:
    await edge.put("/well", b"hello")
    faults.status(500, path="/ill", times=None)
    answers: list[Answer] = [await edge.get("/ill") for _ in range(30)]
    assert {answer.status for answer in answers} == {500}
    assert (await edge.get("/well")).body == b"hello"


async def test_requests_waiting_for_a_silent_origin_are_bounded(
    start: Start, origin: RunningOrigin, faults: Faults
) -> None:
    edge = await start(origin.url, waiting_requests=8, first_byte_timeout_s=60)
    gate = faults.hold(kind=Kind.CREATE)
    waiting = [asyncio.create_task(edge.put(f"/s{number}")) for number in range(8)]
    await bounded(gate.waiting(8))
    refused = await edge.put("/one-more")
    assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
    assert look(edge).overflows == 1
    gate.release()
    assert {answer.status for answer in await bounded(asyncio.gather(*waiting))} == {201}
    assert (await edge.put("/one-more")).status == 201


async def leave(wire: Wire, *, in_order: bool) -> None:
    """Close the connection, or reset it: one that is closed in order is seen to be gone after most of a second."""
    if in_order:
        await wire.closed()
    else:
        wire.reset()


async def test_clients_that_leave_do_not_open_it(edge: Edge, faults: Faults, counters: Counters) -> None:
    gate = faults.hold(kind=Kind.CATCHUP)
    for number in range(10):
        wire = await edge.begin(f"/s{number}")
        await bounded(gate.waiting(1))
        await leave(wire, in_order=not number)
        await eventually(lambda: not look(edge).in_flight)
    assert (look(edge).state, look(edge).failures) == (BreakerState.CLOSED, 0)
    gate.release()


@pytest.mark.http_1
async def test_a_write_that_its_client_does_not_finish_is_no_failure(edge: Edge, counters: Counters) -> None:
    for number in range(6):
        wire = await edge.wire()
        await wire.send(
            b"PUT /s HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
        )
        await eventually(lambda: look(edge).in_flight == 1)
        await leave(wire, in_order=not number)
        await eventually(lambda: not look(edge).in_flight)
    assert (look(edge).state, look(edge).failures) == (BreakerState.CLOSED, 0)


@pytest.mark.parametrize("way", ["-1&live=sse", "-1&live=long-poll", "-1"])
@pytest.mark.parametrize(("body", "at_once", "per_s"), [(b"", 20, 2), (b"x", LITTLE_BURST + 20, LITTLE_PER_S)])
async def test_a_stream_that_is_never_up_to_date_is_asked_for_at_a_pace(
    start: Start, hostile: Hostile, way: str, body: bytes, at_once: int, per_s: float
) -> None:
    steps = 0

    async def no_end(asked: Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal steps
        steps += 1
        headers = {"Content-Type": "application/octet-stream", "Stream-Next-Offset": f"{steps:08}"}
        writer.write(answer("200 OK", headers, body if asked.method == "GET" else b""))

    origin = await hostile(no_end, takes_head=True)
    edge = await start(origin.url)
    reading = asyncio.ensure_future(edge.begin(f"/s?offset={way}"))
    await origin.until(lambda: bool(origin.reads))
    # The gateway's clock stands still, so pauses last.
    await asked_out(origin)
    first = len(origin.reads)
    assert first <= at_once
    begun = edge.clock.now()
    async with edge.time_passing():
        await pass_time(edge, 2.0)
    await asked_out(origin)
    assert len(origin.reads) - first <= 20 + per_s * (edge.clock.now() - begun)
    await (await reading).closed()


async def asked_out(origin: HostileOrigin) -> None:
    """Wait until the gateway asks the origin nothing more, or has asked too much.

    They share a loop, and this wait takes far more of its turns than a request.
    """
    seen = -1
    while seen != len(origin.asked) and len(origin.asked) < 1_000:
        seen = len(origin.asked)
        await pass_turns(200)


async def pass_time(edge: Edge, seconds: float) -> None:
    """Wait until the gateway's clock has moved so far."""
    end = edge.clock.now() + seconds
    await eventually(lambda: edge.clock.now() >= end)

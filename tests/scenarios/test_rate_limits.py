"""Configured rate limits, over every way by which a request is answered."""

from __future__ import annotations

import asyncio
import re
from random import Random
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest

from gateway.aio.clock import ManualClock
from gateway.app import start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.config.rate_limits import RateLimitConfig
from gateway.config.routes import RouteConfig
from gateway.config.server import ServerConfig
from gateway.origin.app import RunningOrigin
from tests.scenarios.conftest import Edge, Hostile, Start
from tests.scenarios.hostile import Asked, answer
from tests.scenarios.http2_wire import Http2Wire
from tests.scenarios.test_client_limits import BEHIND_PROXY, MINE, OTHERS, counted
from tests.scenarios.wire import Wire
from tests.waiting import eventually


def one(**table: Any) -> dict[str, Any]:
    return {"rate_limits": [{"name": "fair", **table}], **BEHIND_PROXY}


def limited(edge: Edge) -> float:
    return counted(edge.gateway, "durable_gateway_rate_limited_total")["fair", "default"]


async def test_requests_beyond_the_limit_are_answered_429(origin: RunningOrigin, start: Start) -> None:
    edge = await start(origin.url, **one(requests_per_s=1, burst=4))
    assert (await edge.put("/s", b"x")).status == 201
    # The third and fourth are remembered, if anything is.
    answers = [await edge.get("/s?offset=-1", MINE) for _ in range(6)]
    assert [answer.status for answer in answers] == [200, 200, 200, 200, 429, 429]
    refusal = answers[4]
    assert refusal.is_one_line_of_text
    assert 1 <= int(refusal.headers["Retry-After"]) <= 2
    assert refusal.headers["RateLimit-Policy"] == '"fair";q=4;w=4'
    assert refusal.headers["RateLimit"] == '"fair";r=0;t=4'
    assert answers[0].headers["RateLimit"] == '"fair";r=3;t=1'
    assert (await edge.get("/s?offset=-1", OTHERS)).status == 200
    edge.clock.advance(1.0)
    assert [(await edge.get("/s?offset=-1", MINE)).status for _ in range(2)] == [200, 429]
    assert limited(edge) == 3


async def test_refused_clients_do_not_come_back_together(origin: RunningOrigin, start: Start) -> None:
    edge = await start(origin.url, **one(requests_per_s=0.01, burst=1))
    await edge.get("/s", MINE)
    waits = {int((await edge.get("/s", MINE)).headers["Retry-After"]) for _ in range(20)}
    assert len(waits) > 10
    assert min(waits) >= 100
    assert max(waits) <= 201


@pytest.mark.parametrize("mode", ["sse", "long-poll"])
async def test_live_reads_are_bounded_whatever_way_they_begin(origin: RunningOrigin, start: Start, mode: str) -> None:
    edge = await start(origin.url, **one(live_reads=2))
    assert (await edge.put("/s", b"x")).status == 201
    at = (await edge.get("/s?offset=-1")).next_offset
    target = f"/s?offset={at}&live={mode}"
    for count in (1, 2):
        await edge.begin(target, MINE)
        await eventually(lambda count=count: edge.gateway.clients.accounts.live_reads("192.0.2.1") == count)
    assert (await edge.get(target, MINE)).status == 429
    assert limited(edge) == 1
    await edge.begin(target, OTHERS)
    await eventually(lambda: edge.gateway.clients.accounts.live_reads("192.0.2.2") == 1)
    await edge.send("DELETE", "/s")
    await eventually(lambda: edge.gateway.clients.accounts.live_reads("192.0.2.1") == 0)
    assert (await edge.get(target, MINE)).status == 404


async def test_joins_by_bytes_take_tokens_as_well(origin: RunningOrigin, start: Start) -> None:
    edge = await start(origin.url, **one(requests_per_s=0.001, burst=3))
    assert (await edge.put("/s", b"x")).status == 201
    at = (await edge.get("/s?offset=-1", OTHERS)).next_offset
    target = f"/s?offset={at}&live=long-poll"
    for count in (1, 2, 3):
        await edge.begin(target, MINE)
        await eventually(lambda count=count: edge.gateway.clients.accounts.live_reads("192.0.2.1") == count)
    assert (await edge.get(target, MINE)).status == 429


async def test_joins_that_are_answered_at_once_take_tokens_as_well(origin: RunningOrigin, start: Start) -> None:
    edge = await start(origin.url, **one(requests_per_s=0.001, burst=3))
    created = await edge.put("/s", b"x")
    target = f"/s?offset={created.next_offset}&live=long-poll"
    waiting = await edge.begin(target, OTHERS)
    await eventually(lambda: any(topic.is_confirmed for topic in edge.gateway.engine.live.topics()))
    appended = await edge.post("/s", b"y")
    assert (await waiting.answer("GET")).body == b"y"
    # Keeps the stream followed.
    await edge.begin(f"/s?offset={appended.next_offset}&live=long-poll", OTHERS)
    await eventually(lambda: edge.gateway.clients.accounts.live_reads("192.0.2.2") == 1)
    assert [(await edge.get(target, MINE)).status for _ in range(5)] == [200, 200, 200, 429, 429]


async def test_bytes_are_charged_after_the_answer(origin: RunningOrigin, start: Start) -> None:
    edge = await start(origin.url, **one(bytes_per_s=1_000))
    assert (await edge.put("/s", b"x" * 2_500)).status == 201
    assert (await edge.get("/s?offset=-1", MINE)).body == b"x" * 2_500
    assert (await edge.get("/s?offset=-1", MINE)).status == 429
    edge.clock.advance(2.0)
    assert (await edge.get("/s?offset=-1", MINE)).status == 200
    edge.clock.advance(1.0)
    # Remembered answers are charged like others.
    assert (await edge.get("/s?offset=-1", MINE)).status == 429


async def test_a_write_is_limited_before_it_is_sent_to_the_origin(origin: RunningOrigin, start: Start) -> None:
    edge = await start(origin.url, **one(per="all", requests_per_s=1, burst=2))
    assert (await edge.put("/s", b"x")).status == 201
    assert (await edge.post("/s", b"y")).status in (200, 204)
    assert (await edge.post("/s", b"z")).status == 429
    edge.clock.advance(5.0)
    assert (await edge.get("/s?offset=-1")).body == b"xy"


async def test_answers_that_are_remembered_say_nothing_of_what_is_left(origin: RunningOrigin, start: Start) -> None:
    edge = await start(origin.url, **one(requests_per_s=100, burst=100))
    assert (await edge.put("/s", b"x")).status == 201
    seen = [(await edge.get("/s?offset=-1", MINE)).headers.get("RateLimit") for _ in range(4)]
    assert re.fullmatch(r'"fair";r=99;t=1', seen[0] or "")
    assert all(value is None or value != seen[0] for value in seen[1:])


def read_as(target: str) -> str:
    """The path that an origin serves which resolves targets as references, as the WHATWG's `new URL()` does."""
    spelled = re.sub("%2e", ".", target.replace("\\", "/"), flags=re.IGNORECASE)
    return urlsplit(urljoin("http://origin.test/", spelled)).path


LIMITED, REFUSED = 429, 400
SPELLINGS = {
    "/v1/stream/s": LIMITED,
    "/v1/stream/s?": LIMITED,
    "/v1/stream/s?x=//": LIMITED,
    "/%76%31/stream/s": LIMITED,
    "/./v1/stream/s": LIMITED,
    "/%2e/v1/%2E/stream/s": LIMITED,
    "/a/../v1/stream/s": LIMITED,
    "/open/%2e./v1/stream/s": LIMITED,
    "//x/v1/stream/s": REFUSED,
    "//x:80/v1/stream/s": REFUSED,
    "///v1/stream/s": REFUSED,
    "/.//x/v1/stream/s": REFUSED,
    "/%2E//x/v1/stream/s": REFUSED,
    "/a/..//x/v1/stream/s": REFUSED,
    # By a route that strips its prefix.
    "/open//x/v1/stream/s": REFUSED,
    "/open/.//x/v1/stream/s": REFUSED,
    "/open/a/..//x/v1/stream/s": REFUSED,
    "/open///v1/stream/s": REFUSED,
    # Other paths than the limited one, for the origin too.
    "/\\x/v1/stream/s": 200,
    "/v1\\stream\\s": 200,
    "/v1%2Fstream/s": 200,
    "/%2Fx/v1/stream/s": 200,
    "/v1//stream/s": 200,
    "/open/\\x/v1/stream/s": 200,
}
"""Targets, with the status of a read or write once the limit on `/v1/stream` is exhausted."""


@pytest.mark.parametrize("kind", [Wire, Http2Wire])
async def test_no_spelling_of_a_path_passes_by_the_limit_on_its_prefix(
    hostile: Hostile, clock: ManualClock, kind: type[Wire]
) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(answer("200 OK", {"Cache-Control": "no-store"}))

    origin = await hostile(script, takes_head=True)
    config = GatewayConfig(
        server=ServerConfig(listen="127.0.0.1:0", admin="127.0.0.1:0"),
        rate_limits=(RateLimitConfig(name="tight", per="all", routes=("tight",), requests_per_s=0.001, burst=1),),
        routes=(
            RouteConfig(name="rest", origin=origin.url),
            RouteConfig(name="tight", prefix="/v1/stream", origin=origin.url),
            RouteConfig(name="stripped", prefix="/open", strip_prefix=True, origin=origin.url),
        ),
    )
    edge = Edge(await start_gateway(config, clock=clock, rng=Random(7)), clock, kind=kind)
    try:
        assert (await edge.get("/v1/stream/s")).status == 200
        before = len(origin.asked)
        targets = dict(SPELLINGS)
        if kind is Wire:
            targets |= {f"http://h{path}": status for path, status in SPELLINGS.items()}
            targets["\\\\x/v1/stream/s"] = REFUSED
        for target, expected in targets.items():
            for method in ("GET", "HEAD", "POST", "DELETE"):
                body = b"x" if method == "POST" else None
                got = await edge.send(method, target, {"Content-Type": "text/plain"}, body)
                assert got.status == expected, f"{method} {target}"
        seen = {asked.target for asked in origin.asked[before:]}
        assert seen, "requests to other paths are not limited"
        assert not [target for target in seen if read_as(target).startswith("/v1/stream")], seen
    finally:
        await edge.leave()
        await edge.gateway.stop()

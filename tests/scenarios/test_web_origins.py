"""Shared answers and web origins, where the origin answers by the Origin header and the route has no `[route.cors]`."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

import pytest

from tests.scenarios.conftest import Hostile, Start, bounded
from tests.scenarios.hostile import Asked, HostileOrigin, answer
from tests.waiting import eventually

TEXT = "text/plain"
TAIL = "0002"
ALLOWED = "Access-Control-Allow-Origin"
APP, OTHER = {"Origin": "https://app.example"}, {"Origin": "https://other.example"}
CONTROL = f'event: control\ndata: {{"streamNextOffset":"{TAIL}","streamCursor":"1","upToDate":true}}\n\n'.encode()


@dataclass
class Middleware:
    """An origin of one stream behind CORS middleware, which does nothing for requests without an Origin header.

    It allows the web origins in `allowed` by name, with `Vary: Origin`, or all of them if `allowed` holds `*`.
    """

    allowed: set[str] = field(default_factory=set)
    always: str | None = None
    """The Access-Control-Allow-Origin of replies to requests without an Origin header; None for no such header."""
    served: HostileOrigin | None = None

    async def start(self, hostile: Hostile) -> str:
        self.served = await hostile(self.answer, takes_head=True)
        return self.served.url

    def asked(self, who: dict[str, str], method: str = "GET") -> list[str]:
        """Targets of the requests that carried exactly this Origin header, or none."""
        assert self.served is not None
        return [
            one.target
            for one in self.served.asked
            if one.method == method and one.headers.get("Origin") == who.get("Origin")
        ]

    async def answer(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        headers = {"Content-Type": TEXT, "Stream-Next-Offset": TAIL, "Stream-Up-To-Date": "true"}
        origin = asked.headers.get("Origin")
        if origin is None:
            headers |= {ALLOWED: self.always} if self.always is not None else {}
        elif "*" in self.allowed:
            headers[ALLOWED] = "*"
        elif origin in self.allowed:
            headers |= {ALLOWED: origin, "Vary": "Origin"}
        if asked.method == "HEAD":
            del headers["Stream-Up-To-Date"]
            writer.write(answer("200 OK", headers | {"Content-Length": "2"}))
        elif "/missing" in asked.target:
            writer.write(
                answer("404 Not Found", {name: headers[name] for name in (ALLOWED, "Vary") if name in headers})
            )
        elif "live=sse" in asked.target:
            writer.write(answer("200 OK", headers | {"Content-Type": "text/event-stream"}, CONTROL))
        elif "live=long-poll" in asked.target:
            writer.write(answer("204 No Content", headers | {"Stream-Cursor": "7"}))
        else:
            writer.write(answer("200 OK", headers, b"" if TAIL in asked.target or "now" in asked.target else b"ab"))


@pytest.mark.http_2
@pytest.mark.parametrize("allowed", ["*", APP["Origin"]])
@pytest.mark.parametrize("is_held", [True, False])
async def test_a_browser_is_allowed_if_only_replies_to_an_origin_header_have_cors_fields(
    hostile: Hostile, start: Start, caplog: pytest.LogCaptureFixture, allowed: str, is_held: bool
) -> None:
    origin = Middleware({allowed})
    edge = await start(await origin.start(hostile), follow_above_per_s=0)
    targets = ("/s", "/s?offset=now", "/s?offset=-1&live=sse", "/s?live=long-poll&offset=0002")
    if is_held:
        await edge.get("/s")
    with caplog.at_level(logging.WARNING, "gateway.sharing"):
        for _ in range(2):
            for target in (*targets, "/missing"):
                read = await bounded(edge.asking(target, APP))
                assert read.headers.get(ALLOWED) == allowed, target
            assert (await edge.send("HEAD", "/s", APP)).headers[ALLOWED] == allowed
    (said,) = [record.getMessage() for record in caplog.records if record.name == "gateway.sharing"]
    assert "[route.cors]" in said
    # Clients without an Origin header share: only the tail is asked for.
    reads = [await edge.get("/s") for _ in range(8)]
    assert all(read.body == b"ab" and "detail" not in read.headers["Cache-Status"] for read in reads)
    assert origin.asked({}).count("/s?offset=-1") <= 1


async def test_a_web_origin_that_the_origin_does_not_allow_shares_after_its_first_read(
    hostile: Hostile, start: Start
) -> None:
    origin = Middleware({OTHER["Origin"]})
    edge = await start(await origin.start(hostile))
    for _ in range(6):
        assert ALLOWED not in (await edge.get("/s", APP)).headers
    assert len(origin.asked(APP)) == 1
    # That shows nothing of another web origin or path.
    await edge.get("/t", APP)
    assert len(origin.asked(APP)) == 2
    for _ in range(2):
        assert (await edge.get("/s", OTHER)).headers[ALLOWED] == OTHER["Origin"]
    # It is looked at again after a time, and what the origin says then counts.
    origin.allowed.add(APP["Origin"])
    edge.clock.advance(edge.gateway.config.routes[0].hit_for_miss_s)
    for _ in range(2):
        assert (await edge.get("/s", APP)).headers[ALLOWED] == APP["Origin"]


@pytest.mark.parametrize("always", ["*", APP["Origin"]])
async def test_a_browser_shares_a_reply_that_allows_its_web_origin(hostile: Hostile, start: Start, always: str) -> None:
    origin = Middleware(always=always)
    edge = await start(await origin.start(hostile))
    for _ in range(3):
        assert (await edge.get("/s", APP)).headers[ALLOWED] == always
    assert origin.asked(APP) == []


async def test_browsers_share_again_once_the_origin_allows_them_in_every_reply(hostile: Hostile, start: Start) -> None:
    origin = Middleware({"*"})
    edge = await start(await origin.start(hostile))
    for _ in range(3):
        await edge.get("/s", APP)
    assert len(origin.asked(APP)) == 3
    origin.always = "*"
    route = edge.gateway.config.routes[0]
    edge.clock.advance(max(route.hit_for_miss_s, route.trust_s))
    reads = [await edge.get("/s", APP) for _ in range(3)]
    assert [read.headers[ALLOWED] for read in reads] == ["*"] * 3
    assert len(origin.asked(APP)) == 3


async def test_sse_readers_of_one_web_origin_are_relayed_once_the_origin_varies(hostile: Hostile, start: Start) -> None:
    """The first reader's answer, which began before, is not begun again for an equal request."""
    is_open, does_vary = asyncio.Event(), False

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        headers = {"Content-Type": TEXT, "Stream-Next-Offset": TAIL, ALLOWED: "*"}
        if does_vary:
            headers |= {"Vary": "Origin", ALLOWED: asked.headers.get("Origin", "https://none.example")}
        if asked.method == "HEAD":
            writer.write(answer("200 OK", headers | {"Content-Length": "2"}))
        elif "live=sse" in asked.target:
            writer.write(answer("200 OK", headers | {"Content-Type": "text/event-stream"}, CONTROL))
        elif "live=" in asked.target:
            await is_open.wait()
            writer.write(answer("204 No Content", headers | {"Stream-Cursor": "7"}))
        else:
            body = b"" if TAIL in asked.target else b"ab"
            writer.write(answer("200 OK", headers | {"Stream-Up-To-Date": "true"}, body))

    edge = await start((await hostile(script, takes_head=True)).url)
    target = f"/s?offset={TAIL}&live=sse"
    for _ in range(3):
        head = await (await edge.begin(target, APP)).head()
        assert head.headers[ALLOWED] == "*"
    does_vary = True
    await edge.get("/s?offset=0001")
    assert (await (await edge.begin(target, APP)).head()).headers[ALLOWED] == APP["Origin"]
    is_open.set()


@pytest.mark.http_2
@pytest.mark.parametrize("is_live", [True, False])
async def test_a_reply_without_vary_does_not_cancel_that_of_an_earlier_one(
    hostile: Hostile, start: Start, caplog: pytest.LogCaptureFixture, is_live: bool
) -> None:
    is_open = asyncio.Event()

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        headers = {"Content-Type": TEXT, "Stream-Next-Offset": TAIL, ALLOWED: "*"}
        live, is_at_tail = "live=" in asked.target, TAIL in asked.target
        origin = asked.headers.get("Origin")
        if asked.method == "HEAD":
            writer.write(answer("200 OK", headers | {"Content-Length": "2"}))
            return
        headers["Stream-Up-To-Date"] = "true"
        if live if is_live else not is_at_tail:
            headers["Vary"] = "Origin"
            del headers[ALLOWED]
            if origin is not None:
                headers[ALLOWED] = origin
        if live:
            if origin is None:
                await is_open.wait()
                is_open.clear()
            writer.write(answer("204 No Content", headers | {"Stream-Cursor": "7"}))
        else:
            writer.write(answer("200 OK", headers, b"" if is_at_tail else b"to page" if origin else b"ab"))

    served = await hostile(script, takes_head=True)
    edge = await start(served.url)
    polled = f"/s?offset={TAIL}&live=long-poll"
    assert (await edge.get("/s")).body == b"ab"
    if is_live:
        edge.asking(polled)
        is_open.set()
        await eventually(lambda: any(record.name == "gateway.sharing" for record in caplog.records))
        # A confirmation is new enough for one second.
        edge.clock.advance(2)
    await edge.get("/s", {"Cache-Control": "no-cache"})
    read = await bounded(edge.asking(polled if is_live else "/s", APP))
    assert read.headers[ALLOWED] == APP["Origin"]
    assert read.body == (b"" if is_live else b"to page")

"""Origins that do not behave like Durable Streams servers, more data than the page shows, and names of streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio
from aiohttp import ClientSession, TCPConnector, web
from playwright.async_api import BrowserContext, expect

from gateway.app import RunningGateway, start_gateway
from gateway.config.gateway import GatewayConfig
from tests.console.visit import BOUND_S, JSON, Modules, Stage, Visit

pytestmark = pytest.mark.asyncio(loop_scope="session")

Answer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Before = Callable[[Answer], Awaitable[RunningGateway]]


@pytest_asyncio.fixture(loop_scope="session")
async def before() -> AsyncIterator[Before]:
    """Starts a gateway in front of an origin that gives this answer to every request."""
    async with AsyncExitStack() as stack:

        async def start(answer: Answer) -> RunningGateway:
            runner = web.ServerRunner(web.Server(answer))
            stack.push_async_callback(runner.cleanup)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            ports = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "shutdown_timeout_s": 1.0}
            gateway = await start_gateway(GatewayConfig.for_origin(url, **ports), environ={})
            stack.push_async_callback(gateway.stop)
            return gateway

        yield start


# -- answers that are not streams --------------------------------------------------------------------------------------


async def test_an_answer_that_is_not_a_stream_ends_the_tail(browser: BrowserContext, before: Before) -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text="<h1>hi</h1>", content_type="text/html")

    gateway = await before(answer)
    visit = Visit(await browser.new_page(), gateway.admin_url)
    asked: list[str] = []
    visit.page.on("request", lambda request: asked.append(request.url) if "/console/read" in request.url else None)
    await visit.open("#/tail?path=/index.html")
    await expect(visit.state_of_tail).to_have_text("ended: not a stream: no Stream-Next-Offset in the answer")
    assert len(asked) == 1
    assert visit.complaints == []
    await visit.page.close()


FOLLOW = """
async ({answers, live, rounds}) => {
  const {follow} = await import('/console/follow.js')
  const stop = new AbortController()
  const pauses = [], asked = [], seen = []
  const setTimeout_ = window.setTimeout
  window.setTimeout = (work, ms) => (pauses.push(ms), setTimeout_(work, 0))
  const read = async (target) => {
    asked.push(target)
    if (asked.length > rounds) {
      stop.abort()
      throw new Error("enough")
    }
    const [status, headers, body] = answers[Math.min(asked.length, answers.length) - 1]
    const numbered = Object.entries(headers).map(([name, value]) => [name, value.replace("#", String(asked.length))])
    return new Response(status === 204 ? null : body, {status, headers: numbered})
  }
  const on = {state: () => {}, type: () => {}, batch: ({messages}) => seen.push(...messages)}
  try {
    await follow({read, target: '/s', from: '-1', live, on, signal: stop.signal})
    return {asked, pauses, seen, ended: 'closed'}
  } catch (error) {
    return {asked, pauses, seen, ended: error.message}
  } finally {
    window.setTimeout = setTimeout_
  }
}
"""

Headers = dict[str, str]
AT: Headers = {"relayed-content-type": JSON, "stream-next-offset": "5"}
TAIL: Headers = {**AT, "stream-up-to-date": "true"}
FIRST = (200, TAIL, "[1]")
SSE: Headers = {"relayed-content-type": "text/event-stream"}
CONTROL = 'event: control\ndata: {"streamNextOffset": "%s", "upToDate": true}\n\n'


@pytest.mark.parametrize(
    ("live", "answers"),
    [
        ("long-poll", [FIRST, (204, TAIL, "")]),
        ("long-poll", [FIRST, (200, TAIL, "[]")]),
        ("long-poll", [FIRST, (200, AT, "[9]")]),
        ("long-poll", [(200, AT, "[1]")]),
        ("long-poll", [FIRST, (200, {**TAIL, "stream-next-offset": "6#"}, "[]")]),
        ("sse", [FIRST, (200, SSE, "")]),
        ("sse", [FIRST, (200, SSE, CONTROL % "5")]),
        ("sse", [FIRST, (200, SSE, "event: data\ndata: [9]\n\n" + CONTROL % "5")]),
        ("sse", [(200, {**AT, "stream-next-offset": "5#"}, "[]")]),
        ("sse", [FIRST, (503, {}, "busy")]),
    ],
    ids=lambda value: None if isinstance(value, str) else f"{value[-1][0]} {value[-1][2][:20]!r}",
)
async def test_immediate_empty_answers_are_followed_by_doubling_pauses(
    modules: Modules, live: str, answers: list[Any]
) -> None:
    rounds = 9
    told = await modules.evaluate(FOLLOW, {"answers": answers, "live": live, "rounds": rounds})
    # The first read, and the switch from there to live, have no pause before them.
    assert len(told["pauses"]) >= rounds - 2
    assert told["pauses"][-1] >= 4000
    assert told["seen"] in ([1], [])


@pytest.mark.parametrize(
    ("live", "answers", "said"),
    [
        ("sse", [(200, {"relayed-content-type": JSON}, "[1]")], "not a stream: no Stream-Next-Offset"),
        ("sse", [(200, {**AT, "stream-next-offset": "a,b"}, "[1]")], "not a stream: no Stream-Next-Offset"),
        ("sse", [(200, {**AT, "stream-next-offset": "x" * 257}, "[1]")], "not a stream: no Stream-Next-Offset"),
        ("long-poll", [FIRST, (200, {"relayed-content-type": JSON}, "[2]")], "not a stream: no Stream-Next-Offset"),
        ("long-poll", [FIRST, (204, {}, "")], "not a stream: no Stream-Next-Offset"),
        ("long-poll", [FIRST, (200, {**TAIL, "stream-next-offset": "4"}, "[2]")], "its tail lies before 5"),
        ("sse", [FIRST, (200, TAIL, "[2]")], "asked for SSE and got something else"),
        ("sse", [FIRST, (200, SSE, "event: control\ndata: {}\n\n")], "not a stream: a control event without an offset"),
        ("sse", [FIRST, (200, SSE, CONTROL % "4")], "its tail lies before 5"),
    ],
    ids=lambda value: None,
)
async def test_answers_that_are_not_of_a_stream_end_following(
    modules: Modules, live: str, answers: list[Any], said: str
) -> None:
    told = await modules.evaluate(FOLLOW, {"answers": answers, "live": live, "rounds": 9})
    assert told["ended"].startswith(said)
    assert len(told["asked"]) == len(answers)
    assert told["seen"] == [1] * (len(answers) - 1)


# -- more than is shown ------------------------------------------------------------------------------------------------


async def test_only_visible_messages_become_elements(visit: Visit, stage: Stage) -> None:
    body = b"[" + b",".join([b"1"] * 20_000) + b"]"
    async with stage.session.put(f"{stage.origin.url}/many", data=body, headers={"Content-Type": JSON}) as reply:
        assert reply.status == 201
    await visit.open("#/streams")
    await visit.page.evaluate(
        """() => {
          const make = document.createElement.bind(document)
          window.made = 0
          document.createElement = (tag) => ((window.made += tag === 'li' ? 1 : 0), make(tag))
          location.hash = '#/tail?path=/many'
        }"""
    )
    await expect(visit.page.locator(".tail-head")).to_contain_text("20,000 messages, 19.5 KiB")
    await expect(visit.messages).to_have_count(500)
    assert await visit.page.evaluate("window.made") == 500


async def test_events_do_not_depend_on_how_their_bytes_are_split(modules: Modules) -> None:
    text = (
        "\ufeffevent: data\r\ndata: é\rdata:2\n\r\n: comment\n\ndata\n\r\r"
        "data: [1]\n\nevent: control\ndata: {}\r\n\r\ndata: half"
    )
    found = await modules.evaluate(
        """async (text) => {
          const {EventParser} = await import('/console/events.js')
          const bytes = new TextEncoder().encode(text)
          const parsed = (...cuts) => {
            const parser = new EventParser()
            return JSON.stringify(cuts.flatMap((end, at) => parser.push(bytes.slice(cuts[at - 1] ?? 0, end))))
          }
          const all = new Set([parsed(...bytes.keys(), bytes.length)])
          for (let one = 0; one <= bytes.length; one += 1)
            for (let other = one; other <= bytes.length; other += 1) all.add(parsed(one, other, bytes.length))
          return [...all].map(JSON.parse)
        }""",
        text,
    )
    assert found == [
        [
            {"name": "data", "data": "é\n2"},
            {"name": "message", "data": ""},
            {"name": "message", "data": "[1]"},
            {"name": "control", "data": "{}"},
        ]
    ]


# -- names -------------------------------------------------------------------------------------------------------------


async def test_streams_of_some_readers_only_are_marked_private(visit: Visit, stage: Stage) -> None:
    await stage.create("/s", 1)
    await stage.read("/s?offset=-1", {"Authorization": "Bearer one"})
    await visit.open("#/streams")
    await expect(visit.page.locator(".streams tbody tr")).to_have_count(1)
    await expect(visit.page.locator(".streams .badge")).to_have_text(["private"])
    await stage.create("/t", 1)
    await stage.read("/t?offset=-1")
    await expect(visit.page.locator(".streams tbody tr")).to_have_count(2)
    await expect(visit.page.locator(".streams .badge")).to_have_text(["private"])


@pytest.mark.parametrize(
    ("route", "host", "target"),
    [
        ("all", "", "/a/s?x=1"),
        ("exact", "a.example.org", "/v1/a/s?x=1"),
        ("wild", "any-1.example.org", "/a/s?x=1"),
        ("elsewhere", None, None),
        ("gone", None, None),
    ],
)
async def test_a_streams_public_address_uses_its_own_route(
    modules: Modules, route: str, host: str | None, target: str | None
) -> None:
    def one(name: str, host: str, **more: Any) -> dict[str, Any]:
        defaults = {"prefix": "", "strip_prefix": False, "origin": "http://o", "base": ""}
        return {"name": name, "host": host, **defaults, **more}

    routes = [
        one("all", "*"),
        one("exact", "a.example.org", prefix="/v1", strip_prefix=True),
        one("taken", "any.example.org"),
        one("wild", "*.example.org"),
        one("elsewhere", "*", origin="http://p"),
    ]
    found = await modules.evaluate(
        "async ([stream, routes]) => (await import('/console/addresses.js')).publicAddress(stream, routes)",
        [{"origin": "http://o", "path": "/a/s", "query": "x=1", "route": route}, routes],
    )
    assert found == (None if target is None else {"target": target, "host": host})


@pytest.mark.parametrize("settings", [{"host": "*.example.org"}])
async def test_a_stream_below_a_wildcard_host_leads_to_its_tail(visit: Visit, stage: Stage) -> None:
    await stage.create("/s", "hello")
    await stage.read("/s?offset=-1", {"Host": "one.example.org"})
    (row,) = (await stage.admin("/api/streams"))["streams"]
    await visit.open(f"#/streams/{row['id']}")
    await visit.page.get_by_role("link", name="Tail it live").click()
    await expect(visit.messages).to_have_count(1)


# -- the relay ---------------------------------------------------------------------------------------------------------


def reading(target: str) -> str:
    return f"/api/console/read?target={quote(target, safe='')}"


async def test_reads_beyond_the_limit_are_refused_at_once(stage: Stage) -> None:
    await stage.create("/live", 1)
    url = stage.gateway.admin_url + reading("/live?offset=now&live=sse")
    async with ClientSession(connector=TCPConnector(limit=0)) as session, asyncio.timeout(BOUND_S):
        tails = await asyncio.gather(*(session.get(url) for _ in range(128)))
        assert {reply.status for reply in tails} == {200}
        async with session.get(url) as reply:
            assert reply.status == 503
            assert "128" in (await reply.json())["error"]
        tails.pop().close()
        await stage.until_readers(127)
        async with session.get(stage.gateway.admin_url + reading("/live?offset=-1")) as reply:
            assert (reply.status, await reply.read()) == (200, b"[1]")
        for reply in tails:
            reply.close()
    await stage.until_readers(0)


@pytest.mark.parametrize("code", [301, 302, 307, 308])
async def test_a_redirect_is_not_passed_on_to_the_page(before: Before, code: int) -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=code, headers={"Location": "http://elsewhere.example/s"})

    gateway = await before(answer)
    async with (
        ClientSession() as session,
        session.get(gateway.admin_url + reading("/s"), allow_redirects=False) as reply,
    ):
        assert reply.status == 502
        assert "Location" not in reply.headers
        assert (await reply.json())["error"] == f"The stream has moved: {code} http://elsewhere.example/s"


@pytest.mark.parametrize("path", ["/api/console", reading("no path")])
async def test_json_is_never_taken_for_anything_else(stage: Stage, path: str) -> None:
    async with stage.session.get(stage.gateway.admin_url + path) as reply:
        assert reply.content_type == JSON
        assert reply.headers["X-Content-Type-Options"] == "nosniff"

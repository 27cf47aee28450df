"""Load of every kind, so that every metric has something to show."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from aiohttp import ClientResponse, ClientSession

from gateway.origin.faults import Faults
from tests.plans import PlanFile, entry

JSON = {"Content-Type": "application/json"}
LIVE = "/live"
EARLY = "/planned/warm"
"""Created at the origin before the gateway starts."""
READERS = 5
BOUND_S = 10.0
_LARGE = b"[" + b",".join(b'{"n":%d,"text":"some words, again and again"}' % n for n in range(1_000)) + b"]"


async def send(
    session: ClientSession, method: str, url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> int:
    """The status of one answer."""
    async with session.request(method, url, data=body, headers={**JSON, **(headers or {})}) as reply:
        await reply.read()
        return reply.status


def write_plan(plan: PlanFile) -> None:
    """Write a plan with an entry of each kind that takes effect at once, one of them for a missing route."""
    plan.write(
        pin=[entry("/planned/pinned")],
        warm=[entry(EARLY)],
        do_not_store=[entry("/planned/unkept"), entry("/elsewhere", route="elsewhere")],
    )


async def ask_everything(session: ClientSession, url: str, faults: Faults) -> None:
    """Writes, hits, misses, shared fetches, compressed answers, evictions, refusals, failures."""
    for number in range(12):
        assert await send(session, "PUT", f"{url}/cold/{number}", _LARGE) == 201
        for _ in range(2):
            assert await send(session, "GET", f"{url}/cold/{number}?offset=-1") == 200
    assert await send(session, "HEAD", f"{url}/cold/1") == 200
    assert await send(session, "GET", f"{url}/cold/1?offset=-1", headers={"Accept-Encoding": "gzip"}) == 200
    # A closed stream is answered from the tape up to its end.
    assert await send(session, "PUT", f"{url}/closed", b'["last words"]', {"Stream-Closed": "true"}) == 201
    for _ in range(20):
        assert await send(session, "GET", f"{url}/closed?offset=-1") == 200
    for name in ("pinned", "unkept"):
        assert await send(session, "PUT", f"{url}/planned/{name}", b'["as planned"]', {"Stream-Closed": "true"}) == 201
        assert await send(session, "GET", f"{url}/planned/{name}?offset=-1") == 200
    assert await send(session, "PUT", f"{url}/shared", b"[1]") == 201
    gate = faults.hold(kind="catchup", path="/shared")
    readers = [asyncio.create_task(send(session, "GET", f"{url}/shared?offset=-1")) for _ in range(10)]
    await gate.waiting(1)
    gate.release()
    assert await asyncio.gather(*readers) == [200] * 10
    gate.remove()
    assert await send(session, "GET", f"{url}/shared?offset=no%20offset") == 400
    assert await send(session, "GET", f"{url}/nobody?offset=-1") == 404
    refusing = faults.status(503, kind="catchup", path="/cold/0", times=2)
    assert await send(session, "GET", f"{url}/cold/0?offset=-1&fresh=1") == 503
    refusing.remove()
    resetting = faults.refuse(kind="append", path="/shared", times=1)
    assert await send(session, "POST", f"{url}/shared", b"[2]") == 502
    resetting.remove()
    assert await send(session, "DELETE", f"{url}/cold/2") == 204


async def _until(reply: ClientResponse, words: bytes) -> None:
    """Read an event stream until these words have come."""
    said = b""
    async with asyncio.timeout(BOUND_S):
        while words not in said:
            chunk = await reply.content.readany()
            assert chunk, "the stream ended"
            said += chunk


@asynccontextmanager
async def live_readers(session: ClientSession, url: str) -> AsyncIterator[None]:
    """Hold SSE readers of one stream, which have received an append, and waiting long-polls, until the block ends."""
    assert await send(session, "PUT", f"{url}{LIVE}", b'["first"]') == 201
    async with AsyncExitStack() as stack:
        replies = [
            await stack.enter_async_context(session.get(f"{url}{LIVE}?offset=-1&live=sse")) for _ in range(READERS)
        ]
        for reply in replies:
            await _until(reply, b"upToDate")
        for round_ in range(5):
            assert await send(session, "POST", f"{url}{LIVE}", b'["round %d"]' % round_) in (200, 204)
            for reply in replies:
                await _until(reply, b"round %d" % round_)
        async with session.get(f"{url}{LIVE}?offset=now") as now:
            tail = now.headers["Stream-Next-Offset"]

        async def poll() -> int:
            return await send(session, "GET", f"{url}{LIVE}?offset={tail}&live=long-poll")

        polls = [asyncio.create_task(poll()) for _ in range(READERS)]
        try:
            yield
        finally:
            for one in polls:
                one.cancel()
            await asyncio.gather(*polls, return_exceptions=True)

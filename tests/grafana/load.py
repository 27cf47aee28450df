"""Load of every kind, so that the figures have something to show."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from aiohttp import ClientResponse, ClientSession

from gateway.origin.faults import Faults

JSON = {"Content-Type": "application/json"}
LIVE = "/live"
READERS = 5
BOUND_S = 10.0
_LARGE = b"[" + b",".join(b'{"n":%d,"text":"some words, again and again"}' % n for n in range(1_000)) + b"]"


async def _send(
    session: ClientSession, method: str, url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> int:
    async with session.request(method, url, data=body, headers={**JSON, **(headers or {})}) as reply:
        await reply.read()
        return reply.status


async def ask_everything(session: ClientSession, url: str, faults: Faults) -> None:
    """Writes, hits, misses, shared fetches, compressed answers, evictions, refusals, failures."""
    for number in range(12):
        assert await _send(session, "PUT", f"{url}/cold/{number}", _LARGE) == 201
        for _ in range(2):
            assert await _send(session, "GET", f"{url}/cold/{number}?offset=-1") == 200
    assert await _send(session, "HEAD", f"{url}/cold/1") == 200
    assert await _send(session, "GET", f"{url}/cold/1?offset=-1", headers={"Accept-Encoding": "gzip"}) == 200
    # A closed stream is answered from the tape to its end.
    assert await _send(session, "PUT", f"{url}/closed", b'["last words"]', {"Stream-Closed": "true"}) == 201
    for _ in range(20):
        assert await _send(session, "GET", f"{url}/closed?offset=-1") == 200
    assert await _send(session, "PUT", f"{url}/shared", b"[1]") == 201
    gate = faults.hold(kind="catchup", path="/shared")
    readers = [asyncio.create_task(_send(session, "GET", f"{url}/shared?offset=-1")) for _ in range(10)]
    await gate.waiting(1)
    gate.release()
    assert await asyncio.gather(*readers) == [200] * 10
    gate.remove()
    assert await _send(session, "GET", f"{url}/shared?offset=no%20offset") == 400
    assert await _send(session, "GET", f"{url}/nobody?offset=-1") == 404
    refusing = faults.status(503, kind="catchup", path="/cold/0", times=2)
    assert await _send(session, "GET", f"{url}/cold/0?offset=-1&fresh=1") == 503
    refusing.remove()
    resetting = faults.refuse(kind="append", path="/shared", times=1)
    assert await _send(session, "POST", f"{url}/shared", b"[2]") == 502
    resetting.remove()
    assert await _send(session, "DELETE", f"{url}/cold/2") == 204


async def _until(reply: ClientResponse, words: bytes) -> None:
    """Read an event stream until it has said this."""
    said = b""
    async with asyncio.timeout(BOUND_S):
        while words not in said:
            chunk = await reply.content.readany()
            assert chunk, "the stream ended"
            said += chunk


@asynccontextmanager
async def live_readers(session: ClientSession, url: str) -> AsyncIterator[None]:
    """SSE readers of one stream who were sent what was appended, and long-polls that wait, until the block ends."""
    assert await _send(session, "PUT", f"{url}{LIVE}", b'["first"]') == 201
    async with AsyncExitStack() as stack:
        replies = [
            await stack.enter_async_context(session.get(f"{url}{LIVE}?offset=-1&live=sse")) for _ in range(READERS)
        ]
        for reply in replies:
            await _until(reply, b"upToDate")
        for round_ in range(5):
            assert await _send(session, "POST", f"{url}{LIVE}", b'["round %d"]' % round_) in (200, 204)
            for reply in replies:
                await _until(reply, b"round %d" % round_)
        async with session.get(f"{url}{LIVE}?offset=now") as now:
            tail = now.headers["Stream-Next-Offset"]

        async def poll() -> int:
            return await _send(session, "GET", f"{url}{LIVE}?offset={tail}&live=long-poll")

        polls = [asyncio.create_task(poll()) for _ in range(READERS)]
        try:
            yield
        finally:
            for one in polls:
                one.cancel()
            await asyncio.gather(*polls, return_exceptions=True)

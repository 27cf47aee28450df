import asyncio

from aiohttp import ClientSession

from gateway.origin.app import RunningOrigin
from gateway.origin.counters import Counters
from gateway.origin.requests import Kind
from tests.origin.conftest import Start

TEXT = {"Content-Type": "text/plain"}


async def test_every_request_counts_once_under_its_kind(start: Start, http: ClientSession) -> None:
    running: RunningOrigin = await start()
    url = f"{running.url}/s"
    await http.put(url, headers=TEXT, data=b"abc")
    await http.post(url, headers=TEXT, data=b"de")
    await http.post(url, headers={"Stream-Closed": "true"})
    await http.head(url)
    await http.options(url)
    queries: list[dict[str, str]] = [
        {},
        {"offset": "now"},
        {"live": "unknown"},
        {"offset": "-1", "live": "long-poll"},
        {"offset": "now", "live": "long-poll"},
        {"offset": "now", "live": "sse"},
    ]
    for query in queries:
        async with http.get(url, params=query) as response:
            await response.read()
    await http.delete(url)
    counters = running.origin.counters
    assert counters.requests == {
        Kind.CREATE: 1,
        Kind.APPEND: 2,
        Kind.HEAD: 1,
        Kind.OTHER: 1,
        Kind.CATCHUP: 3,
        Kind.LONGPOLL: 2,
        Kind.SSE: 1,
        Kind.DELETE: 1,
    }
    assert counters.finished == counters.requests
    assert (counters.body_bytes[Kind.CATCHUP], counters.body_bytes[Kind.LONGPOLL]) == (10, 5)
    assert (counters.live_open, counters.live_peak, counters.parked) == (0, 1, 0)
    assert counters.connections >= 1


async def test_waiting_ends_when_the_condition_holds() -> None:
    counters = Counters()
    waiting = [
        asyncio.create_task(counters.reached("sse", 2)),
        asyncio.create_task(counters.live_is(2)),
        asyncio.create_task(counters.until(lambda now: now.total_body_bytes >= 10)),
    ]
    await asyncio.wait(waiting, timeout=0)
    counters.began(Kind.SSE)
    assert not any(task.done() for task in waiting)
    counters.began(Kind.SSE)
    await asyncio.gather(*waiting[:2])
    counters.sent(Kind.SSE, 10)
    await waiting[2]


async def test_a_reset_keeps_what_is_open() -> None:
    counters = Counters()
    counters.began(Kind.LONGPOLL)
    counters.began(Kind.LONGPOLL)
    counters.ended(Kind.LONGPOLL)
    counters.reset()
    assert (counters.total_requests, counters.live_open, counters.live_peak) == (0, 1, 1)
    await counters.live_is(1)

"""Long-poll and SSE readers: wake-ups and ends.  Time stands still unless a test advances it."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientError, ClientPayloadError, ClientResponse, ClientSession

from gateway.aio.clock import ManualClock
from gateway.origin.app import OriginSettings, RunningOrigin, start_origin
from gateway.origin.counters import Counters
from gateway.origin.requests import Kind
from tests.origin.conftest import Start

TEXT = {"Content-Type": "text/plain"}
SETTINGS = OriginSettings(long_poll_timeout_s=30, sse_lifetime_s=60)


class Reader:
    """An SSE client that takes one event at a time."""

    def __init__(self, response: ClientResponse) -> None:
        self.response = response

    async def event(self) -> tuple[str, str]:
        """The next event's name and data; EOFError at the end of the body."""
        try:
            block = (await self.response.content.readuntil(b"\n\n")).decode()
        except asyncio.IncompleteReadError as error:
            raise EOFError from error
        if not block:
            raise EOFError
        name, *data = block.strip("\n").split("\n")
        return name.removeprefix("event: "), "\n".join(line.removeprefix("data:") for line in data)

    async def control(self) -> dict[str, object]:
        name, data = await self.event()
        assert name == "control"
        found = json.loads(data)
        assert isinstance(found, dict)
        return found

    async def ended(self) -> bool:
        return await self.response.content.read() == b""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def origin(start: Start, clock: ManualClock) -> RunningOrigin:
    return await start(SETTINGS, clock=clock)


@pytest.fixture
def counters(origin: RunningOrigin) -> Counters:
    return origin.origin.counters


@pytest.fixture
async def url(origin: RunningOrigin, http: ClientSession) -> str:
    found = f"{origin.url}/s"
    async with http.put(found, headers=TEXT) as created:
        assert created.status == 201
    return found


@pytest.fixture
async def events(url: str, http: ClientSession, counters: Counters) -> AsyncIterator[Reader]:
    """A reader that has received its first control event and now waits."""
    async with http.get(url, params={"offset": "-1", "live": "sse"}) as response:
        reader = Reader(response)
        assert (await reader.control())["upToDate"]
        await counters.parked_is(1)
        yield reader


async def long_poll(http: ClientSession, url: str, offset: str = "now", **query: str) -> ClientResponse:
    response = await http.get(url, params={"offset": offset, "live": "long-poll", **query})
    await response.read()  # releases the connection and keeps the body
    return response


async def test_one_append_wakes_every_long_poll(http: ClientSession, url: str, counters: Counters) -> None:
    waiting = [asyncio.create_task(long_poll(http, url, cursor=str(number))) for number in range(20)]
    await counters.parked_is(20)
    await http.post(url, headers=TEXT, data=b"news")
    for response in await asyncio.gather(*waiting):
        assert (response.status, await response.read()) == (200, b"news")
        assert response.headers["Stream-Up-To-Date"] == "true"
        assert int(response.headers["Stream-Cursor"]) > 0
    assert (counters.live_peak, counters.live_open) == (20, 0)


async def test_a_long_poll_behind_the_tail_does_not_wait(http: ClientSession, url: str) -> None:
    await http.post(url, headers=TEXT, data=b"old")
    response = await long_poll(http, url, "-1")
    assert await response.read() == b"old"


async def test_a_long_poll_times_out_with_the_tail(
    http: ClientSession, url: str, counters: Counters, clock: ManualClock
) -> None:
    waiting = asyncio.create_task(long_poll(http, url, "-1", cursor="99999999999"))
    await counters.parked_is(1)
    clock.advance(30)
    response = await waiting
    assert response.status == 204
    assert response.headers["Stream-Next-Offset"] == "0000000000000000_0000000000000000"
    assert response.headers["Stream-Up-To-Date"] == "true"
    assert int(response.headers["Stream-Cursor"]) > 99999999999


async def test_closing_answers_a_long_poll_at_once(http: ClientSession, url: str, counters: Counters) -> None:
    waiting = asyncio.create_task(long_poll(http, url))
    await counters.parked_is(1)
    await http.post(url, headers={"Stream-Closed": "true"})
    for response in (await waiting, await long_poll(http, url)):
        assert (response.status, response.headers["Stream-Closed"]) == (204, "true")
        assert "Stream-Cursor" not in response.headers


async def test_deleting_a_stream_ends_its_readers(
    http: ClientSession, url: str, counters: Counters, events: Reader
) -> None:
    waiting = asyncio.create_task(long_poll(http, url))
    await counters.parked_is(2)
    await http.delete(url)
    await http.put(url, headers=TEXT, data=b"another stream")
    assert (await waiting).status == 404
    assert await events.ended()


async def test_hiding_a_stream_behind_its_fork_ends_its_readers(
    http: ClientSession, url: str, counters: Counters, events: Reader
) -> None:
    await http.put(f"{url}/fork", headers={"Stream-Forked-From": "/s"})
    waiting = asyncio.create_task(long_poll(http, url))
    await counters.parked_is(2)
    await http.delete(url)
    assert (await waiting).status == 410
    assert await events.ended()


async def test_expiry_ends_readers(http: ClientSession, url: str, counters: Counters, clock: ManualClock) -> None:
    await http.put(f"{url}/soon", headers={**TEXT, "Stream-Expires-At": "2026-09-21T14:13:30Z"})
    assert clock.wall() == 1_790_000_000  # ten seconds before
    waiting = asyncio.create_task(long_poll(http, f"{url}/soon"))
    async with http.get(f"{url}/soon", params={"offset": "-1", "live": "sse"}) as response:
        reader = Reader(response)
        await reader.control()
        await counters.parked_is(2)
        clock.advance(10)
        assert await reader.ended()
    assert (await waiting).status == 404


async def test_a_live_reader_keeps_a_sliding_window_open(
    http: ClientSession, url: str, counters: Counters, clock: ManualClock
) -> None:
    await http.put(f"{url}/ttl", headers={**TEXT, "Stream-TTL": "5"})
    waiting = asyncio.create_task(long_poll(http, f"{url}/ttl"))
    await counters.parked_is(1)
    clock.advance(29)
    await http.post(f"{url}/ttl", headers=TEXT, data=b"x")
    assert (await waiting).status == 200


async def test_sse_sends_data_then_control(http: ClientSession, url: str, events: Reader) -> None:
    await http.post(url, headers=TEXT, data=b"one\ntwo")
    assert await events.event() == ("data", "one\ntwo")
    assert (await events.control())["upToDate"] is True
    await http.post(url, headers={**TEXT, "Stream-Closed": "true"}, data=b"end")
    assert await events.event() == ("data", "end")
    assert (await events.control())["streamClosed"] is True
    assert await events.ended()


async def test_a_long_replay_is_sent_in_chunks(start: Start, http: ClientSession) -> None:
    url = (await start(OriginSettings(max_chunk_bytes=4))).url + "/s"
    await http.put(url, headers={**TEXT, "Stream-Closed": "true"}, data=b"0123456789")
    async with http.get(url, params={"offset": "-1", "live": "sse"}) as response:
        reader = Reader(response)
        data: list[tuple[str, str]] = []
        flags: list[set[str]] = []
        while not flags or "streamClosed" not in flags[-1]:
            data.append(await reader.event())
            flags.append((await reader.control()).keys() - {"streamNextOffset", "streamCursor"})
        assert data == [("data", "0123"), ("data", "4567"), ("data", "89")]
        assert flags == [set(), set(), {"upToDate", "streamClosed"}]
        assert await reader.ended()


async def test_an_idle_connection_gets_control_events(clock: ManualClock, events: Reader) -> None:
    clock.advance(30)
    assert (await events.control())["upToDate"] is True


async def test_an_sse_connection_has_a_lifetime(clock: ManualClock, events: Reader) -> None:
    clock.advance(60)
    assert (await events.control())["upToDate"] is True
    assert await events.ended()


async def test_a_reader_that_goes_away_is_forgotten(
    http: ClientSession, url: str, counters: Counters, origin: RunningOrigin
) -> None:
    async with http.get(url, params={"offset": "-1", "live": "sse"}) as response:
        waiting = asyncio.create_task(long_poll(http, url))
        await counters.parked_is(2)
        response.close()
    waiting.cancel()
    await counters.live_is(0)
    stream = origin.origin.store.get("/s", 0)
    assert (counters.parked, stream.live_readers, len(stream.watchers)) == (0, 0, 0)


async def test_stopping_ends_live_readers_in_order(
    http: ClientSession, url: str, counters: Counters, origin: RunningOrigin, events: Reader
) -> None:
    waiting = asyncio.create_task(long_poll(http, url))
    await counters.parked_is(2)
    await origin.stop()
    assert (await waiting).status == 204
    assert await events.ended()
    assert counters.live_open == 0


async def test_a_restart_keeps_streams_and_port(http: ClientSession, url: str, origin: RunningOrigin) -> None:
    await http.post(url, headers=TEXT, data=b"before")
    await origin.stop()
    again = await start_origin(OriginSettings(port=origin.port), origin=origin.origin)
    try:
        assert again.url == origin.url
        await http.post(url, headers=TEXT, data=b", after")
        async with http.get(url) as read:
            assert await read.read() == b"before, after"
        assert origin.origin.counters.requests[Kind.CATCHUP] == 1
    finally:
        await again.stop()


async def test_a_crash_cuts_readers_off(http: ClientSession, origin: RunningOrigin, events: Reader) -> None:
    await origin.stop(grace_s=0)
    with pytest.raises(ClientPayloadError):  # no last chunk: never a clean end
        await events.event()
    assert origin.origin.counters.live_open == 0


@pytest.mark.parametrize(
    "nonsense",
    [{"port": -1}, {"port": 70_000}, {"long_poll_timeout_s": 0}, {"sse_lifetime_s": -1}, {"max_chunk_bytes": 0}],
)
def test_invalid_settings_are_refused(nonsense: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must"):
        OriginSettings(**nonsense)  # type: ignore[arg-type]


async def test_stopping_is_bounded_while_requests_wait(http: ClientSession, url: str, origin: RunningOrigin) -> None:
    gate = origin.origin.faults.hold(kind="catchup")
    held = asyncio.create_task(http.get(url))
    await gate.waiting(1)
    await asyncio.wait_for(origin.stop(grace_s=0.1), timeout=5)
    with pytest.raises(ClientError):
        await held
    assert gate.held == 0

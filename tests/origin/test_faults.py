import asyncio

import pytest
from aiohttp import ClientConnectionError, ClientError, ClientPayloadError, ClientSession, ServerDisconnectedError

from gateway.aio.clock import ManualClock
from gateway.origin.app import RunningOrigin
from gateway.origin.counters import Counters
from gateway.origin.faults import Faults
from tests.origin.conftest import Start

TEXT = {"Content-Type": "text/plain"}
SSE = {"offset": "-1", "live": "sse"}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def origin(start: Start, clock: ManualClock) -> RunningOrigin:
    return await start(clock=clock)


@pytest.fixture
def faults(origin: RunningOrigin) -> Faults:
    return origin.origin.faults


@pytest.fixture
def counters(origin: RunningOrigin) -> Counters:
    return origin.origin.counters


@pytest.fixture
async def url(origin: RunningOrigin, http: ClientSession) -> str:
    found = f"{origin.url}/s"
    await http.put(found, headers=TEXT, data=b"0123456789")
    return found


async def read(http: ClientSession, url: str, **query: str) -> tuple[int, bytes]:
    async with http.get(url, params=query) as response:
        return response.status, await response.read()


async def raw(origin: RunningOrigin, target: str = "/s") -> bytes:
    """All bytes of one answer until the connection ends."""
    reader, writer = await asyncio.open_connection(origin.host, origin.port)
    try:
        writer.write(f"GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
        return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


async def test_a_status_is_given_to_the_next_few(http: ClientSession, url: str, faults: Faults) -> None:
    switch = faults.status(503, times=2, kind="catchup", headers={"Retry-After": "1"})
    async with http.get(url) as refused:
        assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
        assert await refused.text() == "injected by a fault switch\n"
    async with http.head(url) as untouched:
        assert untouched.status == 200
    assert [(await read(http, url))[0] for _ in range(2)] == [503, 200]
    assert switch.hits == 2


async def test_a_switch_may_be_for_one_method_or_one_path(http: ClientSession, url: str, faults: Faults) -> None:
    faults.status(500, method="DELETE", times=None)
    faults.status(502, path="/other", times=None)
    assert [(await read(http, url))[0], (await read(http, f"{url[:-1]}other"))[0]] == [200, 502]
    async with http.delete(url) as refused:
        assert refused.status == 500
    faults.clear()
    async with http.delete(url) as deleted:
        assert deleted.status == 204


async def test_replace_sends_any_reply(http: ClientSession, url: str, faults: Faults) -> None:
    faults.replace(299, {"Stream-Next-Offset": "=/&", "Content-Type": "image/png"}, b"nonsense")
    async with http.get(url) as response:
        assert (response.status, response.headers["Stream-Next-Offset"]) == (299, "=/&")
        assert await response.read() == b"nonsense"


async def test_a_hold_at_the_request_shows_later_changes(http: ClientSession, url: str, faults: Faults) -> None:
    gate = faults.hold(kind="catchup")
    readers = [asyncio.create_task(read(http, url)) for _ in range(3)]
    await gate.waiting(3)
    await http.post(url, headers=TEXT, data=b"+")
    gate.release()
    assert await asyncio.gather(*readers) == [(200, b"0123456789+")] * 3
    assert (await read(http, url), gate.held, gate.hits) == ((200, b"0123456789+"), 0, 3)


async def test_a_hold_at_the_reply_hides_later_changes(http: ClientSession, url: str, faults: Faults) -> None:
    gate = faults.hold(kind="catchup", times=1, when="reply")
    late = asyncio.create_task(read(http, url))
    await gate.waiting(1)
    await http.post(url, headers=TEXT, data=b"+")
    assert await read(http, url) == (200, b"0123456789+")
    gate.release()
    assert await late == (200, b"0123456789")


async def test_a_delay_follows_the_clock(
    http: ClientSession, url: str, faults: Faults, counters: Counters, clock: ManualClock
) -> None:
    counters.reset()
    faults.delay(5.0, kind="catchup", times=1)
    late = asyncio.create_task(read(http, url))
    await counters.reached("catchup", 1)
    clock.advance(4.9)
    assert not late.done()
    clock.advance(0.2)
    assert await late == (200, b"0123456789")


async def test_a_drop_resets_after_the_given_bytes(
    http: ClientSession, url: str, faults: Faults, counters: Counters
) -> None:
    counters.reset()
    faults.drop(4)
    async with http.get(url) as response:
        assert response.headers["Content-Length"] == "10"
        with pytest.raises(ClientError):
            await response.read()
    assert counters.total_body_bytes == 4


@pytest.mark.parametrize(
    ("is_chunked", "framing"), [(False, b"Content-Length: 10"), (True, b"Transfer-Encoding: chunked")]
)
async def test_a_truncated_body_ends_cleanly_and_early(
    origin: RunningOrigin, url: str, faults: Faults, is_chunked: bool, framing: bytes
) -> None:
    assert url
    faults.truncate(4, is_chunked=is_chunked)
    head, _, body = (await raw(origin)).partition(b"\r\n\r\n")
    assert framing in head
    assert body == (b"4\r\n0123\r\n" if is_chunked else b"0123")


@pytest.mark.parametrize("after_bytes", [0, 9, 10])
async def test_a_body_is_never_complete_without_its_end(
    http: ClientSession, url: str, faults: Faults, after_bytes: int
) -> None:
    faults.truncate(after_bytes, is_chunked=True)
    async with http.get(url) as response:
        with pytest.raises(ClientPayloadError):
            await response.read()


async def test_sse_breaks_off_in_the_middle_of_an_event(http: ClientSession, url: str, faults: Faults) -> None:
    faults.drop(20, kind="sse")
    async with http.get(url, params=SSE) as response:
        with pytest.raises(ClientError):
            await response.read()


async def test_a_stall_lasts_until_it_is_released(
    http: ClientSession, url: str, faults: Faults, counters: Counters
) -> None:
    counters.reset()
    stall = faults.stall(4)
    reader = asyncio.create_task(read(http, url))
    await stall.waiting(1)
    assert counters.total_body_bytes == 4
    stall.release()
    assert await reader == (200, b"0123456789")


async def test_a_client_that_leaves_is_no_longer_held(
    http: ClientSession, url: str, faults: Faults, counters: Counters
) -> None:
    gate, stall = faults.hold(kind="catchup"), faults.stall(4, kind="sse")
    waiting = [asyncio.create_task(read(http, url)), asyncio.create_task(read(http, url, **SSE))]
    await gate.waiting(1)
    await stall.waiting(1)
    for task in waiting:
        task.cancel()
    await counters.until(lambda now: sum(now.finished.values()) == now.total_requests)
    assert (gate.held, stall.held, counters.live_open) == (0, 0, 0)


async def test_a_refused_request_gets_a_reset(http: ClientSession, url: str, faults: Faults) -> None:
    faults.refuse(kind="catchup", times=2)
    with pytest.raises(ClientConnectionError):
        await read(http, url)
    assert await read(http, url) == (200, b"0123456789")


async def test_raw_bytes_need_not_be_http(origin: RunningOrigin, http: ClientSession, url: str, faults: Faults) -> None:
    assert url
    faults.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc", times=2)
    assert (await raw(origin)).endswith(b"\r\n\r\nabc")
    with pytest.raises((ClientError, ServerDisconnectedError)):
        await read(http, url)


async def test_unsolicited_bytes_follow_a_whole_answer(origin: RunningOrigin, url: str, faults: Faults) -> None:
    assert url
    faults.unsolicited(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
    answer = await raw(origin)
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert answer.endswith(b"0123456789HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")


async def test_faults_add_up(http: ClientSession, url: str, faults: Faults) -> None:
    gate, stall = faults.hold(), faults.stall(3)
    faults.truncate(6, is_chunked=True)
    reader = asyncio.create_task(read(http, url))
    await gate.waiting(1)
    gate.release()
    await stall.waiting(1)
    stall.release()
    with pytest.raises(ClientPayloadError):
        await reader

"""Readers that stop reading: others are not affected, memory is bounded, and missed bytes can be read again."""

import base64
import json
from typing import Any

import pytest

from gateway.origin.app import OriginSettings, RunningOrigin
from gateway.origin.counters import Counters
from gateway.origin.faults import Faults
from gateway.origin.requests import Kind
from tests.scenarios.conftest import Edge, Start, bounded
from tests.scenarios.wire import Dropped, Wire, pairs
from tests.waiting import eventually, pass_turns

BINARY = "application/octet-stream"
BLOCK = bytes(range(256)) * 256
ROUNDS = 40


@pytest.fixture
def origin_settings() -> OriginSettings:
    return OriginSettings(max_chunk_bytes=64 << 20)


@pytest.fixture
def settings() -> dict[str, Any]:
    return {"client_write_timeout_s": 0.5, "send_buffer_bytes": 32_768}


async def read_until(reader: Wire, size: int, into: bytearray) -> str:
    """Read whole pairs until `size` bytes have arrived; returns the offset of the last."""
    while (event := await reader.event()) is not None:
        if event.name == "data":
            into += base64.b64decode(event.data)
        elif event.name == "control":
            offset = json.loads(event.data)["streamNextOffset"]
            if len(into) >= size:
                return str(offset)
    raise AssertionError("ended early")


async def test_a_subscriber_that_stops_reading_is_closed_in_time_and_resumes_without_loss(
    edge: Edge, counters: Counters
) -> None:
    await edge.put("/s", b"", BINARY)
    slow = await edge.begin("/s?offset=-1&live=sse", receive_bytes=16_384)
    await slow.head()
    fast = await edge.begin("/s?offset=-1&live=sse")
    await fast.head()
    await bounded(counters.parked_is(1))
    got = bytearray()
    for number in range(ROUNDS):
        assert (await edge.post("/s", BLOCK, BINARY)).status == 204
        offset = await read_until(fast, (number + 1) * len(BLOCK), got)
    assert bytes(got) == BLOCK * ROUNDS
    await eventually(lambda: edge.gateway.metrics.slow_consumers[True].value == 1)
    # The bytes it has taken are valid; the rest is dropped without a clean end, and requested again.
    had = bytearray()
    taken: list[str] = []

    async def take_all() -> None:
        async for data, control in pairs(slow):
            had.extend(base64.b64decode(data))
            taken.append(json.loads(control.data)["streamNextOffset"])

    with pytest.raises(Dropped):
        await take_all()
    assert len(had) < len(got)
    assert bytes(got).startswith(bytes(had))
    again = await edge.begin(f"/s?offset={taken[-1]}&live=sse")
    await again.head()
    assert await read_until(again, len(got), had) == offset
    assert bytes(had) == bytes(got)


async def test_a_stalled_reader_delays_no_other_and_its_memory_is_bounded(
    start: Start, origin: RunningOrigin, counters: Counters
) -> None:
    """Its frames are made only when it can take them: no backlog builds up, however much the stream grows."""
    edge = await start(origin.url, client_write_timeout_s=600, send_buffer_bytes=32_768)
    await edge.put("/s", b"", BINARY)
    slow = await edge.begin("/s?offset=-1&live=sse", receive_bytes=16_384)
    await slow.head()
    fast = await edge.begin("/s?offset=-1&live=sse")
    await fast.head()
    await bounded(counters.parked_is(1))
    got = bytearray()
    for number in range(20):
        await edge.post("/s", BLOCK, BINARY)
        await read_until(fast, (number + 1) * len(BLOCK), got)
    assert bytes(got) == BLOCK * 20
    assert edge.gateway.metrics.slow_consumers[True].value == 0
    _, waiting = edge.gateway.clients.unsent()
    # One frame of 256 KB as base64, and the buffer's own bound.
    assert 0 < waiting < 500_000
    slow.reset()


async def test_a_slow_catch_up_reader_does_not_delay_a_fast_one(
    start: Start, origin: RunningOrigin, faults: Faults, counters: Counters
) -> None:
    edge = await start(origin.url, client_write_timeout_s=10, send_buffer_bytes=32_768)
    body = BLOCK * 64
    await edge.send_to(origin.url, "PUT", "/s", {"Content-Type": BINARY}, body)
    stall = faults.stall(1_000, kind=Kind.CATCHUP, times=1)
    slow = await edge.begin("/s", receive_bytes=16_384)
    await bounded(stall.waiting(1))
    fast = await edge.begin("/s")
    await eventually(edge.readers(2))
    stall.release()
    assert (await fast.answer()).body == body
    assert (await slow.answer()).body == body
    assert counters.body_bytes[Kind.CATCHUP] == len(body)


async def test_a_slow_reader_of_what_is_too_large_to_keep_does_not_hold_it_in_memory(
    start: Start, origin: RunningOrigin, faults: Faults, counters: Counters
) -> None:
    """It is dropped once it is too far behind the fast one, which gets everything; it never gets a clean end."""
    edge = await start(
        origin.url, client_write_timeout_s=20, send_buffer_bytes=32_768, max_flight_bytes=1 << 20, cache_bytes=64 << 20
    )
    body = BLOCK * 160
    await edge.send_to(origin.url, "PUT", "/s", {"Content-Type": BINARY}, body)
    stall = faults.stall(500_000, kind=Kind.CATCHUP, times=1)
    slow = await edge.begin("/s", receive_bytes=16_384)
    await bounded(stall.waiting(1))
    fast = await edge.begin("/s")
    await eventually(edge.readers(2))
    flights = [flight for _, flight in edge.gateway.engine.fetches.flights()]
    held: list[int] = []

    async def read_fast() -> bytes:
        await fast.head()
        got = bytearray()
        while piece := await fast.piece():
            got += piece
            held.append(max(sum(map(len, flight.kept)) for flight in flights))
        return bytes(got)

    stall.release()
    assert await read_fast() == body
    assert max(held) < 6 << 20
    await slow.head()
    with pytest.raises(Dropped) as dropped:
        await slow.body()
    assert body.startswith(dropped.value.body)
    assert edge.gateway.engine.store.cost < 1 << 20


async def test_an_origin_is_not_read_faster_than_the_fastest_client(
    start: Start, origin: RunningOrigin, counters: Counters
) -> None:
    edge = await start(origin.url, client_write_timeout_s=20, send_buffer_bytes=32_768)
    body = BLOCK * 512
    await edge.send_to(origin.url, "PUT", "/s", {"Content-Type": BINARY}, body)
    slow = await edge.begin("/s", receive_bytes=16_384)
    await slow.head()
    await eventually(lambda: any(flight.size >= 1 << 20 for _, flight in edge.gateway.engine.fetches.flights()))
    # A few turns of the loop: nothing may arrive beyond the window and the pieces in flight.
    await pass_turns(50)
    assert all(flight.size < 3 << 20 for _, flight in edge.gateway.engine.fetches.flights())
    slow.reset()
    await edge.until_idle()

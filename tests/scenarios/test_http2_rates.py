"""The least rate over HTTP/2: it holds for each stream, whatever the other streams of its connection do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from hyperframe.frame import WindowUpdateFrame

from gateway.app import RunningGateway
from gateway.origin.app import RunningOrigin
from tests.scenarios.conftest import Start
from tests.scenarios.http2_wire import Call, Http2Wire
from tests.scenarios.wire import BOUND_S

TEXT = {"Content-Type": "text/plain"}
CANCEL = 8
PAUSE_S = 0.02
"""Between two bytes of a client that is too slow."""


Opened = Callable[[str], Awaitable[Http2Wire]]


@pytest.fixture
async def open_wire() -> AsyncIterator[Opened]:
    """Opens connections with prior knowledge of HTTP/2."""
    wires: list[Http2Wire] = []

    async def open_one(url: str) -> Http2Wire:
        wires.append(await Http2Wire.open(url))
        return wires[-1]

    yield open_one
    for wire in wires:
        await wire.closed()


def limited(gateway: RunningGateway) -> float:
    """Clients that were slower than the least rate."""
    (found,) = [
        sample.value
        for metric in gateway.metrics.collect()
        for sample in metric.samples
        if sample.name == "durable_gateway_client_limited_total" and "client_min_rate" in sample.labels.values()
    ]
    return found


async def grant(wire: Http2Wire, call: Call, size: int) -> None:
    """Let `size` more bytes of an answer come."""
    await wire.frame(WindowUpdateFrame(call.id, size))


async def two_calls(wire: Http2Wire, target: str) -> tuple[Call, Call]:
    await wire.ask(target)
    first = wire.call
    await wire.ask(target)
    return first, wire.call


@pytest.mark.parametrize(("least", "timeout_s"), [(0, 20.0), (100_000_000, 1.0)])
async def test_an_answer_is_read_at_a_least_rate(
    origin: RunningOrigin, start: Start, open_wire: Opened, least: int, timeout_s: float
) -> None:
    edge = await start(origin.url, client_write_timeout_s=timeout_s, client_min_rate=least, follow_above_per_s=0)
    body = b"x" * 1_000_000
    assert (await edge.put("/s", body)).status == 201
    wire = await open_wire(edge.url)
    await wire.greet(INITIAL_WINDOW_SIZE=0)
    slow, other = await two_calls(wire, "/s?offset=-1")
    await grant(wire, other, 1 << 24)
    assert (await wire.answer_of(other)).body == body
    granted = 8_192
    await grant(wire, slow, granted)
    async with asyncio.timeout(BOUND_S):
        while len(slow.body) < len(body) and slow.reset is None:
            # Where a rate is due, what was granted is too little for it, and no more follows.
            if not least and len(slow.body) == granted:
                granted += 8_192
                await grant(wire, slow, 8_192)
            await wire.read()
    assert (slow.body == body, slow.reset) == ((False, CANCEL) if least else (True, None))
    assert limited(edge.gateway) == (1 if least else 0)
    # The connection stays.
    await wire.ask("/nowhere")
    assert (await wire.head()).status == 404


@pytest.mark.parametrize("size", [10_000, 200_000])
async def test_an_upload_slower_than_the_least_rate_is_answered_408_alone(
    origin: RunningOrigin, start: Start, open_wire: Opened, size: int
) -> None:
    edge = await start(origin.url, client_idle_timeout_s=2.0, client_min_rate=1_000_000)
    assert (await edge.put("/s")).status == 201
    wire = await open_wire(edge.url)
    await wire.ask("/s", TEXT | {"Content-Length": str(size)}, "POST", b"", ends=False)
    slow = wire.call
    async with asyncio.timeout(BOUND_S):
        assert await upload(wire, slow, size) == 408
    assert limited(edge.gateway) == 1
    await wire.ask("/s?offset=-1")
    assert (await wire.answer()).status == 200


async def upload(wire: Http2Wire, call: Call, size: int) -> int:
    """The status of the answer to a body that comes a byte at a time."""
    reading = asyncio.create_task(wire.head_of(call))
    for _ in range(size):
        if reading.done():
            break
        await wire.part(b"x", call=call)
        await asyncio.wait([reading], timeout=PAUSE_S)
    return (await reading).status


async def test_uploads_that_keep_the_least_rate_share_a_connection(
    origin: RunningOrigin, start: Start, open_wire: Opened
) -> None:
    edge = await start(origin.url, client_min_rate=100)
    assert (await edge.put("/s")).status == 201
    wire = await open_wire(edge.url)
    calls = []
    for _ in range(5):
        await wire.ask("/s", TEXT, "POST", b"", ends=False)
        calls.append(wire.call)
    for number in range(5):
        for call in calls:
            await wire.part(b"x" * 100, call=call, ends=number == 4)
    for call in calls:
        assert (await wire.answer_of(call)).status in (200, 204)
    assert limited(edge.gateway) == 0

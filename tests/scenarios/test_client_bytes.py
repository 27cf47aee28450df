"""What clients make the gateway hold is bounded for all together: those that hold the most are dropped first."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest

from gateway.origin.app import OriginSettings, RunningOrigin
from gateway.protocol.mode import Mode
from tests.scenarios.conftest import Edge, Start
from tests.scenarios.wire import Dropped, Wire
from tests.waiting import eventually

BINARY = "application/octet-stream"
BODY = bytes(range(256)) * 16_384
BOUND = 2 << 20


@pytest.fixture
def origin_settings() -> OriginSettings:
    return OriginSettings(max_chunk_bytes=64 << 20)


async def greedy_readers(edge: Edge, count: int) -> list[Wire]:
    """Clients that read an answer's head and no more."""
    wires = [await edge.begin("/large?offset=-1", receive_bytes=16_384) for _ in range(count)]
    for wire in wires:
        await wire.head()
    return wires


def shed(edge: Edge) -> float:
    return edge.gateway.memory.figures().shed["client_bytes"]


async def test_the_clients_that_hold_the_most_are_dropped(start: Start, origin: RunningOrigin) -> None:
    edge = await start(origin.url, client_bytes=BOUND, client_write_timeout_s=30, fast_path=False)
    await edge.put("/large", BODY, BINARY)
    await edge.put("/small", b"x")
    good = await edge.begin("/small?offset=-1")
    assert (await good.answer()).body == b"x"
    greedy = await greedy_readers(edge, 60)
    memory = edge.gateway.memory
    await memory.look()
    assert 0 < shed(edge) < len(greedy)
    await memory.look()
    assert memory.client_bytes <= BOUND
    await good.ask("/small?offset=-1")
    assert (await good.answer()).body == b"x"
    ended = await asyncio.gather(*(wire.body() for wire in greedy), return_exceptions=True)
    # The gateway looks by itself as well, once a second.
    assert 0 < sum(isinstance(one, Dropped | ConnectionError) for one in ended) <= shed(edge) < len(greedy)
    assert all(one == BODY for one in ended if isinstance(one, bytes))


async def test_below_the_bound_no_client_is_dropped(start: Start, origin: RunningOrigin) -> None:
    edge = await start(origin.url, client_bytes=64 << 20, client_write_timeout_s=30, fast_path=False)
    await edge.put("/large", BODY, BINARY)
    await greedy_readers(edge, 60)
    await edge.gateway.memory.look()
    assert edge.gateway.memory.client_bytes > BOUND
    assert shed(edge) == 0


@pytest.mark.http_1
async def test_unfinished_heads_and_bodies_count(start: Start, origin: RunningOrigin) -> None:
    edge = await start(origin.url, client_bytes=200_000)
    await edge.put("/s", b"x")
    heads = [await edge.wire() for _ in range(10)]
    for wire in heads:
        await wire.send(b"GET /s HTTP/1.1\r\nHost: edge\r\n" + b"X-Fill: " + b"f" * 8_000 + b"\r\nX-More: ")
    memory = edge.gateway.memory

    async def all_seen() -> bool:
        await memory.look()
        return memory.client_bytes > 80_000

    await eventually(all_seen)
    assert shed(edge) == 0
    for wire in heads:
        await wire.send(b"f" * 8_000 + b"\r\nX-More: " + b"f" * 7_000)

    async def all_fit() -> bool:
        # A look that drops clients still counts the bytes that these clients held.
        await memory.look()
        return shed(edge) > 0 and memory.client_bytes <= 200_000

    await eventually(all_fit)
    assert shed(edge) < len(heads)
    assert (await edge.get("/s?offset=-1")).body == b"x"


async def test_a_large_answer_that_waiting_clients_share_is_no_clients_own(start: Start, origin: RunningOrigin) -> None:
    # Over TLS and HTTP/2 each client has copies of the beginning.
    bound = 8 << 20
    edge = await start(origin.url, client_bytes=bound, client_write_timeout_s=30)
    await edge.put("/large", b"", BINARY)
    wires = [await edge.begin("/large?offset=now&live=long-poll", receive_bytes=16_384) for _ in range(20)]
    await eventually(lambda: edge.gateway.sample().subscribers[Mode.LONGPOLL] == 20)
    await edge.post("/large", BODY, BINARY)
    for wire in wires:
        await wire.head()
    await edge.gateway.memory.look()
    assert edge.gateway.clients.unsent()[0] > 4 * bound
    assert edge.gateway.memory.client_bytes < bound
    assert shed(edge) == 0
    for wire in wires:
        assert await wire.body() == BODY


PIECE = bytes(range(256)) * 4_096


def drop_bytes(edge: Edge) -> None:
    """Drop everything that the cache holds."""
    store = edge.gateway.engine.store
    for stream in list(store):
        store.forget_bytes(stream)


async def test_an_answer_that_the_cache_has_dropped_is_its_clients_own(start: Start, origin: RunningOrigin) -> None:
    edge = await start(origin.url, cache_bytes=4 << 20, client_bytes=64 << 20, client_write_timeout_s=30)
    memory, names = edge.gateway.memory, [f"/large-{number}" for number in range(6)]
    wires = []
    for name in names:
        await edge.put(name, PIECE, BINARY)
        for _ in range(3):
            # A hit that was a hit before is sent from remembered bytes.
            assert (await edge.get(f"{name}?offset=-1")).body == PIECE
        wires.append(await edge.begin(f"{name}?offset=-1", receive_bytes=16_384))
        await wires[-1].head()
    drop_bytes(edge)
    await memory.look()
    assert memory.client_bytes > 4 * len(PIECE)
    for wire in wires:
        assert await wire.body() == PIECE
    await memory.look()
    assert memory.client_bytes == 0


async def test_clients_that_share_what_the_cache_has_dropped_are_charged_once(
    start: Start, origin: RunningOrigin
) -> None:
    edge = await start(origin.url, cache_bytes=4 << 20, client_bytes=64 << 20, client_write_timeout_s=30)
    memory = edge.gateway.memory
    await edge.put("/large", PIECE, BINARY)
    for _ in range(3):
        await edge.get("/large?offset=-1")
    wires = [await edge.begin("/large?offset=-1", receive_bytes=16_384) for _ in range(8)]
    for wire in wires:
        await wire.head()
    await memory.look()
    before = memory.client_bytes
    drop_bytes(edge)
    await memory.look()
    assert len(PIECE) // 2 < memory.client_bytes - before <= len(PIECE) + 8_192
    for wire in wires:
        assert await wire.body() == PIECE


async def test_answers_to_waiting_clients_of_many_pages_share_their_body(start: Start, origin: RunningOrigin) -> None:
    clients = 24
    edge = await start(origin.url, cache_bytes=16 << 20, client_bytes=256 << 20, client_write_timeout_s=30)
    await edge.put("/large", b"", BINARY)
    wires = [
        await edge.begin(
            "/large?offset=now&live=long-poll", {"Origin": f"https://page-{number}.test"}, receive_bytes=16_384
        )
        for number in range(clients)
    ]
    await eventually(lambda: edge.gateway.sample().subscribers[Mode.LONGPOLL] == clients)
    tracemalloc.start()
    try:
        await edge.post("/large", BODY, BINARY)
        for wire in wires:
            await wire.head()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The origin's bytes, the tape's, and bytes under way; over TLS and HTTP/2 the beginnings of each answer.
    assert held < 6 * len(BODY) + clients * (512 << 10)
    await edge.gateway.memory.look()
    assert edge.gateway.memory.client_bytes < clients * (512 << 10)
    drop_bytes(edge)
    await edge.gateway.memory.look()
    assert edge.gateway.memory.client_bytes > len(BODY) // 2
    for wire in wires:
        assert await wire.body() == BODY

"""S2 sessions over HTTP/2 whose clients do not read: each holds little, and what it holds counts whole."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from gateway.origin.s2.calls import Call
from gateway.s2 import session
from tests.s2.edge.clients import BASIN, STREAM, Edge, SessionReader, SseReader
from tests.scenarios.http2_wire import Call as Http2Call
from tests.scenarios.http2_wire import Http2Wire
from tests.waiting import eventually

SESSIONS = 8
WAYS = [("session", 1), ("session", SESSIONS), ("events", 1)]
"""Forms of a session, and the number of connections on which there are `SESSIONS` of them."""


@dataclass
class Reply:
    """An answer on one HTTP/2 stream, in the form in which the readers of sessions expect it."""

    wire: Http2Wire
    call: Http2Call
    status: int = 200

    @property
    def content(self) -> Reply:
        return self

    async def readany(self) -> bytes:
        return await self.wire.piece_of(self.call)


async def begin(wire: Http2Wire, how: str, query: str) -> SessionReader | SseReader:
    """Open a session without reading more than its head."""
    form = {"Content-Type": session.CONTENT_TYPE} if how == "session" else {"Accept": "text/event-stream"}
    headers = {"Authorization": "Bearer token", "s2-basin": BASIN, "Accept-Encoding": "identity", **form}
    await wire.ask(f"/v1/streams/{STREAM}/records?{query}", headers)
    reply = Reply(wire, wire.call, (await wire.head()).status)
    assert reply.status == 200
    return SessionReader(reply) if how == "session" else SseReader(reply)  # type: ignore[arg-type]


@asynccontextmanager
async def connected(edge: Edge, connections: int) -> AsyncIterator[list[Http2Wire]]:
    """Connections that are for one session each, or one connection that is for all."""
    wires = [await Http2Wire.open(edge.gateway.gateway_url, 16_384) for _ in range(connections)]
    for wire in wires:
        # A session with a connection to itself waits for the connection rather than for the window of its stream.
        await wire.greet(**({} if connections == 1 else {"INITIAL_WINDOW_SIZE": 1 << 24}))
    try:
        yield wires
    finally:
        for wire in wires:
            await wire.closed()


def are_full(edge: Edge) -> list[bool]:
    """For each session, whether its client has left as much unread as may wait."""
    return [reader._wire.is_full for reader in edge.gateway.engine.s2.readers]


@pytest.mark.parametrize(("how", "connections"), WAYS)
async def test_sessions_that_are_not_read_hold_little_and_count_whole(edge: Edge, how: str, connections: int) -> None:
    texts = [f"{number}" + "x" * 100_000 for number in range(30)]
    for first in range(0, len(texts), 10):
        await edge.client.append(*texts[first : first + 10])
    full = await edge.client.session("seq_num=0&count=30")
    assert await full.texts(30) == texts
    async with connected(edge, connections) as wires:
        tracemalloc.start()
        try:
            readers = [
                await begin(wires[start % connections], how, f"seq_num={start}&count=14") for start in range(SESSIONS)
            ]
            await eventually(lambda: all(are_full(edge)))
            held, _ = tracemalloc.get_traced_memory()
            await edge.gateway.memory.look()
            counted = edge.gateway.memory.client_bytes
        finally:
            tracemalloc.stop()
        unsent, _ = edge.gateway.clients.unsent()
        # Each session holds a part of its batch in the output, and the batch, which counts whole.
        assert counted < held < SESSIONS * 600_000
        assert unsent + SESSIONS * 150_000 < counted < unsent + SESSIONS * 300_000
        # What does not count is what this process holds for the clients, and the sent beginning of buffers.
        assert held < counted + SESSIONS * 250_000
        for start, reader in enumerate(readers):
            assert await reader.texts(14) == texts[start : start + 14]


@pytest.mark.parametrize(("how", "connections"), WAYS)
async def test_sessions_that_do_not_read_a_large_record_share_its_bytes(edge: Edge, how: str, connections: int) -> None:
    await edge.client.append("first")
    async with connected(edge, connections) as wires:
        readers = [await begin(wires[number % connections], how, "seq_num=0") for number in range(SESSIONS)]
        for reader in readers:
            assert await reader.texts(1) == ["first"]
        await edge.counters.sessions_are(Call.READ_SESSION, 1)
        await eventually(lambda: "catching up" not in repr(edge.gateway.engine.s2.readers))
        text = "x" * 1_000_000
        tracemalloc.start()
        try:
            await edge.direct.append(text)
            await eventually(lambda: all(are_full(edge)))
            held, _ = tracemalloc.get_traced_memory()
            await edge.gateway.memory.look()
            counted = edge.gateway.memory.client_bytes
        finally:
            tracemalloc.stop()
        assert held < SESSIONS / 2 * 1_000_000 + 2_000_000
        assert counted > 1_000_000
        for reader in readers:
            assert await reader.texts(1) == [text]

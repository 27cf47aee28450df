"""Requests to S2 streams leave no cyclic garbage behind, so that memory stays low even if the collector runs rarely."""

from __future__ import annotations

import asyncio

import pytest

from gateway.origin.s2.calls import Call
from gateway.s2 import session
from gateway.s2.errors import S2ErrorCode
from tests.s2.edge.clients import BASIN, BOUND_S, Edge
from tests.server.test_garbage import collecting
from tests.waiting import eventually, time_passing

ROUNDS = 5


async def ask(edge: Edge, method: str, path: str, *headers: str, body: bytes = b"", until: bytes = b"") -> bytes:
    """What a connection of its own is sent, up to `until` or to its end."""
    port = int(edge.gateway.gateway_url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    own = ["Host: h", f"s2-basin: {BASIN}", *headers, *([f"Content-Length: {len(body)}"] if body else [])]
    last = [] if until else ["Connection: close"]
    async with asyncio.timeout(BOUND_S):
        writer.write("\r\n".join([f"{method} {path} HTTP/1.1", *own, *last, "", ""]).encode() + body)
        found = await (reader.readuntil(until) if until else reader.read())
        writer.close()
        await writer.wait_closed()
    return found


async def use(edge: Edge, stream: str) -> None:
    """Requests of all kinds to a stream of its own."""
    path = f"/v1/streams/{stream}/records"
    assert b" 404 " in await ask(edge, "GET", f"{path}?seq_num=0")
    body = b'{"records":[{"body":"a"},{"body":"b"}]}'
    assert b" 200 " in await ask(edge, "POST", path, "Content-Type: application/json", body=body)
    for query in ("seq_num=0&count=1", "seq_num=0&count=1", "seq_num=0", "tail_offset=1", "timestamp=0", "seq_num=2"):
        assert b" HTTP/1.1" not in await ask(edge, "GET", f"{path}?{query}")
    assert b'"tail"' in await ask(edge, "GET", f"{path}/tail")
    events, s2s = "Accept: text/event-stream", f"Content-Type: {session.CONTENT_TYPE}"
    assert b"[DONE]" in await ask(edge, "GET", f"{path}?seq_num=0&count=2", events)
    await ask(edge, "GET", f"{path}?seq_num=0&count=2", s2s)
    # Live readers, which leave.
    await ask(edge, "GET", f"{path}?seq_num=0", events, until=b"ping")
    await ask(edge, "GET", f"{path}?seq_num=1", s2s, until=b"b")
    assert b" 20" in await ask(edge, "DELETE", f"/v1/streams/{stream}")
    await eventually(lambda: not edge.gateway.engine.s2.sessions)


@pytest.fixture
def settings() -> dict[str, object]:
    return {"live_linger_s": 0, "breaker_failures": 10_000, "breaker_requests": 10_000}


async def test_no_request_leaves_a_reference_cycle(edge: Edge) -> None:
    async with time_passing(edge.clock):
        await use(edge, "first")
        await eventually(lambda: "0 in use, 0 followed" in repr(edge.gateway.engine.s2))
        with collecting("gateway.s2.", "gateway.aio.") as found:
            for number in range(ROUNDS):
                await use(edge, str(number))
                await eventually(lambda: "0 in use, 0 followed" in repr(edge.gateway.engine.s2))
    assert sorted(set(found)) == []


@pytest.mark.parametrize("how", ["refuse", "error", "garbage", "cut"])
@pytest.mark.parametrize("kind", ["unary", "tail", "events", "session", "timestamp"])
async def test_a_failed_read_leaves_no_reference_cycle(edge: Edge, how: str, kind: str) -> None:
    await edge.client.append(*"ab", stream="s")
    match how:
        case "refuse":
            edge.faults.refuse(times=None, kind=None)
        case "error":
            edge.faults.error(S2ErrorCode.STORAGE, times=None)
        case "garbage":
            edge.faults.replace(200, {}, b"\xff", times=None)
        case _:
            for call in (Call.READ, Call.CHECK_TAIL):
                edge.faults.truncate(after_bytes=1, times=None, kind=call)
    path = "/v1/streams/s/records"
    line = {
        "unary": (f"{path}?seq_num=0",),
        "tail": (f"{path}/tail",),
        "events": (f"{path}?tail_offset=0", "Accept: text/event-stream"),
        "session": (f"{path}?seq_num=0", f"Content-Type: {session.CONTENT_TYPE}"),
        "timestamp": (f"{path}?timestamp=0",),
    }[kind]
    await ask(edge, "GET", *line)
    with collecting("gateway.s2.", "gateway.aio.") as found:
        for _ in range(ROUNDS):
            assert b" 50" in await ask(edge, "GET", *line)
        await eventually(lambda: "0 in use" in repr(edge.gateway.engine.s2))
    assert sorted(set(found)) == []


@pytest.mark.parametrize("how", ["finish", "fail", "refuse"])
async def test_a_session_that_is_lost_leaves_no_reference_cycle(edge: Edge, how: str) -> None:
    await edge.client.append(*"ab", stream="s")
    match how:
        case "finish":
            edge.faults.finish_session(after_messages=0, times=None, kind=Call.READ_SESSION)
        case "fail":
            edge.faults.fail_session(S2ErrorCode.STREAM_NOT_FOUND, times=None, kind=Call.READ_SESSION)
        case _:
            edge.faults.refuse(times=None, kind=Call.READ_SESSION)
    line = ("/v1/streams/s/records?seq_num=0", "Accept: text/event-stream")
    async with time_passing(edge.clock):
        await ask(edge, "GET", *line)
        with collecting("gateway.s2.", "gateway.aio.") as found:
            for _ in range(ROUNDS):
                assert b"event: error" in await ask(edge, "GET", *line)
            await eventually(lambda: "0 in use, 0 followed" in repr(edge.gateway.engine.s2))
    assert sorted(set(found)) == []

"""A path that names another stream for each party: what one party writes does not end what the others read.

A write's answer states facts about the writer's own stream.  Readers with other credentials keep or resume their reads,
and none of them learns that its stream does not exist.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway.origin.app import RunningOrigin
from gateway.origin.counters import Counters
from gateway.origin.faults import Faults
from gateway.origin.requests import Kind
from tests.scenarios.conftest import Edge, Hostile, Start, bounded
from tests.scenarios.hostile import Asked, HostileOrigin, answer
from tests.scenarios.wire import Wire
from tests.waiting import eventually

ALICE = {"Authorization": "Bearer alice"}
BOB = {"Authorization": "Bearer bob"}
TYPE = "application/octet-stream"


class Parties:
    """The script of an origin whose `/s` is another stream for each Authorization.  Offsets have four digits."""

    def __init__(self) -> None:
        self.streams = {"Bearer bob": b"for bob"}
        self.live: list[tuple[str, asyncio.StreamWriter]] = []
        """Open live requests: the party, and where its answer goes."""

    def append(self, party: str, data: bytes) -> None:
        """Append directly at the origin; its live readers are sent it."""
        self.streams[party] += data
        tail = f"{len(self.streams[party]):04d}"
        control = json.dumps({"streamNextOffset": tail, "streamCursor": "1", "upToDate": True})
        event = f"event: data\ndata:{base64.b64encode(data).decode()}\n\nevent: control\ndata:{control}\n\n"
        for reader, writer in self.live:
            if reader == party and not writer.is_closing():
                writer.write(f"{len(event):x}\r\n{event}\r\n".encode())

    async def __call__(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        party = asked.headers.get("Authorization", "")
        held = self.streams.get(party)
        match asked.method:
            case "PUT":
                self.streams.setdefault(party, b"")
                status = "201 Created" if held is None else "200 OK"
                writer.write(answer(status, {"Content-Type": TYPE, "Stream-Next-Offset": self._tail(party)}))
            case "DELETE":
                self.streams.pop(party, None)
                writer.write(answer("204 No Content", {}) if held is not None else answer("404 Not Found", {}))
            case "POST":
                self.streams[party] = (held or b"") + b"x"
                writer.write(answer("204 No Content", {"Stream-Next-Offset": self._tail(party)}))
            case _ if held is None:
                writer.write(answer("404 Not Found", {"Content-Type": "text/plain"}))
            case "GET" if "live=sse" in asked.target:
                fields = {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}
                writer.write(answer("200 OK", {**fields, "Stream-SSE-Data-Encoding": "base64"}))
                control = json.dumps({"streamNextOffset": self._tail(party), "streamCursor": "1", "upToDate": True})
                event = f"event: control\ndata:{control}\n\n"
                writer.write(f"{len(event):x}\r\n{event}\r\n".encode())
                self.live.append((party, writer))
            case _:
                offset = asked.target.partition("offset=")[2][:4]
                start = len(held) if offset == "now" else int(offset) if offset.isdigit() else 0
                fields = {"Content-Type": TYPE, "Stream-Next-Offset": self._tail(party), "Stream-Up-To-Date": "true"}
                body = held[start:] if asked.method == "GET" else b""
                writer.write(answer("200 OK", {**fields, "Content-Length": str(len(held[start:]))}, body))

    def _tail(self, party: str) -> str:
        return f"{len(self.streams[party]):04d}"


async def with_readers_of_bob(start: Start, hostile: Hostile) -> tuple[Parties, HostileOrigin, Edge, Wire, Wire]:
    """An SSE reader and a long-poll of Bob at his tail."""
    parties = Parties()
    origin = await hostile(parties, takes_head=True)
    edge = await start(origin.url, live_linger_s=5)
    assert (await edge.get("/s", BOB)).body == b"for bob"
    events = await edge.begin("/s?offset=0007&live=sse", BOB)
    assert (await events.head()).status == 200
    polling = await edge.begin("/s?offset=0007&live=long-poll", BOB)
    await eventually(subscribed(edge, 2))
    return parties, origin, edge, events, polling


def subscribed(edge: Edge, count: int) -> Callable[[], bool]:
    """Whether this many live readers have subscribed, all to live requests that have confirmed the tail."""

    def are_there() -> bool:
        topics = list(edge.gateway.engine.live.topics())
        return sum(topic.readers for topic in topics) == count and all(topic.is_confirmed for topic in topics)

    return are_there


async def data_of(events: Wire) -> str | None:
    """The data of the next data event; None at the clean end."""
    while (event := await events.event()) is not None:
        if event.name == "data":
            return event.data
    return None


@pytest.mark.parametrize("method", ["PUT", "DELETE", "POST"])
async def test_what_one_party_writes_gives_no_404_to_the_live_readers_of_another(
    start: Start, hostile: Hostile, method: str
) -> None:
    parties, _, edge, events, polling = await with_readers_of_bob(start, hostile)
    if method == "DELETE":
        parties.streams["Bearer alice"] = b"for alice"
    written = await edge.send(method, "/s", {**ALICE, "Content-Type": TYPE}, b"" if method != "DELETE" else None)
    assert written.status == (201 if method == "PUT" else 204)
    found = asyncio.create_task(data_of(events))
    async with edge.time_passing():
        await eventually(lambda: found.done() or bool(parties.live))
        if method != "POST":
            # The gateway no longer knows whose bytes it holds: the reader resumes from its offset.
            assert await bounded(found) is None
            events = await edge.begin("/s?offset=0007&live=sse", BOB)
            assert (await events.head()).status == 200
            found = asyncio.create_task(data_of(events))
        await eventually(subscribed(edge, 2))
        parties.append("Bearer bob", b"!")
        answered = await bounded(polling.answer())
        assert (answered.status, answered.body) == (200, b"!")
        assert await bounded(found) == "IQ=="


async def test_what_one_party_appends_does_not_restart_the_live_request_of_another(
    start: Start, hostile: Hostile
) -> None:
    parties, origin, edge, events, polling = await with_readers_of_bob(start, hostile)

    def asked_live() -> int:
        return sum("live=" in asked.target for asked in origin.asked)

    before = asked_live()
    async with edge.time_passing():
        for _ in range(20):
            assert (await edge.send("POST", "/s", {**ALICE, "Content-Type": TYPE}, b"x")).status == 204
        # Alice's tail is beyond Bob's by now, and a stalled live request would be noticed after a second.
        now = edge.clock.now()
        await eventually(lambda: edge.clock.now() > now + 3)
        parties.append("Bearer bob", b"!")
        assert (await bounded(polling.answer())).body == b"!"
        assert await bounded(data_of(events)) == "IQ=="
    assert asked_live() - before <= 1


@pytest.fixture
def settings() -> dict[str, Any]:
    return {"live_linger_s": 5}


@pytest.mark.parametrize("mode", ["sse", "long-poll"])
async def test_a_late_201_gives_no_404_to_the_readers_of_the_life_that_it_began(
    edge: Edge, origin: RunningOrigin, faults: Faults, counters: Counters, mode: str
) -> None:
    gate = faults.hold(kind=Kind.CREATE, when="reply", times=1)
    putting = asyncio.create_task(edge.put("/s", b"first", TYPE))
    await bounded(gate.waiting(1))
    read = await edge.get("/s")
    assert (read.status, read.body) == (200, b"first")
    reader = await edge.begin(f"/s?offset={read.next_offset}&live={mode}")
    await bounded(counters.parked_is(1))
    await eventually(subscribed(edge, 1))
    gate.release()
    assert (await bounded(putting)).status == 201
    async with edge.time_passing():
        if mode == "sse":
            assert (await reader.head()).status == 200
            assert await data_of(reader) is None
            reader = await edge.begin(f"/s?offset={read.next_offset}&live={mode}")
            assert (await reader.head()).status == 200
        await eventually(subscribed(edge, 1))
        assert (await edge.post("/s", b" second", TYPE)).status == 204
        if mode == "sse":
            assert await bounded(data_of(reader)) == "IHNlY29uZA=="
        else:
            answered = await bounded(reader.answer())
            assert (answered.status, answered.body) == (200, b" second")
    assert (await edge.get("/s")).body == b"first second"

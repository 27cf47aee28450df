"""A refusal that the origin gave before it acknowledged a write says nothing about the stream after the write.

The gateway sends a request; the origin refuses it, and the answer takes long.  Meanwhile a write through the gateway is
acknowledged.  Later readers do not get the refusal, and it ends no live read.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from gateway.origin.app import RunningOrigin
from gateway.origin.faults import Faults, GatedSwitch
from gateway.origin.requests import Kind
from tests.scenarios.conftest import Edge, Hostile, Start, as_json, bounded
from tests.scenarios.hostile import Asked, answer, part_of_stream
from tests.scenarios.wire import Wire
from tests.waiting import eventually

JSON = "application/json"
ZERO = f"{0:016d}_{0:016d}"
"""The first offset of a stream at the in-memory origin."""
EARLY = {
    "catch-up": "/s?offset=-1",
    "now": "/s?offset=now",
    "long-poll": f"/s?offset={ZERO}&live=long-poll",
    "long-poll of all": "/s?offset=-1&live=long-poll",
    "sse": "/s?offset=-1&live=sse",
}
"""Reads of bytes that are not in memory: each asks the origin by a GET, except that the first long-poll uses a HEAD."""


def late(faults: Faults, kind: Kind, status: int) -> GatedSwitch:
    """Refuse the next request of this kind when the gate opens."""
    faults.status(status, kind=kind, times=1)
    return faults.hold(kind=kind, times=1)


async def write(edge: Edge, origin: RunningOrigin) -> str:
    """Create the stream directly at the origin and write to it through the gateway; returns the acknowledged tail."""
    await edge.send_to(origin.url, "PUT", "/s", {"Content-Type": JSON}, b'["a"]')
    assert (await edge.put("/s", b'["a"]', JSON)).status == 200
    acked = await edge.post("/s", b'["b"]', JSON)
    assert acked.status == 204
    return acked.next_offset


def readers(edge: Edge, count: int) -> Callable[[], bool]:
    """Whether this many live readers have subscribed."""
    return lambda: sum(topic.readers for topic in edge.gateway.engine.live.topics()) >= count


@asynccontextmanager
async def undisturbed(edge: Edge, tail: str) -> AsyncIterator[None]:
    """Two live readers at the tail, which must get the next message and nothing else."""
    polling = edge.asking(f"/s?offset={tail}&live=long-poll")
    events = await edge.begin(f"/s?offset={tail}&live=sse")
    async with edge.time_passing():
        assert (await events.head()).status == 200
        await eventually(readers(edge, 2))
        yield
        assert (await edge.get("/s")).status == 200
        await edge.post("/s", b'["c"]', JSON)
        found = await bounded(polling)
        assert found.status == 200
        assert as_json(found)[-1] == "c"
        await until_sent(events, "c")


async def until_sent(events: Wire, message: str) -> None:
    """Wait until an SSE reader gets the message."""
    while (event := await events.event()) is not None:
        if event.name == "data" and message in json.loads(event.data):
            return
    raise AssertionError("the events ended")


@pytest.mark.parametrize("status", [404, 410])
@pytest.mark.parametrize("early", EARLY.values(), ids=EARLY)
async def test_a_late_refusal_ends_no_live_read_after_an_acknowledged_write(
    edge: Edge, origin: RunningOrigin, faults: Faults, early: str, status: int
) -> None:
    kind = Kind.HEAD if ZERO in early else Kind.CATCHUP
    gate = late(faults, kind, status)
    asking = edge.asking(early)
    await bounded(gate.waiting(1))
    tail = await write(edge, origin)
    # The late answer's own offset is left out: its readers wait for that answer.
    assert (await edge.get("/s?offset=now" if "now" not in early else "/s")).status == 200
    async with undisturbed(edge, tail):
        gate.release()
        if "sse" in early:
            await eventually(lambda: not edge.gateway.engine.fetches)
        else:
            assert (await bounded(asking)).status in (200, 204, status)


READS = ["/s?offset=-1", "/s?offset=now", *(f"/s?offset={at}&live=long-poll" for at in ("-1", "now", ZERO))]


@pytest.mark.parametrize("status", [404, 410])
@pytest.mark.parametrize("early", EARLY.values(), ids=EARLY)
@pytest.mark.parametrize("read", [*READS, "/s?offset=-1&live=sse", "/s?offset=now&live=sse"])
async def test_no_read_after_an_acknowledged_write_gets_a_late_refusal(
    edge: Edge, origin: RunningOrigin, faults: Faults, early: str, read: str, status: int
) -> None:
    gate = late(faults, Kind.HEAD if ZERO in early else Kind.CATCHUP, status)
    edge.asking(early)
    await bounded(gate.waiting(1))
    await write(edge, origin)
    wire = await edge.begin(read)
    reply = asyncio.create_task(wire.head())
    waits = (edge.readers(2), readers(edge, 1), reply.done)
    async with edge.time_passing(0.001):
        await eventually(lambda: any(is_so() for is_so in waits))
        gate.release()
        await eventually(lambda: not edge.gateway.engine.fetches)
        await edge.post("/s", b'["c"]', JSON)
        assert (await bounded(reply)).status == 200
        if "sse" in read:
            await until_sent(wire, "c")


@pytest.mark.parametrize("status", [404, 410])
@pytest.mark.parametrize("method", ["HEAD", "POST", "DELETE"])
async def test_a_late_refusal_of_what_was_relayed_ends_no_live_read(
    edge: Edge, faults: Faults, method: str, status: int
) -> None:
    await edge.put("/s", b'["a"]', JSON)
    await edge.get("/s")
    gate = late(faults, {"HEAD": Kind.HEAD, "POST": Kind.APPEND, "DELETE": Kind.DELETE}[method], status)
    body = b'["x"]' if method == "POST" else None
    early = asyncio.create_task(edge.send(method, "/s", {"Content-Type": JSON}, body))
    await bounded(gate.waiting(1))
    acked = await edge.post("/s", b'["b"]', JSON)
    async with undisturbed(edge, acked.next_offset):
        gate.release()
        assert (await bounded(early)).status == status


@pytest.mark.parametrize("status", [404, 410])
@pytest.mark.parametrize(
    ("content_type", "kind"),
    [(JSON, Kind.SSE), (JSON, Kind.HEAD), ("text/plain", Kind.CATCHUP), ("text/plain", Kind.LONGPOLL)],
)
async def test_a_live_request_refused_before_an_acknowledged_write_is_repeated(
    edge: Edge, faults: Faults, content_type: str, kind: Kind, status: int
) -> None:
    is_json = content_type == JSON
    messages = [b'["a"]', b'["b"]', b'["c"]'] if is_json else [b"a", b"b", b"c"]
    await edge.put("/s", messages[0], content_type)
    tail = (await edge.get("/s")).next_offset
    gate = late(faults, kind, status)
    async with edge.time_passing():
        polling = edge.asking(f"/s?offset={tail}&live=long-poll")
        await bounded(gate.waiting(1))
        events = await edge.begin(f"/s?offset={tail}&live=sse")
        assert (await events.head()).status == 200
        await eventually(readers(edge, 2))
        assert (await edge.post("/s", messages[1], content_type)).status == 204
        gate.release()
        assert (await bounded(polling)).body == messages[1]
        assert (await edge.post("/s", messages[2], content_type)).status == 204
        sent = ""
        while "c" not in sent:
            event = await events.event()
            assert event is not None
            sent += event.data if event.name == "data" else ""
    assert "b" in sent


async def test_a_late_answer_of_an_old_stream_ends_no_live_read_of_the_new_one(hostile: Hostile, start: Start) -> None:
    """The first answer belongs to a stream that was re-created at the origin before the answer arrived."""
    gate, is_first = asyncio.Event(), True

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal is_first
        if asked.method == "PUT":
            writer.write(answer("200 OK", {"Content-Type": "text/plain", "Stream-Next-Offset": "0001"}))
        elif "live=" in asked.target:
            await asyncio.Event().wait()
        elif is_first:
            is_first = False
            await gate.wait()
            writer.write(part_of_stream(b"old", "0001", ETag='"old:-1:0001"'))
        else:
            place = asked.target.partition("offset=")[2]
            body = b"new" if place == "-1" else b""
            place = "-1" if place == "now" else place
            writer.write(part_of_stream(body, "0001", ETag=f'"new:{place}:0001"'))

    origin = await hostile(script)
    edge = await start(origin.url, follow_above_per_s=0)
    early = edge.asking("/s?offset=-1")
    await origin.until(lambda: bool(origin.reads))
    assert (await edge.put("/s", b"new")).status == 200
    assert (await edge.get("/s?offset=now")).next_offset == "0001"
    polling = edge.asking("/s?offset=0001&live=long-poll")
    await origin.until(lambda: any("live=" in asked.target for asked in origin.reads))
    gate.set()
    assert (await bounded(early)).body == b"new"
    assert not polling.done()
    assert (await edge.get("/s?offset=-1")).body == b"new"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_late_refusal_that_was_true_after_all_ends_live_reads_soon(
    hostile: Hostile, start: Start, method: str
) -> None:
    """The stream was deleted at the origin after the write, and its live request there stays open for ever."""
    gate, is_first, is_there = asyncio.Event(), True, True
    binary = "application/octet-stream"

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal is_first
        if asked.method in ("PUT", "POST"):
            writer.write(answer("200 OK", {"Content-Type": binary, "Stream-Next-Offset": "0001"}))
        elif is_first and asked.method == method and "live=" not in asked.target:
            is_first = False
            await gate.wait()
            writer.write(answer("404 Not Found", {}))
        elif not is_there:
            writer.write(answer("404 Not Found", {}))
        elif "live=" in asked.target:
            headers = {"Content-Type": "text/event-stream", "Stream-SSE-Data-Encoding": "base64"}
            control = b'event: control\ndata: {"streamNextOffset":"0001","upToDate":true}\n\n'
            writer.write(answer("200 OK", {**headers, "Transfer-Encoding": "chunked"}))
            writer.write(b"%x\r\n%b\r\n" % (len(control), control))
        else:
            is_all = asked.method == "GET" and "offset=-1" in asked.target
            writer.write(part_of_stream(b"a" if is_all else b"", "0001", binary))

    origin = await hostile(script, takes_head=True)
    edge = await start(origin.url, follow_above_per_s=0)
    if method == "HEAD":
        # A relayed answer tells something about a stream only if the stream is in memory.
        assert (await edge.get("/s?offset=-1")).status == 200
    early = asyncio.create_task(edge.send(method, "/s" if method == "HEAD" else "/s?offset=now"))
    await origin.until(lambda: not is_first)
    assert (await edge.put("/s", b"a", binary)).status == 200
    assert (await edge.get("/s?offset=-1")).status == 200
    polling = edge.asking("/s?offset=0001&live=long-poll")
    await eventually(lambda: any(topic.is_confirmed for topic in edge.gateway.engine.live.topics()))
    is_there = False
    gate.set()
    assert (await bounded(early)).status == 404
    began = edge.clock.now()
    async with edge.time_passing():
        assert (await bounded(polling)).status == 404
    assert edge.clock.now() - began < 10

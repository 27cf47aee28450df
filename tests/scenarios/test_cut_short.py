"""Origins that fail in the middle of a body: no part is taken for the whole, and nothing of it is stored."""

import asyncio
import json

import pytest

from gateway.origin.app import OriginSettings
from gateway.origin.counters import Counters
from gateway.origin.faults import Faults
from gateway.origin.requests import Kind
from tests.scenarios.conftest import Edge, Hostile, Start, bounded
from tests.scenarios.hostile import Asked, answer, part_of_stream
from tests.scenarios.wire import Dropped, pairs

BINARY = bytes(range(256)) * 4096
MESSAGES = [{"n": n, "text": "x" * 200} for n in range(4000)]
JSON = json.dumps(MESSAGES).encode()

CUTS = ["reset", "short of its length", "without the last chunk"]


@pytest.fixture
def origin_settings() -> OriginSettings:
    return OriginSettings(max_chunk_bytes=8 << 20)


def cut(faults: Faults, how: str, after_bytes: int, times: int = 1) -> None:
    if how == "reset":
        faults.drop(after_bytes, kind=Kind.CATCHUP, times=times)
    else:
        faults.truncate(after_bytes, is_chunked=how == "without the last chunk", kind=Kind.CATCHUP, times=times)


@pytest.mark.parametrize("how", CUTS)
@pytest.mark.parametrize(
    ("content_type", "body"), [("application/octet-stream", BINARY), ("application/json", JSON)], ids=["binary", "json"]
)
async def test_a_large_body_that_is_cut_short_drops_every_reader_and_leaves_nothing(
    edge: Edge, faults: Faults, counters: Counters, how: str, content_type: str, body: bytes
) -> None:
    await edge.put("/s", body, content_type)
    stall = faults.stall(200_000, kind=Kind.CATCHUP, times=1)
    cut(faults, how, 500_000)
    readers = [await edge.begin("/s")]
    await bounded(stall.waiting(1))
    readers += [await edge.begin("/s") for _ in range(2)]
    for reader in readers:
        assert (await reader.head()).status == 200
    stall.release()
    for reader in readers:
        with pytest.raises(Dropped) as dropped:
            await reader.body()
        assert len(dropped.value.body) <= 500_000
    assert edge.gateway.engine.store.cost < 5_000
    again = await edge.get("/s")
    assert (json.loads(again.body) == MESSAGES) if content_type == "application/json" else (again.body == body)
    assert again.is_up_to_date


@pytest.mark.parametrize("how", CUTS)
async def test_a_small_body_that_is_cut_short_is_a_502_and_leaves_nothing(
    edge: Edge, faults: Faults, counters: Counters, how: str
) -> None:
    await edge.put("/s", b"0123456789")
    cut(faults, how, 4, times=10)
    if how == "without the last chunk":
        # A body of unknown length is passed on as it arrives, so the head is sent before it breaks off.
        with pytest.raises(Dropped) as dropped:
            await edge.get("/s")
        assert b"0123".startswith(dropped.value.body)
    else:
        broken = await edge.get("/s")
        assert (broken.status, broken.is_one_line_of_text) == (502, True)
        assert "Stream-Next-Offset" not in broken.headers
    faults.clear()
    before = counters.requests[Kind.CATCHUP]
    assert (await edge.get("/s")).body == b"0123456789"
    assert counters.requests[Kind.CATCHUP] == before + 1


@pytest.mark.parametrize("how", CUTS)
async def test_a_joined_reply_whose_second_part_is_cut_short_keeps_the_first_part(
    edge: Edge, faults: Faults, counters: Counters, how: str
) -> None:
    await edge.put("/s", BINARY, "application/octet-stream")
    first = await edge.get("/s")
    await edge.post("/s", BINARY, "application/octet-stream")
    cut(faults, how, 500_000)
    with pytest.raises(Dropped) as dropped:
        await edge.get("/s")
    assert (BINARY + BINARY[:500_000]).startswith(dropped.value.body)
    counters.reset()
    assert (await edge.get("/s")).body == BINARY * 2
    # Only the bytes after the first part were fetched again.
    assert counters.body_bytes[Kind.CATCHUP] == len(BINARY)
    assert first.body == BINARY


@pytest.mark.parametrize("how", CUTS)
async def test_a_relayed_body_that_is_cut_short_drops_the_reader(
    origin_settings: OriginSettings, edge: Edge, faults: Faults, how: str
) -> None:
    await edge.put("/s", BINARY, "application/octet-stream")
    faults.replace(
        200,
        {"Content-Type": "text/plain", "Stream-Next-Offset": "0001", "Cache-Control": "no-store"},
        b"x" * 100_000,
        times=None,
        kind=Kind.CATCHUP,
    )
    assert (await edge.get("/s")).body == b"x" * 100_000
    cut(faults, how, 50_000)
    with pytest.raises(Dropped) as dropped:
        await edge.get("/s")
    assert len(dropped.value.body) <= 50_000


async def test_no_partial_or_repeated_event_of_a_failing_origin_reaches_a_reader(
    edge: Edge, faults: Faults, counters: Counters
) -> None:
    """The cut is tried at every byte of the events' text, including the blank lines."""
    await edge.put("/s", b"[]", "application/json")
    reader = await edge.begin("/s?offset=-1&live=sse")
    await reader.head()
    sent: list[int] = []
    got: list[int] = []
    events = pairs(reader)
    await bounded(counters.parked_is(1))
    opening = counters.body_bytes[Kind.SSE]
    for after in [*range(opening + 1, opening + 130, 9), opening + 30]:
        live = counters.requests[Kind.SSE]
        faults.drop(after, kind=Kind.SSE, times=1)
        edge.gateway.engine.live.restart(next(iter(edge.gateway.engine.store)))
        await bounded(counters.reached(Kind.SSE, live + 1))
        await bounded(counters.parked_is(1))
        sent.append(len(sent))
        await edge.post("/s", json.dumps(sent[-1]).encode(), "application/json")
        while len(got) < len(sent):
            async with edge.time_passing():  # the follower's pause before it reconnects
                data, control = await anext(events)
            if data:
                got += json.loads(data)
            assert "streamNextOffset" in json.loads(control.data)
        faults.clear()
    assert got == sent
    assert (json.loads((await edge.get("/s")).body)) == sent


async def test_half_an_event_is_not_ended_by_the_end_of_the_connection(hostile: Hostile, start: Start) -> None:
    live = 0

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal live
        if "live=sse" not in asked.target:
            body = b"[]" if "0001" in asked.target or "now" in asked.target else b"[1]"
            writer.write(part_of_stream(body, "0001", "application/json"))
            return
        live += 1
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head.encode())
        control = b'event: control\ndata: {"streamNextOffset":"0001","streamCursor":"1","upToDate":true}\n\n'
        writer.write(b"%x\r\n%b\r\n" % (len(control), control))
        if live == 1:
            # A whole data event, a truncated control event, and even the last chunk: a clean but false end.
            half = b'event: data\ndata: [2]\n\nevent: control\ndata: {"streamNextOffset":"0002","upToDate":true}\n'
            writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(half), half))
            await writer.drain()
            return
        whole = b"event: data\ndata: [2]\n\n" + control.replace(b"0001", b"0002")
        writer.write(b"%x\r\n%b\r\n" % (len(whole), whole))

    metadata = answer("200 OK", {"Content-Type": "application/json", "Stream-Next-Offset": "0001"})
    origin = await hostile(script, metadata=metadata)
    edge = await start(origin.url)
    reader = await edge.begin("/s?offset=-1&live=sse")
    got: list[tuple[str, str]] = []
    async with edge.time_passing():
        await reader.head()
        async for data, control in pairs(reader):
            got.append((data, json.loads(control.data)["streamNextOffset"]))
            if got[-1][1] == "0002":
                break
    assert [message for data, _ in got if data for message in json.loads(data)] == [1, 2]
    assert live >= 2

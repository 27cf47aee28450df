"""A write of unknown outcome costs other readers one look at the origin, and nothing if the origin never got it."""

import asyncio

import pytest

from gateway.origin.counters import Counters
from tests.codings import DECODERS
from tests.scenarios.conftest import Edge, Hostile, Start, bounded
from tests.scenarios.hostile import Asked, answer, part_of_stream
from tests.scenarios.wire import Answer
from tests.waiting import eventually

HALF = b"%s /s HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"


@pytest.mark.http_1
@pytest.mark.parametrize("method", [b"PUT", b"POST"])
async def test_an_unfinished_upload_affects_no_reader(edge: Edge, counters: Counters, method: bytes) -> None:
    await edge.put("/s", b"hello")
    tail = (await edge.get("/s?offset=-1")).next_offset
    waiting = edge.asking(f"/s?offset={tail}&live=long-poll")
    await counters.parked_is(1)
    (stream,) = edge.gateway.engine.store
    for _ in range(3):
        wire = await edge.wire()
        await wire.send(HALF % method)
        await eventually(lambda: bool(edge.gateway.engine.pending_writes))
        await wire.send(b"ZZ\r\n")
        assert (await wire.answer()).status == 400
        await eventually(lambda: not edge.gateway.engine.pending_writes)
    assert stream.tape.block_count == 1
    assert not stream.needs_revalidation
    assert (await edge.post("/s", b"more")).status == 204
    assert (await waiting).body == b"more"


CLOSED = {"Stream-Closed": "true"}


class MadeAnewInSecret:
    """An origin that answers 500 to DELETE and PUT but executes them; looks at the tail wait for `gate`."""

    def __init__(self, old: bytes, new: bytes) -> None:
        self.body = old
        self._new = new
        self.gate: asyncio.Event | None = None

    async def __call__(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.method == "GET" and "offset=0001" in asked.target:
            if self.gate is not None:
                await self.gate.wait()
            writer.write(part_of_stream(b"", "0001", **CLOSED))
        elif asked.method == "GET":
            writer.write(part_of_stream(self.body, "0001", **CLOSED))
        else:
            self.body = self._new
            writer.write(answer("500 Internal Server Error", {}))


@pytest.mark.parametrize(
    ("old", "new", "headers"),
    [
        (b"old!", b"new!", {}),
        (b"old!" * 1_000, b"new!" * 1_000, {"Accept-Encoding": "gzip"}),
        (b"old!" * 50_000, b"new!" * 50_000, {"Accept-Encoding": "gzip"}),
    ],
    ids=["plain", "coded", "coded in the thread"],
)
async def test_bytes_dropped_during_a_read_go_to_that_read_only(
    hostile: Hostile, start: Start, old: bytes, new: bytes, headers: dict[str, str]
) -> None:
    script = MadeAnewInSecret(old, new)
    origin = await hostile(script)
    edge = await start(origin.url)
    for _ in range(2):
        assert (await edge.get("/s")).body == old
    edge.clock.advance(61)
    script.gate = asyncio.Event()
    looks = len(origin.reads)
    early = edge.asking("/s", headers)
    await origin.until(lambda: len(origin.reads) > looks)
    for method in ("DELETE", "PUT"):
        assert (await edge.send(method, "/s", {"Content-Type": "text/plain"}, b"x")).status == 500
    gate, script.gate = script.gate, None
    gate.set()
    before = await bounded(early)
    assert undone(before) == old
    for _ in range(4):
        now = await edge.get("/s", {**headers, "If-None-Match": before.headers["ETag"]})
        assert (now.status, undone(now)) == (200, new)
        assert now.headers["ETag"] != before.headers["ETag"]


def undone(answer: Answer) -> bytes:
    return DECODERS[answer.headers.get("Content-Encoding", "identity")](answer.body)

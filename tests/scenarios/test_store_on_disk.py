"""The store on disk over restarts and evictions: the origin confirms a stream by small requests, and the bytes come
from disk; whatever else has happened, no reader gets other bytes than the origin has."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gateway.aio.clock import ManualClock
from gateway.app import start_gateway
from gateway.config.errors import ConfigError
from gateway.config.gateway import GatewayConfig
from gateway.disk import reads as disk_reads
from gateway.disk import store as disk_store
from gateway.disk.folders import is_behind
from gateway.disk.index import FORMAT, Index
from gateway.disk.runs import RUN_BYTES
from gateway.disk.store import DiskStore
from gateway.disk.writer_thread import PAUSE_S
from gateway.engine import from_disk, pending_writes
from gateway.engine.process_store import FAILED_S
from gateway.origin.app import OriginSettings, RunningOrigin
from gateway.origin.counters import Counters
from gateway.origin.faults import Faults
from gateway.origin.requests import Kind
from gateway.tape import paths
from gateway.tape.block import SEAL_BYTES
from gateway.tape.stream import End
from tests.scenarios.conftest import Edge, Hostile
from tests.scenarios.hostile import Asked, part_of_stream
from tests.scenarios.hostile import answer as reply
from tests.scenarios.wire import Answer, Wire
from tests.waiting import eventually

PIECE = 9_000
COUNT = 60
TEXT, JSON = "text/plain", "application/json"
CHECKED = 64_000
"""The origin's replies have so many bytes.  A confirmation compares as many."""
Begin = Callable[..., AbstractAsyncContextManager[Edge]]


@pytest.fixture
def origin_settings() -> OriginSettings:
    """Short replies, so that the gateway learns many offsets."""
    return OriginSettings(max_chunk_bytes=4 * PIECE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def begin(origin: RunningOrigin, clock: ManualClock, folder: Path) -> Begin:
    """Runs gateways with one folder, one after the other."""

    @asynccontextmanager
    async def running(
        url: str = origin.url, *, max_bytes: int = 64 << 20, with_credentials: bool = False, **settings: Any
    ) -> AsyncIterator[Edge]:
        store = {
            "path": str(folder),
            "max_bytes": max_bytes,
            "segment_bytes": 1 << 20,
            "with_credentials": with_credentials,
        }
        usual = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "shutdown_timeout_s": 1, "live_linger_s": 0}
        config = GatewayConfig.for_origin(url, store=store, **{**usual, **settings})
        edge = Edge(await start_gateway(config, clock=clock, rng=Random(7)), clock)
        try:
            yield edge
            await edge.leave()
            await edge.until_idle()
        finally:
            await edge.gateway.stop()

    return running


class Writer:
    """Makes streams at the origin, behind the gateway's back."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def send(
        self, method: str, target: str, headers: dict[str, str] | None = None, body: bytes | None = None
    ) -> Answer:
        await self._wire.ask(target, headers, method, body)
        return await self._wire.answer(method)

    async def make(self, path: str = "/s", *, seed: int = 1, count: int = COUNT, kind: str = TEXT) -> None:
        """Make a stream in place of an earlier one.  No two of its messages are alike, nor two streams' messages."""
        await self.send("DELETE", path)
        assert (await self.send("PUT", path, {"Content-Type": kind})).status == 201
        await self.append(path, seed=seed, count=count, kind=kind)

    async def append(self, path: str = "/s", *, seed: int = 1, count: int = COUNT, kind: str = TEXT) -> None:
        rng = Random(seed)
        for _ in range(count):
            text = rng.randbytes(PIECE // 2).hex()
            body = json.dumps([text]).encode() if kind == JSON else text.encode()
            assert (await self.send("POST", path, {"Content-Type": kind}, body)).status == 204

    async def read(self, path: str = "/s") -> bytes:
        """Read the stream at the origin."""
        return await _whole(lambda target: self.send("GET", target), path)


@pytest.fixture
async def writer(origin: RunningOrigin) -> AsyncIterator[Writer]:
    wire = await Wire.open(origin.url)
    yield Writer(wire)
    await wire.closed()


async def whole(edge: Edge, path: str = "/s", headers: dict[str, str] | None = None) -> bytes:
    return await _whole(lambda target: edge.get(target, headers), path)


async def _whole(get: Callable[[str], Any], path: str) -> bytes:
    offset, parts = "-1", []
    while True:
        answer = await get(f"{path}?offset={offset}")
        assert answer.status == 200, answer
        offset = answer.next_offset
        parts.append(answer.body)
        if answer.headers.get("Stream-Up-To-Date") == "true":
            if answer.headers["Content-Type"] == JSON:
                return json.dumps([one for part in parts for one in json.loads(part)]).encode()
            return b"".join(parts)


def disk_of(edge: Edge) -> DiskStore:
    disk = edge.gateway.engine.disk
    assert disk is not None
    return disk


def segments(folder: Path) -> dict[Path, bytes]:
    """The segment files, and what is in them."""
    return {path: path.read_bytes() for path in sorted(folder.glob("*.segment"))}


def damage(folder: Path, every: int, first: int = 100) -> None:
    """Flip bits in all segments."""
    for path, data in segments(folder).items():
        with path.open("r+b") as file:
            for at in range(first, len(data), every):
                file.seek(at)
                file.write(bytes([data[at] ^ 1]))


def in_index(folder: Path, statement: str) -> list[Any]:
    """Run a statement of SQL in the store's index."""
    with closing(sqlite3.connect(folder / "index.sqlite", isolation_level=None)) as database:
        return database.execute(statement).fetchall()


async def is_on_disk(begin: Begin, writer: Writer, path: str = "/s", **settings: Any) -> None:
    """Have a gateway write the stream to disk, and stop."""
    async with begin(**settings) as edge:
        assert await whole(edge, path) == await writer.read(path)


@pytest.mark.parametrize("kind", [TEXT, JSON])
@pytest.mark.parametrize("grown", [0, 5])
async def test_after_a_restart_the_bytes_come_from_disk(
    begin: Begin, writer: Writer, counters: Counters, kind: str, grown: int
) -> None:
    await writer.make(kind=kind)
    await is_on_disk(begin, writer)
    await writer.append(seed=2, count=grown, kind=kind)
    expected = await writer.read()
    counters.reset()
    async with begin() as edge:
        assert await whole(edge) == expected
        # One request for the end of the bytes on disk, and two or three for the first 64 KiB where the reader starts.
        # The other ones are for what has been appended, and for the lifetime.
        proofs = 3 if kind == TEXT else 4
        requests = counters.requests[Kind.CATCHUP], counters.requests[Kind.HEAD]
        assert requests <= (proofs + 2, 1) if grown else requests == (proofs, 0)
        assert counters.total_body_bytes < 5 * CHECKED / 2
        counts = disk_of(edge).counts
        assert counts.read_bytes > COUNT * PIECE * 0.9
        assert counts.refuted == 0
        exposed = edge.gateway.metrics.exposition()[0].decode()
        assert f"durable_gateway_store_read_bytes_total {float(counts.read_bytes)}\n" in exposed
        assert "durable_gateway_store_streams 1.0\n" in exposed


async def test_a_stream_of_many_answers_comes_from_disk(begin: Begin, writer: Writer, counters: Counters) -> None:
    """Where an answer ends at its largest size, the next bytes are on disk too."""
    await writer.make()
    await is_on_disk(begin, writer)
    expected = await writer.read()
    counters.reset()
    # A run has 28 messages, so an answer ends where a run ends.
    async with begin(max_reply_bytes=28 * PIECE) as edge:
        assert await whole(edge) == expected
        # The last answer asks for the tail.
        assert (counters.requests[Kind.CATCHUP], counters.requests[Kind.HEAD]) == (4, 1)
        assert counters.total_body_bytes < 5 * CHECKED / 2


async def test_readers_that_come_at_once_share_the_requests(begin: Begin, writer: Writer, counters: Counters) -> None:
    await writer.make()
    await is_on_disk(begin, writer)
    expected = await writer.read()
    counters.reset()
    async with begin() as edge:
        found = await asyncio.gather(*(whole(edge) for _ in range(20)))
        assert set(found) == {expected}
        assert counters.total_body_bytes < 5 * CHECKED / 2


async def test_a_stream_that_began_empty_is_found_from_its_start(
    begin: Begin, writer: Writer, counters: Counters
) -> None:
    """The start leads to the first offset without bytes in between."""
    await writer.make(count=0)
    async with begin() as edge:
        assert await whole(edge) == b""
        await writer.append()
        assert await whole(edge) == await writer.read()
    expected = await writer.read()
    counters.reset()
    async with begin() as edge:
        assert await whole(edge) == expected
        assert disk_of(edge).counts.read_bytes > COUNT * PIECE * 0.9


async def test_what_memory_evicts_comes_from_disk(begin: Begin, writer: Writer, counters: Counters) -> None:
    for name in ("/s", "/t"):
        await writer.make(name, seed=hash(name) % 1000)
    s, t = await writer.read("/s"), await writer.read("/t")
    async with begin(cache_bytes=1 << 20, max_flight_bytes=1 << 19) as edge:
        assert await whole(edge, "/s") == s
        assert await whole(edge, "/t") == t
        await disk_of(edge).settled()
        for _ in range(2):
            for path, expected in (("/s", s), ("/t", t)):
                counters.reset()
                assert await whole(edge, path) == expected
                assert counters.total_body_bytes < 5 * CHECKED / 2


async def test_a_stream_made_again_with_equal_offsets_is_not_answered_from_disk(begin: Begin, writer: Writer) -> None:
    await writer.make(seed=1)
    await is_on_disk(begin, writer)
    await writer.make(seed=2)
    expected = await writer.read()
    async with begin() as edge:
        assert await whole(edge) == expected
        assert disk_of(edge).counts.refuted == 1
    async with begin() as edge:
        assert await whole(edge) == expected
        assert disk_of(edge).counts.refuted == 0


class Nameless:
    """An origin of one stream whose ETags name no incarnation, so that only its bytes tell it from another stream."""

    def __init__(self, body: bytes, reply_bytes: int = 4 * PIECE) -> None:
        self.body = body
        self.asked: list[int] = []
        """The offsets of the requests."""
        self.sent_bytes = 0
        self.on_request: Callable[[int], object] = lambda at: None
        self.before: Callable[[], Awaitable[object]] | None = None
        """Called before each reply."""
        self.stops: list[int] = []
        """Offsets at which a reply ends early."""
        self._reply_bytes = reply_bytes

    async def script(self, asked: Asked, writer: Any) -> None:
        at = 0 if "offset=-1" in asked.target else int(asked.target.split("offset=")[1][:8])
        self.asked.append(at)
        self.on_request(at)
        if self.before is not None:
            await self.before()
        end = min(at + self._reply_bytes, len(self.body), *(stop for stop in self.stops if stop > at))
        self.sent_bytes += end - at
        is_whole = "true" if end == len(self.body) else "false"
        writer.write(part_of_stream(self.body[at:end], f"{end:08}", **{"Stream-Up-To-Date": is_whole}))

    async def url(self, hostile: Hostile) -> str:
        facts = {"Content-Type": TEXT, "Stream-Next-Offset": f"{len(self.body):08}", "Cache-Control": "no-store"}
        return (await hostile(self.script, metadata=reply("200 OK", facts))).url


def random(seed: int, size: int = COUNT * PIECE) -> bytes:
    return Random(seed).randbytes(size)


@pytest.mark.parametrize("equal", ["nothing", "its end", "its beginning"])
async def test_a_nameless_stream_made_again_is_found_by_its_bytes(begin: Begin, hostile: Hostile, equal: str) -> None:
    old, new = random(1), random(2)
    half = len(old) // 2
    nameless = Nameless(old)
    url = await nameless.url(hostile)
    async with begin(url) as edge:
        assert await whole(edge) == old
    made = {"nothing": new, "its end": new[:half] + old[half:], "its beginning": old[:half] + new[half:]}
    nameless.body = made[equal]
    async with begin(url) as edge:
        assert await whole(edge) == nameless.body
        assert disk_of(edge).counts.refuted == 1


async def test_short_replies_prove_nothing_by_themselves(begin: Begin, hostile: Hostile) -> None:
    """The stream made again is equal where it starts and at the last check, for as long as one reply."""
    old, new = random(1, 300_000), random(2, 300_000)
    nameless = Nameless(old, 1000)
    url = await nameless.url(hostile)
    async with begin(url) as edge:
        assert await whole(edge) == old
    async with begin(url) as edge:
        latest = next(iter(disk_of(edge).streams())).latest
        assert latest is not None
        check = int(latest.check)
        nameless.body = old[:1000] + new[1000:check] + old[check : check + 1000] + new[check + 1000 :]
        assert await whole(edge) == nameless.body
        assert disk_of(edge).counts.refuted == 1


async def test_a_small_run_at_the_end_does_not_shorten_its_proof(begin: Begin, hostile: Hostile) -> None:
    """A sealed block ends with 16 bytes, and 8,000 bytes follow, which are too few to be written."""
    old, new = random(1, SEAL_BYTES + 8_000), random(2, SEAL_BYTES + 8_000)
    nameless = Nameless(old, 65_535)
    nameless.stops = [SEAL_BYTES]
    url = await nameless.url(hostile)
    async with begin(url) as edge:
        assert await whole(edge) == old
    async with begin(url) as edge:
        (stored,) = disk_of(edge).streams()
        assert stored.latest is not None
        assert stored.latest.body == 16
        nameless.body = old[:131_070] + new[131_070 : SEAL_BYTES - 16] + old[SEAL_BYTES - 16 :]
        assert await whole(edge) == nameless.body
        assert disk_of(edge).counts.refuted == 1


@pytest.mark.parametrize("equal", [0, 72_000])
async def test_bytes_in_memory_prove_nothing_about_those_on_disk(begin: Begin, hostile: Hostile, equal: int) -> None:
    """A reader at the end brings the bytes of the check to memory, and then the stream is made again."""
    old, new = random(1), random(2)
    nameless = Nameless(old)
    url = await nameless.url(hostile)
    async with begin(url) as edge:
        assert await whole(edge) == old
    async with begin(url) as edge:
        latest = next(iter(disk_of(edge).streams())).latest
        assert latest is not None
        await edge.get(f"/s?offset={latest.check}")
        nameless.body = old[:equal] + new[equal:]
        edge.clock.advance(1000)
        assert await whole(edge) == nameless.body
        assert disk_of(edge).counts.refuted == 1


async def test_the_end_is_proved_again_before_more_bytes_come_from_disk(begin: Begin, hostile: Hostile) -> None:
    """The runs belong to the stream in memory, whose bytes do not say that it was made again."""
    old, new = random(1), random(2)
    nameless = Nameless(old)
    url = await nameless.url(hostile)
    async with begin(url) as edge:
        assert await whole(edge) == old
    async with begin(url) as edge:
        await edge.get("/s?offset=00396000")
        assert disk_of(edge).counts.read_bytes > 0
        nameless.body = old[:72_000] + new[72_000:]
        edge.clock.advance(1000)
        assert (await whole(edge))[:396_000] == nameless.body[:396_000]
        assert disk_of(edge).counts.refuted == 1


async def test_a_reader_at_any_offset_gets_proved_bytes(begin: Begin, hostile: Hostile) -> None:
    """Only the middle of the stream differs."""
    old, new = random(1), random(2)
    nameless = Nameless(old)
    url = await nameless.url(hostile)
    async with begin(url) as edge:
        assert await whole(edge) == old
    nameless.body = old[:72_000] + new[72_000:480_000] + old[480_000:]
    async with begin(url) as edge:
        assert (await edge.get("/s?offset=00108000")).body == nameless.body[108_000:144_000]
        assert disk_of(edge).counts.refuted == 1


async def test_each_stretch_of_a_long_stream_is_proved(
    begin: Begin, hostile: Hostile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(from_disk, "STRETCH_BYTES", 2 * RUN_BYTES)
    old, new = random(1, 12 * RUN_BYTES), random(2, 12 * RUN_BYTES)
    nameless = Nameless(old)
    url = await nameless.url(hostile)
    async with begin(url) as edge:
        assert await whole(edge) == old
    nameless.asked.clear()
    nameless.sent_bytes = 0
    async with begin(url) as edge:
        assert await whole(edge) == old
        # The end, and then two replies for each place: every third run has one.
        assert len(nameless.asked) <= 1 + 2 * 5
        assert nameless.sent_bytes < 12 * 4 * PIECE
    middle = 5 * RUN_BYTES
    nameless.body = old[:middle] + new[middle : 2 * middle] + old[2 * middle :]
    async with begin(url, max_reply_bytes=RUN_BYTES) as edge:
        found = await whole(edge)
        assert found[: middle - RUN_BYTES] == nameless.body[: middle - RUN_BYTES]
        assert found[middle + 3 * RUN_BYTES :] == nameless.body[middle + 3 * RUN_BYTES :]
        assert disk_of(edge).counts.refuted == 1


@pytest.mark.parametrize("is_on_disk", [True, False])
async def test_bytes_that_leave_memory_while_they_are_confirmed_are_not_sent(
    begin: Begin, hostile: Hostile, *, is_on_disk: bool
) -> None:
    old, new = random(1), random(2)
    half = len(old) // 2
    nameless = Nameless(old)
    url = await nameless.url(hostile)
    if is_on_disk:
        async with begin(url) as edge:
            assert await whole(edge) == old
    async with begin(url) as edge:
        if not is_on_disk:
            assert await whole(edge) == old
            edge.clock.advance(1000)
        nameless.body = new[:half] + old[half:]

        def evict(at: int) -> None:
            if at == 0:
                for stream in list(edge.gateway.engine.store):
                    edge.gateway.engine.store._drop_bytes(stream)

        nameless.on_request = evict
        assert await whole(edge) == nameless.body


@pytest.mark.parametrize("reply_bytes", [100_000, 200_000])
async def test_an_answer_may_be_larger_than_memory(begin: Begin, hostile: Hostile, reply_bytes: int) -> None:
    """The bytes that follow evict those at its start.  A proof compares 64 KiB of a large reply, and cuts it off."""
    nameless = Nameless(random(1, 3_000_000), reply_bytes)
    url = await nameless.url(hostile)
    async with begin(url, cache_bytes=1 << 20) as edge:
        assert await whole(edge) == nameless.body
    nameless.asked.clear()
    async with begin(url, cache_bytes=1 << 20, max_reply_bytes=2 << 20) as edge:
        body = (await edge.get("/s?offset=-1")).body
        assert body == nameless.body[: len(body)]
        assert len(body) >= 2_000_000
        # The end, the start, and the lifetime, which is a HEAD.
        assert len(nameless.asked) == 2


async def test_a_refusal_to_one_reader_leaves_the_bytes_on_disk(begin: Begin, hostile: Hostile) -> None:
    nameless = Nameless(random(1))

    async def script(asked: Asked, writer: Any) -> None:
        if is_refusing:
            writer.write(reply("403 Forbidden", {"Content-Type": TEXT}, b"no"))
        else:
            await nameless.script(asked, writer)

    is_refusing = False
    facts = {"Content-Type": TEXT, "Stream-Next-Offset": f"{len(nameless.body):08}", "Cache-Control": "no-store"}
    url = (await hostile(script, metadata=reply("200 OK", facts))).url
    async with begin(url) as edge:
        assert await whole(edge) == nameless.body
    async with begin(url) as edge:
        is_refusing = True
        assert (await edge.get("/s?offset=-1")).status == 403
        is_refusing = False
        edge.clock.advance(30)
        assert len(disk_of(edge)) == 1
        assert await whole(edge) == nameless.body
        assert disk_of(edge).counts.read_bytes > 300_000


async def until_written(held: threading.Event, edge: Edge) -> None:
    held.set()
    await disk_of(edge).settled()


async def test_a_run_that_is_written_while_the_origin_is_asked_refutes_nothing(
    begin: Begin, hostile: Hostile, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = random(1, 1_500_000)
    nameless = Nameless(full[:1_000_000], 50_000)
    url = await nameless.url(hostile)
    async with begin(url) as edge:
        assert await whole(edge) == nameless.body
        await disk_of(edge).settled()
        nameless.body = full
        edge.clock.advance(1000)
        held, pwrite = threading.Event(), os.pwrite

        def late(*args: Any) -> int:
            held.wait(10)
            return pwrite(*args)

        monkeypatch.setattr("os.pwrite", late)
        assert await whole(edge) == full
        for stream in list(edge.gateway.engine.store):
            edge.gateway.engine.store.drop_stream(stream, End.EVICTED)
        nameless.before = lambda: until_written(held, edge)
        assert await whole(edge) == full
        assert disk_of(edge).counts.refuted == 0
        assert len(disk_of(edge)) == 1


async def test_a_stream_made_again_with_another_type_is_not_answered_from_disk(begin: Begin, writer: Writer) -> None:
    await writer.make(kind=TEXT)
    await is_on_disk(begin, writer)
    await writer.make(kind="text/html")
    async with begin() as edge:
        assert await whole(edge) == await writer.read()
        assert (await edge.get("/s?offset=-1")).headers["Content-Type"] == "text/html"
        assert disk_of(edge).counts.refuted == 1


async def test_a_shorter_stream_of_that_name_is_not_answered_from_disk(begin: Begin, writer: Writer) -> None:
    await writer.make()
    await is_on_disk(begin, writer)
    await writer.make(count=COUNT // 2)
    async with begin() as edge:
        assert await whole(edge) == await writer.read()
        assert disk_of(edge).counts.refuted == 1


async def test_a_stream_that_is_gone_is_gone_from_disk(begin: Begin, writer: Writer, origin: RunningOrigin) -> None:
    await writer.make()
    await is_on_disk(begin, writer)
    async with begin() as edge:
        await edge.send_to(origin.url, "DELETE", "/s")
        assert (await edge.get("/s?offset=-1")).status == 404
        assert len(disk_of(edge)) == 0


async def test_a_failing_origin_leaves_the_bytes_on_disk(begin: Begin, writer: Writer, faults: Faults) -> None:
    await writer.make()
    await is_on_disk(begin, writer)
    expected = await writer.read()
    async with begin(retry_budget=0) as edge:
        faults.status(503, kind=Kind.CATCHUP, times=None)
        answer = await edge.get("/s?offset=-1")
        assert answer.status == 503
        faults.clear()
        edge.clock.advance(30)
        assert await whole(edge) == expected
        assert disk_of(edge).counts.read_bytes > COUNT * PIECE * 0.9


async def test_bytes_that_the_origin_has_trimmed_are_not_answered_from_disk(
    begin: Begin, writer: Writer, origin: RunningOrigin, clock: ManualClock
) -> None:
    await writer.make()
    async with begin() as edge:
        offset = (await edge.get("/s?offset=-1")).next_offset
        await whole(edge)
    origin.origin.store.trim("/s", offset, clock.wall(), hides_start=False)
    async with begin() as edge:
        assert await whole(edge) == await writer.read()


@pytest.mark.parametrize(
    ("selection", "is_in_memory"),
    [
        ({"stream": "/s"}, True),
        ({"stream": "/s"}, False),
        ({"prefix": "/s"}, False),
        ({"all": True}, False),
        ({"stream": "/s", "origin": "http://elsewhere"}, False),
    ],
    ids=["path in memory", "path", "prefix", "all", "another origin"],
)
async def test_a_purge_reaches_the_disk(
    begin: Begin, writer: Writer, folder: Path, selection: dict[str, Any], is_in_memory: bool
) -> None:
    await writer.make()
    await is_on_disk(begin, writer)
    is_meant = "origin" not in selection
    async with begin() as edge:
        if is_in_memory:
            await whole(edge)
        admin = edge.gateway.admin_url
        headers = {"Content-Type": JSON, "Host": admin.removeprefix("http://").rstrip("/")}
        answer = await edge.send_to(admin, "POST", "/api/purge", headers, json.dumps(selection).encode())
        assert json.loads(answer.body) == {"purged": int(is_meant)}
        assert len(disk_of(edge)) == (not is_meant)
        # A crash after the answer makes no difference.
        ((runs,),) = in_index(folder, "SELECT count(*) FROM runs")
        assert (runs == 0) is is_meant
        assert await whole(edge) == await writer.read()
        assert (disk_of(edge).counts.read_bytes == 0) is (is_meant and not is_in_memory)


@pytest.mark.parametrize("leaves", ["by the purge", "before the purge reaches it"])
async def test_a_read_during_a_purge_brings_no_purged_bytes_back(
    begin: Begin, writer: Writer, counters: Counters, monkeypatch: pytest.MonkeyPatch, leaves: str
) -> None:
    await writer.make()
    await is_on_disk(begin, writer)
    async with begin(trust_s=600) as edge:
        disk, is_reached, may_go_on = disk_of(edge), asyncio.Event(), asyncio.Event()

        async def in_turns(items: Iterable[Any]) -> AsyncIterator[Any]:
            # The purge has gone over memory, or is about to go over it.
            found = items if leaves == "by the purge" else list(items)
            is_reached.set()
            await may_go_on.wait()
            for item in found:
                yield item

        monkeypatch.setattr("gateway.ops.admin.purge.in_turns", in_turns)
        admin = edge.gateway.admin_url
        headers = {"Content-Type": JSON, "Host": admin.removeprefix("http://").rstrip("/")}
        purging = asyncio.create_task(edge.send_to(admin, "POST", "/api/purge", headers, b'{"stream": "/s"}'))
        await is_reached.wait()
        expected = await whole(edge)
        assert disk.counts.read_bytes > COUNT * PIECE * 0.9
        if leaves == "before the purge reaches it":
            # As if its segments were the oldest ones.
            (stored,) = disk.streams()
            disk.drop(stored)
        may_go_on.set()
        answer = await purging
        assert (answer.status, json.loads(answer.body)) == (200, {"purged": 1})
        counters.reset()
        assert await whole(edge) == expected
        assert counters.total_body_bytes >= len(expected), "the origin has sent all of it again"


async def test_a_purge_that_the_disk_does_not_take_is_no_success(
    begin: Begin, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await writer.make()
    await is_on_disk(begin, writer)
    async with begin() as edge:
        admin = edge.gateway.admin_url
        headers = {"Content-Type": JSON, "Host": admin.removeprefix("http://").rstrip("/")}

        async def purge() -> Answer:
            return await edge.send_to(admin, "POST", "/api/purge", headers, b'{"all": true}')

        go, drop = threading.Event(), Index.drop_stream
        with monkeypatch.context() as slow:
            slow.setattr(Index, "drop_stream", lambda index, number: (go.wait(20), drop(index, number)))
            slow.setattr(disk_store, "SETTLE_S", 0.01)
            answer = await purge()
            go.set()
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        assert b"after a crash they might be there again" in answer.body
        assert (await purge()).status == 200
        assert len(disk_of(edge)) == 0


async def test_a_gateway_whose_disk_is_full_starts_without_its_store(
    begin: Begin, writer: Writer, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await writer.make()
    await is_on_disk(begin, writer)
    # As a gateway of two workers leaves it.
    await asyncio.to_thread(shutil.copytree, folder, folder / "1", ignore=shutil.ignore_patterns("lock"))
    caplog.clear()

    def full(folder: Path) -> Index:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    monkeypatch.setattr("gateway.disk.opening.open_index", full)
    async with begin() as edge:
        why = "cannot be opened: database or disk is full"
        assert caplog.messages == [f"serves without its store on disk: store.path: the index in {folder} {why}"]
        assert "[-] serves without its store on disk\n" in await verbose(edge)
        assert "durable_gateway_store_limit_bytes 0.0\n" in edge.gateway.metrics.exposition()[0].decode()
        # The store does not learn of this.
        await writer.make(seed=3)
        await edge.send_to(edge.gateway.admin_url, "POST", "/api/purge", admin_headers(edge), b'{"stream": "/s"}')
        assert await whole(edge) == await writer.read()
    # A next gateway may begin before this one has opened its store.
    assert [is_behind(one) for one in (folder, folder / "1")] == [True, True]
    async with begin() as edge:
        monkeypatch.undo()

        def is_open() -> bool:
            edge.clock.advance(FAILED_S)
            return edge.gateway.engine.disk is not None

        await eventually(is_open)
        assert (len(disk_of(edge)), is_behind(folder)) == (0, False)
        assert "without its store" not in await verbose(edge)
        assert await whole(edge) == await writer.read()
    async with begin() as edge:
        assert len(disk_of(edge)) == 1


def admin_headers(edge: Edge) -> dict[str, str]:
    return {"Content-Type": JSON, "Host": edge.gateway.admin_url.removeprefix("http://").rstrip("/")}


async def verbose(edge: Edge) -> str:
    answer = await edge.send_to(edge.gateway.admin_url, "GET", "/readyz?verbose", admin_headers(edge))
    return answer.body.decode()


async def test_a_write_that_may_end_a_stream_drops_it_from_disk(begin: Begin, writer: Writer, faults: Faults) -> None:
    for method, is_answered in (("DELETE", True), ("DELETE", False), ("PUT", False)):
        await writer.make()
        await is_on_disk(begin, writer)
        async with begin() as edge:
            assert len(disk_of(edge)) == 1
            if not is_answered:
                faults.status(502, method=method)
            await edge.send(method, "/s", {"Content-Type": TEXT})
            faults.clear()
            assert len(disk_of(edge)) == 0


async def test_a_delete_drops_the_streams_of_the_path_that_sleep(
    begin: Begin, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "MOST_AWAKE", 2)
    await writer.make()
    async with begin() as edge:
        assert await _whole(lambda target: edge.get(f"{target}&q=x"), "/s") == await writer.read()
        await disk_of(edge).settled()
        assert len(disk_of(edge)) == 1
        for number in range(4):
            await edge.get(f"/s?offset=now&q={number}")
        assert [stream.is_awake for stream in edge.gateway.engine.store if stream.key.query == "q=x"] == [False]
        assert (await edge.send("DELETE", "/s")).status == 204
        assert len(disk_of(edge)) == 0
    async with begin() as edge:
        assert len(disk_of(edge)) == 0


@pytest.mark.parametrize("is_overtaken", [False, True])
async def test_a_delete_whose_answer_shows_no_stream_or_another_drops_it_from_disk(
    begin: Begin, writer: Writer, origin: RunningOrigin, faults: Faults, clock: ManualClock, *, is_overtaken: bool
) -> None:
    await writer.make()
    await is_on_disk(begin, writer)
    async with begin() as edge:
        held = faults.hold(method="DELETE")
        deleting = asyncio.create_task(edge.send("DELETE", "/s"))
        await held.waiting(1)
        origin.origin.store.delete("/s", clock.wall())
        if is_overtaken:
            assert (await edge.send("PUT", "/s", {"Content-Type": TEXT})).status == 201
            await writer.append(seed=3)
            assert await whole(edge) == await writer.read()
            for stream in list(edge.gateway.engine.store):
                edge.gateway.engine.store.drop_stream(stream, End.EVICTED)
        assert len(disk_of(edge)) == 1
        held.release()
        assert (await deleting).status == (204 if is_overtaken else 404)
        assert len(disk_of(edge)) == 0


async def test_damaged_bytes_are_fetched(begin: Begin, writer: Writer, folder: Path) -> None:
    await writer.make()
    await is_on_disk(begin, writer)
    expected = await writer.read()
    damage(folder, 50_000)
    async with begin() as edge:
        for _ in range(3):
            assert await whole(edge) == expected
        counts = disk_of(edge).counts
        assert counts.damaged > 0
        assert counts.read_bytes < COUNT * PIECE / 4


async def test_a_folder_has_one_process_and_one_format(begin: Begin, folder: Path, clock: ManualClock) -> None:
    async with begin() as edge:
        with pytest.raises(ConfigError, match=r"^store\.path: another process uses "):
            DiskStore.open(edge.gateway.config.store, clock)
        config = edge.gateway.config.store
    in_index(folder, f"PRAGMA user_version = {FORMAT + 1}")
    with pytest.raises(ConfigError, match=f"has format {FORMAT + 1}, which this version does not read"):
        DiskStore.open(config, clock)
    with pytest.raises(ConfigError, match=r"^store\.path: "):
        DiskStore.open(config.model_copy(update={"path": str(folder / "lock")}), clock)


@pytest.mark.parametrize(
    "harm",
    ["no database", "UPDATE streams SET facts = '5'", "UPDATE streams SET key = '[]'", "UPDATE streams SET key = '{'"],
)
async def test_a_damaged_index_is_set_aside(
    begin: Begin, writer: Writer, folder: Path, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    await writer.make()
    await is_on_disk(begin, writer)
    if harm == "no database":
        (folder / "index.sqlite").write_bytes(harm.encode() * 1_000)
    else:
        in_index(folder, harm)
    async with begin() as edge:
        assert len(disk_of(edge)) == 0
        assert not segments(folder)
        assert await whole(edge) == await writer.read()
    assert "the store begins empty" in caplog.text
    async with begin() as edge:
        assert len(disk_of(edge)) == 1


@pytest.mark.parametrize("harm", ["another key", "another store"])
async def test_a_record_is_used_for_its_own_stream_of_its_own_store_alone(
    begin: Begin, writer: Writer, folder: Path, harm: str
) -> None:
    await writer.make()
    await is_on_disk(begin, writer)
    if harm == "another store":
        in_index(folder, "UPDATE store SET id = 'x'")
    else:
        in_index(folder, "UPDATE streams SET key = CAST(replace(CAST(key AS TEXT), '/s', '/t') AS BLOB)")
    async with begin() as edge:
        (stored,) = disk_of(edge).streams()
        assert stored.key.path == ("/s" if harm == "another store" else "/t")
        for run in list(stored):
            assert await disk_of(edge).read(stored, run) is None
        assert len(disk_of(edge)) == 0


async def test_a_read_that_fails_leaves_the_bytes_on_disk(
    begin: Begin, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await writer.make()
    await is_on_disk(begin, writer)
    monkeypatch.setattr(disk_reads, "_NOWAIT", 0)

    def fail(*_: object) -> None:
        raise OSError(24, "Too many open files")

    async with begin() as edge:
        (stored,) = disk_of(edge).streams()
        with monkeypatch.context() as failing:
            failing.setattr("os.pread", fail)
            assert all([await disk_of(edge).read(stored, run) is None for run in list(stored)])
        assert disk_of(edge).counts.damaged == 0
        assert all([await disk_of(edge).read(stored, run) is not None for run in list(stored)])
        assert await whole(edge) == await writer.read()


async def test_a_full_disk_stops_the_writes_and_nothing_else(
    begin: Begin, writer: Writer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("/s", "/t", "/u"):
        await writer.make(name)

    async with begin() as edge:
        disk = disk_of(edge)
        with monkeypatch.context() as patched:
            patched.setattr("os.pwrite", full)
            for name in ("/s", "/t"):
                assert await whole(edge, name) == await writer.read(name)
            await disk.settled()
        assert (disk.errors, disk.counts.written_bytes) == (1, 0)
        assert 0 < disk.counts.dropped_bytes <= COUNT * PIECE
        assert [record.message for record in caplog.records if record.name == "gateway.store"] == [
            "the store on disk is not written for now: [Errno 28] No space left on device"
        ]
        edge.clock.advance(PAUSE_S)
        await whole(edge, "/u")
        await disk.settled()
        assert disk.counts.written_bytes > 0
        assert caplog.records[-1].message == "the store on disk is written again"
    async with begin() as edge:
        assert "/u" in [stored.key.path for stored in disk_of(edge).streams()]
        assert await whole(edge, "/u") == await writer.read("/u")
        assert disk_of(edge).counts.read_bytes > 0


async def test_what_is_on_a_full_disk_is_read(
    begin: Begin, writer: Writer, counters: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    await writer.make()
    await is_on_disk(begin, writer)
    await writer.append(seed=2)
    expected = await writer.read()
    counters.reset()
    monkeypatch.setattr("os.pwrite", full)
    async with begin(max_reply_bytes=8 * PIECE) as edge:
        assert await whole(edge) == expected
        assert disk_of(edge).counts.read_bytes > COUNT * PIECE * 0.9
        # Each byte is tried once, and then not before the pause is over.
        assert disk_of(edge).counts.dropped_bytes <= COUNT * PIECE


def full(*_: object) -> int:
    raise OSError(28, "No space left on device")


async def test_runs_beyond_the_queue_are_not_written(
    begin: Begin, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_store, "MOST_QUEUED_BYTES", 1)
    await writer.make()
    async with begin() as edge:
        assert await whole(edge) == await writer.read()
        assert disk_of(edge).counts.dropped_bytes > 0
        assert len(disk_of(edge)) == 0


async def test_the_oldest_segments_make_room(begin: Begin, writer: Writer, folder: Path) -> None:
    paths = [f"/{number}" for number in range(6)]
    async with begin(max_bytes=2 << 20) as edge:
        for number, path in enumerate(paths):
            await writer.make(path, seed=number)
            await whole(edge, path)
            for stream in list(edge.gateway.engine.store):
                edge.gateway.engine.store.drop_stream(stream, End.EVICTED)
            await disk_of(edge).settled()
            assert sum(map(len, segments(folder).values())) <= 2 << 20
        kept = {stored.key.path for stored in disk_of(edge).streams()}
        assert paths[-1] in kept
        assert paths[0] not in kept
    async with begin(max_bytes=2 << 20) as edge:
        assert {stored.key.path for stored in disk_of(edge).streams()} == kept
        for path in paths:
            assert await whole(edge, path) == await writer.read(path)


@pytest.mark.parametrize(
    "route", [{"credentials": "shared"}, {"auth": [{"by": "public", "streams": ["/**"]}]}], ids=["shared", "auth"]
)
@pytest.mark.parametrize("with_credentials", [True, False])
async def test_bytes_that_readers_with_credentials_share_are_written_if_the_operator_says_so(
    begin: Begin, writer: Writer, folder: Path, with_credentials: bool, route: dict[str, Any]
) -> None:
    await writer.make()
    async with begin(with_credentials=with_credentials, **route) as edge:
        assert await whole(edge) == await writer.read()
    assert bool(segments(folder)) is with_credentials
    async with begin(**route) as edge:
        assert await whole(edge) == await writer.read()
        assert disk_of(edge).counts.read_bytes == 0


@pytest.mark.parametrize("is_in_memory", [True, False])
async def test_a_stream_that_the_plan_excludes_leaves_the_disk(
    begin: Begin, writer: Writer, is_in_memory: bool
) -> None:
    await writer.make()
    await is_on_disk(begin, writer)
    async with begin() as edge:
        if is_in_memory:
            assert await whole(edge) == await writer.read()
        disk = disk_of(edge)
        before = disk.counts.read_bytes
        disk.is_not_stored = lambda _: True
        for stream in list(edge.gateway.engine.store):
            edge.gateway.engine.store.drop_stream(stream, End.EVICTED)
        assert await whole(edge) == await writer.read()
        assert (len(disk), disk.counts.read_bytes) == (0, before)


async def test_a_stream_that_the_plan_excludes_gets_no_bytes_from_disk(begin: Begin, writer: Writer) -> None:
    """Its bytes have left memory before, while a reader holds it, so its runs are bound to it."""
    await writer.make()
    async with begin() as edge:
        assert await whole(edge) == await writer.read()
        store, disk = edge.gateway.engine.store, disk_of(edge)
        for stream in list(store):
            store._drop_bytes(stream)
        await disk.settled()
        assert len(disk) == 1
        disk.is_not_stored = lambda _: True
        assert await whole(edge) == await writer.read()
        assert disk.counts.read_bytes == 0


@pytest.mark.parametrize("is_full", [False, True])
async def test_unanswered_writes_may_have_remade_what_was_written_since(
    begin: Begin, writer: Writer, faults: Faults, monkeypatch: pytest.MonkeyPatch, *, is_full: bool
) -> None:
    """The doubt comes back with a write that is acknowledged, or when the list of unanswered writes is full."""
    await writer.make()
    async with begin() as edge:
        store, disk = edge.gateway.engine.store, disk_of(edge)
        for method in ("DELETE", "PUT"):
            faults.status(502, method=method)
            await edge.send(method, "/s", {"Content-Type": TEXT})
        edge.clock.advance(30)
        assert await whole(edge) == await writer.read()
        for stream in list(store):
            store.drop_stream(stream, End.EVICTED)
        assert len(disk) == 1
        if is_full:
            monkeypatch.setattr(pending_writes, "_MOST_BYTES", 400)
            faults.status(502, method="DELETE")
            await edge.send("DELETE", "/other")
        else:
            assert (await edge.send("POST", "/s", {"Content-Type": TEXT}, b"x")).status == 204
        assert len(disk) == 0


async def test_a_reader_of_the_tail_leaves_the_runs_on_disk(begin: Begin, hostile: Hostile) -> None:
    """It goes on at the check, where the bytes on disk are of no use to it."""
    full = random(1, 1_500_000)
    nameless = Nameless(full[:900_000])
    url = await nameless.url(hostile)
    async with begin(url) as edge:
        assert await whole(edge) == nameless.body
    async with begin(url) as edge:
        (stored,) = disk_of(edge).streams()
        body, check = stored.body, stored.check
        assert check is not None
        nameless.body = full
        at = int(check)
        while at < len(full):
            at = int((await edge.get(f"/s?offset={at:08}")).next_offset)
        (stored,) = disk_of(edge).streams()
        assert stored.body == body
        # A reader from the start has them confirmed.
        assert await whole(edge) == full
        assert disk_of(edge).counts.refuted == 0


@pytest.mark.parametrize("with_credentials", [True, False])
async def test_streams_of_readers_with_credentials_are_not_written(
    begin: Begin, writer: Writer, with_credentials: bool
) -> None:
    await writer.make()
    async with begin(with_credentials=with_credentials) as edge:
        assert await whole(edge, headers={"Authorization": "Bearer x"}) == await writer.read()
        await disk_of(edge).settled()
    async with begin() as edge:
        assert len(disk_of(edge)) == 0


async def test_bytes_are_not_used_under_other_rules_of_sharing(
    begin: Begin, writer: Writer, counters: Counters
) -> None:
    await writer.make()
    await is_on_disk(begin, writer)
    expected = await writer.read()
    async with begin(credential_headers=["authorization", "cookie", "x-user"]) as edge:
        assert await whole(edge) == expected
        assert disk_of(edge).counts.read_bytes == 0


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_happens_readers_get_the_bytes_of_the_origin(
    begin: Begin, writer: Writer, origin: RunningOrigin, clock: ManualClock, folder: Path, seed: int
) -> None:
    """Random changes at the origin, restarts, evictions, purges and damage."""
    rng = Random(seed)
    await writer.make(count=30)
    for _ in range(5):
        async with begin(cache_bytes=1 << 20, max_flight_bytes=1 << 19) as edge:
            for _ in range(4):
                match rng.randrange(7):
                    case 0:
                        await writer.append(seed=rng.randrange(1000), count=rng.randrange(1, 20))
                    case 1:
                        await writer.make(seed=rng.randrange(1000), count=rng.choice([3, 30, 30, 45]))
                    case 2:
                        await writer.make("/other", seed=rng.randrange(1000), count=45)
                        await whole(edge, "/other")
                    case 3:
                        await edge.send("DELETE", "/s")
                        await writer.make(seed=rng.randrange(1000), count=30)
                    case 4:
                        for stream in list(edge.gateway.engine.store):
                            edge.gateway.engine.purge.drop_stream(stream)
                    case 5:
                        answer = await edge.send_to(origin.url, "GET", "/s?offset=-1")
                        if answer.status == 200 and len(answer.body) > PIECE:
                            origin.origin.store.trim("/s", answer.next_offset, clock.wall(), hides_start=False)
                    case _:
                        await disk_of(edge).settled()
                        damage(folder, 300_000, rng.randrange(300_000))
                # Until a stream is no longer trusted, changes behind the gateway's back may be missed.
                clock.advance(61)
                assert await whole(edge) == await writer.read()

"""Counts between a stream's offsets."""

from __future__ import annotations

import asyncio
import io
import json
import sys
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import quote

import pytest

from gateway.ops.admin.counts import MOST_BYTES, MOST_RUNS
from gateway.origin.app import OriginSettings, RunningOrigin, start_origin
from pyspark_durable_streams.framing import Elements, Piece
from tests.ops.admin.conftest import Bench, Start

JSON = "application/json"


async def append(bench: Bench, path: str, *messages: object) -> None:
    body = json.dumps(messages).encode()
    async with bench.session.post(
        bench.gateway.gateway_url + path, data=io.BytesIO(body), headers={"Content-Type": JSON}
    ) as answer:
        assert answer.status == 204


async def fill(bench: Bench, path: str, count: int = 9) -> None:
    """Make a JSON stream of `count` appends of three messages, and read it to its end."""
    async with bench.session.put(bench.gateway.gateway_url + path, headers={"Content-Type": JSON}) as answer:
        assert answer.status == 201
    for number in range(count):
        await append(bench, path, {"n": number, "text": 'a "},{" in it'}, [number, {}], "é\n" * number)
    await walk(bench, path)


async def walk(bench: Bench, path: str, most: int = 1_000) -> None:
    """Read `most` replies from the beginning, or to the end."""
    offset = "-1"
    for _ in range(most):
        async with bench.readers.get(f"{bench.gateway.gateway_url}{path}?offset={offset}") as answer:
            assert answer.status == 200
            await answer.read()
            offset = answer.headers["Stream-Next-Offset"]
            if "Stream-Up-To-Date" in answer.headers:
                return


async def etag_of(bench: Bench, path: str, **headers: str) -> str:
    """The ETag of a reply with a part of the stream."""
    async with bench.readers.get(f"{bench.gateway.gateway_url}{path}?offset=-1", headers=headers) as answer:
        assert answer.status == 200
        return answer.headers["ETag"]


async def counts(
    bench: Bench, path: str, offset: str = "-1", run_bytes: int = 1 << 20, etag: str | None = None
) -> list[dict[str, Any]]:
    tag = etag if etag is not None else await etag_of(bench, path)
    query = f"stream={quote(path, safe='')}&etag={quote(tag, safe='')}&offset={offset}&run_bytes={run_bytes}"
    found: list[dict[str, Any]] = (await bench.get(f"/api/counts?{query}"))["runs"]
    return found


async def started(start: Start, stack: AsyncExitStack, max_chunk_bytes: int) -> Bench:
    """A gateway in front of an origin with this chunk size."""
    origin = await start_origin(OriginSettings(max_chunk_bytes=max_chunk_bytes))
    stack.push_async_callback(origin.stop, grace_s=0)
    return await start(origin.url)


async def test_runs_lead_from_offset_to_offset_and_each_is_what_a_reader_finds_there(start: Start) -> None:
    async with AsyncExitStack() as stack:
        bench = await started(start, stack, max_chunk_bytes=100)
        await fill(bench, "/s", 60)
        await check_runs(bench)


async def check_runs(bench: Bench) -> None:
    lengths = []
    for run_bytes in (1 << 20, 2_048, 1_024):
        runs = await counts(bench, "/s", run_bytes=run_bytes)
        lengths.append(len(runs))
        assert sum(run["messages"] for run in runs) == 180
        assert [run["offset"] for run in runs] == ["-1", *(run["next"] for run in runs[:-1])]
        for run in runs:
            _, from_here, _ = await bench.read(f"/s?offset={run['offset']}")
            _, behind, _ = await bench.read(f"/s?offset={run['next']}")
            messages = len(json.loads(from_here)) - len(json.loads(behind))
            framer = Elements()
            lines = b"".join(piece.data for piece in (*framer.feed(from_here), *framer.end()))
            mine = b"".join(lines.splitlines(keepends=True)[:messages])
            assert (run["messages"], run["bytes"], run["crc32"]) == (messages, len(mine), zlib.crc32(mine))
    assert lengths[0] == 1 < lengths[1] < lengths[2]
    last = (await counts(bench, "/s", run_bytes=1_024))[-1]
    assert await counts(bench, "/s", last["offset"]) == [last]
    assert await counts(bench, "/s", last["next"]) == []


async def test_appended_messages_are_counted_after_the_earlier_runs(bench: Bench) -> None:
    await fill(bench, "/s")
    (run,) = await counts(bench, "/s")
    await append(bench, "/s", 1, 2)
    await bench.read(f"/s?offset={run['next']}")
    assert [one["messages"] for one in await counts(bench, "/s", run["next"])] == [2]
    assert [one["messages"] for one in await counts(bench, "/s")] == [29]


async def test_streams_other_than_json_have_byte_counts_only(bench: Bench) -> None:
    await bench.put("/text", b"hello\nthere")
    _, body, _ = await bench.read("/text?offset=-1")
    (run,) = await counts(bench, "/text")
    assert (run["messages"], run["bytes"], run["crc32"]) == (None, 11, zlib.crc32(body))


async def test_a_stream_that_is_not_held_has_no_counts(bench: Bench) -> None:
    await fill(bench, "/s")
    assert await counts(bench, "/other", etag=await etag_of(bench, "/s")) == []
    assert await counts(bench, "/s", "nowhere") == []
    for wrong in (
        "stream=s&etag=x",
        "",
        "stream=/s",
        "stream=/s&etag=x&run_bytes=9",
        "stream=/s&etag=x&run_bytes=99999999",
    ):
        assert (await bench.ask("GET", f"/api/counts?{wrong}")).status == 422


async def test_a_gap_ends_the_runs(start: Start) -> None:
    async with AsyncExitStack() as stack:
        origin = await start_origin(OriginSettings(max_chunk_bytes=400))
        stack.push_async_callback(origin.stop, grace_s=0)
        bench = await start(origin.url)
        await fill(bench, "/s", 60)
        offsets = ["-1"]
        for _ in range(3):
            async with bench.session.get(f"{origin.url}/s?offset={offsets[-1]}") as answer:
                offsets.append(answer.headers["Stream-Next-Offset"])
        await bench.post("/api/purge", {"stream": "/s"})
        etag = await etag_of(bench, "/s")
        await bench.read(f"/s?offset={offsets[2]}")
        held = {offset: await counts(bench, "/s", offset, etag=etag) for offset in offsets}
        assert [run["next"] for run in held["-1"]] == [offsets[1]]
        assert held[offsets[1]] == []
        assert held[offsets[2]]


async def test_the_etag_selects_one_of_several_streams_of_a_path(bench: Bench) -> None:
    await fill(bench, "/s")
    mine = await etag_of(bench, "/s", Authorization="Bearer a")
    open_to_all = await etag_of(bench, "/s")
    assert mine != open_to_all
    assert await counts(bench, "/s", etag=mine) == await counts(bench, "/s", etag=f"W/{open_to_all}")
    (run,) = await counts(bench, "/s", etag=mine)
    # A reader at the tail holds nothing, and takes nothing away.
    bench.clock.advance(1)
    await bench.read(f"/s?offset={run['next']}", Authorization="Bearer b")
    assert await counts(bench, "/s", etag=mine) == [run]
    for other in ('"another:1:2"', '""', "", mine.partition(":")[0][:-1], mine.replace('"', "")):
        assert await counts(bench, "/s", etag=other) == []


async def test_an_etag_from_before_a_re_creation_selects_no_stream(bench: Bench) -> None:
    await fill(bench, "/s")
    before = await etag_of(bench, "/s")
    async with bench.session.delete(bench.gateway.gateway_url + "/s") as answer:
        assert answer.status == 204
    await fill(bench, "/s")
    assert await counts(bench, "/s", etag=before) == []
    assert await counts(bench, "/s")


async def test_an_answer_is_bounded_in_bytes(start: Start) -> None:
    async with AsyncExitStack() as stack:
        bench = await started(start, stack, max_chunk_bytes=1 << 20)
        path = "/long"
        async with bench.session.put(bench.gateway.gateway_url + path, headers={"Content-Type": "text/plain"}):
            pass
        for _ in range(40):
            async with bench.session.post(
                bench.gateway.gateway_url + path, data=b"x" * (1 << 20), headers={"Content-Type": "text/plain"}
            ) as answer:
                assert answer.status == 204
        await walk(bench, path)
        etag = await etag_of(bench, path)
        found, at = [], "-1"
        while runs := await counts(bench, path, at, run_bytes=3 << 20, etag=etag):
            assert sum(run["bytes"] for run in runs) <= MOST_BYTES + (3 << 20)
            assert all(run["bytes"] <= 3 << 20 for run in runs)
            found += runs
            at = runs[-1]["next"]
        assert sum(run["bytes"] for run in found) == 40 << 20


async def test_numbers_are_counted_in_slices(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench.session.put(bench.gateway.gateway_url + "/s", headers={"Content-Type": JSON}):
        pass
    await append(bench, "/s", *range(100_000))
    await walk(bench, "/s")
    longest = 0
    cut = Elements._cut

    def watched(self: Elements, rest: bytes) -> tuple[Piece | None, bytes]:
        nonlocal longest
        longest = max(longest, len(rest))
        return cut(self, rest)

    monkeypatch.setattr(Elements, "_cut", watched)
    (run,) = await counts(bench, "/s")
    assert 0 < longest < 1 << 18
    lines = b"".join(b"%d\n" % number for number in range(100_000))
    assert (run["messages"], run["bytes"], run["crc32"]) == (100_000, len(lines), zlib.crc32(lines))


async def test_a_run_with_a_very_long_message_is_not_counted(bench: Bench) -> None:
    async with bench.session.put(bench.gateway.gateway_url + "/s", headers={"Content-Type": JSON}):
        pass
    await append(bench, "/s", 1, "x" * 500_000, 2)
    await walk(bench, "/s")
    (run,) = await counts(bench, "/s")
    await append(bench, "/s", ['"\\{'] * 400_000)
    await walk(bench, "/s")
    assert await counts(bench, "/s", run["next"]) == []
    assert run["messages"] == 3


async def test_an_answer_is_bounded_in_runs(start: Start) -> None:
    async with AsyncExitStack() as stack:
        bench = await started(start, stack, max_chunk_bytes=1 << 10)
        async with bench.session.put(bench.gateway.gateway_url + "/s", headers={"Content-Type": "text/plain"}):
            pass
        async with bench.session.post(
            bench.gateway.gateway_url + "/s",
            data=b"x" * ((MOST_RUNS + 5) << 10),
            headers={"Content-Type": "text/plain"},
        ) as answer:
            assert answer.status == 204
        await walk(bench, "/s", 2_000)
        runs = await counts(bench, "/s", run_bytes=1_024)
        assert len(runs) == MOST_RUNS
        assert len(await counts(bench, "/s", runs[-1]["next"], run_bytes=1_024)) == 5


async def test_a_step_between_offsets_longer_than_the_longest_run_is_not_counted(start: Start) -> None:
    async with AsyncExitStack() as stack:
        bench = await started(start, stack, max_chunk_bytes=32 << 20)
        async with bench.session.put(bench.gateway.gateway_url + "/s", headers={"Content-Type": "text/plain"}):
            pass
        async with bench.session.post(
            bench.gateway.gateway_url + "/s",
            data=io.BytesIO(b"x" * (MOST_BYTES + 1)),
            headers={"Content-Type": "text/plain"},
        ) as answer:
            assert answer.status == 204
        await walk(bench, "/s")
        (row,) = (await bench.get("/api/streams?prefix=/s"))["streams"]
        assert row["bytes"] > MOST_BYTES
        assert await counts(bench, "/s") == []


async def test_a_stream_that_needs_revalidation_has_no_counts(bench: Bench) -> None:
    await fill(bench, "/s")
    etag = await etag_of(bench, "/s")
    assert await counts(bench, "/s", etag=etag)
    await bench.post("/api/purge", {"stream": "/s", "soft": True})
    assert await counts(bench, "/s", etag=etag) == []
    await bench.read("/s?offset=-1")
    assert await counts(bench, "/s")


class Gated(ThreadPoolExecutor):
    """Runs no job before `release`, and counts the submitted jobs."""

    def __init__(self) -> None:
        super().__init__(2)
        self.gate = threading.Event()
        self.asked = 0
        self.arrived = asyncio.Event()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.asked += 1
        self.arrived.set()

        def held() -> Any:
            assert self.gate.wait(5)
            return fn(*args, **kwargs)

        return super().submit(held)


@pytest.mark.parametrize("way", ["purged", "made anew"])
async def test_counts_of_a_stream_that_is_gone_are_discarded(bench: Bench, way: str) -> None:
    await fill(bench, "/s")
    etag = await etag_of(bench, "/s")
    workers = Gated()
    asyncio.get_running_loop().set_default_executor(workers)
    asking = asyncio.create_task(counts(bench, "/s", etag=etag))
    await workers.arrived.wait()
    if way == "purged":
        await bench.post("/api/purge", {"stream": "/s"})
    else:
        async with bench.session.delete(bench.gateway.gateway_url + "/s") as answer:
            assert answer.status == 204
        await fill(bench, "/s", 2)
    workers.gate.set()
    assert await asking == []
    if way == "made anew":
        assert [run["messages"] for run in await counts(bench, "/s")] == [6]


async def test_bytes_are_counted_once(bench: Bench) -> None:
    await fill(bench, "/s")
    workers = Gated()
    workers.gate.set()
    asyncio.get_running_loop().set_default_executor(workers)
    first, *others = await asyncio.gather(*(counts(bench, "/s") for _ in range(5)))
    assert first
    assert all(other == first for other in others)
    assert workers.asked == 1


async def test_without_the_extra_only_bytes_are_counted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(bench, "/s")
    await bench.put("/text", b"hello")
    await bench.read("/text?offset=-1")
    monkeypatch.setitem(sys.modules, "pyspark_durable_streams.framing", None)
    told = await bench.ask("GET", f"/api/counts?stream=/s&etag={quote(await etag_of(bench, '/s'))}")
    assert (told.status, "durable-gateway[pipeline]" in told.body["error"]) == (501, True)
    assert [run["bytes"] for run in await counts(bench, "/text")] == [5]


async def test_a_body_that_is_not_a_json_array_is_not_counted(bench: Bench, origin: RunningOrigin) -> None:
    async with bench.session.put(bench.gateway.gateway_url + "/s", headers={"Content-Type": JSON}) as answer:
        tail = answer.headers["Stream-Next-Offset"]
    head = {"Content-Type": JSON, "Stream-Next-Offset": tail[:-1] + "9", "Stream-Up-To-Date": "true"}
    origin.origin.faults.replace(200, head, b'[{"a":1},,{"b":2}]', kind="catchup")
    assert (await bench.read("/s?offset=-1"))[0] == 200
    (row,) = (await bench.get("/api/streams?prefix=/s"))["streams"]
    assert row["bytes"]
    assert await counts(bench, "/s") == []

"""The streams held, as the admin port lists them."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.ops.admin.directory import Directory, in_turns
from gateway.ops.partition_ids import PartitionIds
from gateway.origin.app import RunningOrigin
from gateway.protocol.sharing import Group, Partition, StreamKey
from gateway.tape.stream import End
from tests.ops.admin.conftest import Bench, Start
from tests.scenarios.hostile import Asked, HostileOrigin, part_of_stream
from tests.waiting import pass_turns


async def test_a_stream_is_shown_with_its_tape_and_its_figures(bench: Bench) -> None:
    await bench.put("/a/one", b"hello", is_closed=True)
    for _ in range(2):
        await bench.read("/a/one?offset=-1")
    bench.clock.advance(3)
    told = await bench.stream("/a/one")
    assert told["path"] == "/a/one"
    assert told["content_type"] == "text/plain"
    assert told["is_closed"]
    assert told["closed_at"] == told["tail"]
    assert told["bytes"] == 5
    assert [(run["bytes"], run["end"], run["age_s"]) for run in told["tape"]] == [(5, told["tail"], 3.0)]
    assert told["contacted_s"] == 3.0
    assert not told["is_followed"]
    assert told["lifetime"] == {"ttl_s": None, "expires_at": None}
    assert (told["reads"], told["hits"], told["hit_ratio"], told["sent_bytes"]) == (2, 1, 0.5, 10)


async def test_pages_list_every_stream(bench: Bench) -> None:
    names = [f"/page/{number:02}" for number in range(7)]
    for name in [*names, "/other"]:
        await bench.put(name)
        await bench.read(f"{name}?offset=-1")
    seen: list[str] = []
    after: str | None = ""
    pages = 0
    while after is not None:
        page = await bench.get(f"/api/streams?prefix=/page&limit=3&after={after}")
        seen += [row["path"] for row in page["streams"]]
        after = page["next"]
        pages += 1
    assert seen == names
    assert pages == 3
    assert (await bench.get("/api/streams?prefix=/page&limit=7"))["next"] is None


async def test_readers_with_credentials_have_separate_streams_that_do_not_reveal_them(bench: Bench) -> None:
    await bench.put("/mine")
    for secret in ("Bearer one", "Bearer two"):
        await bench.read("/mine?offset=-1", Authorization=secret)
    rows = (await bench.get("/api/streams?prefix=/mine"))["streams"]
    partitions = {row["partition"] for row in rows}
    held = {stream.key.partition for stream in bench.gateway.engine.store}
    assert len(partitions) == len(rows) == 3
    assert {row["route"] for row in rows} == {"default"}
    for digest in (partition.readers for partition in held):
        assert not digest or digest not in str(rows)


async def test_an_id_survives_a_re_creation_of_the_stream(bench: Bench) -> None:
    await bench.put("/again")
    before = await bench.stream("/again")
    async with bench.session.delete(bench.gateway.gateway_url + "/again") as answer:
        assert answer.status == 204
    told = await bench.ask("GET", f"/api/streams/{before['id']}")
    assert (told.status, told.body) == (404, {"error": "no such stream is held"})
    await bench.put("/again")
    after = await bench.get(f"/api/streams/{before['id']}")
    assert after["incarnation"] != before["incarnation"]


async def test_an_invalid_id_is_not_found(bench: Bench) -> None:
    for id_ in ("nonsense", "e30", "%F0%9F%92%A9", "W10", "WyIvIl0"):
        assert (await bench.ask("GET", f"/api/streams/{id_}")).status == 404


async def test_live_readers_are_counted_while_connected(bench: Bench, origin: RunningOrigin) -> None:
    await bench.put("/live")
    first, second = await bench.follow("/live"), await bench.follow("/live")
    told = await bench.stream("/live")
    assert told["readers"] == 2
    assert told["is_followed"]
    assert [reader["mode"] for reader in told["live_readers"]] == ["sse", "sse"]
    assert {reader["at"] for reader in told["live_readers"]} == {told["tail"]}
    assert [reader["clients"] for reader in told["live_readers"]] == [1, 1]
    overview = await bench.get("/api/overview")
    assert overview["subscribers"] == {"longpoll": 0, "sse": 2}
    assert overview["followed_streams"] == 1
    for reader in (first, second):
        reader.close()

    await bench.until_readers("/live", 0)


async def test_the_busiest_streams_come_first(bench: Bench) -> None:
    sizes = {"/top/small": 10, "/top/large": 1_000}
    for path, size in sizes.items():
        await bench.put(path, b"x" * size)
    for _ in range(3):
        await bench.read("/top/small?offset=-1")
    await bench.read("/top/large?offset=-1")
    reader = await bench.follow("/top/large")

    async def top(by: str) -> list[Any]:
        told = await bench.get(f"/api/top?by={by}&limit=1")
        assert told["by"] == by
        return [row["path"] for row in told["streams"]]

    assert await top("requests") == ["/top/small"]
    assert await top("bytes") == ["/top/large"]
    assert await top("subscribers") == ["/top/large"]
    reader.close()


async def test_an_invalid_page_is_refused_in_one_line(bench: Bench) -> None:
    for query in ("limit=0", "limit=1001", "limit=many", "limit=1&limit=2", "colour=red"):
        told = await bench.ask("GET", f"/api/streams?{query}")
        assert told.status == 422, query
        assert list(told.body) == ["error"]
        assert "\n" not in told.body["error"]


async def test_the_overview_agrees_with_the_metrics(start: Start, origin: RunningOrigin) -> None:
    bench = await start(origin.url, cache_bytes="8MiB", node_name="edge-one")
    await bench.put("/counted", b"x" * 100, is_closed=True)
    await bench.warm("/counted?offset=-1")
    bench.clock.advance(7)
    overview = await bench.get("/api/overview")
    text = await bench.get("/metrics")
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))

    def total(name: str, *labels: str) -> float:
        return sum(
            float(value)
            for key, value in samples.items()
            if key.startswith(name) and all(part in key for part in labels)
        )

    assert overview["node"] == "edge-one"
    assert overview["uptime_s"] == 7
    assert overview["is_ready"]
    assert not overview["is_draining"]
    assert overview["connections"] >= 1
    assert overview["requests"]["catchup"]["hit"] >= 1
    for mode, outcomes in overview["requests"].items():
        for outcome, count in outcomes.items():
            assert count == total("durable_gateway_requests_total", f'mode="{mode}"', f'outcome="{outcome}"')
    for mode, count in overview["upstream_requests"].items():
        assert count == total("durable_gateway_upstream_requests_total", f'mode="{mode}"')
    assert overview["downstream_bytes"] == total("durable_gateway_downstream_bytes_total") >= 300
    assert overview["upstream_bytes"] == total("durable_gateway_upstream_bytes_total") == 100
    assert overview["cache"] == {
        "bytes": overview["cache"]["bytes"],
        "limit_bytes": 8 << 20,
        "tapes": 1,
        "evictions": 0,
    }
    store = bench.gateway.engine.store
    assert overview["cache"]["bytes"] == store.cost + store.lent > 0


async def test_a_header_that_is_not_utf_8_does_not_break_the_list(start: Start) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        reply = part_of_stream(b"x", "0001", "text/plain; x=QQ", **{"Stream-Closed": "true", "Surrogate-Key": "QQ"})
        writer.write(reply.replace(b"QQ", b"\xff")[: -1 if asked.method == "HEAD" else None])

    origin = HostileOrigin(script, takes_head=True)
    await origin.start()
    try:
        bench = await start(origin.url)
        assert (await bench.read("/s?offset=-1"))[0] == 200
        for path in ("/api/streams", "/api/top"):
            (row,) = (await bench.get(path))["streams"]
            assert row["content_type"] == "text/plain; x=\\xff"
        assert (await bench.stream("/s"))["surrogate_keys"] == ["\\xff"]
    finally:
        await origin.stop()


async def test_many_streams_of_one_path_are_walked_in_slices(bench: Bench) -> None:
    store = bench.gateway.engine.store
    group = Group("http://origin", "/room")
    for number in range(1_203):
        store.open(StreamKey(group, "", Partition("default", readers=f"{number:032x}")), 0.0)
    slices = [len(streams) async for streams in Directory(bench.gateway.engine, PartitionIds()).slices()]
    assert slices == [500, 500, 203]
    others_turns = 0

    async def others() -> None:
        nonlocal others_turns
        while True:
            await pass_turns(1)
            others_turns += 1

    task = asyncio.create_task(others())
    assert [number async for number in in_turns(range(1_203))] == list(range(1_203))
    task.cancel()
    assert others_turns >= 1
    # Streams that end meanwhile are left out.
    seen = 0
    async for streams in Directory(bench.gateway.engine, PartitionIds()).slices():
        seen += len(streams)
        for stream in store.group(group):
            store.drop_stream(stream, End.DELETED)
    assert seen == 500


async def test_the_first_thousand_runs_of_a_tape_are_shown(bench: Bench) -> None:
    store = bench.gateway.engine.store
    stream = store.open(StreamKey(Group("http://origin", "/torn"), "", Partition("default")), 0.0)
    for number in range(0, 2_400, 2):
        store.store(stream, f"{number:08}", f"{number + 1:08}", [b"x"], 0.0)
    told = await bench.stream("/torn")
    assert told["blocks"] == 1_200
    assert len(told["tape"]) == 1_000


async def test_only_bodies_that_list_streams_may_be_large(bench: Bench) -> None:
    many = [f"/{'x' * 100}/{number}" for number in range(2_000)]
    assert (await bench.ask("POST", "/api/tails", {"streams": many})).status == 200
    told = await bench.ask("POST", "/api/purge", {"key": "x" * 100_000})
    assert (told.status, list(told.body)) == (413, ["error"])

"""Purging: which streams are purged, what remains, and that no read or connection fails because of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import quote

import pytest

from gateway.aio.clock import ManualClock
from gateway.config.gateway import GatewayConfig
from gateway.config.routes import RouteConfig
from gateway.config.server import ServerConfig
from gateway.origin.app import OriginSettings, RunningOrigin, start_origin
from gateway.origin.requests import Kind
from tests.ops.admin.conftest import Bench, Start
from tests.scenarios.hostile import Asked, HostileOrigin, answer, part_of_stream


async def held(bench: Bench) -> list[str]:
    """Paths of the streams with bytes held."""
    return [row["path"] for row in (await bench.get("/api/streams"))["streams"] if row["bytes"]]


async def test_a_purged_stream_is_fetched_again(bench: Bench, origin: RunningOrigin) -> None:
    for path in ("/gone", "/stays"):
        await bench.put(path, is_closed=True)
        await bench.warm(f"{path}?offset=-1")
    assert await bench.post("/api/purge", {"stream": "/gone"}) == {"purged": 1}
    assert await held(bench) == ["/stays"]
    origin.origin.counters.reset()
    status, body, how = await bench.read("/gone?offset=-1")
    assert (status, body) == (200, b"hello")
    assert "fwd=uri-miss" in how
    assert origin.origin.counters.requests[Kind.CATCHUP] == 1
    assert "; hit" in (await bench.read("/stays?offset=-1"))[2]
    assert origin.origin.counters.requests[Kind.CATCHUP] == 1


async def test_a_softly_purged_stream_keeps_its_bytes_and_is_revalidated_once(
    bench: Bench, origin: RunningOrigin
) -> None:
    await bench.put("/soft", is_closed=True)
    await bench.warm("/soft?offset=-1")
    assert await bench.post("/api/purge", {"stream": "/soft", "soft": True}) == {"purged": 1}
    assert (await bench.stream("/soft"))["is_doubted"]
    origin.origin.counters.reset()
    assert (await bench.read("/soft?offset=-1"))[1] == b"hello"
    looked = origin.origin.counters.total_requests
    assert looked == 1
    assert origin.origin.counters.total_body_bytes == 0
    assert not (await bench.stream("/soft"))["is_doubted"]
    await bench.read("/soft?offset=-1")
    assert origin.origin.counters.total_requests == looked


async def test_purges_are_counted_by_kind(bench: Bench) -> None:
    def counted(kind: str) -> float | None:
        return bench.gateway.metrics.registry.get_sample_value("durable_gateway_purges_total", {"kind": kind})

    assert (counted("hard"), counted("soft")) == (0, 0)
    await bench.post("/api/purge", {"all": True})
    await bench.post("/api/purge", {"key": "group"})
    await bench.post("/api/purge", {"all": True, "soft": True})
    assert (counted("hard"), counted("soft")) == (2, 1)


async def test_a_prefix_purges_every_path_that_begins_with_it(bench: Bench) -> None:
    for path in ("/chat/1", "/chat/2", "/chatter", "/news"):
        await bench.put(path)
        await bench.read(f"{path}?offset=-1")
    assert await bench.post("/api/purge", {"prefix": "/chat/"}) == {"purged": 2}
    assert await held(bench) == ["/chatter", "/news"]
    assert await bench.post("/api/purge", {"all": True}) == {"purged": 2}
    assert await held(bench) == []


@pytest.mark.parametrize(
    ("prefix", "count"),
    [
        ("/caf%c3%a9", 2),
        ("/café/", 1),
        ("/%7Eu", 1),
        ("/~u/x/../", 1),
        # The last segment may continue: it does not step up yet.
        ("/~u/..", 0),
        ("/~", 1),
        ("/caf%C3", 2),
    ],
)
async def test_a_prefix_matches_in_any_spelling(bench: Bench, prefix: str, count: int) -> None:
    for path in ("/caf%C3%A9/x", "/caf%C3%A9s", "/~u/x"):
        await bench.put(path)
        await bench.read(f"{path}?offset=-1")
    quoted = quote(prefix)
    assert len((await bench.get(f"/api/streams?prefix={quoted}"))["streams"]) == count
    assert len((await bench.get(f"/api/tails?prefix={quoted}"))["tails"]) == count
    assert await bench.post("/api/purge", {"prefix": prefix}) == {"purged": count}


@pytest.mark.parametrize("prefix", ["/a?b", "/a#", "/a%", "/a%4", "/%zz", "a", "http://elsewhere/a", "/a%0a"])
async def test_a_prefix_that_no_path_can_have_is_refused(bench: Bench, prefix: str) -> None:
    quoted = quote(prefix)
    for path in ("/api/streams", "/api/tails"):
        assert (await bench.ask("GET", f"{path}?prefix={quoted}")).status == 422
    assert (await bench.ask("POST", "/api/purge", {"prefix": prefix})).status == 422


async def test_one_of_two_origins_streams_of_a_path_can_be_purged_alone(
    start: Start, origin: RunningOrigin, clock: ManualClock
) -> None:
    other = await start_origin(OriginSettings(), clock=clock)
    try:
        routes = tuple(
            RouteConfig(name=name, prefix=f"/{name}", strip_prefix=True, origin=url)
            for name, url in (("a", origin.url), ("b", other.url))
        )
        server = ServerConfig(listen="127.0.0.1:0", admin="127.0.0.1:0", shutdown_timeout_s=0.5)
        kept: list[GatewayConfig] = [GatewayConfig(server=server, routes=routes)]
        bench = await start(config=kept[0], load=lambda: kept[-1])

        async def fill() -> None:
            for path in ("/a/s", "/b/s"):
                await bench.read(f"{path}?offset=-1")

        for path in ("/a/s", "/b/s"):
            await bench.put(path)
        await fill()
        assert await bench.post("/api/purge", {"stream": "/s", "origin": origin.url}) == {"purged": 1}
        (row,) = (await bench.get("/api/streams"))["streams"]
        assert row["origin"] == other.url
        await fill()
        assert await bench.post("/api/purge", {"id": row["id"]}) == {"purged": 1}
        assert await bench.post("/api/purge", {"id": row["id"]}) == {"purged": 0}
        (row,) = (await bench.get("/api/streams"))["streams"]
        assert row["origin"] == origin.url
        # A followed stream outlives its route.
        reader = await bench.follow("/b/s")
        kept.append(GatewayConfig(server=server, routes=routes[:1]))
        await bench.post("/api/reload", {})
        assert (await bench.post("/api/tails", {"streams": ["/s"]}))["tails"]["/s"] is not None
        assert await bench.post("/api/purge", {"stream": "/s"}) == {"purged": 2}
        reader.close()
    finally:
        await other.stop(grace_s=0)


async def test_a_purge_during_a_read_does_not_fail_it(bench: Bench, origin: RunningOrigin) -> None:
    await bench.put("/slow")
    held = origin.origin.faults.hold(kind="catchup", times=1)
    read = asyncio.create_task(bench.read("/slow?offset=-1"))
    for _ in range(5):
        await held.waiting(1)
        assert await bench.post("/api/purge", {"stream": "/slow"}) == {"purged": 1}
        last, held = held, origin.origin.faults.hold(kind="catchup", times=1)
        last.release()
    await held.waiting(1)
    held.release()
    assert (await read)[:2] == (200, b"hello")


async def test_a_purge_is_audited_at_any_log_level(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    for path in ("/a/1", "/a/2?signature=secret"):
        await bench.put(path)
        await bench.read(path)
    id_ = (await bench.stream("/a/1"))["id"]
    for body in (
        {"stream": "/a/2?signature=secret"},
        {"id": id_, "soft": True},
        {"prefix": f"/a/{'x' * 1_000}"},
        {"key": "red"},
        {"all": True},
    ):
        await bench.post("/api/purge", body)
    await bench.post("/api/tails", {"streams": []})
    await bench.ask("POST", "/api/nothing%0Ahere", {})
    assert [record.getMessage() for record in caplog.records if record.name.startswith("gateway.admin")] == [
        "POST /api/purge by 127.0.0.1: 200: purged stream /a/2?…: 1",
        "POST /api/purge by 127.0.0.1: 200: marked stale stream /a/1: 1",
        f"POST /api/purge by 127.0.0.1: 200: purged prefix /a/{'x' * 190}…: 0",
        "POST /api/purge by 127.0.0.1: 200: purged key red: 0",
        "POST /api/purge by 127.0.0.1: 200: purged every stream: 1",
    ]


async def test_a_path_purges_all_its_queries_and_partitions_and_a_query_only_itself(bench: Bench) -> None:
    await bench.put("/p")
    await bench.read("/p?offset=-1", Authorization="Bearer a")
    await bench.read("/p?offset=-1&v=2")
    rows = (await bench.get("/api/streams?prefix=/p"))["streams"]
    assert len(rows) == 3
    assert (await bench.post("/api/purge", {"stream": "/p?v=2"}))["purged"] == 1
    assert (await bench.post("/api/purge", {"stream": "/%70"}))["purged"] == 2
    assert (await bench.get("/api/streams"))["streams"] == []


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"stream": "/a", "prefix": "/a"},
        {"stream": "relative"},
        {"stream": "http://elsewhere/a"},
        {"stream": "/a?offset=1"},
        {"stream": "/a\n"},
        {"prefix": "relative"},
        {"prefix": ""},
        {"prefix": "/"},
        {"prefix": "/a/../"},
        {"all": False},
        {"all": True, "prefix": "/a"},
        {"key": ""},
        {"key": 7},
        {"stream": "/a", "soft": "yes"},
        {"streams": "/a"},
        [],
    ],
)
async def test_an_invalid_purge_is_refused_in_one_line(bench: Bench, body: object) -> None:
    told = await bench.ask("POST", "/api/purge", body)
    assert told.status == 422
    assert list(told.body) == ["error"]
    assert "\n" not in told.body["error"]


async def test_live_readers_of_a_purged_stream_continue_at_their_offsets(bench: Bench, origin: RunningOrigin) -> None:
    await bench.put("/live", b"one")
    reader = await bench.follow("/live")
    poll_from = (await bench.stream("/live"))["tail"]
    poll = asyncio.create_task(bench.read(f"/live?live=long-poll&offset={poll_from}"))
    await origin.origin.counters.until(lambda counters: counters.parked > 0)
    await bench.until_readers("/live", 2)
    assert await bench.post("/api/purge", {"stream": "/live"}) == {"purged": 1}
    assert (await bench.stream("/live"))["bytes"] == 0
    async with bench.session.post(
        bench.gateway.gateway_url + "/live", data=b"two", headers={"Content-Type": "text/plain"}
    ) as answered:
        assert answered.status == 204
    status, body, _ = await poll
    assert (status, body) == (200, b"two")
    seen = b""
    while b"two" not in seen:
        seen += await reader.content.readany()
    assert seen.count(b"data:two") == seen.count(b"data:one") == 1
    reader.close()


async def test_a_fetch_begun_before_a_purge_is_not_stored_after_it(bench: Bench, origin: RunningOrigin) -> None:
    await bench.put("/live", b"old")
    reader = await bench.follow("/live")
    await bench.until_readers("/live", 1)
    await bench.post("/api/purge", {"stream": "/live"})
    tail = (await bench.stream("/live"))["tail"]
    fields = {"Content-Type": "text/plain", "Stream-Next-Offset": tail, "Stream-Up-To-Date": "true"}
    replies = origin.origin.faults.replace(200, fields, b"old", kind="catchup", times=None)
    on_its_way = origin.origin.faults.hold(kind="catchup", times=1)
    before = asyncio.create_task(bench.read("/live?offset=-1"))
    await on_its_way.waiting(1)
    replies.remove()
    origin.origin.faults.replace(200, fields, b"new", kind="catchup", times=None)
    assert await bench.post("/api/purge", {"stream": "/live"}) == {"purged": 1}
    # A reader after the purge does not join the fetch from before it.
    assert (await bench.read("/live?offset=-1"))[1] == b"new"
    await bench.post("/api/purge", {"stream": "/live"})
    on_its_way.release()
    assert (await before)[:2] == (200, b"old")
    assert (await bench.stream("/live"))["bytes"] == 0
    assert (await bench.read("/live?offset=-1"))[1] == b"new"
    assert not reader.content.at_eof()
    reader.close()


class Tagged:
    """An origin that tags its streams with surrogate keys."""

    def __init__(self) -> None:
        self.keys = {"/a": {"Surrogate-Key": "red  big"}, "/b": {"Cache-Tag": "red, blue"}, "/c": {}}
        self.origin = HostileOrigin(self.script, takes_head=True)

    async def script(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        path = asked.target.partition("?")[0]
        reply = part_of_stream(b"bytes", "0001", **{"Stream-Closed": "true", **self.keys[path]})
        if asked.method == "HEAD":
            closed = {"Stream-Next-Offset": "0001", "Stream-Closed": "true"}
            reply = answer("200 OK", {"Content-Type": "text/plain", "Content-Length": "5", **closed})
        writer.write(reply)


@pytest.fixture
async def tagged() -> AsyncIterator[Tagged]:
    tagging = Tagged()
    await tagging.origin.start()
    yield tagging
    await tagging.origin.stop()


async def test_a_surrogate_key_from_either_header_purges_its_group(start: Start, tagged: Tagged) -> None:
    bench = await start(tagged.origin.url)
    for path in tagged.keys:
        await bench.warm(f"{path}?offset=-1")
    assert (await bench.stream("/a"))["surrogate_keys"] == ["big", "red"]
    assert await bench.post("/api/purge", {"key": "green"}) == {"purged": 0}
    assert await bench.post("/api/purge", {"key": "blue"}) == {"purged": 1}
    assert await held(bench) == ["/a", "/c"]
    await bench.warm("/b?offset=-1")
    assert await bench.post("/api/purge", {"key": "red", "soft": True}) == {"purged": 2}
    assert await held(bench) == ["/a", "/b", "/c"]
    assert await bench.post("/api/purge", {"key": "red"}) == {"purged": 2}
    assert await held(bench) == ["/c"]
    assert await bench.post("/api/purge", {"key": "red"}) == {"purged": 0}


async def test_a_key_that_the_origin_withdrew_purges_nothing(start: Start, tagged: Tagged) -> None:
    bench = await start(tagged.origin.url)
    await bench.warm("/a?offset=-1")
    tagged.keys["/a"] = {"Surrogate-Key": "small"}
    await bench.post("/api/purge", {"key": "big"})
    await bench.read("/a?offset=-1")
    assert (await bench.stream("/a"))["surrogate_keys"] == ["small"]
    assert await bench.post("/api/purge", {"key": "big"}) == {"purged": 0}
    assert await bench.post("/api/purge", {"key": "small"}) == {"purged": 1}


async def test_a_stream_fetched_in_parts_has_the_keys_of_all_parts(start: Start) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.method == "HEAD":
            writer.write(
                answer("200 OK", {"Content-Type": "text/plain", "Stream-Next-Offset": "0002", "Content-Length": "9"})
            )
        elif "offset=0001" in asked.target:
            writer.write(part_of_stream(b"late", "0002", **{"Stream-Closed": "true", "Surrogate-Key": "alice"}))
        else:
            fields = {"Content-Type": "text/plain", "Stream-Next-Offset": "0001", "Surrogate-Key": "bob"}
            writer.write(answer("200 OK", fields, b"early"))

    origin = HostileOrigin(script, takes_head=True)
    await origin.start()
    try:
        bench = await start(origin.url)
        for key in ("alice", "bob"):
            for offset in ("-1", "0001"):
                await bench.read(f"/both?offset={offset}")
            assert (await bench.stream("/both"))["surrogate_keys"] == ["alice", "bob"]
            assert await bench.post("/api/purge", {"key": key}) == {"purged": 1}
            assert await held(bench) == []
    finally:
        await origin.stop()

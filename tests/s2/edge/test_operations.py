"""What operators see of S2 streams: access log, admin API, metrics, purge."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import aiohttp
import orjson
import pytest

from gateway.aio.clock import ManualClock
from gateway.app import start_gateway
from gateway.config.cache_plan import parse_plan
from gateway.config.gateway import GatewayConfig
from gateway.origin.s2.app import start_s2_origin
from gateway.origin.s2.calls import Call
from gateway.s2.records import ReadBatch
from gateway.s2.session import Terminal
from tests.plans import PlanFile, entry
from tests.s2.edge.clients import BASIN, STREAM, Answer, Client, Edge
from tests.waiting import eventually, time_passing


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "access.log"


@pytest.fixture
def settings(log: Path) -> dict[str, object]:
    return {"sink": "file", "path": str(log), "batch_s": 0.05}


async def admin(edge: Edge, method: str, path: str, body: object = None) -> Answer:
    async with edge.client.http.request(method, edge.gateway.admin_url + path, json=body) as reply:
        return Answer(reply.status, reply.headers.copy(), await reply.read())


async def test_each_read_has_its_line(edge: Edge, log: Path) -> None:
    await edge.client.append("a", "b")
    # The last time by the request's bytes.
    for _ in range(3):
        await edge.client.read("seq_num=0&count=2")
    await edge.client.tail()
    await edge.client.read("seq_num=2")
    session = await edge.client.session("seq_num=0&count=2")
    assert await session.texts(2) == ["a", "b"]
    assert await session.next() is None
    events = await edge.client.events("seq_num=0&count=1")
    assert await events.texts(1) == ["a"]
    await events.rest()

    def lines() -> list[dict[str, object]]:
        edge.clock.advance(0.1)
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    assert (await edge.client.read("tail_offset=1&count=1")).texts == ["b"]
    await eventually(lambda: len(lines()) >= 9)
    told = [(line["mode"], line["outcome"], line["status"]) for line in lines()]
    assert told[:6] == [
        ("append", "pass", 200),
        ("catchup", "miss", 200),
        ("catchup", "hit", 200),
        ("catchup", "hit", 200),
        ("head", "revalidated", 200),
        ("catchup", "revalidated", 416),
    ]
    assert [one[:2] for one in told[6:8]] == [("sse", "followed")] * 2
    # Whatever is asked of a stream, its name is the same.
    assert {line["stream"] for line in lines()} == {f"/v1/streams/{STREAM}?s2-basin={BASIN}"}
    assert {line["protocol"] for line in lines()} == {"s2"}
    zero, one, two = (f"{number:020}" for number in range(3))
    assert [(line.get("start"), line.get("next_offset")) for line in lines()[:9]] == [
        (None, None),
        (zero, two),
        (zero, two),
        (zero, two),
        (None, None),
        (two, None),
        (zero, two),
        (zero, one),
        (one, two),
    ]


async def test_a_stream_has_one_name_in_the_log_however_it_is_spelled(edge: Edge, log: Path) -> None:
    for spelled in ("a!b", "a%21b"):
        await edge.client.append("a", stream=spelled)
        await edge.client.read("seq_num=0", stream=spelled)

    def names() -> list[object]:
        edge.clock.advance(0.1)
        return [json.loads(line)["stream"] for line in log.read_text().splitlines()] if log.exists() else []

    await eventually(lambda: len(names()) == 4)
    assert set(names()) == {f"/v1/streams/a!b?s2-basin={BASIN}"}


async def test_streams_are_listed_and_purged(edge: Edge) -> None:
    await edge.client.append("a")
    session = await edge.client.session()
    assert await session.texts(1) == ["a"]
    assert isinstance(await session.next(), ReadBatch)
    listed = await admin(edge, "GET", "/api/streams")
    assert listed.status == 200, listed
    rows: list[dict[str, object]] = orjson.loads(listed.body)["streams"]
    (row,) = rows
    assert (row["path"], row["query"]) == (f"/v1/streams/{STREAM}", f"s2-basin={BASIN}")
    assert (row["tail"], row["bytes"], row["blocks"], row["readers"], row["is_followed"]) == ("1", 9, 1, 1, True)
    detail = await admin(edge, "GET", f"/api/streams/{row['id']}")
    assert detail.status == 200, detail
    assert (row["protocol"], row["records"], detail.json["records"]) == ("s2", 1, 1)
    assert detail.json["tape"] == [{"start": "0", "end": "1", "bytes": 9, "tokens": 1, "age_s": None}]
    assert detail.json["session"] == {"position": "1", "is_at_tail": True, "heard_s": 0.0}
    events = await edge.client.events()
    assert await events.texts(1) == ["a"]
    waiting = asyncio.create_task(edge.client.read("seq_num=1&wait=60"))

    async def readers() -> list[tuple[str, str, int]]:
        found = (await admin(edge, "GET", f"/api/streams/{row['id']}")).json["live_readers"]
        assert isinstance(found, list)
        return [(one["mode"], one["at"], one["clients"]) for one in found]

    async def has_three() -> bool:
        return await readers() == [("session", "1", 1), ("sse", "1", 1), ("longpoll", "1", 1)]

    await eventually(has_three)
    tails = await admin(edge, "GET", "/api/tails")
    assert tails.json["tails"] == {f"/v1/streams/{STREAM}?s2-basin={BASIN}": "1"}
    overview = await admin(edge, "GET", "/api/overview")
    assert overview.json["followed_streams"] == 1
    exposition = await admin(edge, "GET", "/metrics")
    assert "durable_gateway_followed_streams 1" in exposition.body.decode()
    purged = await admin(edge, "POST", "/api/purge", {"stream": f"/v1/streams/{STREAM}?s2-basin={BASIN}"})
    assert purged.status == 200, purged
    end = await session.next()
    assert isinstance(end, Terminal)
    assert end.status == 503
    # A read that waits is not over, and clients of sessions come back.
    await edge.client.append("b")
    assert (await waiting).texts == ["b"]
    assert (await edge.client.read("seq_num=0&count=1")).texts == ["a"]


class TestPlan:
    @pytest.fixture
    def settings(self) -> dict[str, object]:
        # A plan holds no credentials.
        return {"credentials": "shared"}

    async def test_a_plan_names_streams_as_the_log_does_and_warms_none(self, edge: Edge, tmp_path: Path) -> None:
        for stream in (STREAM, "b", "c"):
            await edge.client.append("x", stream=stream)
        edge.counters.reset()
        file = PlanFile(tmp_path / "plan.json")
        mine, b, c = (entry(f"/v1/streams/{stream}?s2-basin={BASIN}") for stream in (STREAM, "b", "c"))
        file.write(pin=[mine], warm=[mine, c], do_not_store=[b])
        edge.gateway.take_plan(parse_plan(file.path), is_budget_set=False)
        async with time_passing(edge.clock):
            for stream in (STREAM, "b"):
                for _ in range(2):
                    assert (await edge.client.read("seq_num=0&count=1", stream=stream)).texts == ["x"]
        plan = (await admin(edge, "GET", "/api/plan")).json["plan"]
        assert isinstance(plan, dict)
        # A read of a stream may create it, and needs what a plan does not have, so none is fetched ahead.
        assert (plan["unmatched"], plan["warmed"]["streams"]) == (2, 0)
        assert plan["pinned"]["kept"] == 1
        assert edge.counters.requests[Call.READ] == edge.counters.total_requests == 3


class TestReload:
    """The route changes while its streams are read."""

    @pytest.mark.parametrize("change", ["origin", "credentials", "protocol"])
    async def test_live_readers_come_again_and_find_the_route_as_it_is(self, change: str) -> None:
        origins = [await start_s2_origin() for _ in range(2)]
        url, settings = origins[0].url, dict[str, object](protocol="s2")

        def load() -> GatewayConfig:
            return GatewayConfig.for_origin(
                url, listen="127.0.0.1:0", admin="127.0.0.1:0", shutdown_timeout_s=2, **settings
            )

        clock = ManualClock()
        gateway = await start_gateway(load(), clock=clock, load=load)
        try:
            async with aiohttp.ClientSession(auto_decompress=False) as http:
                for number, origin in enumerate(origins):
                    direct = Client(http, origin.url)
                    config = {"basin": BASIN, "config": {"create_stream_on_append": True}}
                    assert (await direct.send("POST", "/v1/basins", config)).status == 201
                    await direct.append(f"of {number}", timestamp=1)
                client = Client(http, gateway.gateway_url)
                session = await client.session("seq_num=0")
                assert await session.texts(1) == ["of 0"]
                assert (await client.read("seq_num=0&count=1")).texts == ["of 0"]
                match change:
                    case "origin":
                        url = origins[1].url
                    case "credentials":
                        settings["credentials"] = "shared"
                    case _:
                        settings["protocol"] = "durable-streams"
                await gateway.reload()
                while isinstance(end := await session.next(), ReadBatch):
                    pass
                assert isinstance(end, Terminal)
                assert end.status == 503
                answer = await client.read("seq_num=0&count=1")
                if change == "protocol":
                    # What it asks for is no Durable Stream, and nothing that is held answers it.
                    assert answer.status == 400
                else:
                    assert answer.texts == (["of 1"] if change == "origin" else ["of 0"])
                session.close()
                assert gateway.engine.s2.sessions == 0
        finally:
            await gateway.stop()
            for origin in origins:
                await origin.stop(grace_s=0)


async def test_a_stream_is_purged_by_any_spelling_of_its_name(edge: Edge) -> None:
    await edge.client.append("a", stream="a!b")
    for spelled in ("a!b", "a%21b"):
        await edge.client.read("seq_num=0&count=1", stream="a!b")
        await admin(edge, "POST", "/api/purge", {"stream": f"/v1/streams/{spelled}?s2-basin={BASIN}"})
        again = await edge.client.read("seq_num=0&count=1", stream="a!b")
        assert "fwd=uri-miss" in again.headers["Cache-Status"]

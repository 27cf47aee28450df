"""What operators see of S2 streams: access log, admin API, metrics, purge."""

from __future__ import annotations

import json
from pathlib import Path

import aiohttp
import orjson
import pytest

from gateway.aio.clock import ManualClock
from gateway.app import start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.origin.s2.app import start_s2_origin
from gateway.s2.records import ReadBatch
from gateway.s2.session import Terminal
from tests.s2.edge.clients import BASIN, STREAM, Answer, Client, Edge
from tests.waiting import eventually


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
    for _ in range(2):
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

    await eventually(lambda: len(lines()) >= 7)
    told = [(line["mode"], line["outcome"], line["status"]) for line in lines()]
    assert told[:5] == [
        ("append", "pass", 200),
        ("catchup", "miss", 200),
        ("catchup", "hit", 200),
        ("head", "revalidated", 200),
        ("catchup", "revalidated", 416),
    ]
    assert [one[:2] for one in told[5:7]] == [("sse", "followed")] * 2


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
    assert (await edge.client.read("seq_num=0&count=1")).texts == ["a"]


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

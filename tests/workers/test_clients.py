"""Real clients and SDKs before a gateway with workers: a part of what `make conformance WORKERS=3` runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientSession
from s2_sdk import S2, AppendInput, BasinConfig, Endpoints, Record, SeqNum

from gateway.config.gateway import GatewayConfig
from gateway.origin.app import OriginSettings, start_origin
from gateway.origin.s2.app import start_s2_origin
from tests.clients import test_python, test_typescript
from tests.clients.conftest import LONG_POLL_TIMEOUT_S, Edge, gateway_config
from tests.clients.program import Program
from tests.clients.typescript import TypeScript
from tests.workers.edge import start_edge
from tests.workers.site import WORKERS

BOUND_S = 60.0
BASIN = "basin-of-tests"


class S2TypeScript(Program):
    """One process with npm's SDK of S2."""

    script = "s2.mjs"


@pytest.fixture
async def edge() -> AsyncIterator[Edge]:
    origin = await start_origin(OriginSettings(long_poll_timeout_s=LONG_POLL_TIMEOUT_S))
    async with ClientSession() as writer:
        made = Edge(await start_edge(gateway_config(origin.url), WORKERS), origin.url, writer, origin)
        yield made
        await made.gateway.stop()
    await origin.stop(grace_s=0)


async def test_clients_read_what_they_wrote_and_follow_streams_to_their_ends(edge: Edge) -> None:
    json = test_python.JSON
    await test_python.test_it_reads_what_it_wrote(edge, "/python")
    await test_python.test_sse_delivers_appends_and_ends_at_closure(edge, "/python/sse", json)
    async with TypeScript.start() as client:
        await test_typescript.test_the_client_reads_what_it_wrote_and_closed(edge, client, "/typescript", json)
        await test_typescript.test_a_session_follows_appends_to_the_end_of_the_stream(
            edge, client, "/typescript/long-poll", json, "long-poll"
        )


async def test_sdks_of_s2_find_what_they_appended(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each client reads the machine's list of authorities, which takes longer than most calls; here is no TLS.
    monkeypatch.setenv("SSL_CERT_FILE", os.devnull)
    origin = await start_s2_origin()
    settings = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "shutdown_timeout_s": 0.3}
    config = GatewayConfig.for_origin(origin.url, protocol="s2", origin_http="2", **settings)
    gateway = await start_edge(config, WORKERS)
    url = gateway.gateway_url
    async with asyncio.timeout(BOUND_S), S2("token", endpoints=Endpoints(account=url, basin=url)) as s2:
        await s2.create_basin(BASIN, config=BasinConfig(create_stream_on_append=True))
        stream = s2.basin(BASIN).stream("s")
        for number in range(6):
            ack = await stream.append(AppendInput([Record(b"%d" % number)]))
            assert (await stream.check_tail()).seq_num == ack.tail.seq_num == number + 1
            found = await stream.read(start=SeqNum(0))
            assert [record.body for record in found.records] == [b"%d" % one for one in range(number + 1)]
    async with S2TypeScript.start(url, "s2s") as sdk:
        await sdk.do("append", stream="s", count=30)
        followed = await sdk.do("follow", stream="s", count=30)
        assert followed["seqNums"] == list(range(30))
    await gateway.stop()
    await origin.stop(grace_s=1.0)

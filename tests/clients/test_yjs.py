"""Yjs end to end: editors with `@durable-streams/y-durable-streams` and its server, with snapshots and compaction.

The Yjs server keeps its documents in a Durable Streams server.  The gateway is in front of the Yjs server, between it
and the editors, or between the two servers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import ClientSession
from yarl import URL

from gateway.app import RunningGateway
from gateway.origin.app import OriginSettings, start_origin
from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode
from tests.clients.conftest import LONG_POLL_TIMEOUT_S, READS, gateway_config
from tests.clients.program import Program
from tests.workers.edge import EdgeProcess, start_edge

EDITORS = 10
COMPACTION_THRESHOLD_BYTES = 600
SERVICE = "/v1/yjs/clients"


class Yjs(Program):
    """A Yjs server and its editors: see `tests/node/yjs.mjs`."""

    script = "yjs.mjs"

    async def both(self, *commands: dict[str, Any]) -> None:
        """Run two commands at the same time."""
        for command in commands:
            self.say(command)
        done = [await self.hear() for _ in commands]
        assert {said["done"] for said in done} == {command["do"] for command in commands}


@pytest.fixture(params=["memory", "reference"])
async def streams_url(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """URL of the Durable Streams server that stores the documents."""
    if request.param == "reference":
        yield request.getfixturevalue("reference_server")
        return
    origin = await start_origin(OriginSettings(long_poll_timeout_s=LONG_POLL_TIMEOUT_S))
    yield origin.url
    await origin.stop(grace_s=0)


def passes(gateway: RunningGateway | EdgeProcess) -> int:
    """Reads of bytes that the gateway has relayed so far."""
    modes = (Mode.CATCHUP, Mode.LONGPOLL, Mode.SSE)
    return round(sum(gateway.metrics.requests(mode, Outcome.PASS).value for mode in modes))


async def edit_together(yjs: Yjs, url: str, document: str) -> int:
    """Let ten editors and four late ones edit, each late one in its own situation; returns the snapshot reads."""
    where = {"url": url + SERVICE, "document": document, "live": "sse"}
    await yjs.do("join", editors=EDITORS, **where)
    await yjs.do("edit", edits=3)
    await yjs.do("greet")
    await yjs.do("compact", editor=0)
    # The document is idle: the late joiner reads from one past its tail.
    late = await yjs.do("join", editors=1, **where)
    assert late["had"] == [3 * EDITORS + 1]
    await yjs.do("edit", editors=[0, EDITORS], edits=2)
    # There are updates after the snapshot: the next joiner reads from an offset that is not a position.
    late = await yjs.do("join", editors=1, **where)
    assert late["had"] == [3 * EDITORS + 5]
    await yjs.do("compact", editor=EDITORS + 1)
    # An editor that leaves asks for the stream to be closed, which its server does not do.
    await yjs.do("leave", editors=[1])
    await yjs.do("join", editors=1, **{**where, "live": "long-poll"})
    await yjs.both({"do": "edit", "edits": 2}, {"do": "join", "editors": 1, **where})
    await yjs.do("greet")
    return 4


async def assert_one_document(yjs: Yjs) -> None:
    """All editors have the same document, with every edit once."""
    said = await yjs.do("documents")
    assert said["errors"] == []
    assert len(said["documents"]) == EDITORS + 3
    assert len({json.dumps(document, sort_keys=True) for document in said["documents"]}) == 1
    document = said["documents"][0]
    assert sorted(document["edits"]) == sorted(said["made"])
    # Edits are interleaved.
    assert Counter(document["text"]) == Counter("".join(f"[{edit}]" for edit in said["made"]))
    assert said["compactions"] >= 2


async def test_editors_without_a_gateway_have_one_document(streams_url: str, path: str) -> None:
    # The baseline: failures of the editors or their server themselves would show here too.
    async with Yjs.start(streams_url, str(COMPACTION_THRESHOLD_BYTES)) as yjs:
        await edit_together(yjs, (await yjs.hear())["url"], path[1:])
        await assert_one_document(yjs)


async def test_editors_before_the_gateway_have_one_document_and_its_server_one_live_request(
    streams_url: str, path: str
) -> None:
    async with Yjs.start(streams_url, str(COMPACTION_THRESHOLD_BYTES)) as yjs:
        gateway = await start_edge(gateway_config((await yjs.hear())["url"]))
        try:
            with_snapshot = await edit_together(yjs, gateway.gateway_url, path[1:])
            await assert_one_document(yjs)
            relayed = passes(gateway)
            asked = await yjs.do("requests")
            await yjs.do("leave")
        finally:
            await gateway.stop()
    reads = [request for request in asked["requests"] if request["method"] in ("GET", "HEAD")]
    offsets = Counter(
        "snapshot" if str(request["offset"]).endswith("snapshot") else "live" if request["live"] else "catch-up"
        for request in reads
    )
    # One live request for the document and one for its awareness, whichever editors come and go.
    assert {stream: live["peak"] for stream, live in asked["live"].items()} == dict.fromkeys(asked["live"], 1)
    assert len(asked["live"]) == 2 <= offsets["live"] <= 6, offsets
    # Every editor asks for the snapshot's address, and some read it; one compacted away meanwhile is asked for again.
    assert offsets["snapshot"] == relayed >= EDITORS + 4 + with_snapshot, (offsets, relayed)
    # Of 28 by editors: some from the start, one from each offset after a snapshot, some at the awareness tail.
    assert offsets["catch-up"] <= 24, offsets


@pytest.mark.parametrize("is_idle", [True, False], ids=["idle", "updates behind the snapshot"])
async def test_a_snapshot_is_relayed_and_not_part_of_the_stream(streams_url: str, path: str, is_idle: bool) -> None:
    async with Yjs.start(streams_url, str(COMPACTION_THRESHOLD_BYTES)) as yjs, ClientSession() as http:
        url = (await yjs.hear())["url"]
        await yjs.do("join", editors=2, url=url + SERVICE, document=path[1:], live="sse")
        await yjs.do("compact", editor=0)
        if not is_idle:
            await yjs.do("edit", edits=2)
        document = f"{SERVICE}/docs{path}"
        async with http.get(url + document + "?offset=snapshot", allow_redirects=False) as reply:
            snapshot = URL(reply.headers["Location"]).query["offset"]
        async with http.get(url + document, params={"offset": snapshot}) as reply:
            behind = reply.headers["Stream-Next-Offset"]
        tail = snapshot.removesuffix("_snapshot")

        async def read(server: str, offset: str) -> tuple[object, ...]:
            async with http.get(server + document, params={"offset": offset}, allow_redirects=False) as reply:
                told = ("Location", "Stream-Next-Offset", "Stream-Up-To-Date", "Stream-Closed")
                return reply.status, [reply.headers.get(name) for name in told], await reply.read()

        # A gateway that has not seen the redirect: a client may know the snapshot's address from before its start.
        gateway = await start_edge(gateway_config(url))
        try:
            for offset in 2 * (snapshot, behind, snapshot, tail, "-1", behind, "snapshot", tail):
                assert await read(gateway.gateway_url, offset) == await read(url, offset), offset
            if not is_idle:
                await yjs.do("edit", edits=1)
                for offset in (snapshot, behind, "-1"):
                    assert await read(gateway.gateway_url, offset) == await read(url, offset), offset
        finally:
            await gateway.stop()


async def test_editors_whose_server_reads_through_the_gateway_have_one_document_and_its_origin_one_live_request(
    streams_url: str, path: str
) -> None:
    gateway = await start_edge(gateway_config(streams_url))
    try:
        async with Yjs.start(gateway.gateway_url, str(COMPACTION_THRESHOLD_BYTES)) as yjs:
            await edit_together(yjs, (await yjs.hear())["url"], path[1:])
            await assert_one_document(yjs)
            sent = {mode.value: round(gateway.metrics.upstream_requests(mode).value) for mode in READS}
            relayed = passes(gateway)
    finally:
        await gateway.stop()
    assert relayed == 0
    # One at a time each; it is reconnected if the machine stalls for longer than a live request may lag.
    assert (2 <= sent["sse"] <= 6, sent["longpoll"]) == (True, 0), sent
    # Of some 63: the Yjs server sends a HEAD at each join, and for its index until that exists, and reads the last
    # snapshot and the updates after it when it makes another.
    assert sent["catchup"] + sent["head"] <= 50, sent

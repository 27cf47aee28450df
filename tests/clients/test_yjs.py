"""Yjs for real: editors with `@durable-streams/y-durable-streams` and its server, snapshots and compaction included.

The Yjs server keeps its documents in a Durable Streams server.  The gateway stands before the Yjs server, where the
editors are, or between the two servers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.app import RunningGateway, start_gateway
from gateway.origin.app import OriginSettings, start_origin
from gateway.protocol.cache_status import Outcome
from tests.clients.conftest import LONG_POLL_TIMEOUT_S, READS, gateway_config
from tests.clients.program import Program

EDITORS = 10
COMPACTION_THRESHOLD_BYTES = 600
SERVICE = "/v1/yjs/clients"


class Yjs(Program):
    """A Yjs server and its editors: see `tests/node/yjs.mjs`."""

    script = "yjs.mjs"

    async def both(self, *commands: dict[str, Any]) -> None:
        """Two commands at the same time."""
        for command in commands:
            self.say(command)
        done = [await self.hear() for _ in commands]
        assert {said["done"] for said in done} == {command["do"] for command in commands}


@pytest.fixture(params=["memory", "reference"])
async def streams_url(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """URL of the Durable Streams server that keeps the documents."""
    if request.param == "reference":
        yield request.getfixturevalue("reference_server")
        return
    origin = await start_origin(OriginSettings(long_poll_timeout_s=LONG_POLL_TIMEOUT_S))
    yield origin.url
    await origin.stop(grace_s=0)


def passes(gateway: RunningGateway) -> int:
    """Reads that the gateway has relayed, so far."""
    return round(sum(gateway.metrics.requests(mode, Outcome.PASS).value for mode in READS))


async def edit_together(yjs: Yjs, url: str, document: str) -> int:
    """Ten editors and four who come late, each in another state of affairs; the number of snapshots that were read."""
    where = {"url": url + SERVICE, "document": document, "live": "sse"}
    await yjs.do("join", editors=EDITORS, **where)
    await yjs.do("edit", edits=3)
    await yjs.do("greet")
    await yjs.do("compact", editor=0)
    # The document is idle: the late joiner reads from one more than its tail.
    late = await yjs.do("join", editors=1, **where)
    assert late["had"] == [3 * EDITORS + 1]
    await yjs.do("edit", editors=[0, EDITORS], edits=2)
    # There are updates behind the snapshot: the next one reads from an offset that is no position.
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
    """Every editor has the same, and every edit once."""
    said = await yjs.do("documents")
    assert said["errors"] == []
    assert len(said["documents"]) == EDITORS + 3
    assert len({json.dumps(document, sort_keys=True) for document in said["documents"]}) == 1
    document = said["documents"][0]
    assert sorted(document["edits"]) == sorted(said["made"])
    # Edits are made in the midst of each other.
    assert Counter(document["text"]) == Counter("".join(f"[{edit}]" for edit in said["made"]))
    assert said["compactions"] >= 2


async def test_editors_without_a_gateway_have_one_document(streams_url: str, path: str) -> None:
    # What the other tests say of the gateway says nothing where the editors or their server would fail without it.
    async with Yjs.start(streams_url, str(COMPACTION_THRESHOLD_BYTES)) as yjs:
        await edit_together(yjs, (await yjs.hear())["url"], path[1:])
        await assert_one_document(yjs)


async def test_editors_before_the_gateway_have_one_document_and_its_server_one_live_request(
    streams_url: str, path: str
) -> None:
    async with Yjs.start(streams_url, str(COMPACTION_THRESHOLD_BYTES)) as yjs:
        gateway = await start_gateway(gateway_config((await yjs.hear())["url"]))
        try:
            with_snapshot = await edit_together(yjs, gateway.gateway_url, path[1:])
            await assert_one_document(yjs)
            relayed = passes(gateway)
            asked = await yjs.do("requests")
        finally:
            await gateway.stop()
    reads = [request for request in asked["requests"] if request["method"] in ("GET", "HEAD")]
    offsets = Counter(
        "snapshot" if str(request["offset"]).endswith("snapshot") else "live" if request["live"] else "catch-up"
        for request in reads
    )
    # One live request for the document and one for its awareness, whoever comes and goes.
    assert {stream: live["peak"] for stream, live in asked["live"].items()} == dict.fromkeys(asked["live"], 1)
    assert offsets["live"] == len(asked["live"]) == 2, offsets
    # Every editor asks where the snapshot is, and those who come late read it.
    assert offsets["snapshot"] == relayed == EDITORS + 4 + with_snapshot, (offsets, relayed)
    # 28 reads of editors: one from the start, one from each offset behind a snapshot, one where awareness is now.
    assert offsets["catch-up"] <= 8, offsets


async def test_editors_whose_server_reads_through_the_gateway_have_one_document_and_its_origin_one_live_request(
    streams_url: str, path: str
) -> None:
    gateway = await start_gateway(gateway_config(streams_url))
    try:
        async with Yjs.start(gateway.gateway_url, str(COMPACTION_THRESHOLD_BYTES)) as yjs:
            await edit_together(yjs, (await yjs.hear())["url"], path[1:])
            await assert_one_document(yjs)
            sent = {mode.value: round(gateway.metrics.upstream_requests(mode).value) for mode in READS}
            relayed = passes(gateway)
    finally:
        await gateway.stop()
    assert relayed == 0
    assert (sent["sse"], sent["longpoll"]) == (2, 0), sent
    # The Yjs server asks for a HEAD at each join, and reads its index, its snapshots and the updates when it compacts.
    assert sent["catchup"] + sent["head"] <= 40, sent

"""Databases synchronised through one stream: `@durable-streams/state` with TanStack DB."""

from __future__ import annotations

import json
from collections import Counter

from gateway.protocol.mode import Mode
from tests.clients.conftest import Edge
from tests.clients.program import Program

JSON = "application/json"
BOUND_READS = 24
"""Bound on the origin's requests for eleven databases, each of which begins with a catch-up read."""


class State(Program):
    """Databases on one stream: see `tests/node/state.mjs`."""

    script = "state.mjs"


async def test_concurrently_writing_databases_agree_with_one_live_request(edge: Edge, path: str) -> None:
    await edge.create(path, JSON)
    where = {"url": edge.url + path}
    async with State.start() as state:
        await state.do("open", databases=6, live="sse", **where)
        await state.do("write", rows=3)
        await state.do("open", databases=2, live="long-poll", **where)
        await state.do("write", rows=3)
        await state.do("close", databases=[0, 6])
        await state.do("open", databases=3, live=True, **where)
        await state.do("write", rows=3)
        databases = (await state.do("contents"))["databases"]
    # Each has seen every change, once and in one order.
    assert len(databases) == 9
    assert len({json.dumps(database) for database in databases}) == 1
    seen = Counter(event.split()[0] for event in databases[0]["events"])
    # Six databases have written three rows, then eight, then nine; of three rows one is changed and one removed.
    rows = 3 * (6 + 8 + 9)
    assert seen == {"insert": rows, "update": rows // 3, "delete": rows // 3}
    assert len(set(databases[0]["events"])) == rows // 3 * 5
    assert len(databases[0]["users"]) == rows // 3 * 2
    assert 0 < len(databases[0]["active"]) < rows // 3 * 2
    # One at a time; it is reconnected if the machine stalls for longer than a live request may lag.
    assert edge.gateway.metrics.upstream_requests(Mode.SSE).value <= 3
    assert edge.gateway.metrics.upstream_requests(Mode.LONGPOLL).value == 0
    assert edge.reads_at_origin <= BOUND_READS

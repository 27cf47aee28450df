"""A real nginx in front of the gateway: its buffering, on by default, must not delay live answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.origin.counters import Counters
from tests.nginx import running_nginx
from tests.scenarios.conftest import Edge, bounded
from tests.scenarios.wire import Wire
from tests.waiting import eventually

pytestmark = pytest.mark.http_1

DEFAULTS = ""
KEPT_ALIVE = 'proxy_http_version 1.1; proxy_set_header Connection ""; gzip on; gzip_types *;'


@pytest.fixture
def settings() -> dict[str, Any]:
    return {"live_linger_s": 5}


@pytest.fixture(params=[DEFAULTS, KEPT_ALIVE], ids=["default settings", "HTTP/1.1 and gzip"])
async def nginx(request: pytest.FixtureRequest, edge: Edge, tmp_path: Path) -> AsyncIterator[str]:
    async with running_nginx(tmp_path, edge.url, request.param) as url:
        yield url


@asynccontextmanager
async def begun(nginx: str, target: str) -> AsyncIterator[Wire]:
    wire = await Wire.open(nginx)
    try:
        await wire.ask(target, {"Accept-Encoding": "identity"})
        yield wire
    finally:
        await wire.closed()


async def test_an_event_arrives_while_the_stream_goes_on(edge: Edge, counters: Counters, nginx: str) -> None:
    await edge.put("/s")
    async with begun(nginx, "/s?offset=-1&live=sse") as wire:
        head = await wire.head()
        assert (head.status, head.headers["Content-Type"]) == (200, "text/event-stream")
        assert head.headers["Cache-Control"] == "no-cache, no-transform"
        event = await wire.event()
        assert event is not None
        assert json.loads(event.data)["upToDate"]
        await bounded(counters.parked_is(1))
        for text in (b"one", b"two"):
            assert (await edge.post("/s", text)).status == 204
            data, control = await wire.event(), await wire.event()
            assert data is not None
            assert control is not None
            assert (data.name, data.data, control.name) == ("data", text.decode(), "control")
        assert edge.gateway.engine.live, "the events came before the answer ended"


async def test_a_long_poll_is_answered_when_something_is_appended(edge: Edge, counters: Counters, nginx: str) -> None:
    await edge.put("/s", b"", "application/json")
    tail = (await edge.get("/s")).next_offset
    async with begun(nginx, f"/s?offset={tail}&live=long-poll") as wire:
        await bounded(counters.parked_is(1))
        await eventually(lambda: sum(topic.readers for topic in edge.gateway.engine.live.topics()) == 1)
        assert (await edge.post("/s", b'{"n":1}', "application/json")).status == 204
        answer = await wire.answer()
        assert (answer.status, answer.body, answer.is_up_to_date) == (200, b'[{"n":1}]', True)
        assert answer.headers["Stream-Cursor"].isdigit()


async def test_only_live_answers_disable_buffering(edge: Edge) -> None:
    await edge.put("/s", b"0123456789")
    behind = await edge.get("/s?offset=-1&live=long-poll")
    assert behind.headers["X-Accel-Buffering"] == "no"
    assert behind.headers["Cache-Control"] == "no-cache"
    wire = await edge.begin(f"/s?offset={behind.next_offset}&live=sse")
    assert (await wire.head()).headers["X-Accel-Buffering"] == "no"
    assert "X-Accel-Buffering" not in (await edge.get("/s?offset=-1")).headers
    assert "X-Accel-Buffering" not in (await edge.send("HEAD", "/s")).headers


async def test_a_long_poll_timeout_disables_buffering_too(edge: Edge, counters: Counters) -> None:
    await edge.put("/s", b"0123456789")
    tail = (await edge.get("/s")).next_offset
    waiting = edge.asking(f"/s?offset={tail}&live=long-poll")
    await bounded(counters.parked_is(1))
    async with edge.time_passing():
        answer = await bounded(waiting)
    assert (answer.status, answer.headers["X-Accel-Buffering"]) == (204, "no")

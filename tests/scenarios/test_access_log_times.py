"""The times in the access log's lines: each line has its own, also those of remembered answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gateway.aio.clock import ManualClock
from tests.scenarios import test_access_log
from tests.scenarios.conftest import Edge
from tests.scenarios.http2_wire import Http2Wire
from tests.scenarios.noting import log_lines
from tests.scenarios.wire import Wire

log = test_access_log.log
settings = test_access_log.settings

TICK_S = 0.000_007


class TickingClock(ManualClock):
    """A manual clock that also moves a little each time it is read."""

    def now(self) -> float:
        self._now += TICK_S
        self._wall += TICK_S
        return super().now()


@pytest.fixture
def clock() -> ManualClock:
    return TickingClock()


@pytest.mark.parametrize("open_wire", [Wire.open, Http2Wire.open], ids=["http1", "http2"])
async def test_every_hit_states_how_long_it_took(
    edge: Edge, log: Path, open_wire: Callable[[str], Awaitable[Wire]]
) -> None:
    await edge.put("/s", b"0123456789", Stream_Closed="true")
    wire = await open_wire(edge.url)
    for _ in range(8):
        await wire.ask("/s?offset=-1")
        assert (await wire.answer("GET")).body == b"0123456789"
    await wire.closed()
    hits = [line for line in await log_lines(edge, log, 9) if line["outcome"] == "hit"]
    assert len(hits) == 7
    for line in hits:
        # The clock was read at least once between the request and its answer.
        assert TICK_S <= line["first_byte_s"] <= line["duration_s"]
    assert len({line["time"] for line in hits}) == len(hits)

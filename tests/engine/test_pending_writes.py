"""Pending writes: what is charged for those that had no answer."""

from __future__ import annotations

import tracemalloc

from multidict import CIMultiDict

from gateway.aio.clock import ManualClock
from gateway.config.gateway import GatewayConfig
from gateway.engine.pending_writes import _MOST_BYTES, PendingWrites
from gateway.engine.relayed_request import RelayedRequest, SentRequest
from gateway.engine.route import Route
from gateway.protocol.mode import Mode
from gateway.protocol.sharing import Group


def test_memory_of_many_short_paths_is_bounded() -> None:
    route = Route(GatewayConfig.for_origin("http://origin.test").routes[0], "edge", ManualClock())
    tracemalloc.start()
    try:
        pending = PendingWrites()
        before, _ = tracemalloc.get_traced_memory()
        for number in range(10_000):
            group = Group("http://origin.test", f"/{number:05d}")
            passed = RelayedRequest(
                route, group, None, Mode.DELETE, "DELETE", group.path, "", "", CIMultiDict(), ""
            )  # fmt: skip
            pending.remember(SentRequest(passed, None, 0.0))
        assert tracemalloc.get_traced_memory()[0] - before < 1.25 * _MOST_BYTES
    finally:
        tracemalloc.stop()

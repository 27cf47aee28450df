"""How an owner reads the requests of other workers for S2 streams."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict

from gateway.aio.clock import ManualClock
from gateway.config.gateway import GatewayConfig
from gateway.engine.route import Route
from gateway.protocol.target import parse_target
from gateway.protocol.worker_headers import HopAsk
from gateway.s2 import protobuf, session
from gateway.server.hop_s2 import s2_read

ASKED = HopAsk("default", "", "", "net")


@pytest.mark.parametrize(
    ("target", "headers", "trust_s"),
    [
        ("records?seq_num=3&count=1", {"Accept": protobuf.CONTENT_TYPE}, 7.0),
        ("records?tail_offset=0&count=0", {"Accept": protobuf.CONTENT_TYPE}, 7.0),
        ("records/tail", {}, 7.0),
        ("records?seq_num=3", {"Content-Type": session.CONTENT_TYPE}, 0.0),
    ],
)
def test_a_session_begins_at_a_tail_that_the_origin_states(
    target: str, headers: dict[str, str], trust_s: float
) -> None:
    config = GatewayConfig.for_origin(
        "http://origin.test", protocol="s2", consistency="bounded-staleness", tail_heard_s=7.0
    )
    route = Route(config.routes[0], "edge", ManualClock())
    at = parse_target(f"/v1/streams/s/{target}")
    read, _ = s2_read(route, ASKED, at, CIMultiDict(headers), CIMultiDict())
    assert (read.trust_s, read.is_handed) == (trust_s, True)

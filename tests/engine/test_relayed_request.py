"""What the answer to a relayed write shows of the stream in memory."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict

from gateway.aio.clock import ManualClock
from gateway.config.gateway import GatewayConfig
from gateway.engine.relayed_request import RelayedRequest, SentRequest
from gateway.engine.route import Route
from gateway.protocol.mode import Mode
from gateway.protocol.target import parse_target

PRODUCER = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"}


def sent(mode: Mode, body: bytes | None, tail: str | None, **fields: str) -> SentRequest:
    route = Route(GatewayConfig.for_origin("http://origin.test").routes[0], "edge", ManualClock())
    key = route.key(parse_target("/s"), route.public)
    request = RelayedRequest(route, key.group, key, mode, mode.name, "/s", "", "", CIMultiDict(fields), "net")
    write = SentRequest(request, None, 0.0, body)
    write.tail = tail
    return write


@pytest.mark.parametrize("mode", [Mode.APPEND, Mode.CREATE])
def test_a_write_that_ends_before_the_known_tail_is_of_another_stream(mode: Mode) -> None:
    assert sent(mode, b"x", "5").shows_another_stream("4", 200)
    assert not sent(mode, b"x", "5").shows_another_stream("6", 200)
    assert not sent(mode, b"x", None).shows_another_stream("4", 200)


def test_only_an_append_that_adds_bytes_cannot_end_at_the_known_tail() -> None:
    assert sent(Mode.APPEND, b"x", "5").shows_another_stream("5", 204)
    assert not sent(Mode.CREATE, b"x", "5").shows_another_stream("5", 200)
    # A request that only closes the stream, and an append to a closed stream.
    assert not sent(Mode.APPEND, b"", "5").shows_another_stream("5", 204)
    assert not sent(Mode.APPEND, None, "5").shows_another_stream("5", 204)
    assert not sent(Mode.APPEND, b"x", "5").shows_another_stream("5", 409)


def test_a_producers_append_that_is_repeated_adds_nothing() -> None:
    repeated = sent(Mode.APPEND, b"x", "5", **PRODUCER)
    assert not repeated.shows_another_stream("5", 204)
    assert repeated.shows_another_stream("5", 200)

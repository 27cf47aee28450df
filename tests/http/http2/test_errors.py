"""Errors of a client, and what each one ends: a stream or the connection."""

from __future__ import annotations

import pytest

from gateway.http.http2 import frames
from gateway.http.http2.frames import ErrorCode
from gateway.http.http2.streams import RequestReceived, StreamReset
from tests.http.http2.errors import CALM, CLOSED, FLOW, OF_THE_CONNECTION, PROTOCOL
from tests.http.http2.peer import (
    GET,
    POST,
    Server,
    data,
    ping,
    request,
    reset,
    u32,
    window,
)

OPEN = request(1, POST, ends=False)


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        pytest.param(b"GET / HTTP/1.1\r\n", PROTOCOL, id="another preface"),
        pytest.param(frames.PREFACE + ping(), PROTOCOL, id="no settings first"),
        pytest.param(frames.PREFACE + frames.SETTINGS_ACK, PROTOCOL, id="an acknowledgement first"),
    ],
)
def test_a_connection_begins_with_preface_and_settings(raw: bytes, code: ErrorCode) -> None:
    server = Server(is_greeted=False)
    for byte in raw:
        server.take(bytes((byte,)))
    assert server.session.failed is code


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        *OF_THE_CONNECTION,
        pytest.param(data(3, b"x"), PROTOCOL, id="DATA for an idle stream"),
        pytest.param(request(5) + request(3), CLOSED, id="a stream id that goes back"),
        pytest.param(request(5) + window(3, 0), PROTOCOL, id="a window of a stream that is over, by nothing"),
        pytest.param(request(3, [*GET, *[("x", "y" * 4_000)] * 30]), CALM, id="too much in a field list"),
    ],
)
def test_an_error_of_the_connection_ends_it(raw: bytes, code: ErrorCode) -> None:
    server = Server()
    server.take(OPEN)
    server.take(raw)
    assert server.session.failed is code
    kind, _, _, payload = server.said()[-1]
    assert kind == frames.GOAWAY
    assert payload[4:8] == u32(code)
    assert server.take(request(9)) == []


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        pytest.param(request(1, [*GET, ("connection", "close")]), PROTOCOL, id="a malformed request"),
        pytest.param(request(1, [*POST, ("content-length", "3")]), PROTOCOL, id="a length and no body"),
        pytest.param(OPEN + request(1, POST, ends=False), PROTOCOL, id="trailers that do not end the body"),
        pytest.param(OPEN + request(1, POST), PROTOCOL, id="trailers with pseudo fields"),
        pytest.param(OPEN + request(1, [("X", "y")]), PROTOCOL, id="trailers in upper case"),
        pytest.param(request(1) + data(1, b"x"), CLOSED, id="DATA behind the end"),
        pytest.param(request(1) + request(1), CLOSED, id="HEADERS behind the end"),
        pytest.param(OPEN + window(1, 0), PROTOCOL, id="a window that grows by nothing"),
        pytest.param(OPEN + window(1, (1 << 31) - 1), FLOW, id="a window that overflows"),
        pytest.param(OPEN + data(1, bytes(1 << 14)) * 4, FLOW, id="more than the window"),
        pytest.param(
            request(1, [*POST, ("content-length", "3")], ends=False) + data(1, b"abcd"),
            PROTOCOL,
            id="more than was announced",
        ),
        pytest.param(
            request(1, [*POST, ("content-length", "3")], ends=False) + data(1, b"ab", ends=True),
            PROTOCOL,
            id="less than was announced",
        ),
        pytest.param(
            request(1, [*POST, ("content-length", "3")], ends=False) + data(1, b"ab") + request(1, [("x", "y")]),
            PROTOCOL,
            id="less than was announced, and trailers",
        ),
    ],
)
def test_an_error_of_one_stream_resets_it_and_no_other(raw: bytes, code: ErrorCode) -> None:
    server = Server()
    events = server.take(raw)
    assert (1, code) in server.resets()
    assert isinstance(events[-1], StreamReset)
    assert not events[-1].is_by_peer
    # Frames that arrive late for the stream are not an error.
    server.take(data(1, b"late", ends=True), window(1, 5), reset(1))
    (begun,) = server.take(request(3))
    assert isinstance(begun, RequestReceived)
    assert server.session.failed is None

"""Errors of a client, and what each one ends: a stream or the connection."""

from __future__ import annotations

import pytest

from gateway.http.http2 import frames
from gateway.http.http2.events import RequestReceived, StreamReset
from gateway.http.http2.frames import ErrorCode, Setting
from tests.http.http2.peer import (
    GET,
    POST,
    Server,
    block,
    data,
    frame,
    ping,
    request,
    reset,
    setting,
    u32,
    window,
)

PROTOCOL, SIZE, CLOSED = ErrorCode.PROTOCOL_ERROR, ErrorCode.FRAME_SIZE_ERROR, ErrorCode.STREAM_CLOSED
FLOW, CALM = ErrorCode.FLOW_CONTROL_ERROR, ErrorCode.ENHANCE_YOUR_CALM
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
        pytest.param(frame(frames.DATA, 0, 0, b"x"), PROTOCOL, id="DATA for the connection"),
        pytest.param(data(1, b"x"), PROTOCOL, id="DATA for an idle stream"),
        pytest.param(request(0), PROTOCOL, id="HEADERS for the connection"),
        pytest.param(request(2), PROTOCOL, id="HEADERS for an even stream"),
        pytest.param(request(3) + request(1), CLOSED, id="a stream id that goes back"),
        pytest.param(reset(1), PROTOCOL, id="RST_STREAM for an idle stream"),
        pytest.param(reset(0), PROTOCOL, id="RST_STREAM for the connection"),
        pytest.param(OPEN + frame(frames.RST_STREAM, 0, 1, b"123"), SIZE, id="RST_STREAM of 3 bytes"),
        pytest.param(frame(frames.SETTINGS, 0, 1), PROTOCOL, id="SETTINGS for a stream"),
        pytest.param(frame(frames.SETTINGS, 0, 0, b"12345"), SIZE, id="SETTINGS of 5 bytes"),
        pytest.param(frame(frames.SETTINGS, frames.ACK, 0, bytes(6)), SIZE, id="an acknowledgement with a payload"),
        pytest.param(setting(Setting.ENABLE_PUSH, 2), PROTOCOL, id="ENABLE_PUSH of 2"),
        pytest.param(setting(Setting.INITIAL_WINDOW_SIZE, 1 << 31), FLOW, id="too large a first window"),
        pytest.param(setting(Setting.MAX_FRAME_SIZE, 100), PROTOCOL, id="too small a frame size"),
        pytest.param(setting(Setting.MAX_FRAME_SIZE, 1 << 24), PROTOCOL, id="too large a frame size"),
        pytest.param(
            OPEN + window(1, 1) + setting(Setting.INITIAL_WINDOW_SIZE, (1 << 31) - 1),
            FLOW,
            id="windows that overflow by a setting",
        ),
        pytest.param(frame(frames.PUSH_PROMISE, 4, 1, bytes(4)), PROTOCOL, id="PUSH_PROMISE"),
        pytest.param(frame(frames.PING, 0, 1, bytes(8)), PROTOCOL, id="PING for a stream"),
        pytest.param(frame(frames.PING, 0, 0, bytes(7)), SIZE, id="PING of 7 bytes"),
        pytest.param(frame(frames.GOAWAY, 0, 1, bytes(8)), PROTOCOL, id="GOAWAY for a stream"),
        pytest.param(frame(frames.GOAWAY, 0, 0, bytes(7)), SIZE, id="GOAWAY of 7 bytes"),
        pytest.param(frame(frames.WINDOW_UPDATE, 0, 0, bytes(3)), SIZE, id="WINDOW_UPDATE of 3 bytes"),
        pytest.param(window(0, 0), PROTOCOL, id="a window that grows by nothing"),
        pytest.param(window(0, (1 << 31) - 1), FLOW, id="a window that overflows"),
        pytest.param(window(1, 1), PROTOCOL, id="WINDOW_UPDATE for an idle stream"),
        pytest.param(request(3) + window(1, 0), PROTOCOL, id="a window of a stream that is over, by nothing"),
        pytest.param(window(2, 1), PROTOCOL, id="WINDOW_UPDATE for an even stream"),
        pytest.param(frame(frames.PRIORITY, 0, 0, bytes(5)), PROTOCOL, id="PRIORITY for the connection"),
        pytest.param(frame(frames.PRIORITY, 0, 1, bytes(4)), SIZE, id="PRIORITY of 4 bytes"),
        pytest.param(frame(frames.PRIORITY, 0, 1, u32(1) + b"x"), PROTOCOL, id="a stream that depends on itself"),
        pytest.param(frame(frames.CONTINUATION, 4, 1, block(GET)), PROTOCOL, id="CONTINUATION of nothing"),
        pytest.param(frame(frames.HEADERS, 1, 1, b"\x82") + ping(), PROTOCOL, id="another frame within a header block"),
        pytest.param(
            frame(frames.HEADERS, 1, 1, b"\x82") + frame(frames.CONTINUATION, 4, 3),
            PROTOCOL,
            id="CONTINUATION of another stream",
        ),
        pytest.param(
            frame(frames.HEADERS, 1, 1, b"\x82") + frame(99, 0, 1),
            PROTOCOL,
            id="an unknown frame within a header block",
        ),
        pytest.param(
            frame(frames.HEADERS, 5, 1, b"\xff\xff\xff\xff\xff\x0f"),
            ErrorCode.COMPRESSION_ERROR,
            id="a block that is none",
        ),
        pytest.param(frame(frames.HEADERS, 5 | frames.PADDED, 1, b"\x05ab"), PROTOCOL, id="more padding than payload"),
        pytest.param(frame(frames.HEADERS, 5 | frames.PADDED, 1), SIZE, id="padding of no length"),
        pytest.param(frame(frames.HEADERS, 5 | frames.HAS_PRIORITY, 1, b"1234"), SIZE, id="half a priority"),
        pytest.param(
            OPEN + frame(frames.DATA, frames.PADDED, 1, b"\x04abc"), PROTOCOL, id="DATA that is all padding and more"
        ),
        pytest.param(
            frames.frame_head(1 << 14 | 1, frames.DATA, 0, 1),
            SIZE,
            id="too large a frame, of which only the head has come",
        ),
        pytest.param(
            frame(frames.HEADERS, 1, 1) + frame(frames.CONTINUATION, 0, 1, bytes(1 << 14)) * 5,
            CALM,
            id="too large a block",
        ),
        pytest.param(request(1, [*GET, *[("x", "y" * 4_000)] * 30]), CALM, id="too much in a field list"),
    ],
)
def test_an_error_of_the_connection_ends_it(raw: bytes, code: ErrorCode) -> None:
    server = Server()
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

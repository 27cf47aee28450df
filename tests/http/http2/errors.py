"""Errors that either side may make, which end the connection."""

from __future__ import annotations

from typing import Final

import pytest

from gateway.http.http2 import frames
from gateway.http.http2.frames import ErrorCode, Setting
from tests.http.http2.peer import frame, ping, reset, setting, u32, window

PROTOCOL, SIZE, CLOSED = ErrorCode.PROTOCOL_ERROR, ErrorCode.FRAME_SIZE_ERROR, ErrorCode.STREAM_CLOSED
FLOW, CALM = ErrorCode.FLOW_CONTROL_ERROR, ErrorCode.ENHANCE_YOUR_CALM

OF_THE_CONNECTION: Final = [
    pytest.param(frame(frames.DATA, 0, 0, b"x"), PROTOCOL, id="DATA for the connection"),
    pytest.param(frame(frames.HEADERS, 5, 0, b"\x82"), PROTOCOL, id="HEADERS for the connection"),
    pytest.param(frame(frames.HEADERS, 5, 2, b"\x82"), PROTOCOL, id="HEADERS for an even stream"),
    pytest.param(reset(0), PROTOCOL, id="RST_STREAM for the connection"),
    pytest.param(reset(9), PROTOCOL, id="RST_STREAM for an idle stream"),
    pytest.param(frame(frames.RST_STREAM, 0, 1, b"123"), SIZE, id="RST_STREAM of 3 bytes"),
    pytest.param(frame(frames.SETTINGS, 0, 1), PROTOCOL, id="SETTINGS for a stream"),
    pytest.param(frame(frames.SETTINGS, 0, 0, b"12345"), SIZE, id="SETTINGS of 5 bytes"),
    pytest.param(frame(frames.SETTINGS, frames.ACK, 0, bytes(6)), SIZE, id="an acknowledgement with a payload"),
    pytest.param(setting(Setting.ENABLE_PUSH, 2), PROTOCOL, id="ENABLE_PUSH of 2"),
    pytest.param(setting(Setting.INITIAL_WINDOW_SIZE, 1 << 31), FLOW, id="too large a first window"),
    pytest.param(setting(Setting.MAX_FRAME_SIZE, 100), PROTOCOL, id="too small a frame size"),
    pytest.param(setting(Setting.MAX_FRAME_SIZE, 1 << 24), PROTOCOL, id="too large a frame size"),
    pytest.param(
        window(1, 1) + setting(Setting.INITIAL_WINDOW_SIZE, (1 << 31) - 1),
        FLOW,
        id="windows that overflow by a setting",
    ),
    pytest.param(frame(frames.PUSH_PROMISE, 4, 1, u32(2)), PROTOCOL, id="PUSH_PROMISE"),
    pytest.param(frame(frames.PING, 0, 1, bytes(8)), PROTOCOL, id="PING for a stream"),
    pytest.param(frame(frames.PING, 0, 0, bytes(7)), SIZE, id="PING of 7 bytes"),
    pytest.param(frame(frames.GOAWAY, 0, 1, bytes(8)), PROTOCOL, id="GOAWAY for a stream"),
    pytest.param(frame(frames.GOAWAY, 0, 0, bytes(7)), SIZE, id="GOAWAY of 7 bytes"),
    pytest.param(frame(frames.WINDOW_UPDATE, 0, 0, bytes(3)), SIZE, id="WINDOW_UPDATE of 3 bytes"),
    pytest.param(window(0, 0), PROTOCOL, id="a window that grows by nothing"),
    pytest.param(window(0, (1 << 31) - 1), FLOW, id="a window that overflows"),
    pytest.param(window(9, 1), PROTOCOL, id="WINDOW_UPDATE for an idle stream"),
    pytest.param(window(2, 1), PROTOCOL, id="WINDOW_UPDATE for an even stream"),
    pytest.param(frame(frames.PRIORITY, 0, 0, bytes(5)), PROTOCOL, id="PRIORITY for the connection"),
    pytest.param(frame(frames.PRIORITY, 0, 1, bytes(4)), SIZE, id="PRIORITY of 4 bytes"),
    pytest.param(frame(frames.PRIORITY, 0, 1, u32(1) + b"x"), PROTOCOL, id="a stream that depends on itself"),
    pytest.param(frame(frames.CONTINUATION, 4, 1, b"\x82"), PROTOCOL, id="CONTINUATION of nothing"),
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
    pytest.param(frame(frames.DATA, frames.PADDED, 1, b"\x04abc"), PROTOCOL, id="DATA that is all padding and more"),
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
]
"""Frames and the code that they end the connection with, where stream 1 is open and no other has been begun."""

"""HTTP/2 frames (RFC 9113 sections 4 and 6): constants and encoders."""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The bytes that every client sends first (section 3.4)."""
HEAD_BYTES: Final = 9
"""The size of a frame header in bytes."""
DEFAULT_WINDOW: Final = 65_535
DEFAULT_FRAME_BYTES: Final = 1 << 14
LARGEST_WINDOW: Final = (1 << 31) - 1
LARGEST_FRAME_BYTES: Final = (1 << 24) - 1
LAST_STREAM_ID: Final = (1 << 31) - 1
DEFAULT_TABLE_BYTES: Final = 4_096

# Frame types.
DATA: Final = 0x0
HEADERS: Final = 0x1
PRIORITY: Final = 0x2
RST_STREAM: Final = 0x3
SETTINGS: Final = 0x4
PUSH_PROMISE: Final = 0x5
PING: Final = 0x6
GOAWAY: Final = 0x7
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9

# Flags.
ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
HAS_PRIORITY: Final = 0x20

_U16: Final = Struct(">HI")
_HEAD: Final = Struct(">BHBBI")
"""A frame header: the length in two parts, the type, the flags and the stream id."""
_U32: Final = Struct(">I")
_TWO_U32: Final = Struct(">II")

read_head: Final = _HEAD.unpack_from
pack_head: Final = _HEAD.pack
"""Packs the parts of a frame header into bytes.  The caller divides the length into two parts, as `frame_head` does."""
read_setting: Final = _U16.iter_unpack


class ErrorCode(IntEnum):
    """Error codes of streams and connections (RFC 9113 section 7)."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


def error_code(payload: bytes) -> ErrorCode:
    """Return the error code in 4 bytes.  An unknown code counts as INTERNAL_ERROR (RFC 9113 section 7)."""
    code = int.from_bytes(payload, "big")
    return ErrorCode(code) if code <= ErrorCode.HTTP_1_1_REQUIRED else ErrorCode.INTERNAL_ERROR


class Setting(IntEnum):
    """Settings parameters (RFC 9113 section 6.5.2, RFC 9218 section 2.1)."""

    HEADER_TABLE_SIZE = 0x1
    ENABLE_PUSH = 0x2
    MAX_CONCURRENT_STREAMS = 0x3
    INITIAL_WINDOW_SIZE = 0x4
    MAX_FRAME_SIZE = 0x5
    MAX_HEADER_LIST_SIZE = 0x6
    NO_RFC7540_PRIORITIES = 0x9


def frame_head(size: int, kind: int, flags: int, stream_id: int) -> bytes:
    """Make the header of a frame whose payload has `size` bytes."""
    return _HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream_id)


def settings(values: dict[Setting, int]) -> bytes:
    """Make a SETTINGS frame."""
    payload = b"".join(_U16.pack(name, value) for name, value in values.items())
    return frame_head(len(payload), SETTINGS, 0, 0) + payload


SETTINGS_ACK: Final = frame_head(0, SETTINGS, ACK, 0)


def ping(payload: bytes, *, is_ack: bool) -> bytes:
    """Make a PING frame with 8 bytes of payload, or the answer to a PING."""
    return frame_head(8, PING, ACK if is_ack else 0, 0) + payload


def window_update(stream_id: int, increment: int) -> bytes:
    """Make a WINDOW_UPDATE frame for `increment` more bytes.  Stream 0 is the connection."""
    return frame_head(4, WINDOW_UPDATE, 0, stream_id) + _U32.pack(increment)


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    """Make a RST_STREAM frame."""
    return frame_head(4, RST_STREAM, 0, stream_id) + _U32.pack(code)


def goaway(last_stream_id: int, code: ErrorCode) -> bytes:
    """Make a GOAWAY frame.  No stream after `last_stream_id` is processed."""
    return frame_head(8, GOAWAY, 0, 0) + _TWO_U32.pack(last_stream_id, code)


def header_frames(stream_id: int, block: bytes, largest: int, *, ends: bool) -> bytes:
    """Make a HEADERS frame, followed by CONTINUATION frames if the block is longer than `largest` bytes."""
    flags = END_STREAM if ends else 0
    if len(block) <= largest:
        return frame_head(len(block), HEADERS, flags | END_HEADERS, stream_id) + block
    pieces = [block[begin : begin + largest] for begin in range(0, len(block), largest)]
    out = [frame_head(largest, HEADERS, flags, stream_id), pieces[0]]
    for piece in pieces[1:-1]:
        out += (frame_head(len(piece), CONTINUATION, 0, stream_id), piece)
    out += (frame_head(len(pieces[-1]), CONTINUATION, END_HEADERS, stream_id), pieces[-1])
    return b"".join(out)

"""The frames of append and read sessions, S2's session protocol (S2's data-plane page, "Sessions").

A session is one HTTP exchange, with a sequence of frames in each direction.  A frame begins with a length of three
bytes in network order, the number of bytes that follow.  These are a byte of flags and a body.  Bit 7 of the flags
marks the terminal frame.  Bits 6 and 5 state the compression of the body.  Bit 4 advises the receiver to continue the
session on another connection.  The other bits are reserved and ignored.

The body of a regular frame is a protobuf message (`protobuf.py`).  The body of a terminal frame is a status of two
bytes and the JSON body of a unary error.  A terminal frame is never compressed, and bytes after it are ignored.  A
session that is complete ends without a terminal frame.

Lengths and decompressed bodies are at most 2 MiB, as in S2's SDKs.  A batch of 1 MiB in metered bytes (`records.py`)
fits, unless it consists almost only of headers with names and values of one byte.  A single record of that kind cannot
be sent in a session.  Compressed data can expand ten-thousandfold, so `FrameReader.feed` decompresses one frame at a
time, when the caller takes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import zstandard
from zlib_ng import zlib_ng

CONTENT_TYPE: Final = "s2s/proto"
"""The content type of a session's request and answer."""

MAX_FRAME_BYTES: Final = 2 * 1024 * 1024
"""The largest value of a frame's length field, which covers flags and body."""

MAX_BODY_BYTES: Final = MAX_FRAME_BYTES - 1
"""The largest body, before and after compression."""

MIN_COMPRESSED_BYTES: Final = 1024
"""The smallest body that is compressed."""

_LENGTH_BYTES: Final = 3
_TERMINAL: Final = 0b1000_0000
_COMPRESSION_SHIFT: Final = 5
_COMPRESSION_MASK: Final = 0b11
_RECONNECT: Final = 0b0001_0000

_ZSTD_LEVEL: Final = 3
_ZSTD_WINDOW: Final = 8 * 1024 * 1024
"""The most memory that decompressing a frame may need.  RFC 8878 section 3.1.1.1.2 recommends that decoders support
this size."""
_GZIP_LEVEL: Final = 6
_GZIP_WINDOW: Final = 31
"""15 bits of window, plus 16 for a gzip header."""


HEAD_BYTES: Final = _LENGTH_BYTES + 1


class Compression(IntEnum):
    """The compression of a frame's body; the values are bits in the flags of the frame."""

    NONE = 0
    ZSTD = 1
    GZIP = 2


class BadFrame(ValueError):
    """The bytes are not valid frames of a session (400 `bad_frame`)."""


@dataclass(frozen=True, slots=True)
class FrameHead:
    """The head of a frame: its first `HEAD_BYTES`."""

    size: int
    """The size of the body in bytes."""
    is_terminal: bool
    is_reconnect_advised: bool

    @classmethod
    def parse(cls, head: bytes) -> FrameHead:
        """Parse the first bytes of a frame; there must be at least `HEAD_BYTES`."""
        flags, length = head[_LENGTH_BYTES], int.from_bytes(head[:_LENGTH_BYTES])
        return cls(max(0, length - 1), bool(flags & _TERMINAL), bool(flags & _RECONNECT))


@dataclass(frozen=True, slots=True)
class Message:
    """A regular frame: a decompressed protobuf message."""

    body: bytes
    is_reconnect_advised: bool = False


@dataclass(frozen=True, slots=True)
class Terminal:
    """A session's last frame: the status and the JSON body of a unary error."""

    status: int
    body: bytes


Frame = Message | Terminal


def choose_compression(accept_encoding: str | None) -> Compression:
    """Return the compression for the frames of an answer: zstd, or else gzip, if Accept-Encoding names it."""
    accepted = set()
    for member in (accept_encoding or "").lower().split(","):
        name, _, parameters = member.partition(";")
        weight = parameters.replace(" ", "").removeprefix("q=")
        # RFC 9110 section 12.4.2: a weight of 0 is a refusal.
        if not weight or weight.strip("0."):
            accepted.add(name.strip())
    if "zstd" in accepted:
        return Compression.ZSTD
    return Compression.GZIP if "gzip" in accepted else Compression.NONE


def encode_message(
    body: bytes, compression: Compression = Compression.NONE, *, is_reconnect_advised: bool = False
) -> bytes:
    """Return the frame for a message.  A body under 1 KiB is not compressed.

    Raises `ValueError` for a body larger than `MAX_BODY_BYTES`.
    """
    if len(body) > MAX_BODY_BYTES:
        raise ValueError(f"a frame's body is at most {MAX_BODY_BYTES} bytes")
    flags = _RECONNECT if is_reconnect_advised else 0
    if compression is not Compression.NONE and len(body) >= MIN_COMPRESSED_BYTES:
        compressed = _compress(body, compression)
        # Use the compressed body only if it is smaller.
        if len(compressed) < len(body):
            body = compressed
            flags |= compression << _COMPRESSION_SHIFT
    return _frame(flags, body)


def encode_terminal(status: int, body: bytes) -> bytes:
    """Return the frame that ends a session with an error."""
    return _frame(_TERMINAL, status.to_bytes(2) + body)


class FrameReader:
    """Cuts a session's bytes into frames.  Each direction of a session needs its own reader.

    It holds at most one incomplete frame and the bytes of the last `feed`.
    """

    __slots__ = ("_buffer", "_failure", "_is_ended")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._is_ended = False
        self._failure: str | None = None

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take the next bytes; return an iterator over the frames that they complete.

        Each frame is decompressed when it is taken from the iterator.  At a bad frame, the iterator raises `BadFrame`,
        after it has returned all frames before.  Every later `feed` raises `BadFrame` too.  Frames that are not taken
        are returned by the next `feed`.
        """
        if not self._is_ended:
            self._buffer += data
        return self._frames()

    def finish(self) -> None:
        """End the input.  Raises `BadFrame` if it ends inside a frame."""
        if self._failure is not None:
            raise BadFrame(self._failure)
        if self._buffer:
            raise BadFrame("the session ended inside a frame")

    def _frames(self) -> Iterator[Frame]:
        while True:
            try:
                frame = self._take()
            except BadFrame as error:
                self._failure = str(error)
                self._end()
                raise
            if frame is None:
                return
            yield frame

    def _take(self) -> Frame | None:
        """Return the next frame; None if it is not complete.  Raises `BadFrame`."""
        if self._failure is not None:
            raise BadFrame(self._failure)
        buffer = self._buffer
        if len(buffer) < _LENGTH_BYTES:
            return None
        length = int.from_bytes(buffer[:_LENGTH_BYTES])
        if not 1 <= length <= MAX_FRAME_BYTES:
            raise BadFrame(f"the length of a frame is 1 to {MAX_FRAME_BYTES}")
        end = _LENGTH_BYTES + length
        if len(buffer) < end:
            return None
        flags = buffer[_LENGTH_BYTES]
        body = bytes(buffer[_LENGTH_BYTES + 1 : end])
        del buffer[:end]
        if flags & _TERMINAL:
            if len(body) < 2:
                raise BadFrame("a terminal frame has no status")
            self._end()
            return Terminal(int.from_bytes(body[:2]), body[2:])
        return Message(decompress(body, flags >> _COMPRESSION_SHIFT & _COMPRESSION_MASK), bool(flags & _RECONNECT))

    def _end(self) -> None:
        self._is_ended = True
        self._buffer.clear()


def _frame(flags: int, body: bytes) -> bytes:
    length = 1 + len(body)
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"a frame has at most {MAX_FRAME_BYTES} bytes")
    return length.to_bytes(_LENGTH_BYTES) + bytes((flags,)) + body


def _compress(body: bytes, compression: Compression) -> bytes:
    if compression is Compression.ZSTD:
        return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(body)
    coder = zlib_ng.compressobj(_GZIP_LEVEL, zlib_ng.DEFLATED, _GZIP_WINDOW)
    return coder.compress(body) + coder.flush()


def decompress(body: bytes, compression: int) -> bytes:
    """Decompress a body; `compression` is the value of a `Compression`.  Raises `BadFrame`."""
    match compression:
        case Compression.NONE:
            return body
        case Compression.ZSTD:
            return _unzstd(body)
        case Compression.GZIP:
            return _gunzip(body)
        case _:
            raise BadFrame("a frame has an unknown compression")


def _unzstd(body: bytes) -> bytes:
    try:
        # If a frame states a size, the library allocates that size and ignores `max_output_size`.
        if zstandard.frame_content_size(body) > MAX_BODY_BYTES:
            raise BadFrame(f"a frame holds more than {MAX_BODY_BYTES} bytes")
        reader = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
        return reader.decompress(body, max_output_size=MAX_BODY_BYTES, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BadFrame("a frame's body is not zstd, or holds too much") from error


def _gunzip(body: bytes) -> bytes:
    reader = zlib_ng.decompressobj(_GZIP_WINDOW)
    try:
        found = reader.decompress(body, MAX_BODY_BYTES + 1)
    except zlib_ng.error as error:  # type: ignore[misc]  # its stub declares an instance
        raise BadFrame("a frame's body is not gzip") from error
    if len(found) > MAX_BODY_BYTES:
        raise BadFrame(f"a frame holds more than {MAX_BODY_BYTES} bytes")
    if not reader.eof or reader.unused_data:
        raise BadFrame("a frame's body is not one whole gzip member")
    return found

"""S2S: the frames of append and read sessions (S2's data-plane page, "Sessions")."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

MAX_FRAME_BYTES: Final = 2 * 1024 * 1024


class Compression(IntEnum):
    """How the body of a frame is compressed; the values are those of the flag byte."""

    NONE = 0
    ZSTD = 1
    GZIP = 2


class BadFrame(ValueError):
    """Bytes are not a session's frames (400 `bad_frame`)."""


@dataclass(frozen=True, slots=True)
class Message:
    """A regular frame: a protobuf message, decompressed."""

    body: bytes
    is_reconnect_advised: bool = False


@dataclass(frozen=True, slots=True)
class Terminal:
    """A session's last frame: the status and the JSON body that a unary request would have been answered with."""

    status: int
    body: bytes


Frame = Message | Terminal


def choose_compression(accept_encoding: str | None) -> Compression:
    """What the server may compress with: zstd before gzip before none."""
    raise NotImplementedError


def encode_message(
    body: bytes, compression: Compression = Compression.NONE, *, is_reconnect_advised: bool = False
) -> bytes:
    """The whole frame of a message; a body under 1 KiB is not compressed."""
    raise NotImplementedError


def encode_terminal(status: int, body: bytes) -> bytes:
    """The whole frame that ends a session with an error."""
    raise NotImplementedError


class FrameReader:
    """Cuts a session's bytes into frames; one reader for each direction of a session."""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take the next bytes; the iterator gives the frames they complete, one decompressed at a time.

        A bad frame raises `BadFrame` after the frames before it were given; the reader is of no use after that.
        """
        raise NotImplementedError

    def finish(self) -> None:
        """The bytes have ended.  Raises `BadFrame` inside a frame."""
        raise NotImplementedError

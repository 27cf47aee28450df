"""The framing of bodies (RFC 9112 section 6), and chunks that have arrived whole (section 7.1).

Most chunks of a small body, or of an event, arrive in one piece.  These are read here; llhttp reads all others.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final

_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n")


class Framing(Enum):
    """How the end of a body is found."""

    LENGTH = auto()
    CHUNKS = auto()
    CLOSE = auto()


def whole_chunks(data: bytes) -> tuple[bytes, int, bool]:
    """The content of the chunks at the start of `data`, the number of bytes that they take, and whether the last one is
    among them.

    Stops at a chunk that is incomplete, invalid or has an extension, and at a last chunk with trailers.
    """
    pieces: list[bytes] = []
    at = 0
    while (found := _SIZE.match(data, at)) is not None:
        begin = found.end()
        end = begin + int(found[1], 16)
        if data[end : end + 2] != b"\r\n":
            break
        at = end + 2
        if begin == end:
            return b"".join(pieces), at, True
        pieces.append(data[begin:end])
    return b"".join(pieces), at, False

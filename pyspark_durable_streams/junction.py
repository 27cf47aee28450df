"""Whether what follows somewhere in a stream is what lies behind a token.

A checksum says what follows a token, and not where that ends: whoever goes on at another token, because somebody else
says that it is the end, would leave out or repeat what lies between.  So what follows the end is compared with what is
to be had from that token, some thousands of bytes of it.  Streams that say the same thing all over are not found out.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import Final

from pyspark_durable_streams.framing import Piece
from pyspark_durable_streams.walk import Walk

_ENOUGH_BYTES: Final = 1 << 9
_MOST_BYTES: Final = 1 << 16


def head(pieces: Iterable[Piece]) -> bytes:
    """What comes first, to compare it with: some that is at hand, and of small pieces no more than is enough."""
    return _first(pieces, _ENOUGH_BYTES)[:_MOST_BYTES]


def _first(pieces: Iterable[Piece], size: int) -> bytes:
    found = b""
    for piece in pieces:
        found += piece.data
        if len(found) >= size:
            break
    return found


def begins_with(there: Walk, following: bytes, end: str) -> bool:
    """Whether a walk begins with these bytes; where there are none, as the stream ends at `end`, whether it is there.

    Gone and WrongGuess as the walk raises them.
    """
    if not following and there.place.token == end:
        return True
    with closing(there.parts()) as parts:
        if not following:
            # An end may have another name by now.
            return not any(part.piece.count for part in parts) and there.place.token == end
        return _first((part.piece for part in parts), len(following)).startswith(following)

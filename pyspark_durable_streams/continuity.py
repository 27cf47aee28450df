"""Continuity check: whether the stream at a position is the stream after a token.

A checksum covers the bytes after a token but not the name of their end.  A reader that continues at another token only
because a gateway calls it the end could skip or repeat data.  The bytes that follow the end are therefore compared with
those read from that token, some thousands of them.  The check cannot detect an error in a stream that repeats itself.
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
    """The first bytes, for a comparison: one piece, or as many small ones as are enough."""
    return _at_least(pieces, _ENOUGH_BYTES)[:_MOST_BYTES]


def _at_least(pieces: Iterable[Piece], size: int) -> bytes:
    found = b""
    for piece in pieces:
        found += piece.data
        if len(found) >= size:
            break
    return found


def continues(there: Walk, following: bytes, end: str) -> bool:
    """Whether a walk begins with these bytes.  If there are none, because the stream ends at `end`: whether the walk is
    there too.

    Raises Gone and WrongGuess as the walk does.
    """
    if not following and there.place.token == end:
        return True
    with closing(there.parts()) as parts:
        if not following:
            # The tail may have another token by now.
            return not any(part.piece.count for part in parts) and there.place.token == end
        return _at_least((part.piece for part in parts), len(following)).startswith(following)

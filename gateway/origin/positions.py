"""Byte positions in a stream of the in-memory origin, and their offset tokens.

A position is a pair: the number of records before it, and the number of bytes before it including frames.  Each record
consists of a frame of `FRAME_BYTES` and its payload.  The difference of two offsets is therefore never the number of
bytes between them, so that tests catch a gateway that parses or makes up offsets.  Tokens have a fixed width, which
gives them the order of their positions (section 6).  No token is equal to `-1` or `now`.

A token with this form need not be a position.  For instance, the Yjs server of `@durable-streams/y-durable-streams`
adds one to the offset of a snapshot.  The result is within the frame of the next record, or beyond the tail.  A read
from such a token begins at the last position before it, and so returns each record that ends after the token as a
whole.  The reference server does the same.
"""

import re
from typing import Final, NamedTuple

FRAME_BYTES: Final = 5
_TOKEN: Final = re.compile(r"([0-9]{16})_([0-9]{16})")


class Position(NamedTuple):
    """A point between two bytes: the number of complete records, and of bytes including frames, before it."""

    ordinal: int
    at: int

    @property
    def token(self) -> str:
        """The offset token that readers receive and send back."""
        return f"{self.ordinal:016d}_{self.at:016d}"


ZERO: Final = Position(0, 0)


def parse_token(token: str) -> Position | None:
    """Parse a token; return None if it has another form.  The position need not exist."""
    match = _TOKEN.fullmatch(token)
    return Position(int(match[1]), int(match[2])) if match else None

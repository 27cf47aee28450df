"""Byte positions in a stream of the in-memory origin, and their offset tokens.

A position is (records before it, byte count before it with frames).  A record begins with a frame of `FRAME_BYTES`,
followed by its payload.  The difference of two offsets is therefore never a number of bytes, and a gateway that parses
or invents offsets fails the tests.  Tokens have a fixed width, so their lexicographic order is the order of the
positions (section 6), and neither can ever read `-1` or `now`.

A token of this form need not be a position.  The Yjs server of `@durable-streams/y-durable-streams` adds one to the
offset of a snapshot, which then points into the frame of the next record, or beyond the tail.  A read from there begins
at the last position before it, so it returns every record that ends after the token, whole, as the reference server
does.
"""

import re
from typing import Final, NamedTuple

FRAME_BYTES: Final = 5
_TOKEN: Final = re.compile(r"([0-9]{16})_([0-9]{16})")


class Position(NamedTuple):
    """A place between two bytes: the complete records before it, and the bytes before it with their frames."""

    ordinal: int
    at: int

    @property
    def token(self) -> str:
        """The offset token that readers receive and send back."""
        return f"{self.ordinal:016d}_{self.at:016d}"


ZERO: Final = Position(0, 0)


def parse_token(token: str) -> Position | None:
    """The position that a token of this origin's form names, whether it exists or not; None for any other form."""
    match = _TOKEN.fullmatch(token)
    return Position(int(match[1]), int(match[2])) if match else None

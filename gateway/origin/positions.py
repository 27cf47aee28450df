"""Where a byte lies in a stream of the in-memory origin, and the token that names the place.

A position is (records before it, frame-inclusive byte count).  A record begins with a frame of `FRAME_BYTES` and its
payload follows, so the difference of two offsets is never a number of bytes: a gateway that parses or invents offsets
fails the tests.  Tokens are fixed width, so their lexicographic order is the order of the positions (section 6), and
neither can ever read `-1` or `now`.

A token of that form need not be a position: the Yjs server of `@durable-streams/y-durable-streams` adds one to the
offset of a snapshot, which points into the frame of the record that follows, or beyond the tail.  A read from there
begins at the last position before it, so it returns every record that ends after the token, whole, as the reference
server's does.
"""

import re
from typing import Final, NamedTuple

FRAME_BYTES: Final = 5
_TOKEN: Final = re.compile(r"([0-9]{16})_([0-9]{16})")


class Position(NamedTuple):
    """A place between two bytes: complete records before it, and bytes before it with their frames."""

    ordinal: int
    at: int

    @property
    def token(self) -> str:
        """The offset token that readers see and send back."""
        return f"{self.ordinal:016d}_{self.at:016d}"


ZERO: Final = Position(0, 0)


def parse_token(token: str) -> Position | None:
    """What a token of this origin's form names, position or not; None where it has another form."""
    match = _TOKEN.fullmatch(token)
    return Position(int(match[1]), int(match[2])) if match else None

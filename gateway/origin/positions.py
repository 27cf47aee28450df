"""Where a byte lies in a stream of the in-memory origin, and the token that names the place.

A position is (records before it, frame-inclusive byte count).  Every record takes `FRAME_BYTES` more than its payload,
so the difference of two offsets is never a number of bytes: whoever parses or invents offsets is found out by the
tests.  Tokens are fixed width, so their lexicographic order is the order of the positions (section 6), and neither can
ever read `-1` or `now`.
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
    """The position that a token of this origin names; None when no stream of it ever handed out such a token."""
    match = _TOKEN.fullmatch(token)
    return Position(int(match[1]), int(match[2])) if match else None

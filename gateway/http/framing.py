"""The framing of messages on a connection: the parser's states, and the framing of bodies.

Request and reply parsers share one table of states.  Messages follow one another, each with a head, an optional body
and an end.  A syntax error ends the connection, because the start of the next message cannot be found any more (RFC
9112 section 9.6).

Bodies are framed as in RFC 9112 section 6.  `request_parser` and `reply_parser` find the length of a body, and refuse a
message whose length is ambiguous.  The chunks (section 7.1) of a small body or of one event mostly arrive whole.
`whole_chunks` reads whole chunks, and the library llhttp reads all other chunks.

`InterimRate` bounds the rate of interim replies.  An origin may send interim replies for as long as it works on a
request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum, StrEnum, auto
from typing import Final


class State(StrEnum):
    """The part of a message that is read next."""

    IDLE = "idle"
    """The first byte of a message."""
    HEAD = "head"
    """The rest of a head."""
    BODY = "body"
    """The body, or the rest of it."""
    CLOSED = "closed"
    """Nothing more: the peer has closed, has announced its last message, or has sent invalid bytes."""


class Step(StrEnum):
    """A step of parsing that changes the state."""

    BEGUN = "begun"
    """The first bytes of a head have been read."""
    HEAD_DONE = "head done"
    """A complete head has been read.  A body follows, which may be empty."""
    DONE = "done"
    """A complete message has been read."""
    LAST_DONE = "last done"
    """A complete message has been read, and it is the connection's last."""
    BROKEN = "broken"
    """The bytes are not a message, or the peer has closed within a message."""


TRANSITIONS: Final[Mapping[tuple[State, Step], State]] = {
    (State.IDLE, Step.BEGUN): State.HEAD,
    (State.IDLE, Step.BROKEN): State.CLOSED,
    (State.HEAD, Step.HEAD_DONE): State.BODY,
    (State.HEAD, Step.BROKEN): State.CLOSED,
    (State.BODY, Step.DONE): State.IDLE,
    (State.BODY, Step.LAST_DONE): State.CLOSED,
    (State.BODY, Step.BROKEN): State.CLOSED,
}
"""All valid transitions."""


_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n")


class Framing(Enum):
    """The way in which a body's end is found."""

    LENGTH = auto()
    CHUNKS = auto()
    CLOSE = auto()


def whole_chunks(data: bytes) -> tuple[bytes, int, bool]:
    """Read the complete chunks at the start of `data`.  Returns the content of these chunks, the number of bytes that
    they take, and whether the last chunk is among them.

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


MOST_INTERIM: Final = 16
"""The most interim replies in a burst before one final reply."""
INTERIM_PER_S: Final = 4.0
"""The most interim replies a second after the burst."""


class InterimRate:
    """Bounds the rate of interim replies to one request."""

    __slots__ = ("_at", "_level")

    def __init__(self) -> None:
        self._level = 0.0
        self._at = 0.0

    def count(self, now: float) -> bool:
        """Count an interim reply at `now`, in monotonic seconds.  Returns False if there are too many."""
        self._level = max(0.0, self._level - (now - self._at) * INTERIM_PER_S) + 1
        self._at = now
        return self._level <= MOST_INTERIM

"""The framing of messages on a connection: the states of one direction, and the framing of bodies.

One table of states holds for parsed requests and parsed replies.  Messages follow one another.  Each has a head, an
optional body and an end.  A syntax error ends the connection, because the start of the next message cannot be found any
more (RFC 9112 section 9.6).

Bodies are framed by RFC 9112 section 6.  Most chunks (section 7.1) of a small body, or of an event, arrive in one
piece.  These are read here; llhttp reads all others.

Interim replies are bounded in their rate: an origin may send them for as long as it works.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum, StrEnum, auto
from typing import Final


class State(StrEnum):
    """The part that is read next."""

    IDLE = "idle"
    """The first byte of a message."""
    HEAD = "head"
    """The rest of a head."""
    BODY = "body"
    """The body, or the rest of it."""
    CLOSED = "closed"
    """Nothing: the peer has closed, announced its last message, or broken the syntax."""


class Step(StrEnum):
    """A step of parsing that changes the state."""

    BEGUN = "begun"
    """The first bytes of a head were read."""
    HEAD_DONE = "head done"
    """A complete head was read; a body follows, which may be empty."""
    DONE = "done"
    """A complete message was read."""
    LAST_DONE = "last done"
    """A complete message was read, and it announces that it is the last one."""
    BROKEN = "broken"
    """The bytes are not a message, or the peer closed in the middle of one."""


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
    """How the end of a body is found."""

    LENGTH = auto()
    CHUNKS = auto()
    CLOSE = auto()


def whole_chunks(data: bytes) -> tuple[bytes, int, bool]:
    """The content of the chunks at the start of `data`, the number of bytes that they take, and whether the last chunk
    of the body is among them.

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
"""The most interim replies that may come at once before one final reply."""
INTERIM_PER_S: Final = 4.0
"""The most interim replies a second after these."""


class InterimRate:
    """The interim replies to one request, bounded by rate.  Owner of their level."""

    __slots__ = ("_at", "_level")

    def __init__(self) -> None:
        self._level = 0.0
        self._at = 0.0

    def count(self, now: float) -> bool:
        """Count an interim reply that arrives at `now`, in monotonic seconds; False if there are too many."""
        self._level = max(0.0, self._level - (now - self._at) * INTERIM_PER_S) + 1
        self._at = now
        return self._level <= MOST_INTERIM

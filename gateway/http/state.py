"""The states of one direction of a connection: one table for parsed requests and parsed replies.

Messages follow one another.  Each has a head, an optional body and an end.  A syntax error ends the connection, because
the start of the next message cannot be found any more (RFC 9112 section 9.6).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
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

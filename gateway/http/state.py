"""Where one direction of a connection stands: one table for requests that are read and for replies that are read.

Messages come one after the other.  Each begins with a head, may have a body and ends; whatever breaks the syntax ends
the connection, because nobody can tell any more where the next message would begin (RFC 9112 section 9.6).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class State(StrEnum):
    """What is read next."""

    IDLE = "idle"
    """The first byte of a message."""
    HEAD = "head"
    """The rest of a head."""
    BODY = "body"
    """The body, or what is left of it."""
    CLOSED = "closed"
    """Nothing: the peer has ended, said that this message was the last one, or broken the syntax."""


class Step(StrEnum):
    """What has been read."""

    BEGUN = "begun"
    """The first bytes of a head."""
    HEAD_DONE = "head done"
    """A head whole; a body is announced, be it an empty one."""
    DONE = "done"
    """The message whole."""
    LAST_DONE = "last done"
    """The message whole, and by its own word the last one."""
    BROKEN = "broken"
    """What is no message, or an end in the middle of one."""


TRANSITIONS: Final[Mapping[tuple[State, Step], State]] = {
    (State.IDLE, Step.BEGUN): State.HEAD,
    (State.IDLE, Step.BROKEN): State.CLOSED,
    (State.HEAD, Step.HEAD_DONE): State.BODY,
    (State.HEAD, Step.BROKEN): State.CLOSED,
    (State.BODY, Step.DONE): State.IDLE,
    (State.BODY, Step.LAST_DONE): State.CLOSED,
    (State.BODY, Step.BROKEN): State.CLOSED,
}
"""All moves there are."""

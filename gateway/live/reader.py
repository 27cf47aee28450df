"""A live reader as its topic sees it, and the steps in which the topic gives it what is new."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from gateway.limits.memory import SharedBytes
from gateway.protocol.sse import HEARTBEAT

_log = logging.getLogger("gateway.live")


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body (RFC 9112 §7.1)."""
    return b"%x\r\n%b\r\n" % (len(data), data)


HEARTBEAT_CHUNK: Final = chunk(HEARTBEAT)
HEARTBEAT_BYTES: Final = len(HEARTBEAT)


class LiveReader(Protocol):
    """A live reader that is driven by its topic and connection, without a task."""

    def pump(self) -> None:
        """The topic has changed: read on."""

    def gone(self) -> None:
        """The client has disconnected."""

    def account(self, sent: object) -> None:
        """Account for what was sent while the topic pumped its readers."""

    def beat(self) -> None:
        """A beat has passed: send a heartbeat if one is due."""

    def split(self) -> Iterable[LiveReader]:
        """Itself and the clients that shared it, each as a reader of its own from now on."""

    def leave(self, delay_s: float, within_s: float) -> None:
        """The gateway is draining: end in order after about `delay_s`, and at the latest after `within_s`."""

    def stay(self, lifetime_s: float) -> None:
        """The drain is undone: go on for `lifetime_s`, if the reader is one that lasts."""


class Droppable(Protocol):
    """A live reader of either protocol."""

    def gone(self) -> None:
        """The client has disconnected, or the reader has failed."""


def drop_failed(reader: Droppable) -> None:
    """Log the error that is being handled and drop the reader: one reader's error must not affect the others."""
    _log.exception("a live reader failed")
    try:
        reader.gone()
    except Exception:
        _log.exception("a live reader could not be dropped")


class LargeEvent:
    """One encoded data event that is too large to be written at once.  It is sent in parts and kept while any reader is
    receiving it.  Offsets inside it are unknown, so it cannot be split into events."""

    __slots__ = ("__weakref__", "data", "end", "shared")

    def __init__(self, data: bytes, end: str) -> None:
        self.data = data
        self.end = end
        self.shared = SharedBytes(len(data))
        """The account of its bytes, for the readers that receive it."""


@dataclass(slots=True)
class LiveStep:
    """What a reader at one offset is sent next; no data means that there is nothing to send now."""

    data: bytes
    """Whole frames as one chunk of a chunked body."""
    size: int
    """The size of the frames without the chunk framing."""
    end: str
    said_up_to_date: bool
    """Whether the reader has been told that it is up to date here."""
    cursor: int
    is_last: bool = False
    """Whether the response ends with this step."""
    is_all: bool = False
    """Whether nothing after this step can be sent now."""
    needs_fill: bool = False
    large: LargeEvent | None = None
    """Replaces `data`: to be sent in parts, followed by its control event."""

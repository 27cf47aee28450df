"""Events that a session derives from the client's frames."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from gateway.http.http2.head import Http2Request
from gateway.http.http2.streams import Stream


class Begun(NamedTuple):
    """A request has arrived; `is_whole` if it has no body."""

    stream: Stream
    asked: Http2Request
    is_whole: bool


class Part(NamedTuple):
    """A piece of a request's body.  The receiver owes a call to `acknowledge` for `size` bytes."""

    stream: Stream
    data: bytes
    size: int


class Ended(NamedTuple):
    """A request's body is whole."""

    stream: Stream


class Gone(NamedTuple):
    """A stream was reset, by the client or for an error of the client's."""

    stream: Stream
    is_by_client: bool


class Drained(NamedTuple):
    """All data queued for a stream has been written to the output."""

    stream: Stream


class Sign(Enum):
    """An event of the connection as a whole."""

    PONG = "pong"
    """The client has answered a PING."""


Event = Begun | Part | Ended | Gone | Drained | Sign

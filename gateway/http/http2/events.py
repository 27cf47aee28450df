"""What has come of a client's frames."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from gateway.http.http2.head import Http2Request
from gateway.http.http2.streams import Stream


class Begun(NamedTuple):
    """A request has come; `is_whole` where it has no body."""

    stream: Stream
    asked: Http2Request
    is_whole: bool


class Part(NamedTuple):
    """A piece of a request's body; `acknowledge` is owed for `size` bytes."""

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
    """What was queued for a stream is on its way."""

    stream: Stream


class Sign(Enum):
    """What concerns the connection."""

    PONG = "pong"
    """The client has answered a PING."""


Event = Begun | Part | Ended | Gone | Drained | Sign

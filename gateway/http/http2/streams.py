"""The state of one HTTP/2 stream, and the events that a session derives from the peer's frames.

The state consists of the sides that may still send, the windows, and the queued data.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Final, NamedTuple

from gateway.http.http2.frames import ErrorCode
from gateway.http.http2.head import Http2Request
from gateway.http.reply_lines import Head
from gateway.http.reply_parser import Interim

NOTHING_QUEUED: Final[deque[bytes | memoryview]] = deque(maxlen=0)
"""The empty queue that all streams share until data has to wait."""


class Stream:
    """One stream, owned by its session.  Data that does not fit into the windows waits here, in order."""

    __slots__ = (
        "announced_bytes",
        "has_head",
        "id",
        "is_ended",
        "is_ending",
        "is_receiving",
        "queue",
        "queued_bytes",
        "receive_window",
        "reset_code",
        "send_window",
        "sent_bytes",
        "settled_at",
        "unacknowledged_bytes",
        "unread_bytes",
    )

    def __init__(self, stream_id: int, send_window: int, receive_window: int) -> None:
        self.id = stream_id
        self.send_window = send_window
        """Bytes of DATA that the peer accepts.  Negative after the peer has reduced its initial window."""
        self.receive_window = receive_window
        """Bytes of DATA that the peer may still send."""
        self.unacknowledged_bytes = 0
        """Bytes received since the last window update."""
        self.unread_bytes = 0
        """Bytes of the body that wait to be read."""
        self.announced_bytes: int | None = None
        """Bytes of the body that have yet to arrive; None without a Content-Length."""
        self.has_head = True
        """Whether the peer's head has arrived.  False at first on the client's side."""
        self.is_receiving = True
        """Whether the peer may still send."""
        self.queue = NOTHING_QUEUED
        """Waiting data.  A deque takes 0.6 KB, so a stream gets its own deque only when data has to wait."""
        self.queued_bytes = 0
        self.sent_bytes = 0
        """Bytes of DATA that have been sent."""
        self.settled_at = 0.0
        """The time in monotonic seconds from which a reset by the client does not count as part of a flood.  0 once the
        answer has begun."""
        self.is_ending = False
        """Whether this side ends the stream after the queued data."""
        self.is_ended = False
        """Whether this side has ended the stream."""
        self.reset_code: ErrorCode | None = None
        """The error code with which either side has reset the stream; None without a reset."""

    def __repr__(self) -> str:
        return f"<Stream {self.id}: {self.queued_bytes} queued, window {self.send_window}>"

    @property
    def is_full(self) -> bool:
        """Whether data waits for the peer to open a window."""
        return self.queued_bytes > 0


class RequestReceived(NamedTuple):
    """A request has arrived.  `is_whole` means that the request has no body."""

    stream: Stream
    request: Http2Request
    is_whole: bool


class ReplyReceived(NamedTuple):
    """The head of a final reply has arrived.  `is_whole` means that the reply has no body."""

    stream: Stream
    head: Head
    is_whole: bool


class InterimReceived(NamedTuple):
    """An interim reply (1xx) has arrived."""

    stream: Stream
    interim: Interim


class DataReceived(NamedTuple):
    """A piece of a body.  The receiver has to call `acknowledge` with `size`."""

    stream: Stream
    data: bytes
    size: int


class BodyEnded(NamedTuple):
    """A body is whole."""

    stream: Stream


class StreamReset(NamedTuple):
    """A stream was reset, by the peer or because of an error of the peer's.  `stream.reset_code` has the code."""

    stream: Stream
    is_by_peer: bool


class StreamDrained(NamedTuple):
    """All data queued for a stream has been written to the output."""

    stream: Stream


class ConnectionEvent(Enum):
    """An event of the connection as a whole."""

    PING_ACK = "ping ack"
    """The peer has answered a PING."""


Event = (
    RequestReceived
    | ReplyReceived
    | InterimReceived
    | DataReceived
    | BodyEnded
    | StreamReset
    | StreamDrained
    | ConnectionEvent
)

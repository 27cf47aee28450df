"""One stream of a connection: who may still send on it, how much, and what waits to be sent."""

from __future__ import annotations

from collections import deque

from gateway.http.http2.frames import ErrorCode


class Stream:
    """Owned by its session.  A body that does not fit the windows waits here, in order."""

    __slots__ = (
        "announced_bytes",
        "gone",
        "id",
        "is_ended",
        "is_ending",
        "is_receiving",
        "queue",
        "queued_bytes",
        "receive_window",
        "send_window",
        "unacknowledged_bytes",
        "unread_bytes",
    )

    def __init__(self, stream_id: int, send_window: int, receive_window: int) -> None:
        self.id = stream_id
        self.send_window = send_window
        """Bytes of DATA that the client takes; below zero after it has changed its mind."""
        self.receive_window = receive_window
        """Bytes of DATA that the client may send."""
        self.unacknowledged_bytes = 0
        """What has come since the client was last told to go on."""
        self.unread_bytes = 0
        """What of the body waits here to be read."""
        self.announced_bytes: int | None = None
        """What is to come of the body, where that was said."""
        self.is_receiving = True
        """Whether the client has not ended its side."""
        self.queue: deque[bytes | memoryview] = deque()
        self.queued_bytes = 0
        self.is_ending = False
        """Whether nothing comes after what is queued."""
        self.is_ended = False
        """Whether this side has ended."""
        self.gone: ErrorCode | None = None
        """Why it was reset, by either side."""

    def __repr__(self) -> str:
        return f"<Stream {self.id}: {self.queued_bytes} queued, window {self.send_window}>"

    @property
    def is_full(self) -> bool:
        """Whether something waits for the client."""
        return self.queued_bytes > 0

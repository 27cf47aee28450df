"""Flow control of the bodies that arrive over HTTP/2 (RFC 9113 section 5.2).

The connection's window reopens as bytes arrive, so that one stalled body never blocks the others.  A stream's window
reopens too, with two exceptions: if too much of its own body is unread, or if it has unread bytes while all bodies
together have too many.  A body that is read as it arrives is never held up.  These rules bound what one connection can
make the process hold to `MOST_UNREAD_BYTES` and one window for each stream.
"""

from __future__ import annotations

from typing import Final

from gateway.http.http2 import frames
from gateway.http.http2.sending import Sending
from gateway.http.http2.streams import Stream

CONNECTION_WINDOW: Final = 1 << 20
"""Bytes of all arriving bodies that may be in flight."""
STREAM_UNREAD_BYTES: Final = 1 << 18
"""Unread bytes of one body above which its window stays closed."""
MOST_UNREAD_BYTES: Final = 1 << 20
"""Unread bytes of all bodies of a connection above which the windows of bodies with unread bytes stay closed."""


class Receiving(Sending):
    """The receiving half of a session's flow control.  Owner of its streams and of the counts of unread bytes."""

    __slots__ = (
        "_receive_window",
        "_unacknowledged",
        "_unread_bytes",
        "streams",
    )

    def __init__(self) -> None:
        super().__init__()
        self.streams: dict[int, Stream] = {}
        """The streams on which either side may still send, by id."""
        self._receive_window = CONNECTION_WINDOW
        self._unacknowledged = 0
        self._unread_bytes = 0

    def acknowledge(self, stream: Stream, size: int) -> None:
        """Reopen the windows for `size` bytes of DATA, once `unread` has been called for them."""
        self._open_window(size)
        stream.unacknowledged_bytes += size
        self._open_stream(stream)

    def unread(self, stream: Stream, size: int) -> None:
        """`size` bytes of the stream's body wait to be read."""
        if self.streams.get(stream.id) is not stream:
            return
        was_over = self._unread_bytes > MOST_UNREAD_BYTES
        self._unread_bytes += size - stream.unread_bytes
        stream.unread_bytes = size
        if was_over and self._unread_bytes <= MOST_UNREAD_BYTES:
            for one in tuple(self.streams.values()):
                self._open_stream(one)
        else:
            self._open_stream(stream)

    def _is_shut(self, stream: Stream) -> bool:
        """Whether the stream's window stays closed because of unread bytes."""
        unread = stream.unread_bytes
        return unread > STREAM_UNREAD_BYTES or (unread > 0 and self._unread_bytes > MOST_UNREAD_BYTES)

    def _open_stream(self, stream: Stream) -> None:
        size = stream.unacknowledged_bytes
        if not size or not stream.is_receiving or stream.reset_code is not None or self._is_shut(stream):
            return
        if (size >= frames.DEFAULT_WINDOW // 2 or stream.receive_window < size) and self.failed is None:
            stream.unacknowledged_bytes = 0
            stream.receive_window += size
            self._write(frames.window_update(stream.id, size))

    def _open_window(self, size: int) -> None:
        self._unacknowledged += size
        if self._unacknowledged >= CONNECTION_WINDOW // 4 and self.failed is None:
            self._receive_window += self._unacknowledged
            self._write(frames.window_update(0, self._unacknowledged))
            self._unacknowledged = 0

    def _remove(self, stream: Stream) -> None:
        """Remove a stream on which neither side sends any more."""
        self.unread(stream, 0)
        self.streams.pop(stream.id, None)

"""How a server's side of HTTP/2 takes bodies in: the windows that it opens for its client (RFC 9113 section 5.2).

The connection's window opens as bytes come, so that a body which is stuck has no other body wait for it.  A stream's
window opens as well, unless too much of the stream's body is unread, or so much of all bodies that those of which
anything is unread have to wait; one that is read as it comes goes on.  Together they keep what one connection can have
the process hold to `MOST_UNREAD_BYTES` and a window for each stream.
"""

from __future__ import annotations

from typing import Final

from gateway.http.http2 import frames
from gateway.http.http2.sending import Sending
from gateway.http.http2.streams import Stream

CONNECTION_WINDOW: Final = 1 << 20
"""Bytes of all requests' bodies that may be on their way."""
STREAM_UNREAD_BYTES: Final = 1 << 18
"""Bytes of one body that are unread before its window stays shut."""
MOST_UNREAD_BYTES: Final = 1 << 20
"""Bytes of all bodies of a connection that are unread before the windows of those stay shut."""


class Receiving(Sending):
    """The receiving half of a connection's flow control.  Owner of its streams, and of what is unread."""

    def __init__(self) -> None:
        super().__init__()
        self.streams: dict[int, Stream] = {}
        """Those that either side may still send on."""
        self._receive_window = CONNECTION_WINDOW
        self._unacknowledged = 0
        self._unread_bytes = 0

    def acknowledge(self, stream: Stream, size: int) -> None:
        """So many bytes of DATA have come, and what `unread` says of them is said."""
        self._open_window(size)
        stream.unacknowledged_bytes += size
        self._open_stream(stream)

    def unread(self, stream: Stream, size: int) -> None:
        """So many bytes of the body wait here to be read."""
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
        """Whether more of the stream's body has to wait for what is unread."""
        unread = stream.unread_bytes
        return unread > STREAM_UNREAD_BYTES or (unread > 0 and self._unread_bytes > MOST_UNREAD_BYTES)

    def _open_stream(self, stream: Stream) -> None:
        size = stream.unacknowledged_bytes
        if not size or not stream.is_receiving or stream.gone is not None or self._is_shut(stream):
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
        """Neither side sends on the stream any more."""
        self.unread(stream, 0)
        self.streams.pop(stream.id, None)

"""How streams and the connection end over HTTP/2, from the server's side (RFC 9113 sections 5.1, 5.4 and 6.8).

A stream is over when both sides have ended it, or when either has reset it.  The connection is over when it has failed;
where it is to end in order, the client hears first that it shall begin nothing more, then which of its requests is the
last one that is answered.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from gateway.http.http2 import frames
from gateway.http.http2.counts import SessionCounts
from gateway.http.http2.frames import ErrorCode
from gateway.http.http2.receiving import Receiving
from gateway.http.http2.streams import Stream

_MOST_FORGOTTEN: Final = 256
"""Streams reset by this side for which the client's frames are on their way still (RFC 9113 section 5.1)."""


class Ending(Receiving):
    """Owner of which streams are over, and of whether the connection is."""

    def __init__(self, counts: SessionCounts) -> None:
        super().__init__()
        self._counts = counts
        self._last_id = 0
        """The last stream that the client has begun."""
        self._forgotten: deque[int] = deque(maxlen=_MOST_FORGOTTEN)
        self._last_taken: int | None = None
        """The last stream that is looked at, where this side has said so."""
        self._has_warned = False
        """Whether this side has said that the connection will end."""

    @property
    def has_failed(self) -> bool:
        """Whether nothing more is read or written."""
        return self.failed is not None

    @property
    def is_leaving(self) -> bool:
        """Whether the client has been told which of its requests is the last one."""
        return self._last_taken is not None

    def _settle(self, stream: Stream) -> None:
        """See whether the stream is over: its answer is."""
        if not stream.is_ended or stream.gone is not None:
            return
        if stream.is_receiving:
            # The rest of the body is of no use to anybody (RFC 9113 section 8.1).
            self.reset(stream, ErrorCode.NO_ERROR)
        else:
            self._remove(stream)

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """End a stream at once, unless it is over."""
        if stream.id in self.streams:
            self._drop(stream, code)
            self._forget(stream.id, code)

    def _drop(self, stream: Stream, code: ErrorCode) -> None:
        stream.gone = code
        self._remove(stream)
        self._turns.pop(stream, None)
        stream.queue.clear()
        stream.queued_bytes = 0

    def _forget(self, stream_id: int, code: ErrorCode) -> None:
        self._forgotten.append(stream_id)
        if self.failed is None:
            self._counts.resets[code] += 1
            self._write(frames.rst_stream(stream_id, code))

    def fail(self, code: ErrorCode) -> None:
        """End the connection; what is open is over."""
        if self.failed is None:
            self._counts.goaways[code] += 1
            self._write(frames.goaway(self._last_id, code))
            self.abandon(code)

    def abandon(self, code: ErrorCode = ErrorCode.NO_ERROR) -> None:
        """The connection is gone: nothing more is read or written."""
        if self.failed is None:
            self.failed = code

    def leave(self, *, is_final: bool) -> None:
        """Have the client begin nothing more: first it is told so, with a PING whose answer says that it has heard;
        then, finally, which of its requests are answered still (RFC 9113 section 6.8)."""
        if self.failed is not None or self._last_taken is not None:
            return
        if not self._has_warned:
            self._counts.goaways[ErrorCode.NO_ERROR] += 1
            self._has_warned = True
        if is_final:
            self._last_taken = self._last_id
            self._write(frames.goaway(self._last_id, ErrorCode.NO_ERROR))
        else:
            self._write(frames.goaway(frames.LAST_STREAM_ID, ErrorCode.NO_ERROR))
            self._write(frames.ping(b"leaving!", is_ack=False))

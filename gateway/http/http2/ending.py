"""Ending of streams and of the connection, on the server's side of HTTP/2 (RFC 9113 sections 5.1, 5.4 and 6.8).

A stream is over when both sides have ended it, or either side has reset it.  A connection is over when it has failed.
An orderly end takes two GOAWAY frames: the first tells the client to begin no more requests, the second names the last
request that is answered.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from gateway.http.http2 import frames
from gateway.http.http2.counts import SessionCounts
from gateway.http.http2.frames import ErrorCode
from gateway.http.http2.receiving import Receiving
from gateway.http.http2.streams import Stream

_MOST_RESET_IDS: Final = 256
"""Bound on the streams reset by this side for which frames of the client may still arrive (RFC 9113 section 5.1)."""


class Ending(Receiving):
    """The ending half of a session.  Decides which streams are over, and whether the connection is."""

    def __init__(self, counts: SessionCounts) -> None:
        super().__init__()
        self._counts = counts
        self._last_id = 0
        """The last stream that the client has begun."""
        self._reset_ids: deque[int] = deque(maxlen=_MOST_RESET_IDS)
        self._last_answered_id: int | None = None
        """The last stream that is answered, once this side has named it."""
        self._has_sent_goaway = False
        """Whether this side has sent the first GOAWAY of an orderly end."""

    @property
    def has_failed(self) -> bool:
        """Whether the connection has ended: nothing more is read or written."""
        return self.failed is not None

    @property
    def is_leaving(self) -> bool:
        """Whether this side has named the last request that is answered."""
        return self._last_answered_id is not None

    def _close_if_ended(self, stream: Stream) -> None:
        """Close the stream if its answer has ended."""
        if not stream.is_ended or stream.reset_code is not None:
            return
        if stream.is_receiving:
            # The rest of the body has no use any more (RFC 9113 section 8.1).
            self.reset(stream, ErrorCode.NO_ERROR)
        else:
            self._remove(stream)

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """Reset a stream, unless it is over."""
        if stream.id in self.streams:
            self._drop(stream, code)
            self._send_reset(stream.id, code)

    def _drop(self, stream: Stream, code: ErrorCode) -> None:
        stream.reset_code = code
        self._remove(stream)
        self._turns.pop(stream, None)
        stream.queue.clear()
        stream.queued_bytes = 0

    def _send_reset(self, stream_id: int, code: ErrorCode) -> None:
        self._reset_ids.append(stream_id)
        if self.failed is None:
            self._counts.resets[code] += 1
            self._write(frames.rst_stream(stream_id, code))

    def fail(self, code: ErrorCode) -> None:
        """End the connection with an error; all its streams are over."""
        if self.failed is None:
            self._counts.goaways[code] += 1
            self._write(frames.goaway(self._last_id, code))
            self.abandon(code)

    def abandon(self, code: ErrorCode = ErrorCode.NO_ERROR) -> None:
        """End the session without a frame: nothing more is read or written."""
        if self.failed is None:
            self.failed = code

    def leave(self, *, is_final: bool) -> None:
        """Ask the client to begin no more requests (RFC 9113 section 6.8).

        First with `is_final` False: a GOAWAY without a last stream, and a PING, whose answer shows that the client has
        read it.  Then with `is_final` True: a GOAWAY that names the last request that is answered.
        """
        if self.failed is not None or self._last_answered_id is not None:
            return
        if not self._has_sent_goaway:
            self._counts.goaways[ErrorCode.NO_ERROR] += 1
            self._has_sent_goaway = True
        if is_final:
            self._last_answered_id = self._last_id
            self._write(frames.goaway(self._last_id, ErrorCode.NO_ERROR))
        else:
            self._write(frames.goaway(frames.LAST_STREAM_ID, ErrorCode.NO_ERROR))
            self._write(frames.ping(b"leaving!", is_ack=False))

"""The end of streams and of the connection, on both sides of HTTP/2 (RFC 9113 sections 5.1, 5.4 and 6.8).

A stream is over when both sides have ended it, or either side has reset it.  A connection is over when it has failed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from typing import Final

from gateway.http.http2 import frames
from gateway.http.http2.flood_limits import SessionCounts
from gateway.http.http2.flow_control import Receiving
from gateway.http.http2.frames import ErrorCode
from gateway.http.http2.streams import Stream

_UNNEEDED: Final = (ErrorCode.NO_ERROR, ErrorCode.CANCEL)
"""The codes with which this side resets a stream although the peer has made no error."""
_MOST_LATE_BYTES: Final = 1 << 26
"""The most bytes of DATA that may still arrive for streams that were reset."""
_MOST_RESET_IDS: Final = 256
"""The most reset streams that a session can distinguish from ended streams (RFC 9113 section 5.1)."""


class SessionError(Exception):
    """The connection has to end, with this error code."""

    def __init__(self, code: ErrorCode) -> None:
        self.code = code


def unpadded(payload: bytes, flags: int) -> bytes:
    """Return the payload of a frame without its padding.  Raises SessionError."""
    if not flags & frames.PADDED:
        return payload
    if not payload:
        raise SessionError(ErrorCode.FRAME_SIZE_ERROR)
    if payload[0] >= len(payload):
        raise SessionError(ErrorCode.PROTOCOL_ERROR)
    return payload[1 : len(payload) - payload[0]]


class Ending(Receiving):
    """The part of a session that ends streams and the connection."""

    __slots__ = ("_counts", "_forgotten_id", "_last_id", "_late_bytes", "_reset_ids")

    def __init__(self, counts: SessionCounts) -> None:
        super().__init__()
        self._counts = counts
        self._last_id = 0
        """The id of the last stream that the client has begun."""
        self._late_bytes = 0
        """The most bytes of DATA that may still arrive for streams that this side has reset.  The number is the sum of
        the windows that these streams had left, up to `_MOST_LATE_BYTES`.  The peer may have sent these bytes before it
        read the reset.
        """
        self._reset_ids: deque[int] = deque()
        """The latest reset streams, oldest first."""
        self._forgotten_id = 0
        """The highest id among the reset streams that were removed from `_reset_ids`.  Any stream up to this id may
        have been reset."""

    @property
    @abstractmethod
    def _last_peer_id(self) -> int:
        """The id of the peer's last stream that this side has processed; 0 if there is none."""

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """Reset a stream, unless it is over."""
        if stream.id in self.streams:
            self._drop(stream, code)
            if stream.is_receiving and code in _UNNEEDED:
                self._late_bytes = min(self._late_bytes + max(0, stream.receive_window), _MOST_LATE_BYTES)
            self._send_reset(stream.id, code)

    def _drop(self, stream: Stream, code: ErrorCode) -> None:
        stream.reset_code = code
        self._remove(stream)
        self._turns.pop(stream, None)
        stream.queue.clear()
        stream.queued_bytes = 0

    def _note_reset(self, stream_id: int) -> None:
        """Record that frames of the peer may still arrive for this stream."""
        self._reset_ids.append(stream_id)
        if len(self._reset_ids) > _MOST_RESET_IDS:
            self._forgotten_id = max(self._forgotten_id, self._reset_ids.popleft())

    def _may_be_late(self, stream_id: int) -> bool:
        """Return whether the peer may have sent a frame for this ended stream before it read a reset.

        Also true for every old stream, because the session does not record whether old streams were reset.
        """
        return stream_id <= self._forgotten_id or stream_id in self._reset_ids

    def _send_reset(self, stream_id: int, code: ErrorCode) -> None:
        self._note_reset(stream_id)
        if self.failed is None:
            self._counts.resets[code] += 1
            self._write(frames.rst_stream(stream_id, code))

    def fail(self, code: ErrorCode) -> None:
        """End the connection, and all its streams, with an error."""
        if self.failed is None:
            self._counts.goaways[code] += 1
            self._write(frames.goaway(self._last_peer_id, code))
            self.abandon(code)

    def abandon(self, code: ErrorCode = ErrorCode.NO_ERROR) -> None:
        """End the session without a frame.  Nothing more is read or written."""
        if self.failed is None:
            self.failed = code

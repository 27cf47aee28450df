"""One HTTP/2 connection on the server's side (RFC 9113): requests in, answers out.

`reading` parses and checks the client's frames.  `Sending` appends the output to `out`.  The owner of the transport
writes the output, and sets `is_blocked` while the transport has no room.  `Receiving` bounds the unread bytes of
request bodies.

An orderly end takes two GOAWAY frames.  The first asks the client to begin no more requests.  The second contains the
number of the last request that is answered.
"""

from __future__ import annotations

from typing import Final

from gateway.http.http2 import frames
from gateway.http.http2.ending import SessionError
from gateway.http.http2.flood_limits import Kind, SessionCounts
from gateway.http.http2.flow_control import CONNECTION_WINDOW
from gateway.http.http2.frames import ErrorCode, Setting
from gateway.http.http2.head import MOST_LIST_BYTES, Http2Request
from gateway.http.http2.reading import Reading
from gateway.http.http2.streams import RequestReceived, Stream, StreamReset
from gateway.http.request_parser import LONGEST_HEAD

SETTLED_S: Final = 1.0
"""A client that resets a stream after this many seconds has waited for the answer.  Such a reset does not count as part
of a flood, because the bound on open streams limits the rate of such resets.
"""


class Session(Reading[Http2Request]):
    """The protocol state of one client connection."""

    __slots__ = ("_has_preface", "_most_streams", "has_sent_goaway", "last_answered_id")

    def __init__(self, most_streams: int, counts: SessionCounts) -> None:
        super().__init__(counts, MOST_LIST_BYTES, Http2Request)
        self._most_streams = most_streams
        self._has_preface = False
        self.last_answered_id: int | None = None
        """The last stream that is answered, as announced in the final GOAWAY; None before that frame."""
        self.has_sent_goaway = False
        """Whether the client has been asked to begin no more requests."""
        self._write(
            frames.settings(
                {
                    Setting.MAX_CONCURRENT_STREAMS: most_streams,
                    Setting.MAX_HEADER_LIST_SIZE: LONGEST_HEAD,
                    Setting.NO_RFC7540_PRIORITIES: 1,
                }
            )
        )
        self._write(frames.window_update(0, CONNECTION_WINDOW - frames.DEFAULT_WINDOW))

    @property
    def _last_peer_id(self) -> int:
        return self._last_id

    def _read_preface(self, data: bytes) -> int:
        if self._has_preface:
            return 0
        size = len(frames.PREFACE)
        if data[:size] == frames.PREFACE:
            self._has_preface = True
            return size
        if not frames.PREFACE.startswith(data):
            raise SessionError(ErrorCode.PROTOCOL_ERROR)
        self._unparsed = data
        return -1

    # -- requests

    def _take_head(self, stream_id: int, block: bytes, ends: bool) -> bool:
        if stream_id <= self._last_id:
            return False
        self._begin(stream_id, self._reader.read(block), ends)
        return True

    def _begin(self, stream_id: int, request: Http2Request, ends: bool) -> None:
        self._last_id = stream_id
        if self.last_answered_id is not None and stream_id > self.last_answered_id:
            # Ignore the stream, as GOAWAY has announced.  The client may send the request elsewhere (RFC 9113 section
            # 6.8).
            self._spend(Kind.IDLE)
            self._note_reset(stream_id)
            return
        if len(self.streams) >= self._most_streams:
            self._spend(Kind.REFUSED)
            self._send_reset(stream_id, ErrorCode.REFUSED_STREAM)
            return
        stream = self.streams[stream_id] = Stream(stream_id, self._first_window, frames.DEFAULT_WINDOW)
        if request.is_malformed or (ends and request.length):
            self._reset_for_error(stream, ErrorCode.PROTOCOL_ERROR)
            return
        stream.announced_bytes = request.length
        stream.is_receiving = not ends
        stream.settled_at = self._now + SETTLED_S
        self._events.append(RequestReceived(stream, request, ends))

    # -- the end

    def _end_by_reset(self, stream: Stream | None, code: ErrorCode) -> None:
        if stream is None:
            # The stream may have ended while the reset was on its way.
            self._spend(Kind.IDLE)
            return
        is_flood = self._now < stream.settled_at and not self._budget.spend(Kind.RESET, self._now)
        self._drop(stream, ErrorCode.CANCEL)
        if is_flood and self.last_answered_id is None:
            self._end_for_resets()
        self._events.append(StreamReset(stream, is_by_peer=True))

    def _end_for_resets(self) -> None:
        """End the connection after too many requests were reset before their answers began (CVE-2023-44487).

        Open streams are answered first, because they may belong to other clients of a proxy.
        """
        self._note_flood(Kind.RESET)
        if not self.streams:
            raise SessionError(ErrorCode.ENHANCE_YOUR_CALM)
        self._counts.goaways[ErrorCode.ENHANCE_YOUR_CALM] += not self.has_sent_goaway
        self.last_answered_id = self._last_id
        self._write(frames.goaway(self._last_id, ErrorCode.ENHANCE_YOUR_CALM))

    def _close_if_ended(self, stream: Stream) -> None:
        """Close the stream if its answer has ended."""
        if not stream.is_ended or stream.reset_code is not None:
            return
        if stream.is_receiving:
            # Ask the client to send no more of the request's body, which is useless now (RFC 9113 section 8.1).
            self.reset(stream, ErrorCode.NO_ERROR)
        else:
            self._remove(stream)

    def probe(self) -> None:
        """Send a PING, which the host of a vanished client answers with a TCP reset."""
        if self.failed is None:
            self._write(frames.ping(b"probing!", is_ack=False))

    def send_goaway(self, *, is_final: bool) -> None:
        """Ask the client to begin no more requests (RFC 9113 section 6.8).

        The first call has `is_final` False.  It sends a GOAWAY without a last stream.  It also sends a PING, whose
        answer shows that the client has read the GOAWAY.  The second call has `is_final` True.  It sends a GOAWAY with
        the last stream that is answered.
        """
        if self.failed is not None or self.last_answered_id is not None:
            return
        if not self.has_sent_goaway:
            self._counts.goaways[ErrorCode.NO_ERROR] += 1
            self.has_sent_goaway = True
        if is_final:
            self.last_answered_id = self._last_id
            self._write(frames.goaway(self._last_id, ErrorCode.NO_ERROR))
        else:
            self._write(frames.goaway(frames.LAST_STREAM_ID, ErrorCode.NO_ERROR))
            self._write(frames.ping(b"leaving!", is_ack=False))

"""One HTTP/2 connection on the client's side (RFC 9113): requests out, replies in.

The peer is an origin, which may be faulty or hostile.  All input is bounded: heads in bytes and fields, interim replies
in their rate, unread bodies by their windows, and frames without content by a budget.  An invalid reply resets its
stream, and a server push ends the connection.  For each request, one RST_STREAM frame does not count towards the
budget.  The origin may end a request with this frame, or send it after a reply if it does not need the rest of the
request (section 8.1).

Trailers are dropped.  A request counts as not processed if the origin resets its stream with REFUSED_STREAM, or if the
stream comes after the last stream in a GOAWAY (section 8.7).

Replies become the same `Head` as replies over HTTP/1.1.  The same checks apply as in `http/reply_parser`: on bounds,
statuses and field syntax.
"""

from __future__ import annotations

import re
from http.client import responses
from typing import Final

from multidict import CIMultiDict, CIMultiDictProxy

from gateway.http.framing import InterimRate
from gateway.http.http2 import frames
from gateway.http.http2.blocks import FORBIDDEN, FieldList, is_length, is_name, is_value
from gateway.http.http2.flood_limits import Kind, SessionCounts
from gateway.http.http2.flow_control import CONNECTION_WINDOW
from gateway.http.http2.frames import ErrorCode, Setting
from gateway.http.http2.reading import Reading
from gateway.http.http2.streams import InterimReceived, ReplyReceived, Stream, StreamReset
from gateway.http.reply_lines import NAMES, Head, read_lines
from gateway.http.reply_parser import MOST_FIELDS, MOST_HEAD_BYTES, MOST_LINE_BYTES, Interim

MOST_LIST_BYTES: Final = MOST_HEAD_BYTES + 32 * (MOST_FIELDS + 8)
"""The most decoded bytes of a reply's field list (sizes as in RFC 9113 section 6.5.2)."""

_is_status: Final = re.compile(rb"[1-9][0-9]{2}").fullmatch


class Http2Reply:
    """The reply in a field list.  Immutable, and shared by equal replies."""

    __slots__ = ("head", "interim", "is_malformed")

    def __init__(self, fields: FieldList) -> None:
        self.interim: Interim | None = None
        """The reply, if it is a valid interim reply (1xx)."""
        self.head: Head | None = None
        """The head of a valid final reply."""
        status = _status_of(fields)
        if status is not None and (102 <= status < 200 or status == 100):
            self.interim = Interim(status, CIMultiDictProxy(_headers_of(fields)))
        elif status is not None and status >= 200:
            self.head = _head_of(status, fields)
        self.is_malformed = self.head is None and self.interim is None
        """Whether the reply is invalid.  HTTP/2 has no 101 (RFC 9113 section 8.6), so that status is invalid too."""


def _status_of(fields: FieldList) -> int | None:
    """Return the status of a reply.  None if its fields are invalid, too large or too many."""
    if not fields or fields[0][0] != b":status" or not _is_status(fields[0][1]) or len(fields) > MOST_FIELDS + 1:
        return None
    size = 0
    for name, value in fields[1:]:
        size += len(name) + len(value)
        if len(name) + len(value) > MOST_LINE_BYTES or name in FORBIDDEN or not is_name(name) or not is_value(value):
            return None
    return int(fields[0][1]) if size <= MOST_HEAD_BYTES else None


def _head_of(status: int, fields: FieldList) -> Head | None:
    """Return the head of a final reply.  None if its Content-Length is repeated or is not a number."""
    if (found := read_lines([b"%b: %b" % field for field in fields[1:]])) is not None:
        shape, own, length = found
        return Head(status, responses.get(status, ""), None, length, True, shape, own)
    length = None
    for name, value in fields:
        if name == b"content-length":
            if length is not None or not is_length(value):
                return None
            length = int(value)
    headers = CIMultiDictProxy(_headers_of(fields))
    return Head(status, responses.get(status, ""), headers, length, is_delimited=True)


def _headers_of(fields: FieldList) -> CIMultiDict[str]:
    return CIMultiDict(
        [(NAMES.get(name) or name.decode(), value.decode("utf-8", "surrogateescape")) for name, value in fields[1:]]
    )


MOST_STREAMS: Final = 128
"""The most requests open at once on one connection, even if the origin allows more.  The bound limits how many requests
fail when one connection is lost.
"""
REPLY_WINDOW: Final = 1 << 18
"""The most bytes of one reply's body that may be in flight."""
LATE_FRAMES: Final = 256
"""The number of frames that may still arrive for a reset stream without counting towards the budget."""
_MOST_LATE_FRAMES: Final = 1 << 16
_MOST_LATE_RESETS: Final = 1 << 10
_NO_BODY: Final = frozenset({204, 304})


class ClientSession(Reading[Http2Reply]):
    """The protocol state of one connection to an origin."""

    __slots__ = ("_bodiless", "_interim", "_late_frames", "_late_resets")

    _most_push = 0

    def __init__(self, counts: SessionCounts) -> None:
        super().__init__(counts, MOST_LIST_BYTES, Http2Reply)
        self._late_frames = 0
        self._late_resets = 0
        """The number of RST_STREAM frames that may still arrive without counting towards the budget.  Each request adds
        one."""
        self._bodiless: set[int] = set()
        """Open streams whose reply has no body, because the request is a HEAD."""
        self._interim: dict[int, InterimRate] = {}
        """The rate of interim replies for each stream that has had an interim reply."""
        self._write(frames.PREFACE)
        self._write(
            frames.settings(
                {
                    Setting.ENABLE_PUSH: 0,
                    Setting.INITIAL_WINDOW_SIZE: REPLY_WINDOW,
                    Setting.MAX_HEADER_LIST_SIZE: MOST_LIST_BYTES,
                }
            )
        )
        self._write(frames.window_update(0, CONNECTION_WINDOW - frames.DEFAULT_WINDOW))

    @property
    def _last_peer_id(self) -> int:
        return 0

    # -- requests

    @property
    def most_streams(self) -> int:
        """The most requests that may be open at once now; 0 if no more may begin."""
        if self.failed is not None or self.has_goaway or self._last_id >= frames.LAST_STREAM_ID - 2:
            return 0
        return min(self.peer_streams, MOST_STREAMS)

    def send_request(self, block: bytes, *, ends: bool, is_head: bool = False) -> Stream:
        """Begin a request.  `ends` means that the request has no body, and `is_head` means that it is a HEAD.

        The caller must not exceed `most_streams`.
        """
        self._last_id += 2 if self._last_id else 1
        stream = self.streams[self._last_id] = Stream(self._last_id, self._first_window, REPLY_WINDOW)
        stream.has_head = False
        self._late_resets = min(self._late_resets + 1, _MOST_LATE_RESETS)
        if is_head:
            self._bodiless.add(stream.id)
        self.send_head(stream, block, ends=ends)
        return stream

    def send_goaway(self) -> None:
        """Announce to the origin that the connection is about to close (section 6.8)."""
        if self.failed is None:
            self._counts.goaways[ErrorCode.NO_ERROR] += 1
            self._write(frames.goaway(0, ErrorCode.NO_ERROR))
            self.abandon()

    def ping(self) -> None:
        """Send a PING, whose answer shows that the origin is alive."""
        if self.failed is None:
            self._write(frames.ping(b"alive?\0\0", is_ack=False))

    # -- replies

    def _take_head(self, stream_id: int, block: bytes, ends: bool) -> bool:
        stream = self.streams.get(stream_id)
        if stream is None or stream.has_head:
            return False
        self._take_reply(stream, self._reader.read(block), ends)
        return True

    def _take_reply(self, stream: Stream, reply: Http2Reply, ends: bool) -> None:
        if reply.interim is not None:
            rate = self._interim.get(stream.id)
            if rate is None:
                rate = self._interim[stream.id] = InterimRate()
            if ends or not rate.count(self._now):
                self._reset_for_error(stream, ErrorCode.PROTOCOL_ERROR)
            else:
                self._events.append(InterimReceived(stream, reply.interim))
            return
        head = reply.head
        if head is None:
            self._reset_for_error(stream, ErrorCode.PROTOCOL_ERROR)
            return
        has_no_body = stream.id in self._bodiless or head.status in _NO_BODY
        stream.announced_bytes = 0 if has_no_body else head.content_length
        if ends and stream.announced_bytes:
            self._reset_for_error(stream, ErrorCode.PROTOCOL_ERROR)
            return
        stream.has_head = True
        stream.is_receiving = not ends
        self._events.append(ReplyReceived(stream, head, ends))
        if ends:
            self._close_if_ended(stream)

    # -- the end

    def _end_by_reset(self, stream: Stream | None, code: ErrorCode) -> None:
        if self._late_resets:
            self._late_resets -= 1
        elif stream is None:
            self._spend(Kind.RESET)
        if stream is not None:
            self._drop(stream, code)
            self._events.append(StreamReset(stream, is_by_peer=True))

    def _end_unprocessed(self, last_id: int) -> None:
        for stream in [stream for stream in self.streams.values() if stream.id > last_id]:
            self._drop(stream, ErrorCode.REFUSED_STREAM)
            self._note_reset(stream.id)
            self._events.append(StreamReset(stream, is_by_peer=True))

    def _close_if_ended(self, stream: Stream) -> None:
        if stream.is_ended and not stream.is_receiving and stream.reset_code is None:
            self._remove(stream)

    def _remove(self, stream: Stream) -> None:
        super()._remove(stream)
        self._bodiless.discard(stream.id)
        self._interim.pop(stream.id, None)

    def _send_reset(self, stream_id: int, code: ErrorCode) -> None:
        super()._send_reset(stream_id, code)
        self._late_frames = min(self._late_frames + LATE_FRAMES, _MOST_LATE_FRAMES)

    def _spend_late(self) -> None:
        if self._late_frames:
            self._late_frames -= 1
        else:
            super()._spend_late()

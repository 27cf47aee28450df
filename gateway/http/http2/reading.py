"""The input of one HTTP/2 connection, on both sides (RFC 9113): frames in, events out.

A stream error resets that stream.  A connection error ends the connection (`failed`).  Frames that cause work and carry
no request or data are limited (`budget`).  Header blocks are decoded even if their messages are dropped, because each
block may change the dynamic table with which later blocks are decoded.  `session` and `client_session` interpret the
blocks as requests and as replies.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from gateway.http.http2 import frames
from gateway.http.http2.blocks import BlockReader, FieldList, TooLarge, Undecodable
from gateway.http.http2.ending import Ending, SessionError, unpadded
from gateway.http.http2.flood_limits import Budget, Kind, SessionCounts
from gateway.http.http2.frames import ErrorCode, Setting
from gateway.http.http2.streams import (
    BodyEnded,
    ConnectionEvent,
    DataReceived,
    Event,
    Stream,
    StreamDrained,
    StreamReset,
)

_FRAME_OF_SETTINGS: Final = 192
"""The number of bytes of a SETTINGS frame that count as one more frame.  Regular clients send a tenth of this
number."""

_SMALL: Final = 1_024
"""A piece of a body with fewer bytes than this is joined with the piece before it."""

Head = TypeVar("Head")
"""The head of a message: a request or a reply, depending on the side."""


class Reading(Ending, Generic[Head]):
    """The reading half of a session."""

    __slots__ = (
        "_block",
        "_block_bytes",
        "_block_ends",
        "_block_id",
        "_budget",
        "_consumed",
        "_events",
        "_has_settings",
        "_most_block_bytes",
        "_now",
        "_reader",
        "_unparsed",
        "flood",
        "has_goaway",
        "has_more",
        "latest_bytes",
        "peer_streams",
    )

    _most_push = 1
    """The largest valid value of ENABLE_PUSH (RFC 9113 section 6.5.2)."""

    def __init__(self, counts: SessionCounts, most_block_bytes: int, understand: Callable[[FieldList], Head]) -> None:
        super().__init__(counts)
        self._most_block_bytes = most_block_bytes
        """The most bytes of a header block, encoded and decoded."""
        self._reader = BlockReader(most_block_bytes, understand)
        self._budget = Budget()
        self.flood: Kind | None = None
        """The kind of frame that the peer has sent too often; None without a flood."""
        self._unparsed = b""
        self._consumed = 0
        """The number of bytes at the start of `_unparsed` that have been read already.  0 unless `has_more`."""
        self.has_more = False
        """Whether complete frames are left to be read."""
        self.latest_bytes = 0
        """The number of bytes that the latest `receive` has read, if `has_more`."""
        self._has_settings = False
        self._now = 0.0
        self._events: list[Event] = []
        self.peer_streams = frames.LAST_STREAM_ID
        """The most streams that this side may have open at once, by the peer's settings.  Only clients open streams."""
        self.has_goaway = False
        """Whether the peer has sent GOAWAY."""
        self._block: list[bytes] | None = None
        """The fragments of an incomplete header block."""
        self._block_bytes = 0
        self._block_id = 0
        self._block_ends = False

    def __repr__(self) -> str:
        state = "open" if self.failed is None else self.failed.name
        counts = f"{len(self.streams)} streams, {len(self._turns)} waiting, {self._unread_bytes} unread"
        return f"<{type(self).__name__} {state}: {counts}, window {self._send_window}>"

    @property
    def is_greeted(self) -> bool:
        """Whether the peer's first SETTINGS frame has arrived.  A client sends its preface before that frame."""
        return self._has_settings

    @property
    def is_mid_head(self) -> bool:
        """Whether the input ends within a frame other than DATA, or within a header block."""
        rest = b"" if self.has_more else self._unparsed
        return self._block is not None or (bool(rest) and (len(rest) <= 3 or rest[3] != frames.DATA))

    @property
    def input_bytes(self) -> int:
        """Bytes of held input: incomplete frames and header blocks, and unread bodies."""
        return len(self._unparsed) - self._consumed + self._block_bytes * (self._block is not None) + self._unread_bytes

    def receive(
        self, data: bytes, now: float, most_heads: int = sys.maxsize, most_frames: int = sys.maxsize
    ) -> list[Event]:
        """Read input that arrives at `now` (monotonic seconds).  Return its events in order, and no events after a
        failure.

        One call reads at most `most_heads` HEADERS frames and at most `most_frames` other frames.  If complete frames
        are left, `has_more` is true, and the next call continues.  A long SETTINGS frame counts as several frames.
        """
        self.has_more = False
        if self.failed is not None:
            return []
        self._now = now
        events = self._events = []
        if data and self._unparsed:
            self.keep(data)
        begin, self._consumed = self._consumed, 0
        if self._unparsed:
            data, self._unparsed = self._unparsed, b""
        try:
            at = self._read_preface(data)
            if at >= 0:
                self._read(data, at + begin, most_heads, most_frames)
        except SessionError as failure:
            self.fail(failure.code)
        return events

    def keep(self, data: bytes) -> None:
        """Add input to the unread input, for a later call of `receive`."""
        self._unparsed, self._consumed = self._unparsed[self._consumed :] + data, 0

    def _read_preface(self, data: bytes) -> int:
        """Return the position of the first frame in these bytes; -1 if more bytes are needed."""
        return 0

    def _read(self, data: bytes, at: int, most_heads: int, most_frames: int) -> None:
        start, end = at, len(data)
        while end - at >= frames.HEAD_BYTES:
            high, low, kind, flags, stream_id = frames.read_head(data, at)
            size = high << 16 | low
            stream_id &= frames.LAST_STREAM_ID
            if size > frames.DEFAULT_FRAME_BYTES:
                raise SessionError(ErrorCode.FRAME_SIZE_ERROR)
            if not self._has_settings and (kind != frames.SETTINGS or flags & frames.ACK):
                raise SessionError(ErrorCode.PROTOCOL_ERROR)
            if self._block is not None and (kind != frames.CONTINUATION or stream_id != self._block_id):
                raise SessionError(ErrorCode.PROTOCOL_ERROR)
            begin = at + frames.HEAD_BYTES
            if end - begin < size:
                break
            at = begin + size
            if (most_heads if kind == frames.HEADERS else most_frames) <= 0:
                # Keep the rest without a copy, because the rest may be long and is read a few frames at a time.
                self.has_more, self.latest_bytes = True, begin - frames.HEAD_BYTES - start
                self._unparsed, self._consumed = data, begin - frames.HEAD_BYTES
                return
            if kind == frames.HEADERS:
                most_heads -= 1
            else:
                most_frames -= 1
            take = _TAKERS.get(kind)
            if take is None:
                self._spend(Kind.IDLE)
            else:
                take(self, data[begin:at], flags, stream_id)
        self._unparsed = data[at:]

    def _spend(self, kind: Kind) -> None:
        if not self._budget.spend(kind, self._now):
            self._note_flood(kind)
            raise SessionError(ErrorCode.ENHANCE_YOUR_CALM)

    def _note_flood(self, kind: Kind) -> None:
        self._counts.floods[kind] += 1
        self.flood = kind

    # -- header blocks

    def _take_headers(self, payload: bytes, flags: int, stream_id: int) -> None:
        if stream_id % 2 == 0:
            raise SessionError(ErrorCode.PROTOCOL_ERROR)
        payload = unpadded(payload, flags)
        if flags & frames.HAS_PRIORITY:
            if len(payload) < 5:
                raise SessionError(ErrorCode.FRAME_SIZE_ERROR)
            if int.from_bytes(payload[:4], "big") & frames.LAST_STREAM_ID == stream_id:
                raise SessionError(ErrorCode.PROTOCOL_ERROR)
            payload = payload[5:]
        ends = bool(flags & frames.END_STREAM)
        if flags & frames.END_HEADERS:
            self._take_block(stream_id, payload, ends)
            return
        if not payload:
            self._spend(Kind.EMPTY)
        self._block, self._block_bytes = [payload], len(payload)
        self._block_id, self._block_ends = stream_id, ends

    def _take_continuation(self, payload: bytes, flags: int, stream_id: int) -> None:
        if self._block is None:
            raise SessionError(ErrorCode.PROTOCOL_ERROR)
        self._spend(Kind.CONTINUATION if payload else Kind.EMPTY)
        self._block.append(payload)
        self._block_bytes += len(payload)
        if self._block_bytes > self._most_block_bytes:
            raise SessionError(ErrorCode.ENHANCE_YOUR_CALM)
        if flags & frames.END_HEADERS:
            block, self._block = b"".join(self._block), None
            self._take_block(stream_id, block, self._block_ends)

    def _take_block(self, stream_id: int, block: bytes, ends: bool) -> None:
        """Handle a complete header block.  `ends` means that the peer ends its side of the stream."""
        try:
            if self._take_head(stream_id, block, ends):
                return
            fields = self._reader.decode(block)
        except TooLarge:
            raise SessionError(ErrorCode.ENHANCE_YOUR_CALM) from None
        except Undecodable:
            raise SessionError(ErrorCode.COMPRESSION_ERROR) from None
        stream = self.streams.get(stream_id)
        if stream is None:
            self._take_for_ended(stream_id)
        elif not stream.is_receiving:
            self._reset_for_error(stream, ErrorCode.STREAM_CLOSED)
        else:
            self._take_trailers(stream, fields, ends)

    @abstractmethod
    def _take_head(self, stream_id: int, block: bytes, ends: bool) -> bool:
        """Handle the block if it is the head of a message.  Returns False for any other block.  Raises Undecodable."""

    def _take_trailers(self, stream: Stream, fields: FieldList, ends: bool) -> None:
        """Check and drop the fields after a body."""
        if not ends or any(name[:1] == b":" or name.lower() != name for name, _ in fields):
            self._reset_for_error(stream, ErrorCode.PROTOCOL_ERROR)
        else:
            self._end_body(stream)

    def _take_for_ended(self, stream_id: int, size: int = 0) -> None:
        """Handle a HEADERS frame, or a DATA frame of `size` bytes, for an ended stream."""
        if stream_id > self._last_id or stream_id % 2 == 0:
            raise SessionError(ErrorCode.PROTOCOL_ERROR)
        if not self._may_be_late(stream_id):
            raise SessionError(ErrorCode.STREAM_CLOSED)
        if 0 < size <= self._late_bytes:
            # The peer may have sent the frame before it read the reset, within the stream's window (section 5.1).
            self._late_bytes -= size
        else:
            self._spend_late()

    def _spend_late(self) -> None:
        """Count a frame for a stream that this side has reset."""
        self._spend(Kind.IDLE)

    # -- bodies

    def _take_data(self, payload: bytes, flags: int, stream_id: int) -> None:
        size = len(payload)
        data = unpadded(payload, flags)
        self._receive_window -= size
        if self._receive_window < 0:
            raise SessionError(ErrorCode.FLOW_CONTROL_ERROR)
        stream = self.streams.get(stream_id)
        if stream is None:
            self._take_for_ended(stream_id, size)
            self._open_window(size)
            return
        stream.receive_window -= size
        if not stream.is_receiving or not stream.has_head or stream.receive_window < 0:
            code = ErrorCode.FLOW_CONTROL_ERROR if stream.has_head else ErrorCode.PROTOCOL_ERROR
            self._reset_for_error(stream, code if stream.is_receiving else ErrorCode.STREAM_CLOSED)
            self._open_window(size)
            return
        ends = bool(flags & frames.END_STREAM)
        if stream.announced_bytes is not None:
            stream.announced_bytes -= len(data)
            if stream.announced_bytes < 0:
                self._reset_for_error(stream, ErrorCode.PROTOCOL_ERROR)
                self._open_window(size)
                return
        if data:
            events = self._events
            if events and len(data) < _SMALL and isinstance(last := events[-1], DataReceived) and last.stream is stream:
                # Join small pieces, because the later cost of a piece does not depend on its size.
                events[-1] = DataReceived(stream, last.data + data, last.size + size)
            else:
                events.append(DataReceived(stream, data, size))
        else:
            self.acknowledge(stream, size)
            if not ends:
                self._spend(Kind.EMPTY)
        if ends:
            self._end_body(stream)

    def _end_body(self, stream: Stream) -> None:
        if stream.announced_bytes:
            self._reset_for_error(stream, ErrorCode.PROTOCOL_ERROR)
            return
        stream.is_receiving = False
        self._events.append(BodyEnded(stream))
        self._close_if_ended(stream)

    # -- other frames

    def _take_priority(self, payload: bytes, flags: int, stream_id: int) -> None:
        self._spend(Kind.IDLE)
        if not stream_id:
            raise SessionError(ErrorCode.PROTOCOL_ERROR)
        if len(payload) != 5:
            raise SessionError(ErrorCode.FRAME_SIZE_ERROR)
        if int.from_bytes(payload[:4], "big") & frames.LAST_STREAM_ID == stream_id:
            raise SessionError(ErrorCode.PROTOCOL_ERROR)

    def _take_reset(self, payload: bytes, flags: int, stream_id: int) -> None:
        if len(payload) != 4:
            raise SessionError(ErrorCode.FRAME_SIZE_ERROR)
        if stream_id > self._last_id or stream_id % 2 == 0:
            raise SessionError(ErrorCode.PROTOCOL_ERROR)
        self._end_by_reset(self.streams.get(stream_id), frames.error_code(payload))

    @abstractmethod
    def _end_by_reset(self, stream: Stream | None, code: ErrorCode) -> None:
        """Handle RST_STREAM.  `stream` is None for an ended stream."""

    def _take_settings(self, payload: bytes, flags: int, stream_id: int) -> None:
        if stream_id:
            raise SessionError(ErrorCode.PROTOCOL_ERROR)
        if len(payload) % 6 or (flags & frames.ACK and payload):
            raise SessionError(ErrorCode.FRAME_SIZE_ERROR)
        for _ in range(1 + len(payload) // _FRAME_OF_SETTINGS):
            self._spend(Kind.SETTINGS)
        if flags & frames.ACK:
            return
        self._has_settings = True
        settings: dict[int, int] = {}
        for name, value in frames.read_setting(payload):
            # Check every value, and keep the last value of each name (RFC 9113 section 6.5.3).
            settings[name] = value
            if name == Setting.HEADER_TABLE_SIZE:
                # A smaller table has to be acknowledged by a size update (RFC 7541 section 4.2).
                self._owes_size_update = self._owes_size_update or value < frames.DEFAULT_TABLE_BYTES
            elif name == Setting.ENABLE_PUSH and value > self._most_push:
                raise SessionError(ErrorCode.PROTOCOL_ERROR)
            elif name == Setting.INITIAL_WINDOW_SIZE and value > frames.LARGEST_WINDOW:
                raise SessionError(ErrorCode.FLOW_CONTROL_ERROR)
            elif name == Setting.MAX_FRAME_SIZE and not (
                frames.DEFAULT_FRAME_BYTES <= value <= frames.LARGEST_FRAME_BYTES
            ):
                raise SessionError(ErrorCode.PROTOCOL_ERROR)
        self.peer_streams = settings.get(Setting.MAX_CONCURRENT_STREAMS, self.peer_streams)
        window = settings.get(Setting.INITIAL_WINDOW_SIZE)
        # Apply the window once for each frame, because each change visits all streams.
        if window is not None and not self._change_windows(window):
            raise SessionError(ErrorCode.FLOW_CONTROL_ERROR)
        self._write(frames.SETTINGS_ACK)
        self._events += map(StreamDrained, self.send_queued())

    def _take_push(self, payload: bytes, flags: int, stream_id: int) -> None:
        raise SessionError(ErrorCode.PROTOCOL_ERROR)

    def _take_ping(self, payload: bytes, flags: int, stream_id: int) -> None:
        if stream_id:
            raise SessionError(ErrorCode.PROTOCOL_ERROR)
        if len(payload) != 8:
            raise SessionError(ErrorCode.FRAME_SIZE_ERROR)
        self._spend(Kind.PING)
        if flags & frames.ACK:
            self._events.append(ConnectionEvent.PING_ACK)
        else:
            self._write(frames.ping(payload, is_ack=True))

    def _take_goaway(self, payload: bytes, flags: int, stream_id: int) -> None:
        if stream_id:
            raise SessionError(ErrorCode.PROTOCOL_ERROR)
        if len(payload) < 8:
            raise SessionError(ErrorCode.FRAME_SIZE_ERROR)
        self._spend(Kind.IDLE)
        self.has_goaway = True
        self._end_unprocessed(int.from_bytes(payload[:4], "big") & frames.LAST_STREAM_ID)

    def _end_unprocessed(self, last_id: int) -> None:
        """Handle GOAWAY: the peer does not process this side's streams after `last_id`."""

    def _take_window(self, payload: bytes, flags: int, stream_id: int) -> None:
        if len(payload) != 4:
            raise SessionError(ErrorCode.FRAME_SIZE_ERROR)
        increment = int.from_bytes(payload, "big") & frames.LARGEST_WINDOW
        if self._free_updates > 0:
            self._free_updates -= 1
        else:
            self._spend(Kind.WINDOW)
        if not stream_id:
            self._send_window += increment
            if not increment or self._send_window > frames.LARGEST_WINDOW:
                raise SessionError(ErrorCode.FLOW_CONTROL_ERROR if increment else ErrorCode.PROTOCOL_ERROR)
        elif (stream := self.streams.get(stream_id)) is not None:
            stream.send_window += increment
            if not increment or stream.send_window > frames.LARGEST_WINDOW:
                self._reset_for_error(stream, ErrorCode.FLOW_CONTROL_ERROR if increment else ErrorCode.PROTOCOL_ERROR)
                return
            if stream.queue and stream.send_window > 0:
                self._turns[stream] = None
        else:
            if not increment or stream_id > self._last_id or stream_id % 2 == 0:
                raise SessionError(ErrorCode.PROTOCOL_ERROR)
            return
        if self._turns:
            self._events += map(StreamDrained, self.send_queued())

    # -- stream errors

    def _reset_for_error(self, stream: Stream, code: ErrorCode) -> None:
        """Reset a stream because of an error of the peer's."""
        self._spend(Kind.RESET)
        self.reset(stream, code)
        self._events.append(StreamReset(stream, is_by_peer=False))

    def abandon(self, code: ErrorCode = ErrorCode.NO_ERROR) -> None:
        super().abandon(code)
        self._unparsed = b""
        self._consumed = 0
        self._block = None


_TAKERS: Final[dict[int, Callable[[Reading[Any], bytes, int, int], None]]] = {
    frames.DATA: Reading._take_data,
    frames.HEADERS: Reading._take_headers,
    frames.PRIORITY: Reading._take_priority,
    frames.RST_STREAM: Reading._take_reset,
    frames.SETTINGS: Reading._take_settings,
    frames.PUSH_PROMISE: Reading._take_push,
    frames.PING: Reading._take_ping,
    frames.GOAWAY: Reading._take_goaway,
    frames.WINDOW_UPDATE: Reading._take_window,
    frames.CONTINUATION: Reading._take_continuation,
}

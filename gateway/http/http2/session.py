"""One connection of HTTP/2 from the server's side (RFC 9113): frames in, events and frames out.

What comes is judged here, whole: an error of one stream resets it, an error of the connection ends it (`failed`), and
what costs more than it is worth is counted (`budget`).  Header blocks are decoded even where nobody reads them, because
the next one stands on them.

What goes is written by `sending`, to `out`, in order; whoever owns the transport takes it from there, and says by
`is_blocked` when no more DATA is to be put there.

What it takes in of bodies is bounded by `receiving`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.http.http2 import frames
from gateway.http.http2.blocks import BlockReader, TooLarge, Undecodable
from gateway.http.http2.budget import Budget, Kind
from gateway.http.http2.counts import SessionCounts
from gateway.http.http2.ending import Ending
from gateway.http.http2.events import Begun, Drained, Ended, Event, Gone, Part, Sign
from gateway.http.http2.frames import ErrorCode, Setting
from gateway.http.http2.head import MOST_LIST_BYTES, Http2Request
from gateway.http.http2.receiving import CONNECTION_WINDOW
from gateway.http.http2.streams import Stream
from gateway.http.request import LONGEST_HEAD


class _Failed(Exception):
    """The connection cannot go on."""

    def __init__(self, code: ErrorCode) -> None:
        self.code = code


class Session(Ending):
    """The state of one connection."""

    def __init__(self, most_streams: int, counts: SessionCounts) -> None:
        super().__init__(counts)
        self._most_streams = most_streams
        self._reader = BlockReader(MOST_LIST_BYTES, Http2Request)
        self._budget = Budget()
        self._rest = b""
        self._is_greeted = False
        self._has_settings = False
        self._now = 0.0
        self._events: list[Event] = []
        self.is_left = False
        """Whether the client has said that it begins nothing more."""
        self._block: list[bytes] | None = None
        """A header block that is not whole."""
        self._block_bytes = 0
        self._block_id = 0
        self._block_ends = False
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

    def __repr__(self) -> str:
        state = "open" if self.failed is None else self.failed.name
        counts = f"{len(self.streams)} streams, {len(self._turns)} waiting, {self._unread_bytes} unread"
        return f"<Session {state}: {counts}, window {self._send_window}>"

    # -- what comes

    @property
    def is_greeted(self) -> bool:
        """Whether the client has said what it has to say first."""
        return self._has_settings

    @property
    def is_mid_head(self) -> bool:
        """Whether a part of something other than a body is here, and the rest is to come."""
        rest = self._rest
        return self._block is not None or (bool(rest) and (len(rest) <= 3 or rest[3] != frames.DATA))

    def receive(self, data: bytes, now: float) -> list[Event]:
        """What these bytes bring, in order.  After `failed` nothing is read."""
        if self.failed is not None:
            return []
        self._now = now
        events = self._events = []
        if self._rest:
            data = self._rest + data
            self._rest = b""
        try:
            at = 0 if self._is_greeted else self._greet(data)
            if at >= 0:
                self._read(data, at)
        except _Failed as failure:
            self.fail(failure.code)
        return events

    def _greet(self, data: bytes) -> int:
        size = len(frames.PREFACE)
        if data[:size] == frames.PREFACE:
            self._is_greeted = True
            return size
        if not frames.PREFACE.startswith(data):
            raise _Failed(ErrorCode.PROTOCOL_ERROR)
        self._rest = data
        return -1

    def _read(self, data: bytes, at: int) -> None:
        end = len(data)
        while end - at >= frames.HEAD_BYTES:
            high, low, kind, flags, stream_id = frames.read_head(data, at)
            size = high << 16 | low
            stream_id &= frames.LAST_STREAM_ID
            if size > frames.DEFAULT_FRAME_BYTES:
                raise _Failed(ErrorCode.FRAME_SIZE_ERROR)
            if not self._has_settings and (kind != frames.SETTINGS or flags & frames.ACK):
                raise _Failed(ErrorCode.PROTOCOL_ERROR)
            if self._block is not None and (kind != frames.CONTINUATION or stream_id != self._block_id):
                raise _Failed(ErrorCode.PROTOCOL_ERROR)
            begin = at + frames.HEAD_BYTES
            if end - begin < size:
                break
            at = begin + size
            take = _TAKERS.get(kind)
            if take is None:
                self._spend(Kind.IDLE)
            else:
                take(self, data[begin:at], flags, stream_id)
        self._rest = data[at:]

    def _spend(self, kind: Kind) -> None:
        if not self._budget.spend(kind, self._now):
            self._counts.floods[kind] += 1
            raise _Failed(ErrorCode.ENHANCE_YOUR_CALM)

    # -- header blocks

    def _take_headers(self, payload: bytes, flags: int, stream_id: int) -> None:
        if stream_id % 2 == 0:
            raise _Failed(ErrorCode.PROTOCOL_ERROR)
        payload = _unpadded(payload, flags)
        if flags & frames.HAS_PRIORITY:
            if len(payload) < 5:
                raise _Failed(ErrorCode.FRAME_SIZE_ERROR)
            if int.from_bytes(payload[:4], "big") & frames.LAST_STREAM_ID == stream_id:
                raise _Failed(ErrorCode.PROTOCOL_ERROR)
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
            raise _Failed(ErrorCode.PROTOCOL_ERROR)
        self._spend(Kind.CONTINUATION if payload else Kind.EMPTY)
        self._block.append(payload)
        self._block_bytes += len(payload)
        if self._block_bytes > LONGEST_HEAD:
            raise _Failed(ErrorCode.ENHANCE_YOUR_CALM)
        if flags & frames.END_HEADERS:
            block, self._block = b"".join(self._block), None
            self._take_block(stream_id, block, self._block_ends)

    def _take_block(self, stream_id: int, block: bytes, ends: bool) -> None:
        try:
            if stream_id > self._last_id:
                self._begin(stream_id, self._reader.read(block), ends)
                return
            fields = self._reader.decode(block)
        except TooLarge:
            raise _Failed(ErrorCode.ENHANCE_YOUR_CALM) from None
        except Undecodable:
            raise _Failed(ErrorCode.COMPRESSION_ERROR) from None
        stream = self.streams.get(stream_id)
        if stream is None:
            self._take_late(stream_id)
        elif not stream.is_receiving:
            self._wrong(stream, ErrorCode.STREAM_CLOSED)
        elif not ends or any(name[:1] == b":" or name.lower() != name for name, _ in fields):
            self._wrong(stream, ErrorCode.PROTOCOL_ERROR)
        else:
            # Trailers, which are dropped.
            self._end_body(stream)

    def _begin(self, stream_id: int, asked: Http2Request, ends: bool) -> None:
        self._last_id = stream_id
        if self._last_taken is not None and stream_id > self._last_taken:
            # The client knows that it is not looked at, and may try again elsewhere (RFC 9113 section 6.8).
            self._spend(Kind.IDLE)
            self._forgotten.append(stream_id)
            return
        if len(self.streams) >= self._most_streams:
            self._spend(Kind.REFUSED)
            self._forget(stream_id, ErrorCode.REFUSED_STREAM)
            return
        stream = self.streams[stream_id] = Stream(stream_id, self._first_window, frames.DEFAULT_WINDOW)
        if asked.is_malformed or (ends and asked.length):
            self._wrong(stream, ErrorCode.PROTOCOL_ERROR)
            return
        stream.announced_bytes = asked.length
        stream.is_receiving = not ends
        self._events.append(Begun(stream, asked, ends))

    def _take_late(self, stream_id: int) -> None:
        """A frame that says something has come for a stream that has ended."""
        if stream_id > self._last_id or stream_id % 2 == 0:
            raise _Failed(ErrorCode.PROTOCOL_ERROR)
        if stream_id not in self._forgotten:
            raise _Failed(ErrorCode.STREAM_CLOSED)
        self._spend(Kind.IDLE)

    # -- bodies

    def _take_data(self, payload: bytes, flags: int, stream_id: int) -> None:
        size = len(payload)
        data = _unpadded(payload, flags)
        self._receive_window -= size
        if self._receive_window < 0:
            raise _Failed(ErrorCode.FLOW_CONTROL_ERROR)
        stream = self.streams.get(stream_id)
        if stream is None:
            self._take_late(stream_id)
            self._open_window(size)
            return
        stream.receive_window -= size
        if not stream.is_receiving or stream.receive_window < 0:
            closed = not stream.is_receiving
            self._wrong(stream, ErrorCode.STREAM_CLOSED if closed else ErrorCode.FLOW_CONTROL_ERROR)
            self._open_window(size)
            return
        ends = bool(flags & frames.END_STREAM)
        if stream.announced_bytes is not None:
            stream.announced_bytes -= len(data)
            if stream.announced_bytes < 0:
                self._wrong(stream, ErrorCode.PROTOCOL_ERROR)
                self._open_window(size)
                return
        if data:
            self._events.append(Part(stream, data, size))
        else:
            self.acknowledge(stream, size)
            if not ends:
                self._spend(Kind.EMPTY)
        if ends:
            self._end_body(stream)

    def _end_body(self, stream: Stream) -> None:
        if stream.announced_bytes:
            self._wrong(stream, ErrorCode.PROTOCOL_ERROR)
            return
        stream.is_receiving = False
        self._events.append(Ended(stream))
        self._settle(stream)

    # -- the rest of what comes

    def _take_priority(self, payload: bytes, flags: int, stream_id: int) -> None:
        self._spend(Kind.IDLE)
        if not stream_id:
            raise _Failed(ErrorCode.PROTOCOL_ERROR)
        if len(payload) != 5:
            raise _Failed(ErrorCode.FRAME_SIZE_ERROR)
        if int.from_bytes(payload[:4], "big") & frames.LAST_STREAM_ID == stream_id:
            raise _Failed(ErrorCode.PROTOCOL_ERROR)

    def _take_reset(self, payload: bytes, flags: int, stream_id: int) -> None:
        if len(payload) != 4:
            raise _Failed(ErrorCode.FRAME_SIZE_ERROR)
        if stream_id > self._last_id or stream_id % 2 == 0:
            raise _Failed(ErrorCode.PROTOCOL_ERROR)
        self._spend(Kind.RESET)
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._drop(stream, ErrorCode.CANCEL)
            self._events.append(Gone(stream, is_by_client=True))

    def _take_settings(self, payload: bytes, flags: int, stream_id: int) -> None:
        if stream_id:
            raise _Failed(ErrorCode.PROTOCOL_ERROR)
        if len(payload) % 6 or (flags & frames.ACK and payload):
            raise _Failed(ErrorCode.FRAME_SIZE_ERROR)
        self._spend(Kind.SETTINGS)
        if flags & frames.ACK:
            return
        self._has_settings = True
        for name, value in frames.read_setting(payload):
            match name:
                case Setting.HEADER_TABLE_SIZE:
                    # A table that shrinks must be said to have shrunk (RFC 7541 section 4.2).
                    self._owes_table = self._owes_table or value < frames.DEFAULT_TABLE_BYTES
                case Setting.ENABLE_PUSH if value > 1:
                    raise _Failed(ErrorCode.PROTOCOL_ERROR)
                case Setting.INITIAL_WINDOW_SIZE:
                    if value > frames.LARGEST_WINDOW:
                        raise _Failed(ErrorCode.FLOW_CONTROL_ERROR)
                    self._change_windows(value)
                case Setting.MAX_FRAME_SIZE:
                    if not frames.DEFAULT_FRAME_BYTES <= value <= frames.LARGEST_FRAME_BYTES:
                        raise _Failed(ErrorCode.PROTOCOL_ERROR)
        self._write(frames.SETTINGS_ACK)
        self._events += map(Drained, self.pump())

    def _change_windows(self, value: int) -> None:
        difference, self._first_window = value - self._first_window, value
        for stream in self.streams.values():
            stream.send_window += difference
            if stream.send_window > frames.LARGEST_WINDOW:
                raise _Failed(ErrorCode.FLOW_CONTROL_ERROR)
            if stream.queue and stream.send_window > 0:
                self._turns[stream] = None

    def _take_push(self, payload: bytes, flags: int, stream_id: int) -> None:
        raise _Failed(ErrorCode.PROTOCOL_ERROR)

    def _take_ping(self, payload: bytes, flags: int, stream_id: int) -> None:
        if stream_id:
            raise _Failed(ErrorCode.PROTOCOL_ERROR)
        if len(payload) != 8:
            raise _Failed(ErrorCode.FRAME_SIZE_ERROR)
        self._spend(Kind.PING)
        if flags & frames.ACK:
            self._events.append(Sign.PONG)
        else:
            self._write(frames.ping(payload, is_ack=True))

    def _take_goaway(self, payload: bytes, flags: int, stream_id: int) -> None:
        if stream_id:
            raise _Failed(ErrorCode.PROTOCOL_ERROR)
        if len(payload) < 8:
            raise _Failed(ErrorCode.FRAME_SIZE_ERROR)
        self._spend(Kind.IDLE)
        self.is_left = True

    def _take_window(self, payload: bytes, flags: int, stream_id: int) -> None:
        if len(payload) != 4:
            raise _Failed(ErrorCode.FRAME_SIZE_ERROR)
        increment = int.from_bytes(payload, "big") & frames.LARGEST_WINDOW
        if self._granted > 0:
            self._granted -= 1
        else:
            self._spend(Kind.WINDOW)
        if not stream_id:
            self._send_window += increment
            if not increment or self._send_window > frames.LARGEST_WINDOW:
                raise _Failed(ErrorCode.FLOW_CONTROL_ERROR if increment else ErrorCode.PROTOCOL_ERROR)
        elif (stream := self.streams.get(stream_id)) is not None:
            stream.send_window += increment
            if not increment or stream.send_window > frames.LARGEST_WINDOW:
                self._wrong(stream, ErrorCode.FLOW_CONTROL_ERROR if increment else ErrorCode.PROTOCOL_ERROR)
                return
            if stream.queue and stream.send_window > 0:
                self._turns[stream] = None
        else:
            if not increment or stream_id > self._last_id or stream_id % 2 == 0:
                raise _Failed(ErrorCode.PROTOCOL_ERROR)
            return
        if self._turns:
            self._events += map(Drained, self.pump())

    # -- mistakes

    def _wrong(self, stream: Stream, code: ErrorCode) -> None:
        """The client has made a mistake on one stream."""
        self._spend(Kind.RESET)
        self.reset(stream, code)
        self._events.append(Gone(stream, is_by_client=False))

    def abandon(self, code: ErrorCode = ErrorCode.NO_ERROR) -> None:
        super().abandon(code)
        self._rest = b""
        self._block = None


def _unpadded(payload: bytes, flags: int) -> bytes:
    if not flags & frames.PADDED:
        return payload
    if not payload:
        raise _Failed(ErrorCode.FRAME_SIZE_ERROR)
    if payload[0] >= len(payload):
        raise _Failed(ErrorCode.PROTOCOL_ERROR)
    return payload[1 : len(payload) - payload[0]]


_TAKERS: Final[dict[int, Callable[[Session, bytes, int, int], None]]] = {
    frames.DATA: Session._take_data,
    frames.HEADERS: Session._take_headers,
    frames.PRIORITY: Session._take_priority,
    frames.RST_STREAM: Session._take_reset,
    frames.SETTINGS: Session._take_settings,
    frames.PUSH_PROMISE: Session._take_push,
    frames.PING: Session._take_ping,
    frames.GOAWAY: Session._take_goaway,
    frames.WINDOW_UPDATE: Session._take_window,
    frames.CONTINUATION: Session._take_continuation,
}

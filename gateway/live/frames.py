"""The SSE frames of one stream, and the interface of its live readers.

Data and control events (Durable Streams section 5.8) are encoded once for all readers of a stream.  A frame is a data
event with the control event that follows it.  Frames are kept for the next readers at the same offset.

If an event is too large for one write, it is sent in parts, without its control event.  The control event is created
when the last part is sent, because it must describe the stream at that time.

The functions at the end decode the live replies of the origin.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol
from weakref import WeakValueDictionary

from gateway.limits.memory import SharedBytes
from gateway.protocol.names import is_sse_text
from gateway.protocol.sse import HEARTBEAT, Control, encode_control, encode_data
from gateway.protocol.stream_version import Edition
from gateway.tape.stream import Stream
from gateway.tape.tape import TapeReading

_log = logging.getLogger("gateway.live")


def chunk(data: bytes) -> bytes:
    """Encode one chunk of a chunked body (RFC 9112 §7.1)."""
    return b"%x\r\n%b\r\n" % (len(data), data)


HEARTBEAT_CHUNK: Final = chunk(HEARTBEAT)
HEARTBEAT_BYTES: Final = len(HEARTBEAT)


class LiveReader(Protocol):
    """A live reader without a task.  Its topic (the group of the stream's live readers) and its connection call its
    methods."""

    @property
    def is_handed(self) -> bool:
        """Whether the reader is another worker."""

    @property
    def carrier(self) -> int:
        """The number of the HTTP/2 connection that carries the reader's answer; 0 for any other connection.  Several
        readers may have the same number."""

    def pump(self) -> None:
        """Send the stream's new bytes.  Called when the topic has changed."""

    def gone(self) -> None:
        """End the reader, because its client has disconnected."""

    def account(self, sent: object) -> None:
        """Update metrics and logs for an answer, after `pump` has been called for all readers."""

    def beat(self) -> None:
        """Send a heartbeat if one is due.  Called `BEATS` times per heartbeat interval."""

    def split(self) -> Iterable[LiveReader]:
        """Return this reader, and a new reader for each other client that shares it."""

    def drain_within(self, delay_s: float, within_s: float) -> None:
        """End the response for a drain: usually after about `delay_s` seconds, and always within `within_s` seconds."""

    def stay(self, lifetime_s: float) -> None:
        """Begin a new lifetime, because the drain was cancelled.  Does nothing for a reader without a lifetime."""


class Droppable(Protocol):
    """A live reader of Durable Streams or of S2."""

    def gone(self) -> None:
        """End the reader, because its client has disconnected or the reader has failed."""


def drop_failed(reader: Droppable) -> None:
    """Log the current exception and end the reader, so that the exception does not affect other readers."""
    _log.exception("a live reader failed")
    try:
        reader.gone()
    except Exception:
        _log.exception("a live reader could not be dropped")


class LargeEvent:
    """An encoded data event that is too large for one write.

    The event cannot be divided into smaller events, because no offsets inside it are known.  It is sent in parts, and
    kept while any reader is receiving it.
    """

    __slots__ = ("__weakref__", "data", "end", "shared")

    def __init__(self, data: bytes, end: str) -> None:
        self.data = data
        self.end = end
        self.shared = SharedBytes(len(data))
        """Counts the event's bytes in memory once for all readers that receive the event."""


@dataclass(slots=True)
class LiveStep:
    """The next bytes for a reader at one offset.  If `data` is empty and `large` is None, there is nothing to send
    now."""

    data: bytes
    """Whole frames, as one chunk of a chunked body."""
    size: int
    """The size of the frames without the chunk framing."""
    end: str
    said_up_to_date: bool
    """Whether the last control event after this step has stated that the reader is up to date."""
    cursor: int
    is_last: bool = False
    """Whether the response ends with this step."""
    is_all: bool = False
    """Whether the reader has everything after this step, so that nothing else can be sent now."""
    needs_fill: bool = False
    """Whether bytes after the offset must be fetched from the origin."""
    large: LargeEvent | None = None
    """An event to send in parts instead of `data`, before its control event."""


_KEPT_BYTES: Final = 1 << 20
"""The most bytes of kept frames of one stream."""
MOST_KEPT_BYTES: Final = 1 << 25
"""The most bytes of kept frames of all streams.  A bound per stream does not suffice, because a client can invent any
number of queries, and each query leads to another stream."""
EVENT_BYTES: Final = 1 << 18
"""The approximate number of stream bytes in one data event.  An event can only end at a known offset."""
_MOST_BYTES: Final = 2 * EVENT_BYTES
"""An encoded data event that is larger than this is sent in parts.  Encoding enlarges the bytes: base64 adds a third,
and text that has only line ends grows to six times its size."""


_Key = tuple[Edition, str, str, bool, bool, str]


class KeptFrames:
    """Bounds the kept frames of all streams together.  The frames of the least recently changed stream are dropped
    first."""

    def __init__(self, most_bytes: int = MOST_KEPT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._sizes: dict[Frames, int] = {}
        self.size = 0
        """The bytes of all kept frames."""

    def __repr__(self) -> str:
        return f"<KeptFrames of {len(self._sizes)} streams, {self.size} bytes>"

    def grown(self, frames: Frames) -> None:
        """Update the size of one stream's frames, and drop the frames of other streams if the bound is exceeded."""
        self.forget_frames(frames)
        size = self._sizes[frames] = frames.kept_bytes
        self.size += size
        while self.size > self._most_bytes and len(self._sizes) > 1:
            oldest = next(iter(self._sizes))
            self.forget_frames(oldest)
            oldest.clear()

    def forget_frames(self, frames: Frames) -> None:
        """Record that no frames of a stream are kept any more."""
        self.size -= self._sizes.pop(frames, 0)


class Frames:
    """Encodes the frames of one stream, and keeps the latest.  `all_kept` bounds the kept frames of all streams."""

    __slots__ = ("_all_kept", "_kept", "_large", "_stream", "kept_bytes")

    def __init__(self, stream: Stream, all_kept: KeptFrames) -> None:
        self._stream = stream
        self._all_kept = all_kept
        self._kept: dict[_Key, bytes] = {}
        self.kept_bytes = 0
        """The bytes of this stream's kept frames."""
        self._large: WeakValueDictionary[tuple[Edition, str, str], LargeEvent] = WeakValueDictionary()

    def __repr__(self) -> str:
        return f"<Frames {len(self._kept)} kept, {self.kept_bytes} bytes>"

    def frame(
        self, start: str, reading: TapeReading, *, is_current: bool, is_closed: bool, cursor: str
    ) -> bytes | LargeEvent:
        """Return the data event of a reading with its control event.  If the data event is too large, return only the
        data event."""
        key = (self._stream.version.edition, start, reading.end, is_current, is_closed, cursor)
        frame = self._kept.get(key)
        if frame is not None:
            return frame
        large = self._large.get(key[:3])
        if large is not None:
            return large
        data = self.data(reading)
        if reading.size > EVENT_BYTES or len(data) > _MOST_BYTES:
            large = self._large[key[:3]] = LargeEvent(data, reading.end)
            return large
        control = self.control(reading.end, is_current=is_current, is_closed=is_closed, cursor=cursor)
        frame = self._kept[key] = data + control
        self.kept_bytes += len(frame)
        while self.kept_bytes > _KEPT_BYTES:
            self.kept_bytes -= len(self._kept.pop(next(iter(self._kept))))
        self._all_kept.grown(self)
        return frame

    def clear(self) -> None:
        """Drop all kept frames."""
        self._kept.clear()
        self.kept_bytes = 0

    def data(self, reading: TapeReading) -> bytes:
        """Encode the data event of a reading."""
        stream = self._stream
        pieces = [b"[", *reading.pieces, b"]"] if stream.tape.is_json else reading.pieces
        return encode_data(pieces, base64=not is_sse_text(stream.content_type))

    @staticmethod
    @lru_cache(256)
    def control(at: str, *, is_current: bool, is_closed: bool, cursor: str) -> bytes:
        """Encode a control event.  Cached, because all clients that join at one offset get the same event."""
        return encode_control(Control(at, None if is_closed else cursor, is_current or is_closed, is_closed))

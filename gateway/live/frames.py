"""The SSE frames of one stream, and the readers to which its topic gives them.

A topic sees its readers as `LiveReader`s, and gives them new events in steps.

Data events and control events (section 5.8) are encoded once for all readers of a stream.  A data event and the control
event behind it are one frame, which is kept for the next readers at the same offset.  An event that is too large to be
written at once is sent in parts.  Its control event describes the stream at the moment when the last part is sent.
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
    """One chunk of a chunked body (RFC 9112 §7.1)."""
    return b"%x\r\n%b\r\n" % (len(data), data)


HEARTBEAT_CHUNK: Final = chunk(HEARTBEAT)
HEARTBEAT_BYTES: Final = len(HEARTBEAT)


class LiveReader(Protocol):
    """A live reader that is driven by its topic and connection, without a task."""

    def pump(self) -> None:
        """Read on, because the topic has changed."""

    def gone(self) -> None:
        """The client has disconnected."""

    def account(self, sent: object) -> None:
        """Account for what was sent while the topic pumped its readers."""

    def beat(self) -> None:
        """A beat has passed: send a heartbeat if one is due."""

    def split(self) -> Iterable[LiveReader]:
        """The reader itself, and a new reader for each other client that has shared it."""

    def drain_within(self, delay_s: float, within_s: float) -> None:
        """The gateway is draining: end in order after about `delay_s`, and at the latest after `within_s`."""

    def stay(self, lifetime_s: float) -> None:
        """Go on for `lifetime_s`, because the drain has been undone; does nothing for a reader without a lifetime."""


class Droppable(Protocol):
    """A live reader of either protocol."""

    def gone(self) -> None:
        """The client has disconnected, or the reader has failed."""


def drop_failed(reader: Droppable) -> None:
    """Log the error that is being handled and drop the reader: one reader's error must not affect the others."""
    _log.exception("a live reader failed")
    try:
        reader.gone()
    except Exception:
        _log.exception("a live reader could not be dropped")


class LargeEvent:
    """One encoded data event that is too large to be written at once.  It is sent in parts and kept while any reader is
    receiving it.  Offsets inside it are unknown, so it cannot be split into events."""

    __slots__ = ("__weakref__", "data", "end", "shared")

    def __init__(self, data: bytes, end: str) -> None:
        self.data = data
        self.end = end
        self.shared = SharedBytes(len(data))
        """The account of its bytes, for the readers that receive it."""


@dataclass(slots=True)
class LiveStep:
    """The next bytes for a reader at one offset; no data means that there is nothing to send now."""

    data: bytes
    """Whole frames as one chunk of a chunked body."""
    size: int
    """The size of the frames without the chunk framing."""
    end: str
    said_up_to_date: bool
    """Whether the reader has been told that it is up to date here."""
    cursor: int
    is_last: bool = False
    """Whether the response ends with this step."""
    is_all: bool = False
    """Whether nothing after this step can be sent now."""
    needs_fill: bool = False
    large: LargeEvent | None = None
    """Replaces `data`: to be sent in parts, followed by its control event."""


_KEPT_BYTES: Final = 1 << 20
"""The most bytes of one stream's frames that are kept for the next readers at the same offset."""
MOST_KEPT_BYTES: Final = 1 << 25
"""The most bytes of kept frames of all streams together.  Clients can invent queries, and each query has a stream."""
EVENT_BYTES: Final = 1 << 18
"""The approximate bytes of a replay in one data event, as far as the known offsets allow."""
_MOST_BYTES: Final = 2 * EVENT_BYTES
"""A data event that is larger once encoded is sent in parts: base64 adds a third, and text of nothing but line ends
grows to six times its size."""


_Key = tuple[Edition, str, str, bool, bool, str]


class KeptFrames:
    """The streams with kept frames, and the bytes of the frames.  The oldest frames are dropped first."""

    def __init__(self, most_bytes: int = MOST_KEPT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._sizes: dict[Frames, int] = {}
        self.size = 0
        """Bytes of all frames that are kept."""

    def __repr__(self) -> str:
        return f"<KeptFrames of {len(self._sizes)} streams, {self.size} bytes>"

    def grown(self, frames: Frames) -> None:
        """Record that the kept frames of a stream have changed."""
        self.forget_frames(frames)
        size = self._sizes[frames] = frames.kept_bytes
        self.size += size
        while self.size > self._most_bytes and len(self._sizes) > 1:
            oldest = next(iter(self._sizes))
            self.forget_frames(oldest)
            oldest.clear()

    def forget_frames(self, frames: Frames) -> None:
        """Record that a stream's frames are not kept any more."""
        self.size -= self._sizes.pop(frames, 0)


class Frames:
    """The frames of one stream.  Owner of the kept frames, of which the oldest is dropped first.  `all_kept` counts
    them together with those of other streams."""

    __slots__ = ("_all_kept", "_kept", "_large", "_stream", "kept_bytes")

    def __init__(self, stream: Stream, all_kept: KeptFrames) -> None:
        self._stream = stream
        self._all_kept = all_kept
        self._kept: dict[_Key, bytes] = {}
        self.kept_bytes = 0
        """Bytes of frames that are kept for the next reader at the same place."""
        self._large: WeakValueDictionary[tuple[Edition, str, str], LargeEvent] = WeakValueDictionary()

    def __repr__(self) -> str:
        return f"<Frames {len(self._kept)} kept, {self.kept_bytes} bytes>"

    def frame(
        self, start: str, reading: TapeReading, *, is_current: bool, is_closed: bool, cursor: str
    ) -> bytes | LargeEvent:
        """The data event of a reading and the control event that must follow it, or the data event alone if it is too
        large to be written at once."""
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
        """Keep no frames."""
        self._kept.clear()
        self.kept_bytes = 0

    def data(self, reading: TapeReading) -> bytes:
        """The data event of a reading."""
        stream = self._stream
        pieces = [b"[", *reading.pieces, b"]"] if stream.tape.is_json else reading.pieces
        return encode_data(pieces, base64=not is_sse_text(stream.content_type))

    @staticmethod
    @lru_cache(256)
    def control(at: str, *, is_current: bool, is_closed: bool, cursor: str) -> bytes:
        """A control event by itself; kept, because clients that join at the same offset are sent the same event."""
        return encode_control(Control(at, None if is_closed else cursor, is_current or is_closed, is_closed))

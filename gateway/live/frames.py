"""The SSE frames of one stream: data events and control events (section 5.8), encoded once for all of its readers.

A data event and the control event behind it are one frame, which is kept for the next readers at the same offset.  An
event that is too large to be written at once is sent in parts, and its control event states what is true when the last
part is out.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final
from weakref import WeakValueDictionary

from gateway.live.reader import LargeEvent
from gateway.protocol.names import is_sse_text
from gateway.protocol.sse import Control, encode_control, encode_data
from gateway.protocol.stream_version import Edition
from gateway.tape.stream import Stream
from gateway.tape.tape import TapeReading

_KEPT_BYTES: Final = 1 << 20
"""Bytes of frames kept for the next readers at the same offset."""
MOST_KEPT_BYTES: Final = 1 << 25
"""Bytes of frames kept of all streams together: clients invent queries, and each has a stream."""
EVENT_BYTES: Final = 1 << 18
"""The approximate bytes of a replay in one data event, as far as the known offsets allow."""
_MOST_BYTES: Final = 2 * EVENT_BYTES
"""A data event that is larger once encoded is sent in parts: base64 adds a third, and text of nothing but line ends
grows to six times its size."""


_Key = tuple[Edition, str, str, bool, bool, str]


class KeptFrames:
    """The streams with kept frames, and the bytes of these.  The frames that were kept first are dropped first."""

    def __init__(self, most_bytes: int = MOST_KEPT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._sizes: dict[Frames, int] = {}
        self.size = 0
        """Bytes of all frames that are kept."""

    def __repr__(self) -> str:
        return f"<KeptFrames of {len(self._sizes)} streams, {self.size} bytes>"

    def grown(self, frames: Frames) -> None:
        """A stream keeps other frames than before."""
        self.forget(frames)
        size = self._sizes[frames] = frames.kept_bytes
        self.size += size
        while self.size > self._most_bytes and len(self._sizes) > 1:
            oldest = next(iter(self._sizes))
            self.forget(oldest)
            oldest.clear()

    def forget(self, frames: Frames) -> None:
        """A stream's frames are not kept any more."""
        self.size -= self._sizes.pop(frames, 0)


class Frames:
    """The frames of one stream.  Owner of the kept ones, of which the oldest is dropped first.  `all_kept` counts them
    with those of other streams."""

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
        """A control event by itself; kept, because clients that join at one offset are sent the same."""
        return encode_control(Control(at, None if is_closed else cursor, is_current or is_closed, is_closed))

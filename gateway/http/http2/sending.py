"""How a server's side of HTTP/2 is written: heads at once, DATA as there is room (RFC 9113 section 5.2).

DATA that fits is written at once.  Otherwise it waits on its stream, and streams with something to send take turns, a
frame each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

from gateway.http.http2 import frames
from gateway.http.http2.blocks import SHRUNK_TABLE
from gateway.http.http2.frames import ErrorCode
from gateway.http.http2.streams import Stream

_PUMP_BYTES: Final = 1 << 16
"""So much is handed to the transport before it is asked whether it has room."""


class Sending(ABC):
    """The sending half of a connection.  Owner of its windows, and of what is to be written."""

    def __init__(self) -> None:
        self.failed: ErrorCode | None = None
        """Why the connection has ended, where it has for an error."""
        self._send_window = frames.DEFAULT_WINDOW
        self._first_window = frames.DEFAULT_WINDOW
        """That of a new stream, as the client has said."""
        self._frame_bytes = frames.DEFAULT_FRAME_BYTES
        """The client's largest frame."""
        self._owes_table = False
        self._granted = 0
        """Windows that may grow for nothing more than what was sent."""
        self._turns: dict[Stream, None] = {}
        """Streams with something queued, the next one first."""
        self.is_blocked = False
        """Whether the transport takes no more."""
        self.out: list[bytes | memoryview] = []
        """What is to be written."""
        self.out_bytes = 0

    @abstractmethod
    def _settle(self, stream: Stream) -> None:
        """See whether the stream is over: its answer is."""

    def _write(self, frame: bytes) -> None:
        self.out.append(frame)
        self.out_bytes += len(frame)

    def take_out(self) -> list[bytes | memoryview]:
        """What is to be written now; it is no longer here."""
        out, self.out = self.out, []
        self.out_bytes = 0
        return out

    def send_head(self, stream: Stream, block: bytes, *, ends: bool = False) -> None:
        """Begin the answer; `ends` where it has no body."""
        if stream.gone is not None or self.failed is not None:
            return
        if self._owes_table:
            self._owes_table = False
            block = SHRUNK_TABLE + block
        self._write(frames.header_frames(stream.id, block, self._frame_bytes, ends=ends))
        if ends:
            stream.is_ended = True
            self._settle(stream)

    def send(self, stream: Stream, data: bytes, *, ends: bool = False) -> None:
        """Write a part of the answer's body, now or when there is room."""
        size = len(data)
        if stream.gone is not None or self.failed is not None or not (size or ends):
            return
        if (
            not stream.queue
            and not self.is_blocked
            and size <= stream.send_window
            and size <= self._send_window
            and size <= self._frame_bytes
        ):
            stream.send_window -= size
            self._send_window -= size
            self._granted += 2
            self.out += (frames.frame_head(size, frames.DATA, frames.END_STREAM if ends else 0, stream.id), data)
            self.out_bytes += size + frames.HEAD_BYTES
            if ends:
                stream.is_ended = True
                self._settle(stream)
            return
        stream.is_ending = ends
        if size:
            stream.queue.append(data)
            stream.queued_bytes += size
        if stream.send_window > 0 or not stream.queue:
            self._turns[stream] = None
            if len(self._turns) == 1:
                # Otherwise it waits for its turn, and `pump` tells whom it leaves with nothing.
                self.pump()

    def end(self, stream: Stream) -> None:
        """The answer is whole."""
        if stream.is_ended or stream.is_ending:
            return
        if stream.queue:
            stream.is_ending = True
        else:
            self.send(stream, b"", ends=True)

    def pump(self) -> list[Stream]:
        """Have the streams that wait take turns, as far as there is room; those of which nothing waits any more."""
        drained = []
        turns = self._turns
        while turns and self.out_bytes < _PUMP_BYTES and not self.is_blocked:
            stream = next(iter(turns))
            if self._send_window <= 0 and stream.queue:
                break
            del turns[stream]
            if stream.queue and stream.send_window <= 0:
                # It has shrunk meanwhile; its stream has a turn again when it opens.
                continue
            self._send_frame(stream)
            if not stream.queue:
                drained.append(stream)
            elif stream.send_window > 0:
                turns[stream] = None
        return drained

    @property
    def can_pump(self) -> bool:
        """Whether something waits for nothing but the transport."""
        return bool(self._turns) and self._send_window > 0

    def _send_frame(self, stream: Stream) -> None:
        """A frame of what is queued."""
        if not stream.queue and stream.send_window < 0:
            # Trailers of nothing: an empty DATA frame needs no window, but h2's client takes it for an error there.
            self.send_head(stream, b"", ends=True)
            return
        room = min(stream.send_window, self._send_window, self._frame_bytes)
        queue, pieces, size = stream.queue, list[bytes | memoryview](), 0
        while queue and size < room:
            piece = queue.popleft()
            if size + len(piece) > room:
                view = memoryview(piece)
                queue.appendleft(view[room - size :])
                piece = view[: room - size]
            pieces.append(piece)
            size += len(piece)
        stream.queued_bytes -= size
        stream.send_window -= size
        self._send_window -= size
        self._granted += 2
        ends = stream.is_ending and not queue
        self.out.append(frames.frame_head(size, frames.DATA, frames.END_STREAM if ends else 0, stream.id))
        self.out += pieces
        self.out_bytes += size + frames.HEAD_BYTES
        if ends:
            stream.is_ended = True
            self._settle(stream)

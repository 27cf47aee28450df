"""Flow control on both sides of HTTP/2 (RFC 9113 section 5.2): for output, and for bodies that arrive.

`Sending` writes heads at once, and DATA as far as the windows allow.  Other DATA waits in its stream.  Streams with
queued data take turns, one frame each.

`Receiving` manages the windows of bodies that arrive.  The connection's window reopens as bytes arrive, so that a
stalled body never blocks the others.  A stream's window also reopens, unless its own body has too many unread bytes.
While all bodies together have too many unread bytes, only the windows of bodies without unread bytes reopen.  A body
that its receiver reads as it arrives is therefore never delayed.  Beyond `MOST_UNREAD_BYTES`, each stream can add at
most one window to the unread bytes of a connection.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection
from typing import Final

from gateway.http.http2 import frames
from gateway.http.http2.blocks import EMPTY_TABLE_UPDATE
from gateway.http.http2.frames import ErrorCode
from gateway.http.http2.streams import NOTHING_QUEUED, Stream

_PUMP_BYTES: Final = 1 << 16
"""The bytes written to the transport before the next check that the transport has room."""


class Sending(ABC):
    """The sending half of a session.  It owns the send windows and the output."""

    __slots__ = (
        "_first_window",
        "_frame_bytes",
        "_free_updates",
        "_owes_size_update",
        "_send_window",
        "_turns",
        "failed",
        "is_blocked",
        "out",
        "out_bytes",
    )

    def __init__(self) -> None:
        self.failed: ErrorCode | None = None
        """The error code with which the connection has ended; None while it is open."""
        self._send_window = frames.DEFAULT_WINDOW
        self._first_window = frames.DEFAULT_WINDOW
        """The initial window of a stream, as in the peer's settings."""
        self._frame_bytes = frames.DEFAULT_FRAME_BYTES
        """The largest frame that is sent."""
        self._owes_size_update = False
        self._free_updates = 0
        """The number of window updates that the data sent so far justifies.  Further window updates count towards the
        flood limit.
        """
        self._turns: dict[Stream, None] = {}
        """Streams with queued data, in the order of their turns."""
        self.is_blocked = False
        """Whether the transport has no room for more output."""
        self.out: list[bytes | memoryview] = []
        """Output that the owner of the transport has not taken yet."""
        self.out_bytes = 0

    @abstractmethod
    def _close_if_ended(self, stream: Stream) -> None:
        """Close the stream if both sides have ended it."""

    def _write(self, frame: bytes) -> None:
        self.out.append(frame)
        self.out_bytes += len(frame)

    def take_out(self) -> list[bytes | memoryview]:
        """Take the output out of the session, so that the caller can write it."""
        out, self.out = self.out, []
        self.out_bytes = 0
        return out

    def send_head(self, stream: Stream, block: bytes, *, ends: bool = False, is_interim: bool = False) -> None:
        """Send the head of an answer or a request.  `ends` means that the message has no body.  `is_interim` means that
        another head follows.
        """
        if stream.reset_code is not None or self.failed is not None:
            return
        if not is_interim:
            stream.settled_at = 0.0
        if self._owes_size_update:
            self._owes_size_update = False
            block = EMPTY_TABLE_UPDATE + block
        self._write(frames.header_frames(stream.id, block, self._frame_bytes, ends=ends))
        if ends:
            stream.is_ended = True
            self._close_if_ended(stream)

    def send_data(self, stream: Stream, data: bytes | memoryview, *, ends: bool = False) -> None:
        """Send a part of the body, now or when the windows allow.  `ends` means that this part ends the body."""
        size = len(data)
        if stream.reset_code is not None or self.failed is not None or not (size or ends):
            return
        if (
            not stream.queue
            and not self.is_blocked
            and size <= stream.send_window
            and size <= self._send_window
            and size <= self._frame_bytes
        ):
            stream.send_window -= size
            stream.sent_bytes += size
            self._send_window -= size
            self._free_updates += 2
            self.out += (frames.frame_head(size, frames.DATA, frames.END_STREAM if ends else 0, stream.id), data)
            self.out_bytes += size + frames.HEAD_BYTES
            if ends:
                stream.is_ended = True
                self._close_if_ended(stream)
            return
        if not size and not stream.queue:
            self._send_end(stream)
            return
        stream.is_ending = ends
        if size:
            if stream.queue is NOTHING_QUEUED:
                stream.queue = deque()
            stream.queue.append(data)
            stream.queued_bytes += size
        if stream.send_window > 0:
            self._turns[stream] = None
            if len(self._turns) == 1:
                # While other streams are queued, this stream waits for its turn.  A later `send_queued` returns the
                # stream when all its data is written.
                self.send_queued()

    def send_answer(self, stream: Stream, block: bytes, body: Collection[bytes]) -> None:
        """Send a whole answer: its field block, and its body in pieces."""
        if len(body) == 1 and len(block) <= self._frame_bytes and not self._owes_size_update:
            # Most answers have one piece that fits the windows.  Write them here at once, because the calls below would
            # take a sixth of the whole time for an answer that is repeated from memory.
            [data] = body
            size = len(data)
            if (
                size <= self._frame_bytes
                and size <= stream.send_window
                and size <= self._send_window
                and not self.is_blocked
                and stream.reset_code is None
                and self.failed is None
            ):
                self._send_window -= size
                self._free_updates += 2
                self.out += (
                    frames.pack_head(0, len(block), frames.HEADERS, frames.END_HEADERS, stream.id),
                    block,
                    frames.pack_head(0, size, frames.DATA, frames.END_STREAM, stream.id),
                    data,
                )
                self.out_bytes += 2 * frames.HEAD_BYTES + len(block) + size
                stream.is_ended = True
                self._close_if_ended(stream)
                return
        self.send_head(stream, block, ends=not body)
        left = len(body)
        for piece in body:
            left -= 1
            self.send_data(stream, piece, ends=not left)

    def end_stream(self, stream: Stream) -> None:
        """End the body."""
        if stream.is_ended or stream.is_ending:
            return
        if stream.queue:
            stream.is_ending = True
        else:
            self.send_data(stream, b"", ends=True)

    def send_queued(self) -> list[Stream]:
        """Write queued data in turns, as far as there is room.  Returns the streams that have no queued data left."""
        drained = []
        turns = self._turns
        while turns and self.out_bytes < _PUMP_BYTES and not self.is_blocked:
            stream = next(iter(turns))
            if self._send_window <= 0:
                break
            del turns[stream]
            if stream.send_window <= 0:
                # Skip the stream, because its window has shrunk since the data was queued.  The stream gets a turn
                # again when its window opens.
                continue
            self._send_frame(stream)
            if not stream.queue:
                drained.append(stream)
            elif stream.send_window > 0:
                turns[stream] = None
        return drained

    @property
    def can_pump(self) -> bool:
        """Whether the windows allow queued data to be sent, so that it waits only for the transport."""
        return bool(self._turns) and self._send_window > 0

    @property
    def is_shut(self) -> bool:
        """Whether the connection's window is used up, so that no byte of any body can be sent."""
        return self._send_window <= 0

    def _send_end(self, stream: Stream) -> None:
        """End a body without queued data.  The frame needs no window, and is too small to wait for the transport."""
        if stream.send_window < 0:
            # Send empty trailers, because h2's client treats an empty DATA frame as an error here.
            self.send_head(stream, b"", ends=True)
            return
        self.out.append(frames.frame_head(0, frames.DATA, frames.END_STREAM, stream.id))
        self.out_bytes += frames.HEAD_BYTES
        self._free_updates += 2
        stream.is_ended = True
        self._close_if_ended(stream)

    def _send_frame(self, stream: Stream) -> None:
        """Write one frame of the queued data."""
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
        stream.sent_bytes += size
        self._send_window -= size
        self._free_updates += 2
        ends = stream.is_ending and not queue
        self.out.append(frames.frame_head(size, frames.DATA, frames.END_STREAM if ends else 0, stream.id))
        self.out += pieces
        self.out_bytes += size + frames.HEAD_BYTES
        if ends:
            stream.is_ended = True
            self._close_if_ended(stream)


CONNECTION_WINDOW: Final = 1 << 20
"""The most bytes of all arriving bodies that may be in flight."""
STREAM_UNREAD_BYTES: Final = 1 << 18
"""The unread bytes of one body above which its window stays closed."""
MOST_UNREAD_BYTES: Final = 1 << 20
"""The bound on the unread bytes of all bodies of a connection.  Above the bound, the window of each body with unread
bytes stays closed.
"""


class Receiving(Sending):
    """The receiving half of a session's flow control.  It owns the streams and the counts of unread bytes."""

    __slots__ = ("_receive_window", "_unacknowledged", "_unread_bytes", "streams")

    def __init__(self) -> None:
        super().__init__()
        self.streams: dict[int, Stream] = {}
        """The streams on which either side may still send, by id."""
        self._receive_window = CONNECTION_WINDOW
        self._unacknowledged = 0
        self._unread_bytes = 0

    def acknowledge(self, stream: Stream, size: int) -> None:
        """Reopen the windows for `size` bytes of DATA.  Call `unread` first, to report how many of these bytes wait."""
        self._open_window(size)
        stream.unacknowledged_bytes += size
        self._open_stream(stream)

    def unread(self, stream: Stream, size: int) -> None:
        """Record the number of bytes of the stream's body that wait to be read."""
        if self.streams.get(stream.id) is not stream:
            return
        was_over = self._unread_bytes > MOST_UNREAD_BYTES
        self._unread_bytes += size - stream.unread_bytes
        stream.unread_bytes = size
        if was_over and self._unread_bytes <= MOST_UNREAD_BYTES:
            for one in tuple(self.streams.values()):
                self._open_stream(one)
        else:
            self._open_stream(stream)

    def _change_windows(self, value: int) -> bool:
        """Change the initial window of streams, and the windows of open streams (RFC 9113 section 6.9.2).  Returns
        whether all windows are within bounds.
        """
        difference, self._first_window = value - self._first_window, value
        for stream in self.streams.values():
            stream.send_window += difference
            if stream.send_window > frames.LARGEST_WINDOW:
                return False
            if stream.queue and stream.send_window > 0:
                self._turns[stream] = None
        return True

    def _is_shut(self, stream: Stream) -> bool:
        """Return whether the stream's window stays closed because of unread bytes."""
        unread = stream.unread_bytes
        return unread > STREAM_UNREAD_BYTES or (unread > 0 and self._unread_bytes > MOST_UNREAD_BYTES)

    def _open_stream(self, stream: Stream) -> None:
        size = stream.unacknowledged_bytes
        if not size or not stream.is_receiving or stream.reset_code is not None or self._is_shut(stream):
            return
        if (size >= frames.DEFAULT_WINDOW // 2 or stream.receive_window < size) and self.failed is None:
            stream.unacknowledged_bytes = 0
            stream.receive_window += size
            self._write(frames.window_update(stream.id, size))

    def _open_window(self, size: int) -> None:
        self._unacknowledged += size
        if self._unacknowledged >= CONNECTION_WINDOW // 4 and self.failed is None:
            self._receive_window += self._unacknowledged
            self._write(frames.window_update(0, self._unacknowledged))
            self._unacknowledged = 0

    def _remove(self, stream: Stream) -> None:
        """Remove a stream on which neither side sends any more."""
        if stream.unread_bytes:
            self.unread(stream, 0)
        self.streams.pop(stream.id, None)

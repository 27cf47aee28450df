"""S2Acknowledgements of appends on their way to the client.

A stream that was deleted and created again past the gateway numbers its records from 0 anew, and an append through the
gateway may be what shows that first: records can only be appended after the ones that were held when it was sent.
It is noticed before the client has the acknowledgement, because the client's next read must show what it has appended.

Of a path with a crowd of streams (`gateway.tape.crowd`) only the awake ones are looked at for each append.  Sleeping
streams do not change.  They are looked at when an acknowledgement lies before the end of the records that one of them
may hold, which shows that the stream is another.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from gateway.engine.s2.request import plain
from gateway.protocol.sharing import Group
from gateway.s2 import protobuf, session
from gateway.s2.json_format import BadJson, decode_append_ack
from gateway.s2.records import AppendAck
from gateway.s2.session import BadFrame, FrameReader, Message
from gateway.tape.store import TapeStore
from gateway.tape.stream import End, Stream

_MOST_BYTES: Final = 4_096
"""More than any acknowledgement has: three positions."""


class S2HeldBefore(NamedTuple):
    """What was held of a stream when an append was sent."""

    stream: Stream
    end: int
    """The number after the last record held."""
    is_own: bool
    """Whether it is held for the appender's own partition.  For others the name may be another stream's."""


class S2Acknowledgements:
    """Looks at the answer to one append, or to one session, whose first acknowledgement tells as much as all."""

    __slots__ = (
        "_before",
        "_bytes",
        "_coding",
        "_frames",
        "_group",
        "_is_over",
        "_is_protobuf",
        "_length",
        "_queries",
        "_store",
    )

    def __init__(
        self, store: TapeStore, before: Sequence[S2HeldBefore], group: Group, queries: Collection[str] | None
    ) -> None:
        """`before` are the streams that were awake when the append was sent, of those at this path with these queries;
        None is for all."""
        self._store = store
        self._before = before
        self._group = group
        self._queries = queries
        self._is_over = False
        """Whether there is nothing more to see."""
        self._bytes = b""
        """What has come, of a session until its first frame is complete."""
        self._length = _MOST_BYTES
        self._coding: str | None = None
        self._is_protobuf = False
        self._frames: FrameReader | None = None

    def __repr__(self) -> str:
        return f"<S2Acknowledgements to {len(self._before)} streams>"

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """The head of the answer has come."""
        type_ = headers.get("Content-Type", "").partition(";")[0].strip().lower()
        self._frames = FrameReader() if type_ == session.CONTENT_TYPE else None
        self._is_protobuf = type_ in protobuf.CONTENT_TYPES
        self._coding = headers.get("Content-Encoding")
        if status != 200 or (self._frames is not None and self._coding is not None):
            # The frames of a session are compressed each on its own.
            self._stop()
            return
        length = headers.get("Content-Length", "")
        self._length = int(length) if length.isdigit() and len(length) < 10 else _MOST_BYTES

    def see(self, chunk: bytes) -> None:
        """A part of the body has come."""
        if self._is_over:
            return
        self._bytes += chunk
        if self._frames is not None:
            self._take(self._frames, chunk)
        if len(self._bytes) > _MOST_BYTES:
            self._stop()
        elif self._frames is None and len(self._bytes) >= self._length:
            self.finish()

    def _take(self, frames: FrameReader, chunk: bytes) -> None:
        try:
            frame = next(frames.feed(chunk), None)
            if isinstance(frame, Message):
                self._judge(protobuf.decode_append_ack(frame.body))
        except (BadFrame, protobuf.BadProtobuf):
            self._stop()

    def finish(self) -> None:
        """The body has ended."""
        if self._is_over or self._frames is not None:
            return
        try:
            body = plain(self._bytes, self._coding)
            self._judge((protobuf.decode_append_ack if self._is_protobuf else decode_append_ack)(body))
        except (BadFrame, BadJson, protobuf.BadProtobuf):
            self._stop()

    def _judge(self, ack: AppendAck) -> None:
        before = self._before
        self._stop()
        if ack.end.seq_num <= ack.start.seq_num:
            # Bytes that are not of S2 decode too: an empty body is a message of zeros.
            return
        for stream, end, is_own in before:
            if ack.start.seq_num < end:
                if is_own:
                    self._store.drop(stream, End.RECREATED)
                else:
                    self._store.doubt_records(stream)
        seen = {stream for stream, _, _ in before}
        self._store.doubt_replaced(self._group, self._queries, ack.start.seq_num, seen)

    def _stop(self) -> None:
        """There is nothing more to see."""
        self._is_over = True
        self._before, self._bytes, self._frames = (), b"", None

"""The live readers of one S2 stream, and what the stream's one session at the origin has brought them.

A topic is at a *position*: the sequence number that the session brings next.  Everything before it has been stored, so
a reader that is behind goes on from the tape, and a reader whose connection is full simply stays behind.  `tail` is
known once the session has said that its position is the stream's tail.

Records that come in one turn of the event loop are one batch to the readers: encoded once for each form, and one write
to each connection.

The topic ends in one of two ways, both final: `lost`, with the error that all readers are given, or without readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Final, Protocol

from gateway.aio.signal import Signal
from gateway.engine.s2.batch import S2Batch
from gateway.live.reader import drop_failed
from gateway.s2.records import MAX_BATCH_RECORDS, Record, StreamPosition, total_metered_bytes
from gateway.tape.stream import Stream
from gateway.upstream.s2_client import S2Refused

_MERGED_BYTES: Final = 1 << 18
"""The most metered bytes of a batch that is put together.  S2 allows more, but the encoding of records that have hardly
anything but headers takes twice their metered size, and a frame has its bound."""


class S2LiveReader(Protocol):
    """A session with a client that follows the stream."""

    def deliver(self, batch: S2Batch) -> None:
        """These records have just come."""

    def beat(self, *, is_due: bool) -> None:
        """Send a heartbeat: if `is_due`, unless something was sent lately; else if the first is owed."""

    def lost(self, error: S2Refused) -> None:
        """Nothing more will come: end the session with this error."""

    def gone(self) -> None:
        """Drop the session after an error here."""


class S2Topic:
    """The live state of one stream.  Owner: `S2Streams`; the session's task moves it.

    `soon` calls a function at the end of the event loop's turn.  `on_beat` is called at each beat.
    """

    __slots__ = (
        "_come",
        "_come_from",
        "_come_size",
        "_on_beat",
        "_soon",
        "changed",
        "error",
        "heard_at",
        "last_timestamp",
        "position",
        "readers",
        "readers_now",
        "stream",
        "tail",
    )

    def __init__(
        self,
        stream: Stream,
        tail: StreamPosition,
        soon: Callable[[Callable[[], object]], object],
        on_beat: Callable[[], object] = lambda: None,
    ) -> None:
        self.stream = stream
        self._soon = soon
        self._on_beat = on_beat
        self.position = tail.seq_num
        self.last_timestamp = tail.timestamp
        """The timestamp of the record before the position."""
        self.tail: StreamPosition | None = tail
        """The stream's tail; None if there may be records after the position."""
        self.heard_at = -inf
        """When the session last said what the tail is (monotonic seconds)."""
        self.readers_now: dict[S2LiveReader, None] = {}
        """The sessions; other readers wait for `changed`."""
        self.readers = 0
        """Readers of all kinds, waiting unary reads included."""
        self.changed = Signal()
        """Fires when records have come, and at the end."""
        self.error: S2Refused | None = None
        """Why nothing more will come."""
        self._come: list[Record] = []
        """Records that have come in this turn of the loop, for the readers."""
        self._come_from = 0
        """The position before these records."""
        self._come_size = 0
        """Their metered bytes."""

    def __repr__(self) -> str:
        state = "lost" if self.error is not None else "at the tail" if self.tail is not None else "catching up"
        return f"<S2Topic at {self.position}, {state}, {len(self.readers_now)} readers>"

    def join(self, reader: S2LiveReader) -> None:
        """The reader is sent what comes from now on."""
        self.readers_now[reader] = None

    def leave(self, reader: S2LiveReader) -> None:
        """The reader is sent nothing more."""
        self.readers_now.pop(reader, None)

    def publish(self, records: Sequence[Record], tail: StreamPosition | None, now: float) -> None:
        """Records have come from the position on, and have been stored; `tail` is what the origin said with them."""
        size = total_metered_bytes(records)
        if self._come and (
            self._come_size + size > _MERGED_BYTES or len(self._come) + len(records) > MAX_BATCH_RECORDS
        ):
            self._deliver()
        if not self._come:
            self._come_from = self.position
            self._soon(self._deliver)
        self._come += records
        self._come_size += size
        end = records[-1].seq_num + 1
        self.position, self.last_timestamp = end, records[-1].timestamp
        self.tail = tail if tail is not None and tail.seq_num == end else None
        if self.tail is not None:
            self.heard_at = now
        self.changed.fire()

    def _deliver(self) -> None:
        """Send the readers what has come."""
        if not self._come:
            return
        records, self._come = self._come, []
        size, self._come_size = self._come_size, 0
        batch = S2Batch(self._come_from, self.position, tuple(records), size, self.tail)
        self._each(tuple(self.readers_now), lambda reader: reader.deliver(batch))

    def _each(self, readers: Iterable[S2LiveReader], call: Callable[[S2LiveReader], object]) -> None:
        for reader in readers:
            try:
                call(reader)
            except Exception:
                drop_failed(reader)

    def heard(self, tail: StreamPosition, now: float) -> None:
        """The origin has said what the tail is, without records."""
        if tail.seq_num == self.position:
            self.tail = tail
            self.heard_at = now
            self._each(tuple(self.readers_now), lambda reader: reader.beat(is_due=False))

    def disconnected(self) -> None:
        """The session is interrupted: the tail is not known until it goes on."""
        self.tail = None

    def beat(self) -> None:
        """Some time has passed: readers that have heard nothing for long are sent a heartbeat.

        While the tail is not known there are none, so that clients can tell a stream that is lost from one that is
        quiet."""
        if self.tail is not None:
            self._each(tuple(self.readers_now), lambda reader: reader.beat(is_due=True))
        self._on_beat()

    def lost(self, error: S2Refused) -> None:
        """Nothing more will come."""
        if self.error is None:
            self._deliver()
            self.error = error
            readers, self.readers_now = self.readers_now, {}
            self._each(readers, lambda reader: reader.lost(error))
            self.changed.fire()

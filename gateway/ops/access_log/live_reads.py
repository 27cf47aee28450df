"""The interim lines of open live reads.  Each read gets a line every `interval_s` seconds, and a last line at its end.

The reads are kept in the order of their next lines, so one timer serves all of them.  If many reads began together,
their lines are spread over several turns of the loop.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Protocol

from gateway.aio.clock import Clock, Timer
from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode
from gateway.telemetry.access_record import (
    CloseReason,
    CommonFacts,
    CountedRead,
    LiveClient,
    Record,
    RecordedStream,
    Repeated,
)

LINES_PER_TURN = 256


class Notes(Protocol):
    """Takes the lines of live reads, and the traffic with the origin that no other line includes."""

    def unclaimed(self, place: RecordedStream, mode: Mode, *, requests: int = 0, fetched_bytes: int = 0) -> None:
        """Add this traffic to the next line of the stream's live reads, or to a line of its own."""

    def note(self, record: Record, began: float) -> None:
        """Write a line of a live read at this moment."""

    def note_join(
        self, line: Repeated, began: float, client: LiveClient, first_byte_s: float, subscribers: int
    ) -> None:
        """Write a line of a live read at this moment.  `line` has the values shared with other lines."""


class _Open:
    """A live read, or several that began together."""

    __slots__ = ("due_at", "reads")

    def __init__(self) -> None:
        self.reads: LiveReads | None = None
        """Calls `write` when a line is due, at `due_at`.  None if there are no interim lines."""
        self.due_at = 0.0

    trace_id = None
    """The trace id for exemplars in the metrics.  None, because only spans have such an id."""

    @abstractmethod
    def write(self, most: int) -> bool:
        """Write at most `most` lines at this moment.  Returns whether all lines are written."""

    @abstractmethod
    def discard(self) -> None:
        """Write no more lines."""

    def _detach(self) -> None:
        reads, self.reads = self.reads, None
        if reads is not None:
            reads.ended(self)


class LiveRead(_Open):
    """One live read, which writes its interim lines and its last line."""

    __slots__ = ("_began", "_fetched_bytes", "_look", "_notes", "_origin_requests", "_record", "_sent_bytes")

    def __init__(self, notes: Notes, record: Record, began: float, look: Callable[[Record], None]) -> None:
        super().__init__()
        self._notes = notes
        self._record = record
        self._began = began
        self._look: Callable[[Record], None] | None = look
        """Fills in the read's present figures in a record; None once the read is over."""
        self._sent_bytes = 0
        self._fetched_bytes = 0
        self._origin_requests = 0

    def record_end(self, outcome: Outcome, reason: CloseReason) -> None:
        """Write the last line."""
        look = self._look
        if look is not None:
            self._write(look, outcome, reason)
            self._forget()

    def discard(self) -> None:
        if self._look is None:
            return
        own = self._record
        # Claim the fetches now, because the record that replaces this record does not include them.
        own.finalize()
        requests = own.origin_requests - self._origin_requests
        fetched_bytes = own.fetched_bytes - self._fetched_bytes
        if requests or fetched_bytes:
            place = RecordedStream(own.route, own.stream, own.partition, own.is_s2)
            self._notes.unclaimed(place, own.mode, requests=requests, fetched_bytes=fetched_bytes)
        self._forget()

    def _forget(self) -> None:
        # Drop the function, because it refers to the client's connection.
        self._look = None
        self._detach()

    def write(self, most: int) -> bool:
        if self._look is not None:
            self._write(self._look, Outcome.FOLLOWED, None)
        return True

    def _write(self, look: Callable[[Record], None], outcome: Outcome, reason: CloseReason | None) -> None:
        """Write a line with the counts since the previous line."""
        own, is_final = self._record, reason is not None
        own.finalize(goes_on=not is_final)
        line = replace(own, fetches=())
        line.outcome, line.close_reason, line.is_final = outcome, reason, is_final
        look(line)
        sent_bytes = line.sent_bytes
        line.sent_bytes -= self._sent_bytes
        line.fetched_bytes -= self._fetched_bytes
        line.origin_requests -= self._origin_requests
        self._sent_bytes, self._fetched_bytes = sent_bytes, own.fetched_bytes
        self._origin_requests = own.origin_requests
        self._notes.note(line, self._began)


class JoinedRead(_Open):
    """An SSE read that has most of its line in common with other reads."""

    __slots__ = ("_address", "_began", "_facts", "_notes", "_read", "_section", "_sent_bytes")

    def __init__(self, notes: Notes, facts: CommonFacts, began: float, read: CountedRead, client: LiveClient) -> None:
        # The same as `super().__init__`, but without the call, because many readers come and go.
        self.reads = None
        self.due_at = 0.0
        self._notes = notes
        self._facts = facts
        self._began = began
        self._read: CountedRead | None = read
        """Counts the bytes of the read; None once the read is over."""
        # Keep the parts, because the tuple would cost memory for each idle reader.
        self._address, self._section = client
        self._sent_bytes = 0

    def record_end(self, outcome: Outcome, reason: CloseReason) -> None:
        """Write the last line."""
        read = self._read
        if read is not None:
            self._write(read, outcome, reason)
            self._read = None
            # The same as `_detach`, but without the call.
            if (reads := self.reads) is not None:
                self.reads = None
                reads.ended(self)

    def discard(self) -> None:
        if self._read is not None:
            # Drop the object, because it refers to the client's connection.
            self._read = None
            self._detach()

    def write(self, most: int) -> bool:
        if self._read is not None:
            self._write(self._read, Outcome.FOLLOWED, None)
        return True

    def _write(self, read: CountedRead, outcome: Outcome, reason: CloseReason | None) -> None:
        """Write a line with the bytes since the previous line."""
        first_byte_s, next_offset, sent_bytes, subscribers = read.live_counts()
        line = self._facts.line(outcome, reason, next_offset, sent_bytes - self._sent_bytes)
        self._sent_bytes = sent_bytes
        self._notes.note_join(line, self._began, (self._address, self._section), first_byte_s, subscribers)


class _Watched(_Open):
    """Live reads that began together."""

    __slots__ = ("_write",)

    def __init__(self, write: Callable[[int], bool]) -> None:
        super().__init__()
        self._write: Callable[[int], bool] | None = write

    def write(self, most: int) -> bool:
        return self._write is None or self._write(most)

    def discard(self) -> None:
        if self._write is not None:
            self._write = None
            self._detach()

    def record_end(self, outcome: Outcome, reason: CloseReason) -> None:
        """Write no more interim lines.  The end of each read is recorded on its own."""
        self.discard()


class LiveReads:
    """The open live reads that get interim lines.  With an interval of 0 seconds, no read gets interim lines."""

    def __init__(self, clock: Clock, interval_s: float) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._open: dict[_Open, None] = {}
        """The open reads, in the order of their next lines."""
        self._timer: Timer | None = None
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._open)

    def add(self, read: _Open, began: float) -> None:
        """Add a live read that began at `began`."""
        if self._interval_s:
            read.reads, read.due_at = self, began + self._interval_s
            self._open[read] = None
            if self._timer is None:
                self._arm()

    def watch(self, began: float, write: Callable[[int], bool]) -> _Watched | None:
        """Call `write` when the next lines of reads that began at `began` are due."""
        if not self._interval_s:
            return None
        watched = _Watched(write)
        self.add(watched, began)
        return watched

    def ended(self, read: _Open) -> None:
        """Remove a read that has ended."""
        self._open.pop(read, None)

    def close(self) -> None:
        """Write no more interim lines."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._open.clear()

    def _arm(self) -> None:
        if self._timer is None and self._open and not self._is_closed:
            due_at = next(iter(self._open)).due_at
            self._timer = self._clock.call_later(due_at - self._clock.now(), self._write_lines)

    def _write_lines(self) -> None:
        self._timer = None
        now = self._clock.now()
        for read in list(islice(self._open, LINES_PER_TURN)):
            # If some lines of a read are not written yet, the read stays first in the queue.
            if read.due_at > now or not read.write(LINES_PER_TURN):
                break
            read.due_at = now + self._interval_s
            del self._open[read]
            self._open[read] = None
        self._arm()

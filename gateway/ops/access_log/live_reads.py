"""Open live reads, which get a line every `interval_s` and one at their end.

They are kept in the order in which their next line is due, so one timer serves them all, and the lines of a crowd that
came at once are spread over several turns.  Ended reads are taken out when they are many.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from gateway.aio.clock import Clock, Timer
from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode
from gateway.telemetry.access_record import (
    CloseReason,
    CommonFacts,
    LiveClient,
    LiveCounts,
    Record,
    RecordedStream,
    Repeated,
)

LINES_PER_TURN = 256
_FEW = 256
"""So many ended reads are not worth taking out."""


class Notes(Protocol):
    """Takes the lines of live reads, and traffic with the origin that no line of its read will have."""

    def unclaimed(self, place: RecordedStream, mode: Mode, *, requests: int = 0, fetched_bytes: int = 0) -> None:
        """Write a line of this traffic with the next live read of the stream, or by itself."""

    def note(self, record: Record, began: float) -> None:
        """Write a line of a live read, as of now."""

    def note_join(
        self, line: Repeated, began: float, client: LiveClient, first_byte_s: float, subscribers: int
    ) -> None:
        """The same, for a line that others have the most of in common with."""


class _Open:
    """A live read, or several that began together, that may go on until the next line is due."""

    __slots__ = ("_reads", "due_at")

    def __init__(self) -> None:
        self._reads: LiveReads | None = None
        self.due_at = 0.0

    trace_id = None
    """The access log keeps no trace."""

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Whether no line is due any more."""

    @abstractmethod
    def write(self, most: int) -> bool:
        """Write at most so many lines as of now; returns whether these are all."""

    @abstractmethod
    def drop(self) -> None:
        """Write no line any more."""

    def attach(self, reads: LiveReads, due_at: float) -> None:
        """Have `reads` call `write` when a line is due."""
        self._reads, self.due_at = reads, due_at

    def _detach(self) -> None:
        reads, self._reads = self._reads, None
        if reads is not None:
            reads.ended()


class LiveRead(_Open):
    """One live read, from its start to its end; writes its interim lines and its last."""

    __slots__ = ("_began", "_fetched_bytes", "_look", "_notes", "_origin_requests", "_record", "_sent_bytes")

    def __init__(self, notes: Notes, record: Record, began: float, look: Callable[[Record], None]) -> None:
        super().__init__()
        self._notes = notes
        self._record = record
        self._began = began
        self._look: Callable[[Record], None] | None = look
        """None when the read is over."""
        self._sent_bytes = 0
        self._fetched_bytes = 0
        self._origin_requests = 0

    @property
    def is_over(self) -> bool:
        return self._look is None

    def end(self, outcome: Outcome, reason: CloseReason) -> None:
        """Write the last line."""
        look = self._look
        if look is not None:
            self._write(look, outcome, reason)
            self._forget()

    def drop(self) -> None:
        if self._look is None:
            return
        own = self._record
        # Another record takes its place, and knows nothing of its fetches.
        own.finalize()
        requests = own.origin_requests - self._origin_requests
        fetched_bytes = own.fetched_bytes - self._fetched_bytes
        if requests or fetched_bytes:
            place = RecordedStream(own.route, own.stream, own.partition, own.is_s2)
            self._notes.unclaimed(place, own.mode, requests=requests, fetched_bytes=fetched_bytes)
        self._forget()

    def _forget(self) -> None:
        # It leads to the client's connection.
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
    """One SSE read that has its facts in common with others, from its start to its end."""

    __slots__ = ("_address", "_began", "_counts", "_facts", "_notes", "_section", "_sent_bytes")

    def __init__(
        self, notes: Notes, facts: CommonFacts, began: float, counts: Callable[[], LiveCounts], client: LiveClient
    ) -> None:
        super().__init__()
        self._notes = notes
        self._facts = facts
        self._began = began
        self._counts: Callable[[], LiveCounts] | None = counts
        """None when the read is over."""
        # Not the tuple: it would be kept for each idle reader.
        self._address, self._section = client
        self._sent_bytes = 0

    @property
    def is_over(self) -> bool:
        return self._counts is None

    def end(self, outcome: Outcome, reason: CloseReason) -> None:
        """Write the last line."""
        counts = self._counts
        if counts is not None:
            self._write(counts, outcome, reason)
            self.drop()

    def drop(self) -> None:
        if self._counts is not None:
            # It leads to the client's connection.
            self._counts = None
            self._detach()

    def write(self, most: int) -> bool:
        if self._counts is not None:
            self._write(self._counts, Outcome.FOLLOWED, None)
        return True

    def _write(self, counts: Callable[[], LiveCounts], outcome: Outcome, reason: CloseReason | None) -> None:
        """Write a line with the bytes since the previous line."""
        first_byte_s, next_offset, sent_bytes, subscribers = counts()
        line = self._facts.line(outcome, reason, next_offset, sent_bytes - self._sent_bytes)
        self._sent_bytes = sent_bytes
        self._notes.note_join(line, self._began, (self._address, self._section), first_byte_s, subscribers)


class _Watched(_Open):
    """Live reads that began together."""

    __slots__ = ("_write",)

    def __init__(self, write: Callable[[int], bool]) -> None:
        super().__init__()
        self._write: Callable[[int], bool] | None = write

    @property
    def is_over(self) -> bool:
        return self._write is None

    def write(self, most: int) -> bool:
        return self._write is None or self._write(most)

    def drop(self) -> None:
        if self._write is not None:
            self._write = None
            self._detach()

    def end(self, outcome: Outcome, reason: CloseReason) -> None:
        """The same: their ends are recorded one by one."""
        self.drop()


class LiveReads:
    """The open live reads, for their interim lines.  0 seconds: they get none."""

    def __init__(self, clock: Clock, interval_s: float) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._open: deque[_Open] = deque()
        """By the time at which their next lines are due."""
        self._over = 0
        """How many of them have ended."""
        self._timer: Timer | None = None
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._open) - self._over

    def add(self, read: _Open, began: float) -> None:
        """A live read has begun at `began`."""
        if self._interval_s:
            read.attach(self, began + self._interval_s)
            self._open.append(read)
            self._arm()

    def watch(self, began: float, write: Callable[[int], bool]) -> _Watched | None:
        """Have `write` called when the next lines are due of live reads that have begun at `began`."""
        if not self._interval_s:
            return None
        watched = _Watched(write)
        self.add(watched, began)
        return watched

    def ended(self) -> None:
        """One of them has ended."""
        self._over += 1
        if self._over > _FEW and self._over * 2 > len(self._open):
            self._open = deque(read for read in self._open if not read.is_over)
            self._over = 0

    def close(self) -> None:
        """Write no more interim lines."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._open.clear()
        self._over = 0

    def _arm(self) -> None:
        if self._timer is None and self._open and not self._is_closed:
            self._timer = self._clock.call_later(self._open[0].due_at - self._clock.now(), self._write_lines)

    def _write_lines(self) -> None:
        self._timer = None
        now = self._clock.now()
        for _ in range(min(LINES_PER_TURN, len(self._open))):
            read = self._open[0]
            if read.is_over:
                self._open.popleft()
                self._over -= 1
                continue
            if read.due_at > now:
                break
            if not read.write(LINES_PER_TURN):
                # It is still the first one, and overdue.
                break
            read.due_at = now + self._interval_s
            self._open.rotate(-1)
        self._arm()

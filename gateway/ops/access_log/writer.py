"""The access log's writer: a bounded queue, and one task that empties it into a sink.

A request costs one append to the queue, and never waits.  The queue is bounded in records and in bytes of memory.  If
the queue is full because the sink is too slow, the new record is dropped and counted.  Texts from clients are cut to
the sizes that a line allows before they are queued.

The task takes the queued records after `batch_s` seconds, or as soon as they fill a batch.  It makes a few hundred
lines at a time, with turns of the loop between, and gives the sink batches of at most `batch_bytes`.  Lines are made on
the loop.  A thread would hold the interpreter lock for milliseconds and block the loop as well.  Work that may block is
done in the sink.

Open live reads get a line every `live_interval_s` seconds (`live_reads`).  Upstream work that belongs to no request is
counted in the next line of a live reader of its stream.  If no such line comes within `live_interval_s`, the work gets
a line of its own.  If `live_interval_s` is 0, the bound is five minutes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Protocol

from gateway.aio.clock import Clock, Timer
from gateway.aio.tasks import Tasks
from gateway.auth.verdict import Caller
from gateway.ops.access_log.lines import Item, Lines, cut
from gateway.ops.access_log.live_reads import LINES_PER_TURN, JoinedRead, LiveRead, LiveReads
from gateway.ops.access_log.schema import STREAM_CHARS
from gateway.ops.access_log.sinks.sink import Sink
from gateway.ops.access_log.unclaimed_traffic import LIVE, MOST_PLACES, Ledger, Unclaimed
from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode
from gateway.telemetry.access_record import (
    Client,
    CommonFacts,
    CountedRead,
    HeaderSection,
    LiveClient,
    LiveNote,
    PolledBy,
    Record,
    RecordedStream,
    Repeated,
)

_log = logging.getLogger("gateway.log")

_SLICE = 256
"""Records made into lines in one turn of the loop, in far less than a millisecond."""
_LINE_BYTES = 384
"""The usual size of a line, which estimates when a batch is full."""
_LONGEST_UNCLAIMED_S = 300.0
"""The longest wait for unclaimed work if live reads have no interim lines."""
_METHODS = {Mode.HEAD: "HEAD", Mode.CREATE: "PUT", Mode.APPEND: "POST", Mode.DELETE: "DELETE"}
_RECORD_BYTES = 512
"""The memory of a record without its texts, including its place in the queue."""
_HIT_BYTES = 192
"""The memory of a hit without the end of its line and without the part shared with other hits."""


class DropCounter(Protocol):
    """The part of a `MetricsRecorder` that counts lost lines."""

    def log_drops(self, n: int = 1) -> None:
        """Count `n` lost lines."""


class LogWriter:
    """A `gateway.telemetry.access_record.AccessLog` that writes to a sink.

    It owns the queue and the sink.  `close` must follow `start`.
    """

    is_kept = True

    def __init__(
        self,
        sink: Sink,
        lines: Lines,
        clock: Clock,
        counter: DropCounter,
        *,
        queue_records: int,
        queue_bytes: int,
        batch_bytes: int,
        batch_s: float,
        live_interval_s: float,
        most_followed: int = 0,
    ) -> None:
        self._sink = sink
        self._lines = lines
        self._clock = clock
        self._counter = counter
        self._queue: deque[Item] = deque()
        self._queued_bytes = 0
        """The approximate memory of the queue.  May exceed its bound by one record."""
        self._limit = queue_records
        self._limit_bytes = queue_bytes
        # Wake the task when the queue is half full at the latest, because more records arrive before the task runs.
        self._early = max(1, min(queue_records // 2, batch_bytes // _LINE_BYTES))
        self._early_bytes = queue_bytes // 2
        self._batch_bytes = batch_bytes
        self._batch_s = batch_s
        self._check_from = 0
        self._check_from_bytes = 0
        """While the queue is smaller than this, a request only appends.  From this size on, `_admits` decides."""
        self._unwritten = 0
        """Lines taken from the queue that the sink has not confirmed."""
        self._timer: Timer | None = None
        self._due = asyncio.Event()
        self._is_closing = False
        self._tasks = Tasks()
        self._writing: asyncio.Task[None] | None = None
        self._live = LiveReads(clock, live_interval_s)
        # Leave room for every stream with a live request to the origin.  Otherwise the sum of such a stream might be
        # pushed out again and again, and each time would cost a line.
        self._ledger = Ledger(MOST_PLACES + most_followed)
        self._unclaimed = self._ledger.sums
        self._unclaimed_s = live_interval_s or _LONGEST_UNCLAIMED_S
        self._ledger_timer: Timer | None = None

    def __repr__(self) -> str:
        return f"{len(self._queue)} queued, {self._unwritten} unwritten, {len(self._ledger)} unclaimed"

    @property
    def queued(self) -> int:
        """Records in the queue."""
        return len(self._queue)

    @property
    def unwritten(self) -> int:
        """Lines that the sink has not confirmed."""
        return self._unwritten

    def start(self) -> None:
        """Begin to write."""
        self._writing = self._tasks.start(self._write(), "access log")

    # -- the access log

    def record(self, record: Record) -> None:
        record.finalize()
        if (len(self._queue) < self._check_from and self._queued_bytes < self._check_from_bytes) or self._admits():
            cut(record)
            if self._unclaimed and record.mode in LIVE:
                self._claim(record)
            self._queued_bytes += _weight(record)
            self._queue.append(record)

    def repeat(self, hit: Repeated, began: float, ended: float, client: Client, request: bytes) -> None:
        if (len(self._queue) < self._check_from and self._queued_bytes < self._check_from_bytes) or self._admits():
            ending = self._lines.endings.get(request) or self._lines.ending(request)
            self._queued_bytes += _HIT_BYTES + len(ending)
            self._queue.append((hit, began, ended, client, ending))

    def live(self, record: Record, began: float, look: Callable[[Record], None]) -> LiveNote:
        cut(record)
        note = LiveRead(self, record, began, look)
        self._live.add(note, began)
        return note

    def join(self, facts: CommonFacts, began: float, read: CountedRead, client: LiveClient) -> LiveNote:
        note = JoinedRead(self, facts, began, read, client)
        self._live.add(note, began)
        return note

    def watch(self, began: float, write: Callable[[int], bool]) -> LiveNote | None:
        return self._live.watch(began, write)

    def unclaimed(self, place: RecordedStream, mode: Mode, *, requests: int = 0, fetched_bytes: int = 0) -> None:
        if len(place.stream) > STREAM_CHARS:
            # Cut the stream's name in the same way as in the records that claim the sum.
            place = place._replace(stream=place.stream[:STREAM_CHARS])
        pushed_out = self._ledger.add(place, mode, requests, fetched_bytes, self._clock.now())
        if pushed_out is not None:
            self._note_unclaimed(pushed_out)
        if self._ledger_timer is None:
            self._arm_ledger_timer()

    def _admits(self) -> bool:
        """Return whether another record may be queued.  Wakes the task if a batch is due."""
        waiting, waiting_bytes = len(self._queue), self._queued_bytes
        if self._is_closing:
            self._counter.log_drops(1)
            return False
        if waiting >= self._early or waiting_bytes >= self._early_bytes:
            # Wake the task even if the queue is full, because otherwise only the timer would empty the queue.
            self._wake()
        elif self._timer is None:
            self._wait()
        if waiting >= self._limit or waiting_bytes >= self._limit_bytes:
            self._counter.log_drops(1)
            return False
        return True

    def _wait(self) -> None:
        """Arrange that the task wakes after `batch_s` seconds, or when the queue has about a batch."""
        self._timer = self._clock.call_later(self._batch_s, self._wake)
        self._check_from, self._check_from_bytes = self._early, self._early_bytes

    def _wake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._check_from, self._check_from_bytes = self._limit, self._limit_bytes
        self._due.set()

    # -- the task

    async def _write(self) -> None:
        while not (self._is_closing and not self._queue):
            await self._due.wait()
            self._due.clear()
            left = len(self._queue)
            while left > 0:
                lines, count = await self._batch(left)
                left -= count
                for part in _parts(lines, self._batch_bytes):
                    count = part.count(b"\n")
                    is_kept = await self._sink.write(part)
                    self._unwritten -= count
                    if not is_kept:
                        self._counter.log_drops(count)
            is_early = len(self._queue) >= self._early or (self._queue and self._queued_bytes >= self._early_bytes)
            if self._is_closing or is_early:
                self._due.set()
            elif self._queue:
                self._wait()
            else:
                self._check_from = 0

    async def _batch(self, most: int) -> tuple[bytes, int]:
        """Make lines for about one batch, from at most `most` records.  Returns the lines and the number of records."""
        made: list[bytes] = []
        size = count = 0
        take = self._queue.popleft
        wall_lead_s = self._clock.wall() - self._clock.now()
        # Stop if another slice of the same size would need a second write.
        while count < most and (not made or size + len(made[-1]) <= self._batch_bytes):
            if made:
                await asyncio.sleep(0)
            taken = [take() for _ in range(min(most - count, _SLICE))]
            # Hits are many, and a call for each would take twice as long.
            self._queued_bytes -= sum(
                [_HIT_BYTES + len(item[4]) if item.__class__ is tuple else _weight(item) for item in taken]
            )
            made.append(self._lines.written(taken, wall_lead_s))
            size += len(made[-1])
            count += len(taken)
            self._unwritten += len(taken)
        return b"".join(made), count

    async def close(self, timeout_s: float) -> None:
        """Write the queued records for at most `timeout_s` seconds.  Drop and count the records that are left."""
        for unclaimed in self._ledger.due(self._clock.now()):
            self._note_unclaimed(unclaimed)
        if self._ledger_timer is not None:
            self._ledger_timer.cancel()
        self._is_closing = True
        self._check_from = 0
        self._live.close()
        self._wake()
        self._check_from = 0
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=max(0.0, timeout_s))
            await self._tasks.close()
        if lost := len(self._queue) + self._unwritten:
            self._counter.log_drops(lost)
            _log.warning("access log: %d lines were not written before the end", lost)
            self._queue.clear()
            self._queued_bytes = 0
        await self._sink.close()

    # -- unclaimed upstream work

    def _claim(self, record: Record) -> None:
        found = self._ledger.claim(RecordedStream(record.route, record.stream, record.partition, record.is_s2))
        if found is not None:
            record.origin_requests += found.requests
            record.fetched_bytes += found.fetched_bytes

    def _note_unclaimed(self, found: Unclaimed) -> None:
        """Write a line for a sum that no live reader has claimed."""
        route, stream, partition, is_s2 = found.place
        record = Record(
            mode=found.mode,
            outcome=Outcome.FOLLOWED if found.mode in LIVE else Outcome.MISS,
            method=_METHODS.get(found.mode, "GET"),
            route=route,
            stream=stream,
            partition=partition,
            is_s2=is_s2,
            fetched_bytes=found.fetched_bytes,
            origin_requests=found.requests,
            is_final=False,
        )
        self.note(record, found.since)

    def _arm_ledger_timer(self) -> None:
        if self._ledger_timer is None and not self._is_closing:
            oldest = self._ledger.oldest
            if oldest is not None:
                due_in_s = oldest + self._unclaimed_s - self._clock.now()
                self._ledger_timer = self._clock.call_later(due_in_s, self._flush_ledger)

    def _flush_ledger(self) -> None:
        self._ledger_timer = None
        for found in islice(self._ledger.due(self._clock.now() - self._unclaimed_s), LINES_PER_TURN):
            self._note_unclaimed(found)
        self._arm_ledger_timer()

    # -- live reads

    def note(self, record: Record, began: float) -> None:
        """Write a line of a live read with its figures at this moment."""
        record.ended_at = self._clock.wall()
        record.duration_s = self._clock.now() - began
        self.record(record)

    def note_join(
        self, line: Repeated, began: float, client: LiveClient, first_byte_s: float, subscribers: int
    ) -> None:
        if self._unclaimed:
            record = replace(line.record, first_byte_s=first_byte_s, subscribers=subscribers)
            self.record_of(record, began, *client)
        elif (len(self._queue) < self._check_from and self._queued_bytes < self._check_from_bytes) or self._admits():
            text = client[1].text
            ending = self._lines.endings.get(text) or self._lines.ending(text)
            self._queued_bytes += _HIT_BYTES + len(ending)
            self._queue.append((line, began, self._clock.now(), client[0], ending, first_byte_s, subscribers))

    def record_of(self, record: Record, began: float, client: Client, section: HeaderSection) -> None:
        if isinstance(client, Caller):
            record.client = client.address
            record.principal, record.tenant, record.issuer = client[1:]
        else:
            record.client = client
        record.user_agent, record.trace_id = self._lines.facts_of(section.text)
        self.note(record, began)

    def repeat_live(self, hit: Repeated, ended: float, clients: Sequence[PolledBy]) -> None:
        if self._unclaimed:
            record = replace(hit.record)
            self._claim(record)
            if record.origin_requests or record.fetched_bytes:
                # Count the unclaimed traffic in the first line.
                began, client, section, _ = clients[0]
                record.first_byte_s = ended - began
                self.record_of(record, began, client, section)
                clients = clients[1:]
        # The same as `repeat`, but without a call for each client.
        queue, endings = self._queue, self._lines.endings
        for began, client, section, _ in clients:
            if (len(queue) < self._check_from and self._queued_bytes < self._check_from_bytes) or self._admits():
                text = section.text
                ending = endings.get(text) or self._lines.ending(text)
                self._queued_bytes += _HIT_BYTES + len(ending)
                queue.append((hit, began, ended, client, ending))


def _weight(item: Item) -> int:
    """Return the approximate memory of an item in the queue, in bytes."""
    if isinstance(item, Record):
        size = _RECORD_BYTES + len(item.stream) + len(item.principal) + len(item.tenant)
        if item.user_agent is not None:
            size += len(item.user_agent)
        if item.partition is not None:
            size += len(item.partition.readers)
        if item.start is not None:
            size += len(item.start)
        if item.next_offset is not None:
            size += len(item.next_offset)
        return size
    return _HIT_BYTES + len(item[4])


def _parts(lines: bytes, most: int) -> Iterator[bytes]:
    """Split lines into parts of at most `most` bytes.  A longer line is a part of its own."""
    begin = 0
    while len(lines) - begin > most:
        end = lines.rfind(b"\n", begin, begin + most) + 1 or lines.index(b"\n", begin) + 1
        yield lines[begin:end]
        begin = end
    if begin < len(lines):
        yield lines[begin:]

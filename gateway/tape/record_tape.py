"""The tape of an S2 stream: the records that the gateway holds in memory, by sequence number.

Records lie in blocks.  A block *covers* a range of sequence numbers: it has every record of the stream in this range.
A covered number may have no record, because trims and retention remove records.  Adjacent blocks form a run.

If a reply to a read from one number begins with a later number, the stream has no earlier records any more.  The tape
then drops all records before that number.

A part that a read takes from the tape is *closed* if a limit of the read ended the part.  Otherwise the part is *open*:
it ends with the held records, and more records may follow.  Records never change, but the tail of the stream moves.
The tape therefore does not record the tail.

A stream that is deleted and created again numbers its records from 0 again.  `store` raises `RecordsReplaced` if the
new records contradict the held records.  Two observations show a contradiction: a different record at the same number,
or timestamps that decrease.

All changes are synchronous.  The module has no HTTP, no sockets and no clock.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, NamedTuple

from gateway.s2.records import (
    MAX_BATCH_METERED_BYTES,
    MAX_BATCH_RECORDS,
    MAX_U64,
    InvalidAppend,
    Record,
    StreamPosition,
    Trim,
    command_of,
    is_command,
    metered_bytes,
)
from gateway.tape.costs import RECORD_BLOCK_COST, RECORD_COST, RECORD_HEADER_COST

BLOCK_BYTES: Final = 256 * 1024
"""A block with this many metered bytes (S2's measure of size) takes no more records.  Blocks are evicted whole."""

_by_seq_num = attrgetter("seq_num")
_by_timestamp = attrgetter("timestamp")


class RecordsReplaced(Exception):
    """New records contradict the held records: the stream was deleted and created again."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a read.  None means no limit."""

    count: int | None = None
    """The most records."""
    bytes: int | None = None
    """The most metered bytes."""
    until: int | None = None
    """The read ends before the first record with this timestamp or a later one."""

    @property
    def is_exhausted(self) -> bool:
        """Whether the limits allow no record."""
        return self.count == 0 or self.bytes == 0

    def after(self, count: int, size: int) -> Limits:
        """Return the limits that remain after `count` records with `size` metered bytes in total."""
        return Limits(
            None if self.count is None else max(0, self.count - count),
            None if self.bytes is None else max(0, self.bytes - size),
            self.until,
        )

    def within(self, count: int, size: int) -> Limits:
        """Return these limits, reduced to at most `count` records and `size` metered bytes."""
        return Limits(
            count if self.count is None else min(self.count, count),
            size if self.bytes is None else min(self.bytes, size),
            self.until,
        )

    def covers(self, other: Limits) -> bool:
        """Return whether `count` and `bytes` are at least the `count` and `bytes` of `other`.  `until` is not
        compared."""
        return _is_at_least(self.count, other.count) and _is_at_least(self.bytes, other.bytes)


UNARY: Final = Limits(MAX_BATCH_RECORDS, MAX_BATCH_METERED_BYTES)
"""The limits of one unary read, or of one batch of a session."""


def _is_at_least(one: int | None, other: int | None) -> bool:
    return one is None or (other is not None and one >= other)


@dataclass(frozen=True, slots=True)
class Part:
    """Records that a read takes from memory.  The read continues at the sequence number `end`."""

    records: tuple[Record, ...]
    size: int
    """The metered bytes of the records."""
    end: int
    is_closed: bool
    """Whether a limit stopped the read, so that no append can change the answer."""


def cut(records: Sequence[Record], start: int, end: int, limits: Limits) -> Part:
    """Return the records that a read from `start` may take, within its limits.

    `records` must include all records of the stream from `start` to `end`.  Earlier records are skipped.
    """
    if records and records[0].seq_num < start:
        records = records[bisect_left(records, start, key=_by_seq_num) :]
    if limits == _NO_LIMITS:
        return Part(tuple(records), sum(map(metered_bytes, records)), max(start, end), is_closed=False)
    if limits.is_exhausted:
        return Part((), 0, start, is_closed=True)
    size = 0
    for taken, record in enumerate(records):
        more = size + metered_bytes(record)
        if (limits.until is not None and record.timestamp >= limits.until) or (
            limits.bytes is not None and more > limits.bytes
        ):
            return Part(tuple(records[:taken]), size, record.seq_num, is_closed=True)
        size = more
        if limits.count == taken + 1 or limits.bytes == size:
            return Part(tuple(records[: taken + 1]), size, record.seq_num + 1, is_closed=True)
    return Part(tuple(records), size, max(start, end), is_closed=False)


_NO_LIMITS: Final = Limits()


class Span(NamedTuple):
    """A summary of one block."""

    start: int
    end: int
    records: int
    size: int
    """The metered bytes of the records."""


class Joint(NamedTuple):
    """A held record and a fetched record that would become neighbours on the tape."""

    held: Record
    fetched: Record


@dataclass(slots=True, eq=False)
class _Block:
    """A covered range of sequence numbers, with at least one record."""

    start: int
    end: int
    records: list[Record]
    size: int
    cost: int

    @property
    def is_full(self) -> bool:
        return self.size >= BLOCK_BYTES or len(self.records) >= MAX_BATCH_RECORDS


@dataclass(slots=True)
class RecordTape:
    """The held records of one incarnation of a stream.

    Only the owner, the `TapeStore`, calls the methods that change `cost`, because the store charges the cost to a
    budget.
    """

    cost: int = 0
    _starts: list[int] = field(default_factory=list)
    """The starts of all blocks, in order."""
    _blocks: dict[int, _Block] = field(default_factory=dict)
    """Blocks by their start, in the order of their creation."""

    def __repr__(self) -> str:
        runs = sum(
            index == 0 or self._blocks[self._starts[index - 1]].end != start for index, start in enumerate(self._starts)
        )
        return f"<RecordTape {self.record_count} records, {runs} runs>"

    @property
    def block_count(self) -> int:
        return len(self._blocks)

    @property
    def record_count(self) -> int:
        """The number of records held."""
        return sum(len(block.records) for block in self._blocks.values())

    @property
    def size(self) -> int:
        """The number of metered bytes held."""
        return sum(block.size for block in self._blocks.values())

    def spans(self) -> Iterator[Span]:
        """Summarise each block, in the order of sequence numbers."""
        for start in self._starts:
            block = self._blocks[start]
            yield Span(block.start, block.end, len(block.records), block.size)

    @property
    def end_seq_num(self) -> int:
        """The sequence number after the last covered number; 0 if no number is covered."""
        return self._blocks[self._starts[-1]].end if self._starts else 0

    @property
    def last(self) -> Record | None:
        """The last record held."""
        return self._blocks[self._starts[-1]].records[-1] if self._starts else None

    def covers(self, seq_num: int) -> bool:
        """Return whether a block covers `seq_num`.  If a covering block has no record at `seq_num`, the stream has no
        such record."""
        return self._block_at(seq_num) is not None

    def covered_from(self, seq_num: int) -> int:
        """Return the first covered number at or after `seq_num`; `MAX_U64` if there is none."""
        if self.covers(seq_num):
            return seq_num
        index = bisect_right(self._starts, seq_num)
        return self._starts[index] if index < len(self._starts) else MAX_U64

    def record(self, seq_num: int) -> Record | None:
        """Return the record at `seq_num`; None if it is not held."""
        block = self._block_at(seq_num)
        if block is None:
            return None
        index = bisect_left(block.records, seq_num, key=_by_seq_num)
        if index < len(block.records) and block.records[index].seq_num == seq_num:
            return block.records[index]
        return None

    def joints(self, start: int, records: Sequence[Record]) -> Iterator[Joint]:
        """Yield each joint that would arise if `records` were stored.  `records` are the reply to a read from `start`.

        At an end where the reply overlaps held records, no joint arises."""
        first, last = records[0], records[-1]
        before = self._before(start) if not self.covers(start) and start and self.covers(start - 1) else None
        if before is not None and start == first.seq_num:
            yield Joint(before, first)
        is_met = not self.covers(last.seq_num) and self.covers(last.seq_num + 1)
        after = self._after(last.seq_num) if is_met else None
        if after is not None:
            yield Joint(after, last)

    def neighbours(self, seq_num: int) -> tuple[Record, ...]:
        """Return the last record held before `seq_num` and the first record held after `seq_num`, if these records
        exist."""
        return tuple(one for one in (self._before(seq_num), self._after(seq_num)) if one is not None)

    def read(self, start: int, limits: Limits) -> Part:
        """Take the records from `start` to the end of the run, within the limits."""
        taken: list[Record] = []
        size, at = 0, start
        if limits.is_exhausted:
            return Part((), 0, start, is_closed=True)
        while (block := self._block_at(at)) is not None:
            index = bisect_left(block.records, at, key=_by_seq_num) if at > block.start else 0
            left = limits.after(len(taken), size)
            part = cut(block.records[index:] if index else block.records, at, block.end, left)
            taken += part.records
            size += part.size
            at = part.end
            if part.is_closed:
                return Part(tuple(taken), size, at, is_closed=True)
        return Part(tuple(taken), size, at, is_closed=False)

    def at_timestamp(self, timestamp: int) -> int | None:
        """Return the sequence number of the stream's first record at or after `timestamp`; None if the tape cannot
        determine the number.

        The tape must hold this record and the preceding record of the stream, if there is one.
        """
        at = bisect_left(self._starts, timestamp, key=lambda start: self._blocks[start].records[-1].timestamp)
        if at == len(self._starts):
            return None
        block = self._blocks[self._starts[at]]
        index = bisect_left(block.records, timestamp, key=_by_timestamp)
        # The last record of the preceding block is before `timestamp`.
        is_known = index or block.start == 0 or (at and self._blocks[self._starts[at - 1]].end == block.start)
        return block.records[index].seq_num if is_known else None

    def contradicts(self, tail: StreamPosition, end: int) -> bool:
        """Return whether `tail` shows that the held records belong to an earlier stream of the same name.

        `end` is the value of `end_seq_num` at the time of the request for the tail.
        """
        if tail.seq_num < end:
            return True
        last = self.record(tail.seq_num - 1)
        return last is not None and last.timestamp != tail.timestamp

    # -- changes

    def store(self, start: int, records: Sequence[Record]) -> bool:
        """Store the records of a read from `start`.  A record that is already held is not replaced.

        New records may show that the stream was trimmed.  The trimmed records are then dropped.  Returns whether any
        held records were dropped.  Raises RecordsReplaced, and stores nothing, if the new records contradict the held
        records.
        """
        if not records:
            return False
        self._check(start, records)
        is_trimmed = records[0].seq_num > start and self.drop_before(records[0].seq_num)
        end = records[-1].seq_num + 1
        at = start
        while at < end:
            held = self._block_at(at)
            if held is not None:
                at = held.end
                continue
            stop = min(self.covered_from(at), end)
            first = bisect_left(records, at, key=_by_seq_num)
            last = bisect_left(records, stop, key=_by_seq_num)
            if first < last:
                self._add(at, stop, records[first:last])
            else:
                # No new record lies between `at` and `stop`.  The last new record lies at `end - 1`, so `stop` is not
                # `end`.  Therefore the next held block starts at `stop`.
                self._begin_earlier(stop, at)
            at = stop
        for record in records:
            if is_command(record):
                is_trimmed |= self._obey(record)
        return is_trimmed

    def _check(self, start: int, records: Sequence[Record]) -> None:
        if records[0].seq_num < start:
            raise RecordsReplaced
        earlier = self._before(records[0].seq_num)
        timestamp = earlier.timestamp if earlier is not None else 0
        seq_num, end = -1, self.end_seq_num
        for record in records:
            if record.seq_num <= seq_num or record.timestamp < timestamp:
                raise RecordsReplaced
            seq_num, timestamp = record.seq_num, record.timestamp
            if seq_num < end and (held := self.record(seq_num)) is not None and held != record:
                raise RecordsReplaced
        later = self._after(seq_num)
        if later is not None and later.timestamp < timestamp:
            raise RecordsReplaced

    def _before(self, seq_num: int) -> Record | None:
        """Return the last record held before `seq_num`."""
        at = bisect_left(self._starts, seq_num) - 1
        if at < 0:
            return None
        records = self._blocks[self._starts[at]].records
        if index := bisect_left(records, seq_num, key=_by_seq_num):
            return records[index - 1]
        return self._blocks[self._starts[at - 1]].records[-1] if at else None

    def _after(self, seq_num: int) -> Record | None:
        """Return the first record held after `seq_num`."""
        at = max(0, bisect_right(self._starts, seq_num) - 1)
        for start in self._starts[at : at + 2]:
            records = self._blocks[start].records
            index = bisect_right(records, seq_num, key=_by_seq_num)
            if index < len(records):
                return records[index]
        return None

    def _add(self, start: int, end: int, records: Sequence[Record]) -> None:
        """Cover the numbers from `start` to `end` with `records`.  None of these numbers may be covered yet."""
        index = bisect_left(self._starts, start)
        block = self._blocks[self._starts[index - 1]] if index else None
        position = 0
        while start < end:
            if block is None or block.end != start or block.is_full:
                block = _Block(start, start, [], 0, RECORD_BLOCK_COST)
                self._starts.insert(index, start)
                self._blocks[start] = block
                index += 1
                self.cost += RECORD_BLOCK_COST
            before = block.cost
            while position < len(records) and not block.is_full:
                record = records[position]
                block.records.append(record)
                size = metered_bytes(record)
                block.size += size
                block.cost += size + RECORD_COST + RECORD_HEADER_COST * len(record.headers)
                position += 1
            self.cost += block.cost - before
            block.end = start = end if position == len(records) else records[position].seq_num

    def _begin_earlier(self, start: int, earlier: int) -> None:
        """Extend the block at `start` back to `earlier`.  The stream has no records at the added numbers."""
        block = self._blocks.pop(start)
        self._starts[bisect_left(self._starts, start)] = block.start = earlier
        self._blocks[earlier] = block

    def _obey(self, record: Record) -> bool:
        """If `record` is a trim command, drop the trimmed records.  Return whether any records were dropped."""
        try:
            command = command_of(record)
        except InvalidAppend:
            return False
        return isinstance(command, Trim) and self.drop_before(min(command.seq_num, record.seq_num))

    def drop_before(self, seq_num: int) -> bool:
        """Drop all records and covered numbers before `seq_num`.  Return whether anything was dropped."""
        if not self._starts or self._starts[0] >= seq_num:
            return False
        while self._starts and self._blocks[self._starts[0]].end <= seq_num:
            self._drop(self._starts[0])
        if self._starts and self._starts[0] < seq_num:
            block = self._blocks[self._starts[0]]
            self._drop(block.start)
            if left := block.records[bisect_left(block.records, seq_num, key=_by_seq_num) :]:
                self._add(seq_num, block.end, left)
        return True

    def drop_oldest(self) -> int:
        """Drop the block that was created first; return the cost freed."""
        before = self.cost
        start = next(iter(self._blocks), None)
        if start is not None:
            self._drop(start)
        return before - self.cost

    def drop_all(self) -> int:
        """Drop every record; return the cost freed."""
        freed, self.cost = self.cost, 0
        self._starts.clear()
        self._blocks.clear()
        return freed

    def _drop(self, start: int) -> None:
        del self._starts[bisect_left(self._starts, start)]
        self.cost -= self._blocks.pop(start).cost

    def _block_at(self, seq_num: int) -> _Block | None:
        index = bisect_right(self._starts, seq_num) - 1
        if index < 0:
            return None
        block = self._blocks[self._starts[index]]
        return block if seq_num < block.end else None

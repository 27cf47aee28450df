"""One S2 stream: its records, its tail, its fencing token, and its watchers.

All functions are synchronous, and `now` (Unix seconds) is an argument.  A stream is independent of basins and HTTP.

Invariants: the sequence numbers of the remaining records have no gap and end at the tail.  Timestamps never decrease.
Trims and retention remove records only at the beginning, and never move the tail.  Appends are atomic.  Readers at the
tail get every record, even those that a trim in the same append removes.  A deleted stream never comes back; a new one
with its name starts at 0.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Protocol
from weakref import WeakSet

from gateway.origin.s2.config import StreamConfig, TimestampingMode
from gateway.origin.s2.refusals import FencingTokenMismatch, SeqNumMismatch
from gateway.s2.records import (
    AppendAck,
    AppendInput,
    AppendRecord,
    Fence,
    InvalidAppend,
    Record,
    StreamPosition,
    Trim,
    check_append_input,
    command_of,
)


def milliseconds(now: float) -> int:
    """Convert Unix seconds to an S2 timestamp."""
    return int(now * 1000)


class Follower(Protocol):
    """A read at the tail."""

    @property
    def expects(self) -> int:
        """The sequence number of the next record that it needs."""

    def keep(self, records: Iterable[Record]) -> None:
        """Keep these records, which begin at that number, because the stream is about to remove some of them."""


class Stream:
    """A sequence of records.  Watchers are called after each append and when the stream is deleted."""

    def __init__(self, name: str, config: StreamConfig, now: float, *, cipher: str | None = None) -> None:
        self.name = name
        self.config = config
        self.created_at = now
        self.cipher = cipher
        self.keys: set[bytes] = set()
        """Digests of the encryption keys used by appends, if the stream has a cipher."""
        self.tail = StreamPosition(0, 0)
        self.fencing_token = ""
        self.is_deleted = False
        self.watchers: set[Callable[[], object]] = set()
        self.followers: WeakSet[Follower] = WeakSet()
        """Reads that have reached the tail."""
        self._records: list[Record] = []
        self._arrivals: list[float] = []
        """The arrival of each record, in Unix seconds."""
        self._empty_since = now

    def __repr__(self) -> str:
        return f"<Stream {self.name}: records {self.first_seq_num} to {self.tail.seq_num}>"

    @property
    def first_seq_num(self) -> int:
        """The sequence number of the first remaining record; the tail's if there is none."""
        return self._records[0].seq_num if self._records else self.tail.seq_num

    def append(self, appended: AppendInput, now: float) -> AppendAck:
        """Append records atomically, and execute the commands among them.

        Raises FencingTokenMismatch, SeqNumMismatch, or InvalidAppend if the limits or the mode forbid a record.
        """
        check_append_input(appended)
        if appended.fencing_token is not None and appended.fencing_token != self.fencing_token:
            raise FencingTokenMismatch(self.fencing_token)
        if appended.match_seq_num is not None and appended.match_seq_num != self.tail.seq_num:
            raise SeqNumMismatch(self.tail.seq_num)
        added = list(self._sequenced(appended.records, milliseconds(now)))
        self._records += added
        self._arrivals += [now] * len(added)
        self.tail = StreamPosition(added[-1].seq_num + 1, added[-1].timestamp)
        if any(isinstance(command_of(record), Trim) for record in added):
            for follower in self.followers:
                follower.keep(self.records_from(follower.expects))
        for record in added:
            self._obey(record, now)
        self._wake()
        return AppendAck(StreamPosition(added[0].seq_num, added[0].timestamp), self.tail, self.tail)

    def _sequenced(self, records: tuple[AppendRecord, ...], now_ms: int) -> Iterator[Record]:
        timestamp = self.tail.timestamp
        for seq_num, record in enumerate(records, self.tail.seq_num):
            timestamp = max(timestamp, self._timestamp(record, now_ms))
            yield Record(seq_num, timestamp, record.headers, record.body)

    def _timestamp(self, record: AppendRecord, now_ms: int) -> int:
        """Return a record's timestamp by the stream's mode.  Earlier records may have later timestamps."""
        if self.config.mode is TimestampingMode.ARRIVAL:
            return now_ms
        if record.timestamp is None:
            if self.config.mode is TimestampingMode.CLIENT_REQUIRE:
                raise InvalidAppend("the stream requires a timestamp for each record")
            return now_ms
        return record.timestamp if self.config.is_uncapped else min(record.timestamp, now_ms)

    def _obey(self, record: Record, now: float) -> None:
        match command_of(record):
            case Fence(token):
                self.fencing_token = token
            case Trim(seq_num):
                # A trim removes no record after itself.
                self._drop_before(min(seq_num, record.seq_num + 1), now)
            case None:
                pass

    # -- removal

    def expire(self, now: float) -> None:
        """Remove the records that have reached the retention age."""
        if self.config.retention_s is not None and self._arrivals:
            before = now - self.config.retention_s
            count = sum(1 for _ in _while_at_most(self._arrivals, before))
            if count:
                empty_at = self._arrivals[count - 1] + self.config.retention_s
                self._drop_before(self._records[0].seq_num + count, empty_at)

    def is_due_for_deletion(self, now: float) -> bool:
        """Return whether the stream has been empty for as long as its configuration allows."""
        wait_s = self.config.delete_on_empty_s
        return wait_s > 0 and not self._records and now >= self._empty_since + wait_s

    def _drop_before(self, seq_num: int, now: float) -> None:
        count = max(0, seq_num - self.first_seq_num)
        if count:
            del self._records[:count], self._arrivals[:count]
            if not self._records:
                self._empty_since = now

    def delete(self) -> None:
        """Delete the stream, which ends its readers."""
        self.is_deleted = True
        self._records.clear()
        self._arrivals.clear()
        self._wake()

    def _wake(self) -> None:
        for watcher in tuple(self.watchers):
            watcher()

    # -- reading

    def seq_num_at(self, timestamp: int) -> int:
        """Return the number of the first record at or after a timestamp; the tail's if there is none."""
        index = bisect_left(self._records, timestamp, key=lambda record: record.timestamp)
        return self._records[index].seq_num if index < len(self._records) else self.tail.seq_num

    def records_from(self, seq_num: int) -> Iterator[Record]:
        """Return the records from a number on, or from the first remaining one."""
        return islice(self._records, max(0, seq_num - self.first_seq_num), None)


def _while_at_most(arrivals: list[float], before: float) -> Iterator[float]:
    for arrival in arrivals:
        if arrival > before:
            return
        yield arrival

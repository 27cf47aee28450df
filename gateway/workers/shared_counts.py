"""Counts of clients that all workers share, so that a limit applies to the gateway and not to each worker.

The table is in the part `common` of the shared memory.  Each key has a *row*.  A key is a client network, a rate limit
of a network, or the gateway as a whole.  A row has two times and, for each place, a count of connections and a count of
live reads.  Each worker writes only the counts of its own place, and reads all of them.

    key      64-bit hash of the key's text; 0 for a free row
    times    of a network, when its ban ends and how long the ban was; of a rate limit, when its bucket will be full
    counts   for each place: connections, live reads

A key belongs to one *bucket* of `_ROWS` rows.  A row is given to a key and changed under the lock of its bucket.  If
the count is far below its limit, a worker counts without the lock.  It does so only in a row in which its own place
already has a count, because no other worker can give such a row to another key.

A row without counts, whose times have passed, is free for another key.  If all rows of a bucket are in use, the bucket
has no room.  For keys that are not in the table, limits then apply to each worker alone.  This happens only with far
more networks than there are buckets.

A worker keeps a lock for a few microseconds.  If it is stopped during this time, the other workers continue without the
lock (`SharedMemory.lock`).  Counts may then be off by one.  Without the lock, a worker uses no free row.  The bucket
then has no room for a key that has no row in use.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

from gateway.workers.shared_memory import SharedMemory

_ROWS: Final = 8
"""Rows of a bucket."""
_HEAD_BYTES: Final = 32
_PLACE_BYTES: Final = 8
_NO_ROW: Final = -1


class Counted(IntEnum):
    """The kinds of clients that a row counts."""

    CONNECTIONS = 0
    LIVE_READS = 1


class SharedCounts:
    """The table as one worker uses it."""

    def __init__(self, shared: SharedMemory, slot: int) -> None:
        self._shared = shared
        self._place = shared.first + slot
        self._first = shared.first
        self._workers = shared.workers
        self._places = shared.places
        self._row_bytes = _HEAD_BYTES + _PLACE_BYTES * shared.places
        self.buckets = len(shared.common) // (self._row_bytes * _ROWS)
        """The number of buckets.  A key belongs to the bucket with the number `key % buckets`."""
        self._row = struct.Struct(f"={2 * shared.places}I")
        """The counts of a row."""
        self._common = shared.common
        self._keys = shared.common.cast("Q")
        self._times = shared.common.cast("d")
        self._counts = shared.common.cast("I")

    def __repr__(self) -> str:
        return f"<SharedCounts of place {self._place}, {self.buckets * _ROWS} rows>"

    def key_of(self, text: str) -> int:
        """Return the key of a text."""
        return self._shared.key_of(text)

    # -- counts

    def total(self, key: int, what: Counted) -> int:
        """Return the count of all workers."""
        row = self._find(key)
        return self._sum(row, what) if row != _NO_ROW else 0

    def of_each(self, key: int, what: Counted) -> tuple[int, ...]:
        """Return the count of each slot's worker."""
        row = self._find(key)
        if row == _NO_ROW:
            return (0,) * self._workers
        counts = self._row.unpack_from(self._common, row * self._row_bytes + _HEAD_BYTES)[what::2]
        return counts[self._first : self._first + self._workers]

    def own(self, key: int, what: Counted) -> int:
        """Return the count of this worker."""
        row = self._find(key)
        return self._counts[self._cell(row, what)] if row != _NO_ROW else 0

    def take(self, key: int, what: Counted, most: int, now: float) -> bool | None:
        """Count one more client at this worker, and return True.  If the count of all workers is already `most`, count
        nothing and return False.

        Returns None if the table has no room for the key.
        """
        if self._take_at_once(key, what, most):
            return True
        is_locked = self._lock(key)
        try:
            row = self._find_or_claim(key, now, is_locked=is_locked)
            if row == _NO_ROW:
                return None
            if self._sum(row, what) >= most:
                return False
            self._counts[self._cell(row, what)] += 1
            return True
        finally:
            if is_locked:
                self._unlock(key)

    def _take_at_once(self, key: int, what: Counted, most: int) -> bool:
        """Count one more client without the lock, if the count is far below the limit.  Returns whether the client is
        counted.

        Several workers may count without the lock at the same moment.  Each worker counts one client, and then reads
        the sum again.  The sum that a worker reads is therefore too small by at most the number of workers.  A worker
        uses the lock unless the sum is further below the limit than this.
        """
        row = self._find(key)
        if row == _NO_ROW:
            return False
        # This is called for each connection, so it repeats the code of other methods.
        base, own = row * self._row_bytes + _HEAD_BYTES, 2 * self._place
        counts = self._row.unpack_from(self._common, base)
        if not (counts[own] or counts[own + 1]) or sum(counts[what::2]) + 2 * self._places > most:
            return False
        at = base // 4 + own + what
        self._counts[at] += 1
        if self._sum(row, what) + self._places <= most:
            return True
        self._counts[at] -= 1
        return False

    def add(self, key: int, what: Counted, by: int, now: float) -> bool:
        """Change this worker's count, without a limit.  Returns False if the table has no room."""
        row = self._find(key)
        if row != _NO_ROW:
            at, counts = (row * self._row_bytes + _HEAD_BYTES) // 4 + 2 * self._place, self._counts
            # No other worker can give the row to another key, because this worker has a count in it.
            if counts[at] or counts[at + 1]:
                counts[at + what] = max(0, counts[at + what] + by)
                return True
        is_locked = self._lock(key)
        try:
            row = self._find_or_claim(key, now, is_locked=is_locked)
            if row == _NO_ROW:
                return False
            at = self._cell(row, what)
            self._counts[at] = max(0, self._counts[at] + by)
            return True
        finally:
            if is_locked:
                self._unlock(key)

    def clear(self) -> None:
        """Set the counts of this slot's worker to 0, because the worker has died.  Only the supervisor calls this,
        before it starts the slot's next worker."""
        first = self._cell(0, Counted.CONNECTIONS)
        for row in self._shared.used(self._shared.common_at + first * 4, self._row_bytes, self.buckets * _ROWS):
            at = first + row * self._row_bytes // 4
            if self._counts[at] or self._counts[at + 1]:
                self._counts[at] = self._counts[at + 1] = 0

    # -- times

    def times(self, key: int) -> tuple[float, float]:
        """Return both times of a key; both are 0 if the key has no row."""
        row = self._find(key)
        if row == _NO_ROW:
            return 0.0, 0.0
        at = row * self._row_bytes // 8
        return self._times[at + 1], self._times[at + 2]

    def set_times(self, key: int, first: float, second: float, now: float) -> bool:
        """Set both times of a key.  Returns False if the table has no room."""
        is_locked = self._lock(key)
        try:
            row = self._find_or_claim(key, now, is_locked=is_locked)
            if row == _NO_ROW:
                return False
            at = row * self._row_bytes // 8
            self._times[at + 1], self._times[at + 2] = first, second
            return True
        finally:
            if is_locked:
                self._unlock(key)

    def advance(self, key: int, seen: float, to: float, now: float) -> bool:
        """Move the first time of a key from `seen` to `to`.  If another worker has moved the time meanwhile, add the
        difference between `seen` and `to` to the present time of the key.  Each worker's used tokens then count.
        Returns False if the table has no room."""
        is_locked = self._lock(key)
        try:
            row = self._find_or_claim(key, now, is_locked=is_locked)
            if row == _NO_ROW:
                return False
            at = row * self._row_bytes // 8 + 1
            present = self._times[at]
            self._times[at] = to if present == seen else max(present, now) + to - max(seen, now)
            return True
        finally:
            if is_locked:
                self._unlock(key)

    # -- rows

    def _sum(self, row: int, what: Counted) -> int:
        return sum(self._row.unpack_from(self._common, row * self._row_bytes + _HEAD_BYTES)[what::2])

    def _cell(self, row: int, what: Counted) -> int:
        return (row * self._row_bytes + _HEAD_BYTES + self._place * _PLACE_BYTES) // 4 + what

    def _find(self, key: int) -> int:
        step, keys = self._row_bytes // 8, self._keys
        first = key % self.buckets * _ROWS
        for row in range(first, first + _ROWS):
            if keys[row * step] == key:
                return row
        return _NO_ROW

    def _find_or_claim(self, key: int, now: float, *, is_locked: bool) -> int:
        """Return the key's row, or give a free row to the key and return it.

        Without the lock of the bucket, no free row is returned.  The worker with the lock may be about to give the same
        row to another key, and the row would then count clients of both keys."""
        found = self._find(key)
        if not is_locked:
            return _NO_ROW if found == _NO_ROW or self._is_free(found, now) else found
        if found != _NO_ROW:
            return found
        first = key % self.buckets * _ROWS
        for row in range(first, first + _ROWS):
            at = row * self._row_bytes // 8
            if not self._keys[at] or self._is_free(row, now):
                self._times[at + 1] = self._times[at + 2] = 0.0
                self._keys[at] = key
                return row
        return _NO_ROW

    def _is_free(self, row: int, now: float) -> bool:
        at = row * self._row_bytes // 8
        if self._times[at + 1] + self._times[at + 2] > now:
            return False
        return not any(self._row.unpack_from(self._common, row * self._row_bytes + _HEAD_BYTES))

    def _lock(self, key: int) -> bool:
        """Lock the key's bucket; return whether `_unlock` must follow."""
        return self._shared.lock(key % self.buckets)

    def _unlock(self, key: int) -> None:
        self._shared.unlock(key % self.buckets)

"""The table of origins that the workers of one gateway share, so that a failing origin is detected once for all
workers.

The table is in the shared memory (`gateway.workers.shared_memory`).  Each origin that a worker uses has a *row*:

    head     the key of the origin's name (0 for a free row), the version of the state, and two copies of the state
    places   for each place: whether its worker uses the origin, how many of its requests wait for an answer, how many
             were answered, and its latest outcomes

The state is the state of the origin's circuit breaker.  Only `gateway.upstream.shared_breaker` knows the format of this
state.  A worker may replace the state only under the lock of the row.  It writes the new state to the copy that is not
in use.  Then it increments the version, which brings this copy into use.  If the worker is killed before, nothing has
changed.

Readers use no lock.  A copy begins with a checksum of its version and state.  The checksum is wrong if the copy was
replaced during the read, or if a processor that reorders writes has shown the version first.  Readers then read again.

Only the worker of a place writes the words of the place, without a lock.  The outcomes are in *buckets* of time.  The
breaker has a *term*, a number that grows when earlier outcomes no longer count.  The key of a bucket contains the term
in which the outcomes were counted.  A new term therefore begins without outcomes.

If a worker dies, its supervisor clears the number of its waiting requests, and the mark that it uses the origin
(`clear`).  The outcomes stay, because they describe the origin, not the worker.

The table is a hash table with open addressing.  The search for an origin begins at the row to which its key hashes, and
ends at the first row with this key, or at a row whose key is 0.  A row that no worker uses keeps its key and state,
because its origin may be used again.  If no row with the key 0 is left, an unused row is given to another origin.

A worker joins an origin under the lock of the table.  If it cannot get the lock, or if the table has no room, the
worker uses a breaker of its own for the origin, and tries to join later (`gateway.upstream.shared_breaker`).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from gateway.workers.shared_memory import ORIGIN_BYTES, ORIGINS, SharedMemory

STATE_BYTES: Final = 120
_CHECKSUM: Final = struct.Struct("=Q")
_COPY_BYTES: Final = _CHECKSUM.size + STATE_BYTES
_READS: Final = 100
"""The number of attempts to read a state whose checksum is wrong."""
_JOIN_TRIES: Final = 20_000
"""The number of attempts to take the lock of the table.  All attempts together take a tenth of a second."""
_FURTHER_JOIN_TRIES: Final = 1_000
"""The number of attempts for further origins, once the lock was not free in time."""
BUCKETS: Final = 10
"""The number of buckets of a place."""
_KEY, _VERSION, _COPIES = range(3)
"""The words of a head."""
_USES, _WAITING, _ANSWERED, _OUTCOMES = range(4)
"""The words of a place.  The buckets follow, each of three words: key, successes and failures."""
_WORDS: Final = ORIGIN_BYTES // 8
_BUCKET: Final = struct.Struct("=Qdd")
_NUMBERS: Final = 1 << 32
"""The key of a bucket is the term times this number, plus the number of the bucket."""


class OriginRow:
    """The row of one origin, as one worker uses it."""

    __slots__ = (
        "_answered",
        "_at",
        "_copies",
        "_counts",
        "_outcomes",
        "_own",
        "_shared",
        "_uses",
        "_waiting",
        "_words",
    )

    def __init__(self, shared: SharedMemory, slot: int, row: int) -> None:
        self._shared = shared
        self._words = words = shared.words
        self._counts = shared.bytes.cast("d")
        self._at = at = _row_word(shared, row)
        """The index of the row's first word."""
        copies = shared.bytes[(at + _COPIES) * 8 :]
        self._copies = (copies[:_COPY_BYTES], copies[_COPY_BYTES : 2 * _COPY_BYTES])
        places = at + _WORDS
        self._own = places + (shared.first + slot) * _WORDS
        """The index of the first word of this worker's place."""
        end = places + shared.places * _WORDS
        self._uses = words[places + _USES : end : _WORDS]
        self._waiting = words[places + _WAITING : end : _WORDS]
        self._answered = words[places + _ANSWERED : end : _WORDS]
        """This value, and the two before it, have one word for each place."""
        self._outcomes = [
            shared.bytes[(place + _OUTCOMES) * 8 :][: BUCKETS * _BUCKET.size] for place in range(places, end, _WORDS)
        ]
        """The buckets of each place."""

    def __repr__(self) -> str:
        return f"<OriginRow version {self.version}, {sum(self._uses)} workers, {sum(self._waiting)} waiting>"

    def leave(self) -> None:
        """Record that this worker no longer uses the origin."""
        self._words[self._own + _WAITING] = self._words[self._own + _USES] = 0

    # -- the state

    @property
    def version(self) -> int:
        """A number that changes with each change of the state; 0 if there is no state."""
        return self._words[self._at + _VERSION]

    def read(self) -> tuple[int, bytes] | None:
        """Return the version and the state; None if the checksum was wrong at each of `_READS` attempts."""
        for _ in range(_READS):
            version = self.version
            copy = bytes(self._copies[version % 2])
            state = copy[_CHECKSUM.size :]
            if copy == _checked(version, state):
                return version, state
        return None

    def write(self, state: bytes) -> int:
        """Replace the state, and return its version.  Call this only with the lock."""
        version = self.version + 1
        self._copies[version % 2][:] = _checked(version, state)
        self._words[self._at + _VERSION] = version
        return version

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Lock the row.  Yields False if the lock was not free in time."""
        byte = self._at * 8
        is_locked = self._shared.lock(byte)
        try:
            yield is_locked
        finally:
            if is_locked:
                self._shared.unlock(byte)

    # -- requests

    def set_waiting(self, count: int) -> None:
        """Record how many of this worker's requests wait for an answer."""
        self._words[self._own + _WAITING] = count

    def waiting_elsewhere(self) -> int:
        """Return how many requests of other workers wait for an answer."""
        return sum(self._waiting) - self._words[self._own + _WAITING]

    def answered(self) -> None:
        """Count a request of this worker that the origin has answered."""
        self._words[self._own + _ANSWERED] += 1

    def answers(self) -> int:
        """Return how many requests of all workers the origin has answered."""
        return sum(self._answered)

    # -- outcomes

    def count(self, term: int, number: int, successes: float, failures: float) -> None:
        """Count outcomes of this worker in the bucket with this number."""
        at, key = self._own + _OUTCOMES + number % BUCKETS * 3, term * _NUMBERS + number % _NUMBERS
        words, counts = self._words, self._counts
        if words[at] != key:
            counts[at + 1] = counts[at + 2] = 0.0
            words[at] = key
        counts[at + 1] += successes
        counts[at + 2] += failures

    def take_back(self, term: int) -> None:
        """Subtract one success from the latest bucket of this worker that has one."""
        at = self._own + _OUTCOMES
        words, counts = self._words, self._counts
        buckets = range(at, at + BUCKETS * 3, 3)
        found = [at for at in buckets if words[at] // _NUMBERS == term and counts[at + 1] >= 1]
        if found:
            counts[max(found, key=words.__getitem__) + 1] -= 1

    def counts(self, term: int, number: int) -> tuple[float, float]:
        """Return the successes and failures of all workers in this bucket and the `BUCKETS` - 1 buckets before it."""
        last = term * _NUMBERS + number % _NUMBERS
        successes = failures = 0.0
        for outcomes in self._outcomes:
            for key, good, bad in _BUCKET.iter_unpack(outcomes):
                if last - BUCKETS < key <= last:
                    successes += good
                    failures += bad
        return successes, failures


class SharedOrigins:
    """The table, as one worker uses it."""

    def __init__(self, shared: SharedMemory, slot: int) -> None:
        self._shared = shared
        self._slot = slot
        self._tries = _JOIN_TRIES

    def __repr__(self) -> str:
        return f"<SharedOrigins of slot {self._slot}, {sum(map(bool, self._keys()))} rows>"

    def join(self, name: str) -> OriginRow | None:
        """Record that this worker uses an origin, and return its row.

        Returns None if the table has no room, or if its lock was not free in time.
        """
        shared, key = self._shared, self._shared.key_of(name)
        byte = shared.origins_at + 1
        if not shared.lock(byte, self._tries):
            # The worker with the lock is stopped, perhaps for long.  Make fewer attempts for further origins, because
            # the start must not take minutes if there are many origins.
            self._tries = _FURTHER_JOIN_TRIES
            return None
        try:
            row = self._find_or_claim(key)
            if row is None:
                return None
            shared.words[self._place_word(row) + _USES] = 1
        finally:
            shared.unlock(byte)
        return OriginRow(shared, self._slot, row)

    def clear(self) -> None:
        """Forget the waiting requests of this slot's worker, and the origins that it uses, because the worker has died.
        Only the supervisor calls this, before it starts the slot's next worker."""
        shared = self._shared
        words, step = shared.words, _row_words(shared)
        first = self._place_word(0)
        # The words of a place begin at a multiple of 64 bytes, so `_USES` and `_WAITING` are in one page.
        for row in shared.used(first * 8, step * 8, ORIGINS):
            at = first + row * step
            if words[at + _USES] or words[at + _WAITING]:
                words[at + _WAITING] = words[at + _USES] = 0

    def _keys(self) -> list[int]:
        """Return the keys of all rows."""
        shared = self._shared
        first, step = shared.origins_at // 8, _row_words(shared)
        return shared.words[first + _KEY : first + ORIGINS * step : step].tolist()

    def _find_or_claim(self, key: int) -> int | None:
        """Return the key's row, or give a row to the key and return it.  Call this only with the lock of the table."""
        shared, words = self._shared, self._shared.words
        for number in range(key, key + ORIGINS):
            row = number % ORIGINS
            at = _row_word(shared, row) + _KEY
            if not words[at]:
                words[at] = key
            if words[at] == key:
                return row
        for row in range(ORIGINS):
            at, end = _row_word(shared, row), _row_word(shared, row + 1)
            if not any(words[at + _WORDS + _USES : end : _WORDS]):
                # Replace the key last, and never write 0 there.  If this worker is killed before it writes the new key,
                # the search still finds all other keys.
                rest = slice((at + _KEY + 1) * 8, end * 8)
                shared.bytes[rest] = bytes(rest.stop - rest.start)
                words[at + _KEY] = key
                return row
        return None

    def _place_word(self, row: int) -> int:
        return _row_word(self._shared, row) + (1 + self._shared.first + self._slot) * _WORDS


def _checked(version: int, state: bytes) -> bytes:
    """Return a copy of a state: its checksum and the state."""
    return _CHECKSUM.pack(zlib.crc32(state, version & 0xFFFF_FFFF)) + state


def _row_words(shared: SharedMemory) -> int:
    return _WORDS * (1 + shared.places)


def _row_word(shared: SharedMemory, row: int) -> int:
    """Return the index in `words` of a row's first word."""
    return shared.origins_at // 8 + row * _row_words(shared)

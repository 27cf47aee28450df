"""The memory that the workers of one gateway share.

The supervisor makes this memory before it forks the workers.  Each worker writes only the values of its own *place*,
and reads all places.  A value of eight aligned bytes is written and read whole.  Most values therefore need no lock.

Each worker has one place.  During an upgrade, the workers of both versions share one memory: the new supervisor
attaches to it and uses places that the old supervisor does not use.  There are therefore at least twice as many places
as workers.  A supervisor numbers its own places from 0.  These numbers are its *slots*.

    header      magic, version, places, epoch, secret, name
    places      for each place: state, generation, process, how many records its write log has, digest of orders, five
                words about removals (`gateway.workers.removals`), the supervisor's process, and how many versions have
                taken the place over
    cells       for each path hash, one cell for each place (`gateway.workers.write_log`)
    records     for each place, the latest records of its write log
    common      counts of clients (`gateway.workers.shared_counts`)
    origins     the states of origins (`gateway.workers.shared_origins`)
    counts      for each path hash and each place, two counts of writes and the number of an append, and for each place
                a count of appends (`gateway.workers.write_counts`)
    removals    for each path hash and each place, two counts of removals (`gateway.workers.removals`)

Some changes concern several values at once.  They are made under POSIX record locks of the memory's file (`lock`).  The
kernel releases the locks of a process that dies.

A page occupies memory from its first use, and reading a page is a use.  Code that reads a whole table therefore skips
the pages that were never used (`used`).
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Final

MAGIC: Final = 0x4447_776F_726B_6572
VERSION: Final = 7
LEAST_PLACES: Final = 8
MOST_WORKERS: Final = 256

HASHES: Final = 1 << 16
"""The number of different path hashes.  Each has its own cells, which all paths with this hash share."""
RECORD_BYTES: Final = 512
RECORDS: Final = 4_096
"""The number of records that each place keeps."""
COMMON_BYTES: Final = 1 << 19
"""The bytes for counts of clients, for each place."""
ORIGINS: Final = 1_024
"""The number of rows for origins."""
ORIGIN_BYTES: Final = 320
"""The bytes for the breaker in an origin's row.  The row has the same number of bytes for each place, too."""

_TRIES: Final = 1_000
"""The number of attempts to take a lock.  All attempts together take some milliseconds."""
_HEADER: Final = struct.Struct("=QQQQ16s8s")
_PAGE: Final = 4_096
_EPOCH: Final = 3
_PLACE_WORDS: Final = 16
_TENURE_BITS: Final = 16
"""The bits of a tenure that have the number of the place."""
_STATE, _GENERATION, _PROCESS, RECORDED, _ORDERS, REMOVED, PURGES, DONE_REMOVED, DONE_PURGES, OPENED = range(10)
_SUPERVISOR, _TAKEN = 10, 11
"""The words of a place.  The supervisor writes the first three and the last two, the worker writes the others."""


class SlotState(IntEnum):
    """The state of a slot's worker, as the supervisor sees it."""

    DEAD = 0
    STARTING = 1
    SERVING = 2
    DRAINING = 3


_OWNING: Final = (SlotState.SERVING, SlotState.DRAINING)


class SharedMemory:
    """The shared memory, as one supervisor and its workers see it."""

    def __init__(self, descriptor: int, workers: int, first: int, places: int) -> None:
        self.descriptor = descriptor
        """The memory's file.  In an upgrade, the next supervisor maps the same file."""
        self.workers = workers
        self.first = first
        """The place of slot 0."""
        self.places = places
        self.raw = mmap.mmap(descriptor, _size(places))
        """All bytes of the memory.  A slice of this object is a copy."""
        self.bytes = memoryview(self.raw)
        self.words = self.bytes.cast("Q")
        self.cells_at = _PAGE + _page_up(places * _PLACE_WORDS * 8)
        """Where the cells begin."""
        self.records_at = self.cells_at + HASHES * places * 8
        self.common_at = self.records_at + places * RECORDS * RECORD_BYTES
        """Where the counts of clients begin."""
        self.origins_at = self.common_at + places * COMMON_BYTES
        """Where the rows of origins begin."""
        self.counts_at = self.origins_at + ORIGINS * ORIGIN_BYTES * (1 + places)
        """Where the counts of writes begin."""
        self.removals_at = self.counts_at + (3 * HASHES + 1) * 8 * places
        """Where the counts of removals begin."""
        self.secret: bytes
        """The key of the path hash."""
        *_, self.secret, name = _HEADER.unpack_from(self.raw)
        self.name: Final = name.hex()
        """A random name of the memory: 16 hexadecimal digits."""
        self.counts_writes = False
        """Whether the supervisor counts the writes of workers that have died, because the gateway is a member of a
        fleet."""

    @classmethod
    def create(cls, workers: int, secret: bytes | None = None) -> SharedMemory:
        """Make the memory for a supervisor with this number of workers.  `secret` is the key of the path hash (16
        bytes); with None, a random key is made."""
        _check(workers)
        places = max(LEAST_PLACES, 2 * workers)
        descriptor = os.memfd_create("durable-gateway", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, _size(places))
        header = _HEADER.pack(MAGIC, VERSION, places, 0, secret or os.urandom(16), os.urandom(8))
        os.pwrite(descriptor, header, 0)
        return cls(descriptor, workers, 0, places)

    @classmethod
    def attach(
        cls, descriptor: int, workers: int, secret: bytes | None = None, taken: Sequence[int] = (0, 0)
    ) -> SharedMemory | None:
        """Return the memory of a running gateway, for a new supervisor with its own slots.

        `taken` has the first place of the running gateway and the number of its places.  These places stay in use even
        if their workers are dead for the moment.  Returns None if the memory has another layout or too few free places,
        or if `secret` is given and is not the key of the memory.
        """
        _check(workers)
        header = os.pread(descriptor, _HEADER.size, 0)
        if len(header) < _HEADER.size:
            return None
        magic, version, places, _, its_secret, _ = _HEADER.unpack(header)
        if (magic, version) != (MAGIC, VERSION) or os.fstat(descriptor).st_size != _size(places):
            return None
        if secret not in (None, its_secret):
            return None
        old = cls(descriptor, workers, 0, places)
        used = [bool(old.words[old.place_word(place, _STATE)]) for place in range(places)]
        begin, count = taken
        used[begin : begin + count] = [True] * count
        for first in range(places - workers + 1):
            if not any(used[first : first + workers]):
                old.first = first
                for place in range(first, first + workers):
                    old.words[old.place_word(place, _TAKEN)] += 1
                    old.words[old.place_word(place, OPENED)] = 0
                return old
        return None

    def __repr__(self) -> str:
        states = " ".join(f"{slot}:{self.state(slot).name.lower()}" for slot in range(self.workers))
        return f"<SharedMemory {states}>"

    def place_word(self, place: int, word: int) -> int:
        """Return the index in `words` of a word of a place."""
        return (_PAGE >> 3) + place * _PLACE_WORDS + word

    def tenure(self, place: int) -> int:
        """Return a number that identifies a place for as long as one version uses it."""
        return self.words[self.place_word(place, _TAKEN)] << _TENURE_BITS | place

    def place_of(self, tenure: int) -> int | None:
        """Return the place that a number identifies; None if another version has taken the place over since."""
        place = tenure & ((1 << _TENURE_BITS) - 1)
        return place if place < self.places and self.tenure(place) == tenure else None

    def left_slots(self) -> list[int]:
        """Return the places of other versions whose worker and supervisor have ended, and whose supervisor has not
        recorded the worker's end.  They are numbered as slots of this version.

        Such a version was killed, or has failed at its start.  If another process has the number of one of the two
        meanwhile, the place stays taken.
        """
        own = range(self.first, self.first + self.workers)
        others = (place for place in range(self.places) if place not in own)
        return [place - self.first for place in others if self._is_left(place)]

    def _is_left(self, place: int) -> bool:
        state, pid, supervisor = (self.words[self.place_word(place, word)] for word in (_STATE, _PROCESS, _SUPERVISOR))
        # Without a process, the supervisor has ended before it has forked the worker.
        return state != SlotState.DEAD and not _runs(supervisor) and not (pid and _runs(pid))

    def key_of(self, text: str) -> int:
        """Return a text's key in the tables of this memory, which is never 0."""
        digest = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8, key=self.secret).digest()
        return int.from_bytes(digest, "little") or 1

    # -- slots; only the supervisor writes them

    def set_slot(self, slot: int, state: SlotState, generation: int, pid: int) -> None:
        """Record the state, the generation and the pid of a slot's worker."""
        at, words = self.place_word(self.first + slot, 0), self.words
        words[at + _GENERATION], words[at + _PROCESS], words[at + _SUPERVISOR] = generation, pid, os.getpid()
        words[at + _STATE] = state
        words[_EPOCH] += 1

    def record_process(self, slot: int) -> None:
        """Record this process as that of the slot's worker.  The worker calls this first, because its supervisor may be
        killed before it has recorded the process."""
        self.words[self.place_word(self.first + slot, _PROCESS)] = os.getpid()

    @property
    def epoch(self) -> int:
        """A number that changes with each change of a slot."""
        return self.words[_EPOCH]

    def state(self, slot: int) -> SlotState:
        """Return the state of a slot's worker."""
        return SlotState(self.words[self.place_word(self.first + slot, _STATE)])

    def generation(self, slot: int) -> int:
        """Return the number of workers that the slot has had, including the present worker."""
        return self.words[self.place_word(self.first + slot, _GENERATION)]

    def pid(self, slot: int) -> int:
        """Return the pid of the slot's worker."""
        return self.words[self.place_word(self.first + slot, _PROCESS)]

    def orders(self, slot: int) -> str:
        """Return the digest of the purges and revocations that the slot's worker knows: 16 hexadecimal digits."""
        return f"{self.words[self.place_word(self.first + slot, _ORDERS)]:016x}"

    def set_orders(self, slot: int, digest: str) -> None:
        """Record the digest of the purges and revocations that the slot's worker knows.  Only that worker calls
        this."""
        self.words[self.place_word(self.first + slot, _ORDERS)] = int(digest, 16)

    def owning(self) -> tuple[int, ...]:
        """Return the slots whose workers own streams.  All workers drain together, and each one owns its streams until
        it ends."""
        return tuple(slot for slot in range(self.workers) if self.state(slot) in _OWNING)

    def serving(self) -> tuple[int, ...]:
        """Return the slots whose workers serve."""
        return tuple(slot for slot in range(self.workers) if self.state(slot) is SlotState.SERVING)

    @property
    def common(self) -> memoryview:
        """The part of the memory with the counts of clients."""
        return self.bytes[self.common_at : self.common_at + self.places * COMMON_BYTES]

    def used(self, at: int, step: int, count: int) -> Iterator[int]:
        """Yield the indices of the values that may have been written.  All other values are 0.

        There are `count` values of eight aligned bytes.  The first value begins at the byte `at`, and each further
        value begins `step` bytes after the value before it.
        """
        end = at + count * step
        for first, last in self._used_parts(at, end):
            yield from range(-((at - first) // step), min(count, -((at - last) // step)))

    def _used_parts(self, at: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the beginning and the end of each run of used pages from `at` on, up to the first run that ends at
        `end` or later."""
        while at < end:
            try:
                first = os.lseek(self.descriptor, at, os.SEEK_DATA)
                last = os.lseek(self.descriptor, first, os.SEEK_HOLE)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    # This kernel does not report which pages are used, so all pages count as used.
                    yield at, end
                return
            yield first, last
            at = last

    # -- locks

    def lock(self, byte: int, tries: int = _TRIES) -> bool:
        """Lock this byte of the file.  Returns False if the lock was not free in time.

        If a worker is stopped while it has the lock, the other workers must continue without the lock.
        """
        for _ in range(tries):
            try:
                fcntl.lockf(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
            except BlockingIOError:
                os.sched_yield()
            else:
                return True
        return False

    def unlock(self, byte: int) -> None:
        """Release a lock."""
        fcntl.lockf(self.descriptor, fcntl.LOCK_UN, 1, byte)


def _check(workers: int) -> None:
    if not 1 <= workers <= MOST_WORKERS:
        raise ValueError(f"{workers} workers; from 1 to {MOST_WORKERS} are possible")


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except ProcessLookupError:
        return False
    except OSError:
        # It belongs to another user, or there is no /proc.
        return True
    # In a container, nobody may have asked for the status of a process that has ended.
    return fields[:1] not in ([b"Z"], [b"X"])


def _page_up(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


def _size(places: int) -> int:
    each = (6 * HASHES + 1) * 8 + RECORDS * RECORD_BYTES + COMMON_BYTES
    return _PAGE + _page_up(places * _PLACE_WORDS * 8) + places * each + ORIGINS * ORIGIN_BYTES * (1 + places)

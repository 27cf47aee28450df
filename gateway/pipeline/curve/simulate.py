"""Simulate the gateway's tape store without its bytes, to find the hit ratios of an eviction policy.

The gateway evicts whole tapes, and its policies count *uses*: all requests for a tape within `USE_S` seconds are one
use.  The reads are replayed through the gateway's own policies (`gateway.tape.eviction`).  The accounting follows
`gateway.tape.store`:

- A tape is charged when it is opened.  Its bytes and offsets are charged when they are stored.
- Other tapes are evicted before blocks of the tape that is being written.
- A body that is too large for the cache is not stored.

`copies` simulates coded bodies and remembered answers, which take a part of the budget.  Two effects are not simulated:
live readers keep the record of an evicted tape, and an origin may send more bytes than were missing.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gateway.pipeline.curve.copies import Copies
from gateway.tape.block import SEAL_BYTES
from gateway.tape.costs import BODY_SHARE, BODY_USUAL_BYTES, USUAL_COST
from gateway.tape.eviction import POLICIES, USE_S, Eviction

USE_US: Final = int(USE_S * 1_000_000)


class Read(NamedTuple):
    """Reads of the same bytes of a tape, within one use of the tape."""

    at: int
    """The time of the reads in Unix microseconds."""
    tape: int
    low: int
    high: int
    cost_per_byte: float
    """Cost of one byte on the tape, including the cost of the offsets among the bytes."""
    times: int
    """Number of reads.  The first one fetches missing bytes for all."""
    counted: int
    """Number of catch-up reads.  Only they count as hits or misses."""
    plain: int = 0
    """Bytes sent without coding to a reader that found them in the cache; 0 if there was no such reader."""
    gzip: int = 0
    """Bytes sent to a reader in gzip."""
    br: int = 0
    """Bytes sent to a reader in br."""
    zstd: int = 0
    """Bytes sent to a reader in zstd."""
    is_alone: bool = False
    """Whether the reads needed no statement of the origin: none of them made the gateway ask for the tail."""


@dataclass(slots=True)
class Missed:
    """The misses of one cache, in reads and bytes."""

    reads: int = 0
    bytes: int = 0


@dataclass(slots=True)
class _Tape:
    """The part of one tape in the cache."""

    used_at: int
    cost: float
    runs: list[tuple[int, int]] = field(default_factory=list)
    """The ranges of stored bytes, sorted and not adjacent."""
    offsets: set[int] = field(default_factory=set)
    """Positions of the offsets on the tape."""
    live: list[tuple[int, int]] = field(default_factory=list)
    """Ranges that live readers were sent.  In these ranges the tape has the offset of each append."""


class MiniatureStore:
    """A simulated tape store: it has the accounting of the gateway's, but no bytes."""

    def __init__(self, policy: str, budget_bytes: float, caches: float = 1.0, tape_cost: float = USUAL_COST) -> None:
        self.cost = 0.0
        self.lent = 0
        self._budget = budget_bytes
        # A simulated body has its real size, although the budget is scaled.  The limit on a body is therefore computed
        # from the cache of one gateway.
        self._largest = min(budget_bytes / caches / BODY_SHARE, BODY_USUAL_BYTES)
        self._tape_cost = tape_cost
        self._copies = Copies(self, budget_bytes, caches)
        self._eviction: Eviction[int] = POLICIES[policy]()
        self._tapes: dict[int, _Tape] = {}

    def read(self, read: Read) -> int:
        """Replay one read; return the number of its bytes that were missing."""
        # Millions of reads are replayed, so this method reads each field once and avoids calls without effect.
        at, key, low, high, cost_per_byte, times, counted, plain, gzip, br, zstd, is_alone = read
        tape = self._tapes.get(key)
        if tape is None:
            tape = self._tapes[key] = _Tape(at, self._tape_cost)
            self._eviction.admit(key)
            self.cost += self._tape_cost
            if self.cost + self.lent > self._budget:
                self._make_room(key, tape, cost_per_byte)
        elif at - tape.used_at >= USE_US:
            tape.used_at = at
            self._eviction.touch(key)
        runs, offsets = tape.runs, tape.offsets
        missing = new = _missing(runs, low, high) if runs else high - low
        if high > low and low not in offsets and not _has(tape.live, low):
            # Offsets are opaque.  The gateway cannot tell which of its stored bytes follow an offset that is not on
            # the tape, so it fetches all.  It then stores some bytes twice, unless the read ends at a known offset.
            missing = high - low
            if new or not (high in offsets or _has(tape.live, high)):
                new = missing
        if new > self._largest:
            if not runs:
                self._eviction.forget(key)
                self.cost -= self._tapes.pop(key).cost
            return missing
        offsets.add(low)
        offsets.add(high)
        if counted < times:
            _store(tape.live, low, high)
        if new:
            _store(runs, low, high)
            cost = new * cost_per_byte
            tape.cost += cost
            self.cost += cost
            self._eviction.admit(key)
            if self.cost + self.lent > self._budget:
                self._make_room(key, tape, cost_per_byte)
        if plain or gzip or br or zstd:
            is_hit = is_alone and (not missing or times > 1)
            self._copies.use(key, low, high, (plain, gzip, br, zstd), is_hit=is_hit)
        return missing

    def lend(self, size: int, tape: int) -> bool:
        """Make room for `size` bytes that were made from a tape; like `TapeStore.lend`."""
        if self._tapes[tape].cost + self.lent + size > self._budget:
            return False
        self.lent += size
        self._make_room(tape, None, 0)
        if self.cost + self.lent > self._budget:
            self.lent -= size
            return False
        return True

    def take_back(self, size: int) -> None:
        """Return lent bytes; like `TapeStore.take_back`."""
        self.lent -= size

    def _make_room(self, key: int, tape: _Tape | None, cost_per_byte: float) -> None:
        """Evict other tapes, then, if `tape` is given, blocks from its beginning."""
        while self.cost + self.lent > self._budget:
            victim = self._eviction.victim(key)
            if victim is not None:
                self.cost -= self._tapes.pop(victim).cost
                self._copies.forget(victim)
                continue
            freed = _drop_oldest(tape.runs) * cost_per_byte if tape is not None else 0
            if tape is None or not freed:
                return
            tape.cost -= freed
            self.cost -= freed
            self._copies.forget(key)


def play(
    policy: str, budget_bytes: float, reads: Iterable[Read], caches: float = 1.0, tape_cost: float = USUAL_COST
) -> Missed:
    """Replay reads, which are in order of time, through a store with this budget; return its misses.

    The store represents the caches of `caches` gateways.  This number is below one if the reads are a small sample.
    `tape_cost` is charged for each tape in addition to its bytes and offsets.
    """
    store = MiniatureStore(policy, budget_bytes, caches, tape_cost)
    missed = Missed()
    for read in reads:
        missing = store.read(read)
        if missing and read.counted:
            missed.reads += 1
            missed.bytes += missing
    return missed


def _has(runs: list[tuple[int, int]], position: int) -> bool:
    """Whether the position is in one of the ranges, or at its end."""
    if not runs or position < runs[0][0]:
        return False
    return runs[bisect_right(runs, (position, sys.maxsize)) - 1][1] >= position


def _missing(runs: list[tuple[int, int]], low: int, high: int) -> int:
    """Return the number of bytes between `low` and `high` that no range contains."""
    missing = high - low
    first = max(0, bisect_right(runs, (low, sys.maxsize)) - 1)
    for begin, end in runs[first:] if first else runs:
        if begin >= high:
            break
        if end > low:
            missing -= min(end, high) - max(begin, low)
    return missing


def _store(runs: list[tuple[int, int]], low: int, high: int) -> None:
    """Add the range and merge it with the ranges that it touches."""
    if not runs or runs[-1][1] < low:
        runs.append((low, high))
        return
    first = bisect_left(runs, (low,))
    if first and runs[first - 1][1] >= low:
        first -= 1
    last = bisect_right(runs, (high, sys.maxsize))
    if first < last:
        low, high = min(low, runs[first][0]), max(high, runs[last - 1][1])
    runs[first:last] = [(low, high)]


def _drop_oldest(runs: list[tuple[int, int]]) -> int:
    """Drop the first block of the tape; return the number of its bytes."""
    if not runs:
        return 0
    begin, end = runs[0]
    kept = min(begin + SEAL_BYTES, end)
    runs[:1] = [(kept, end)] if kept < end else []
    return kept - begin

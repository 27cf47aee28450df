"""Hit ratios of the gateway's own eviction policies, from a miniature of its tape store.

The gateway evicts whole tapes, and its policies count *uses*, not requests.  So the reads are replayed through the
policies themselves (`gateway.tape.eviction`), with the accounting of `gateway.tape.store`: a tape is charged when it is
opened, its bytes and offsets when they are stored, other tapes are evicted before its own blocks, and requests within
`USE_S` are one use.

Not modelled: live readers that keep the record of an evicted tape, coded bodies for which the gateway may lend part of
the budget, and bytes that an origin sends beyond the missing ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gateway.tape.block import SEAL_BYTES
from gateway.tape.costs import EMPTY_COST
from gateway.tape.eviction import POLICIES, USE_S, Eviction

USE_US: Final = int(USE_S * 1_000_000)


class Read(NamedTuple):
    """Reads of one run of a tape's bytes, within one use of it."""

    at: int
    """Microseconds."""
    tape: int
    low: int
    high: int
    cost_per_byte: float
    """Cost of one byte on the tape; it includes the offsets within the run."""
    times: int
    """Number of reads.  They request the same bytes within `USE_S`, so the first one fetches them for all."""
    counted: int
    """Number of counted reads."""


@dataclass(slots=True)
class Missed:
    """Misses of one cache, in reads and bytes."""

    reads: int = 0
    bytes: int = 0


@dataclass(slots=True)
class _Tape:
    """The part of one tape in the cache."""

    used_at: int
    runs: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of bytes, sorted, not adjacent."""
    cost: float = EMPTY_COST


class MiniatureStore:
    """The tape store's accounting, without the bytes."""

    def __init__(self, policy: str, budget_bytes: float) -> None:
        self.cost = 0.0
        self._budget = budget_bytes
        self._eviction: Eviction[int] = POLICIES[policy]()
        self._tapes: dict[int, _Tape] = {}

    def read(self, read: Read) -> int:
        """Replay one read; return the number of its bytes that were missing."""
        key = read.tape
        tape = self._tapes.get(key)
        if tape is None:
            tape = self._tapes[key] = _Tape(read.at)
            self._eviction.admit(key)
            self.cost += EMPTY_COST
            self._make_room(key, tape, read.cost_per_byte)
        elif read.at - tape.used_at >= USE_US:
            tape.used_at = read.at
            self._eviction.touch(key)
        missing = _missing(tape.runs, read.low, read.high)
        if missing:
            _store(tape.runs, read.low, read.high)
            cost = missing * read.cost_per_byte
            tape.cost += cost
            self.cost += cost
            self._eviction.admit(key)
            self._make_room(key, tape, read.cost_per_byte)
        return missing

    def _make_room(self, key: int, tape: _Tape, cost_per_byte: float) -> None:
        while self.cost > self._budget:
            victim = self._eviction.victim(key)
            if victim is not None:
                self.cost -= self._tapes.pop(victim).cost
                continue
            freed = _drop_oldest(tape.runs) * cost_per_byte
            if not freed:
                return
            tape.cost -= freed
            self.cost -= freed


def play(policy: str, budget_bytes: float, reads: Iterable[Read]) -> Missed:
    """Replay reads, in order of time, through a store with this budget; return its misses."""
    store = MiniatureStore(policy, budget_bytes)
    missed = Missed()
    for read in reads:
        missing = store.read(read)
        if missing and read.counted:
            missed.reads += 1
            missed.bytes += missing
    return missed


def _missing(runs: list[tuple[int, int]], low: int, high: int) -> int:
    """Number of bytes between `low` and `high` outside all runs."""
    missing = high - low
    for begin, end in runs:
        if begin < high and end > low:
            missing -= min(end, high) - max(begin, low)
    return missing


def _store(runs: list[tuple[int, int]], low: int, high: int) -> None:
    """Add the range and merge it with the ranges that it touches."""
    apart = []
    for begin, end in runs:
        if end < low or begin > high:
            apart.append((begin, end))
        else:
            low, high = min(low, begin), max(high, end)
    apart.append((low, high))
    apart.sort()
    runs[:] = apart


def _drop_oldest(runs: list[tuple[int, int]]) -> int:
    """Drop the first block, of the tape's block size; return the number of its bytes."""
    if not runs:
        return 0
    begin, end = runs[0]
    kept = min(begin + SEAL_BYTES, end)
    runs[:1] = [(kept, end)] if kept < end else []
    return kept - begin

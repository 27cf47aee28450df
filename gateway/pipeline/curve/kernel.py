"""Stack distances: how large a least-recently-used cache must be for each reference to be a hit, for all sizes at once.

A reference to a block is a hit if and only if the cache holds that block and all blocks referenced since its last
reference (Mattson et al., 1970).  `distances` gives each reference that size in bytes, exactly, in one pass.

It is the sum of the references since the previous one to the same block, minus those whose own predecessor also lies in
between.  The latter are earlier references with a later predecessor, so they are weighted inversions.  They are counted
from the most significant bit down, as a wavelet tree is built, with all nodes of a level in one numpy operation.  A
million references take about a second.

`missed` turns distances into counts.  Some references are not counted (a live read fills the cache but does not query
it), and some bytes of a reference may never have been requested before, so no cache can have them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

NEVER: Final = -1
"""The distance of the first reference to a block."""


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """References in order of time; each array has one element per reference.

    `lows` and `highs` are the positions in the block where a reference begins and ends, in bytes; `sizes` are the costs
    of the blocks.
    """

    keys: Ints
    sizes: Ints
    lows: Ints
    highs: Ints
    is_counted: Flags

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def references(self) -> int:
        """Number of counted references."""
        return int(self.is_counted.sum())

    @property
    def bytes(self) -> int:
        """Bytes requested by counted references."""
        return int((self.highs - self.lows)[self.is_counted].sum())


@dataclass(frozen=True, slots=True, eq=False)
class Misses:
    """Misses among the counted references of a sample, or of a part of it, for each of several cache sizes."""

    references: Ints
    """References of which bytes were not in the cache."""
    bytes: Ints
    keys: int
    """Number of blocks in the sample."""


def previous(keys: Ints) -> Ints:
    """The index of the previous reference to the same key, for each reference; NEVER if there is none."""
    order = np.argsort(keys, kind="stable")
    same = keys[order[1:]] == keys[order[:-1]]
    out = np.full(len(keys), NEVER, np.int64)
    out[order[1:][same]] = order[:-1][same]
    return out


def distances(keys: Ints, sizes: Ints) -> Ints:
    """The bytes of all distinct blocks since the previous reference to the same key, for each reference; that block is
    included.  NEVER for the first reference to a key."""
    before = previous(keys)
    again = np.flatnonzero(before != NEVER)
    target = before[again]
    # Predecessors are distinct, so the number of earlier ones is a rank, which needs no sort.
    is_target = np.zeros(len(keys), np.int64)
    is_target[target] = 1
    rank = np.cumsum(is_target)[target] - 1
    through = np.cumsum(sizes)
    out = np.full(len(keys), NEVER, np.int64)
    out[again] = through[again] - through[target] - _greater_before(rank, sizes[again])
    return out


def _greater_before(rank: Ints, weight: Ints) -> Ints:
    """The total weight of earlier elements with a higher rank, for each element of a permutation."""
    count = len(rank)
    at_rank = np.empty(count, np.int64)
    at_rank[rank] = np.arange(count)
    places: npt.NDArray[np.signedinteger] = rank.astype(np.int32 if count < 2**31 else np.int64)
    found = np.zeros(count, np.int64)
    """By the current place of an element, which finally is its rank."""
    for bit in reversed(range((count - 1).bit_length())):
        # Elements with the same higher bits are adjacent and in their original order: a node, which begins at the place
        # of its lowest rank.  Its ones move behind its zeros, past the zeros that follow them.
        is_one = (places >> bit) & 1
        begins = (places >> (bit + 1)) << (bit + 1)
        ones = np.cumsum(is_one, dtype=places.dtype)
        ones_before = ones - is_one
        ones_before -= np.concatenate(([0], ones)).astype(places.dtype)[begins]
        weights = np.concatenate(([0], np.cumsum(weight * is_one)))
        is_zero = is_one == 0
        zeros = np.flatnonzero(is_zero)
        found[zeros] += weights[zeros] - weights[begins[zeros]]
        here = np.arange(count, dtype=places.dtype)
        goes_to = np.where(is_zero, here - ones_before, begins + (1 << bit) + ones_before)
        moved_places, moved_weight, moved_found = np.empty_like(places), np.empty_like(weight), np.empty_like(found)
        moved_places[goes_to] = places
        moved_weight[goes_to] = weight
        moved_found[goes_to] = found
        places, weight, found = moved_places, moved_weight, moved_found
    return found[rank]


def unseen(trace: Trace) -> Ints:
    """The number of bytes of each reference outside the span of earlier references to the same block.

    Blocks are filled more or less from one end to the other, so bytes between two runs that were read count as read.
    """
    order = np.argsort(trace.keys, kind="stable")
    keys, lows, highs = trace.keys[order], trace.lows[order], trace.highs[order]
    is_first = np.ones(len(keys), np.bool_)
    is_first[1:] = keys[1:] != keys[:-1]
    # Each block gets a range of its own, so that one running maximum serves all blocks.
    span = int(highs.max(initial=0)) + 1
    base = np.cumsum(is_first) * span
    top = np.maximum.accumulate(base + highs) - base
    bottom = base - np.maximum.accumulate(base + span - lows) + span
    seen_top, seen_bottom = np.roll(top, 1), np.roll(bottom, 1)
    above = np.maximum(0, highs - np.maximum(lows, seen_top))
    below = np.maximum(0, np.minimum(highs, seen_bottom) - lows)
    out = np.empty(len(keys), np.int64)
    out[order] = np.where(is_first, highs - lows, above + below)
    return out


def missed(trace: Trace, cache_bytes: Ints, rate: float = 1.0) -> Misses:
    """Misses of caches of these sizes (bytes, ascending); the trace is a sample of blocks at `rate`.

    Each block of the sample stands for 1 / rate blocks, so distances in the whole trace are larger by that factor.
    """
    distance = distances(trace.keys, trace.sizes)
    new = unseen(trace)
    is_counted = trace.is_counted & (distance != NEVER)
    distance, new = distance[is_counted], new[is_counted]
    own = trace.sizes[is_counted]
    known = (trace.highs - trace.lows)[is_counted] - new
    needs = np.ceil((distance - own) / rate).astype(np.int64) + own
    place = np.searchsorted(cache_bytes, needs, side="left")
    bins = len(cache_bytes) + 1
    whole = np.bincount(place[new == 0], minlength=bins)[:-1]
    # bincount adds in floating point, which is exact up to 2**53: eight pebibytes.
    known_bytes = np.bincount(place, weights=known, minlength=bins)[:-1]
    return Misses(
        trace.references - np.cumsum(whole),
        trace.bytes - np.rint(np.cumsum(known_bytes)).astype(np.int64),
        len(np.unique(trace.keys)),
    )

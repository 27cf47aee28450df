"""Stack distances: how large a least-recently-used cache must be for each reference to be a hit, all sizes at once.

A reference to a block hits just when the blocks referenced since it was referenced last, and the block itself, fit
(Mattson et al., 1970).  So one pass over a trace answers for every size: `distances` gives each reference that size in
bytes.  It is exact.  Blocks have sizes of their own, the same at every reference.

What is to be added up, for a reference and the one before it to the same block, are the blocks between them, each
once: all references between, less those whose own predecessor lies between too.  The latter are the references that
are earlier, with a later predecessor: inversions, weighted.  They are counted from the most significant bit down, as a
wavelet tree is built: on each level all nodes at once by numpy.  A million references take about a second.

`hits` turns distances into counts.  A reference may count or not (a live read fills the cache, and is no question to
it), and of its bytes some may never have been asked for before, which no cache of any size can have.
Pure: arrays in, arrays out, no Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

NEVER: Final = -1
"""The distance of a reference to what was never referenced before."""


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """References in the order of time, one place of each array for each.

    `lows` and `highs` are where in its block a reference begins and ends, in bytes; `sizes` is what the block costs.
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
        """References that are counted."""
        return int(self.is_counted.sum())

    @property
    def bytes(self) -> int:
        """Bytes that these asked for."""
        return int((self.highs - self.lows)[self.is_counted].sum())


@dataclass(frozen=True, slots=True, eq=False)
class Hits:
    """What caches of some sizes would have had, size by size, of the references that are counted."""

    references: Ints
    """References all of whose bytes were there."""
    bytes: Ints
    """Bytes that were there."""


def previous(keys: Ints) -> Ints:
    """For each reference the place of the one before it to the same key; NEVER where there is none."""
    order = np.argsort(keys, kind="stable")
    same = keys[order[1:]] == keys[order[:-1]]
    out = np.full(len(keys), NEVER, np.int64)
    out[order[1:][same]] = order[:-1][same]
    return out


def distances(keys: Ints, sizes: Ints) -> Ints:
    """For each reference the bytes of all distinct blocks since the one before it to the same key, that block's own
    included; NEVER for the first to a key."""
    before = previous(keys)
    again = np.flatnonzero(before != NEVER)
    target = before[again]
    # No two have the same predecessor, so how many have an earlier one is a rank, and no sort is needed to find it.
    is_target = np.zeros(len(keys), np.int64)
    is_target[target] = 1
    rank = np.cumsum(is_target)[target] - 1
    through = np.cumsum(sizes)
    out = np.full(len(keys), NEVER, np.int64)
    out[again] = through[again] - through[target] - _greater_before(rank, sizes[again])
    return out


def _greater_before(rank: Ints, weight: Ints) -> Ints:
    """For each place of a permutation, the weights of those before it that rank higher, added up."""
    count = len(rank)
    at_rank = np.empty(count, np.int64)
    at_rank[rank] = np.arange(count)
    places: npt.NDArray[np.signedinteger] = rank.astype(np.int32 if count < 2**31 else np.int64)
    found = np.zeros(count, np.int64)
    """By the place that an element has come to, which is its rank in the end."""
    for bit in reversed(range((count - 1).bit_length())):
        # Here all with the same higher bits lie together, in their first order: a node, which begins where its least
        # rank will lie.  Its ones go behind its zeros, past those of the zeros that come later.
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
    """For each reference how many of its bytes lie outside of what earlier ones to the same block span.

    A block is filled from one end to the other, or nearly: what lies between two runs that were read is taken as read.
    """
    order = np.argsort(trace.keys, kind="stable")
    keys, lows, highs = trace.keys[order], trace.lows[order], trace.highs[order]
    is_first = np.ones(len(keys), np.bool_)
    is_first[1:] = keys[1:] != keys[:-1]
    # Each block gets a range of its own, so that one running maximum goes over all of them.
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


def hits(trace: Trace, cache_bytes: Ints, rate: float = 1.0) -> Hits:
    """What caches of these sizes (bytes, ascending) would have had, where the trace is a sample of blocks at `rate`.

    Each block of the sample stands for 1 / rate of them, so that much is a distance larger in all the trace.
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
    # bincount adds up as floating point, which is exact up to 2**53: eight pebibytes.
    known_bytes = np.bincount(place, weights=known, minlength=bins)[:-1]
    return Hits(np.cumsum(whole).astype(np.int64), np.rint(np.cumsum(known_bytes)).astype(np.int64))

"""Derive the byte positions of offsets from the number of bytes sent to readers.

Offsets are opaque.  But if a reader was sent all bytes from one offset to another, their number is the distance between
the two.  Such a pair of offsets with a distance is called a *step*.  A chain of steps from the stream's beginning leads
to the positions of other offsets, forwards and backwards.  The chain with the fewest steps is used.  The framing of
JSON arrays makes each distance up to two bytes too long.

An offset without a chain to the beginning is *loose*.  Loose offsets form groups that steps connect.  The first offset
of a group gets the position of the last offset before it, so the group's position is too low, but distances within the
group are exact.  A later offset never has a lower position than an earlier one.

There may be millions of offsets, most of them in groups of two.  For speed, numpy finds the offsets and the steps
between them, and the only Python loop over all offsets does little for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gateway.protocol.names import NOW, START

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

UNKNOWN: Final = -1
"""The length of a step whose length is unknown, and the position of an offset that has no position."""


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """The positions of steps, in the order in which the steps were given."""

    start: Ints
    """Bytes from the tape's beginning to the offset at which the step starts; UNKNOWN without a position."""
    end: Ints
    is_start_loose: Bools
    """Whether the offset at which the step starts is loose."""
    is_end_loose: Bools
    extent: Ints
    """Bytes from the tape's beginning to its furthest offset."""
    tokens: Ints
    """Number of the tape's offsets."""


def places(tapes: Ints, starts: pa.Array, ends: pa.Array, lengths: Ints) -> Places:
    """Find the positions of steps, of any number of tapes.

    A step leads from an offset in `starts` to one in `ends` (strings); `lengths` has its bytes, or UNKNOWN.  If steps
    between the same offsets differ in length, the longest counts.  The offset `now` gets no position.
    """
    start, end, ranks = _ranked(starts, ends)
    numbers, tape = np.unique(tapes, return_inverse=True)
    # A token is an offset of a tape.  Tokens are numbered by tape, then by offset.
    start_key, end_key = tape * ranks + start, tape * ranks + end
    is_kept = (end != 0) & (end != ranks - 1) & (start != ranks - 1)
    firsts = np.arange(len(numbers)) * ranks
    tokens = np.unique(np.concatenate([firsts, start_key[is_kept], end_key[is_kept]]))
    start_at, end_at = np.searchsorted(tokens, start_key), np.searchsorted(tokens, end_key)
    is_step = is_kept & (lengths >= 0) & (start < end)
    is_first = tokens % ranks == 0
    positions, is_tied = _positions(is_first, *_edges(start_at[is_step], end_at[is_step], lengths[is_step]))
    bounds = np.append(np.flatnonzero(is_first), len(tokens))

    def of(at: Ints, key: Ints) -> tuple[Ints, Bools]:
        known = np.minimum(at, len(tokens) - 1)
        is_there = tokens[known] == key if len(tokens) else np.zeros(0, np.bool_)
        return np.where(is_there, positions[known], UNKNOWN), ~(is_there & is_tied[known])

    start_place, is_start_loose = of(start_at, start_key)
    end_place, is_end_loose = of(end_at, end_key)
    # Positions grow with the offsets.
    extent, count = positions[bounds[1:] - 1], np.diff(bounds)
    return Places(start_place, end_place, is_start_loose, is_end_loose, extent[tape], count[tape])


def _ranked(starts: pa.Array, ends: pa.Array) -> tuple[Ints, Ints, int]:
    """Number the offsets in their order; return the numbers of `starts` and `ends`, and how many numbers there are.

    The beginning has the number 0, and `now` the last one.
    """
    words = pa.concat_arrays([starts, ends]).dictionary_encode()
    rank = np.empty(len(words.dictionary), np.int64)
    rank[pc.sort_indices(words.dictionary).to_numpy()] = np.arange(1, len(rank) + 1)
    rank[pc.equal(words.dictionary, START).to_numpy(zero_copy_only=False)] = 0
    rank[pc.equal(words.dictionary, NOW).to_numpy(zero_copy_only=False)] = len(rank) + 1
    start, end = np.split(rank[words.indices.to_numpy()], [len(starts)])
    return start, end, len(rank) + 2


def _edges(start: Ints, end: Ints, length: Ints) -> tuple[Ints, Ints, Ints]:
    """Sort the steps by their tokens, and keep the longest between each two tokens."""
    order = np.lexsort((length, end, start))
    start, end, length = start[order], end[order], length[order]
    is_last = np.ones(len(order), np.bool_)
    is_last[:-1] = (start[1:] != start[:-1]) | (end[1:] != end[:-1])
    return start[is_last], end[is_last], length[is_last]


def _positions(is_first: Bools, start: Ints, end: Ints, length: Ints) -> tuple[Ints, Bools]:
    """Return the positions of all tokens, and whether a chain of steps connects each to the beginning of its tape."""
    count = len(is_first)
    source = np.concatenate([end, start])
    order = np.argsort(source, kind="stable")
    degrees = np.bincount(source, minlength=count)
    begins: list[int] = np.append(0, np.cumsum(degrees)).tolist()
    others: list[int] = np.concatenate([start, end])[order].tolist()
    distances: list[int] = np.concatenate([-length, length])[order].tolist()
    positions = [UNKNOWN] * count

    def spread(root: int) -> list[int]:
        """Set the positions of all tokens that steps connect to `root`, and return these tokens."""
        reached = [root]
        for token in reached:
            position = positions[token]
            for at in range(begins[token], begins[token + 1]):
                other = others[at]
                if positions[other] < 0:
                    positions[other] = max(0, position + distances[at])
                    reached.append(other)
        return reached

    tied: list[int] = []
    furthest = 0
    degree: list[int] = degrees.tolist()
    for token, is_new in enumerate(is_first.tolist()):
        if is_new:
            positions[token] = furthest = 0
            tied += spread(token)
            continue
        position = positions[token]
        if position < 0:
            positions[token] = furthest
            if degree[token] == 1 and degree[others[begins[token]]] == 1:
                # A group of two, the most frequent kind.
                positions[others[begins[token]]] = max(0, furthest + distances[begins[token]])
            elif degree[token]:
                spread(token)
        elif position < furthest:
            positions[token] = furthest
        else:
            furthest = position
    is_tied = np.zeros(count, np.bool_)
    is_tied[tied] = True
    return np.array(positions, np.int64), is_tied

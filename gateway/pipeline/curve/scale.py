"""Byte positions of the offsets of tapes, derived from the bytes sent to their readers.

Offsets are opaque, but the number of bytes sent for a read from one to another is the distance between the two.  So
positions follow from such steps, forwards and backwards, from the stream's beginning, over as few steps as possible.
The framing of JSON arrays lengthens each step by at most two bytes.

Offsets without a chain of known lengths to the beginning are *loose*.  The first of a connected group gets the position
of the last offset before it: distances within the group are exact, the part before it seems shorter than it is.  A
later offset never has a position before an earlier one.

Millions of offsets are placed, most of them in groups of two.  So numpy finds the offsets and their neighbours, and the
one loop over all offsets does little for each.
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
"""The length of a step that is not known, and the position of an offset without one."""


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """The places of steps, in the order in which they were given."""

    start: Ints
    """Bytes from the tape's beginning to the offset at which the step starts; UNKNOWN without a position."""
    end: Ints
    is_start_loose: Bools
    """Whether no chain of known lengths leads from the beginning to the start."""
    is_end_loose: Bools
    extent: Ints
    """Bytes from the tape's beginning to its furthest offset."""
    tokens: Ints
    """Number of the tape's offsets."""


def places(tapes: Ints, starts: pa.Array, ends: pa.Array, lengths: Ints) -> Places:
    """Place steps of any tapes: reads from `starts` to `ends` (strings) that were sent so many bytes, or UNKNOWN.

    Of equal steps, the longest counts.  Offsets without a position (`now`) are left out.
    """
    start, end, ranks = _ranked(starts, ends)
    numbers, tape = np.unique(tapes, return_inverse=True)
    # A token is an offset of a tape.  Numbers of tokens are in the order of tapes, and of offsets in each.
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
    """Numbers in the order of offsets, and how many there are: 0 for the beginning, and the last one for `now`."""
    words = pa.concat_arrays([starts, ends]).dictionary_encode()
    rank = np.empty(len(words.dictionary), np.int64)
    rank[pc.sort_indices(words.dictionary).to_numpy()] = np.arange(1, len(rank) + 1)
    rank[pc.equal(words.dictionary, START).to_numpy(zero_copy_only=False)] = 0
    rank[pc.equal(words.dictionary, NOW).to_numpy(zero_copy_only=False)] = len(rank) + 1
    start, end = np.split(rank[words.indices.to_numpy()], [len(starts)])
    return start, end, len(rank) + 2


def _edges(start: Ints, end: Ints, length: Ints) -> tuple[Ints, Ints, Ints]:
    """Steps in the order of their tokens, each once."""
    order = np.lexsort((length, end, start))
    start, end, length = start[order], end[order], length[order]
    is_last = np.ones(len(order), np.bool_)
    is_last[:-1] = (start[1:] != start[:-1]) | (end[1:] != end[:-1])
    return start[is_last], end[is_last], length[is_last]


def _positions(is_first: Bools, start: Ints, end: Ints, length: Ints) -> tuple[Ints, Bools]:
    """The positions of all tokens, and whether a chain of known lengths leads to each from its tape's first."""
    count = len(is_first)
    source = np.concatenate([end, start])
    order = np.argsort(source, kind="stable")
    degrees = np.bincount(source, minlength=count)
    begins: list[int] = np.append(0, np.cumsum(degrees)).tolist()
    others: list[int] = np.concatenate([start, end])[order].tolist()
    distances: list[int] = np.concatenate([-length, length])[order].tolist()
    positions = [UNKNOWN] * count

    def spread(root: int) -> list[int]:
        """Set the positions of the tokens that steps connect to `root`, over the fewest steps."""
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
                # The most frequent group, of two.
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

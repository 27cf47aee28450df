"""A sample of the tapes, and what its misses say of all tapes (SHARDS: Waldspurger et al., FAST 2015).

A tape is in the sample, with all of its reads, if its hash is below a threshold.  The sample is replayed through caches
that are smaller in proportion (Waldspurger et al., USENIX ATC 2017).  The error depends on the number of *tapes* that
are kept; a size at which the smaller cache would hold no tape says little, and its error shows that.

Popular tapes are few, so the presence of one in the sample distorts it.  So misses are divided by the expected number
of reads, not by the actual one: the difference counts as hits of the smallest cache (SHARDS-adj, FAST 2015, 3.4).

The sample is replayed as a whole and, at some of the sizes, again in `REPLICAS` parts, whose scatter shows how far off
the whole may be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from gateway.pipeline.curve.simulate import Missed, Read

Floats = npt.NDArray[np.float64]

SPACE: Final = 1 << 24
"""The range of hashes that the threshold divides."""
REPLICAS: Final = 8
_STUDENT: Final = 2.365
"""Half of the 95 % interval of the mean of eight, in standard errors."""


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Miss ratios by cache size."""

    miss_ratio: Floats
    byte_miss_ratio: Floats
    error: Floats | None
    """Half width of the 95 % interval of `byte_miss_ratio`; None if nothing was left out."""


def threshold(rate: float) -> int:
    """Number of the SPACE hashes in a sample at about this rate; at least one."""
    return max(1, min(SPACE, round(rate * SPACE)))


def parted(reads: list[Read], rate: float) -> list[tuple[float, list[Read]]]:
    """A sample at `rate` and, if it is not the whole log, each of its parts; each with the share of all tapes that it
    represents."""
    out = [(rate, reads)]
    if rate < 1:
        parts: list[list[Read]] = [[] for _ in range(REPLICAS)]
        for read in reads:
            parts[(read.tape >> 24) % REPLICAS].append(read)
        out += [(rate / REPLICAS, part) for part in parts]
    return out


def curve_of(
    sizes: Sequence[int], missed: Sequence[Sequence[Missed]], *, reads: int, asked_bytes: int, rate: float
) -> Curve:
    """The curve at `sizes` estimated from a sample at `rate`, for `reads` that requested `asked_bytes` in all.

    `missed` has a row for each size: the misses of everything that `parted` gave, in its order, or of the whole sample
    only.  The error of such a size lies between those of its neighbours, on a line over the logarithm of the size.
    """
    whole = np.array([(row[0].reads, row[0].bytes) for row in missed])
    error = None
    if rate < 1:
        measured = [(size, [one.bytes for one in row[1:]]) for size, row in zip(sizes, missed, strict=True) if row[1:]]
        ratios = _ratio(np.array([of_parts for _, of_parts in measured]), asked_bytes * rate / REPLICAS)
        of_measured = _STUDENT * ratios.std(axis=1, ddof=1) / np.sqrt(REPLICAS)
        error = np.interp(np.log(sizes), np.log([size for size, _ in measured]), of_measured)
    return Curve(_ratio(whole[:, 0], reads * rate), _ratio(whole[:, 1], asked_bytes * rate), error)


def _ratio(missed: npt.NDArray[np.int64], expected: float) -> Floats:
    # A sample may have more misses than the expected number of reads.
    return np.minimum(1.0, missed / max(1.0, expected))

"""Choose a sample of the tapes, and estimate the misses of all tapes from it.

The method is SHARDS (Waldspurger et al., FAST 2015).  A tape is in the sample, with all of its reads, if its hash is
below a threshold.  The sample is replayed through caches that are smaller in the same proportion (Waldspurger et al.,
USENIX ATC 2017).  The error depends on the number of *tapes* in the sample.  It is large where the scaled cache is too
small for a single tape.

A few tapes have most of the reads, so a sample with one of them has too many reads.  Misses are therefore divided by
the expected number of reads, not by the actual one.  The reads between these two numbers count as hits of the smallest
cache (SHARDS-adj, FAST 2015, 3.4).

The sample is replayed as a whole and, at some sizes, also in `REPLICAS` parts.  The scatter of the parts gives the
error.
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
"""Number of different sampling hashes.  A tape's sampling hash is its number modulo SPACE."""
REPLICAS: Final = 8
_STUDENT: Final = 2.365
"""Half width of the 95 % confidence interval of the mean of eight values, in standard errors (Student's t)."""


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Miss ratios by cache size."""

    miss_ratio: Floats
    byte_miss_ratio: Floats
    error: Floats | None
    """Half width of the 95 % confidence interval of `byte_miss_ratio`; None if the sample has all tapes."""


def threshold(rate: float) -> int:
    """Return the threshold for a sample at about this rate: how many of the `SPACE` hashes are in it, at least 1."""
    return max(1, min(SPACE, round(rate * SPACE)))


def parted(reads: list[Read], rate: float) -> list[tuple[float, list[Read]]]:
    """Return the sample at `rate` and, if it is not the whole log, its parts.

    Each is paired with the share of all tapes that it represents.
    """
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
    """Estimate the curve at `sizes` from a sample at `rate`, for `reads` that requested `asked_bytes` in all.

    `missed` has a row for each size: the misses of the whole sample, then those of its parts, in the order of `parted`.
    A row may lack the parts.  The error is then interpolated from other sizes, linearly in the logarithm of the size.
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
    # A sample can have more misses than the expected number of reads.
    return np.minimum(1.0, missed / max(1.0, expected))

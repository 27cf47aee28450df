"""Traces for measurements: which objects are referenced, in which order, and their sizes.

They imitate the traces that papers on caches use, because those are gigabytes: skewed popularity, scans through it, and
the patterns of object stores and block devices: bursts, loops and drifting popularity.  All are generated from a seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from gateway.pipeline.curve.simulate import USE_US, Read

Ints = npt.NDArray[np.int64]

LARGEST: Final = 64_000


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Reads of whole tapes in order of time: the hash and the bytes of each read's tape."""

    keys: Ints
    sizes: Ints

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def bytes(self) -> int:
        """Bytes that are read."""
        return int(self.sizes.sum())

    def reads(self) -> list[Read]:
        """The reads, each of them a use of its own."""
        return [
            Read(2 * number * USE_US, key, 0, size, 1.0, 1, 1)
            for number, (key, size) in enumerate(zip(self.keys.tolist(), self.sizes.tolist(), strict=True))
        ]


def trace_of(objects: Ints, seed: int = 7) -> Trace:
    """Reads of whole tapes of different sizes; a key is a hash, as in the pipeline."""
    names, numbers = np.unique(objects, return_inverse=True)
    rng = np.random.default_rng(seed)
    keys = rng.integers(-(2**63), 2**63 - 1, len(names), np.int64)[numbers]
    sizes = np.minimum(LARGEST, rng.lognormal(8.5, 1.2, len(names)).astype(np.int64) + 64)[numbers]
    return Trace(keys, sizes)


def _zipf(rng: np.random.Generator, objects: int, exponent: float, count: int) -> Ints:
    reach = np.cumsum(1 / np.arange(1, objects + 1) ** exponent)
    return np.asarray(np.searchsorted(reach, rng.random(count) * reach[-1]), np.int64)


def skewed(rng: np.random.Generator, objects: int, count: int) -> Ints:
    """Zipf's law, and nothing else."""
    return _zipf(rng, objects, 0.8, count)


def scanned(rng: np.random.Generator, objects: int, count: int) -> Ints:
    """Now and then a job reads through objects that no other reader uses."""
    half = _zipf(rng, objects // 2, 0.9, count)
    scan = max(1, count // 40)
    for number, begin in enumerate(range(scan, count - scan, 4 * scan)):
        half[begin : begin + scan] = objects // 2 + np.arange(scan) + number * scan // 2
    return half


def drifting(rng: np.random.Generator, objects: int, count: int) -> Ints:
    """The newest objects are the popular ones, as in a feed."""
    newest = np.arange(count) * (objects * 9 // 10) // count
    return newest + objects // 10 - np.minimum(_zipf(rng, objects // 10, 0.7, count), objects // 10)


def bursty(rng: np.random.Generator, objects: int, count: int) -> Ints:
    """Each object is read twice in a short time, some again much later, as on a block device."""
    bursts = count // 2
    starts = np.sort(rng.random(bursts))
    what = np.where(rng.random(bursts) < 0.3, _zipf(rng, objects, 0.6, bursts), rng.integers(0, objects, bursts))
    at = np.repeat(starts, 2) + rng.exponential(0.0005, 2 * bursts)
    return np.repeat(what, 2)[np.argsort(at, kind="stable")].astype(np.int64)


def looping(rng: np.random.Generator, objects: int, count: int) -> Ints:
    """A monitor that reads a third of everything in turn, among readers of the rest."""
    third = objects // 3
    out = third + _zipf(rng, objects - third, 0.8, count)
    is_loop = rng.random(count) < 0.4
    out[is_loop] = np.arange(int(is_loop.sum())) % third
    return out


TRACES: Final[dict[str, Callable[[np.random.Generator, int, int], Ints]]] = {
    "skewed": skewed,
    "scanned": scanned,
    "drifting": drifting,
    "bursty": bursty,
    "looping": looping,
}


def sizes_of(trace: Trace, points: int, least_share: float = 0.01) -> Ints:
    """Cache sizes up to the bytes of all that is referenced."""
    _, first = np.unique(trace.keys, return_index=True)
    everything = int(trace.sizes[first].sum())
    return np.unique(np.geomspace(max(2 * LARGEST, everything * least_share), everything, points).astype(np.int64))

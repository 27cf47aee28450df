"""Curves compared with libCacheSim, the standard simulator, and samples with the whole log.

`libcachesim` has an LRU, and a SIEVE for the gateway's policy of that name.  Its S3-FIFO has queues of fixed size,
unlike the gateway's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import libcachesim
import numpy as np
import pytest

from gateway.pipeline.curve.sampling import SPACE, Curve, curve_of, parted, threshold
from gateway.pipeline.curve.simulate import play
from gateway.tape.costs import USUAL_COST
from tests.effort import IS_LONG, some
from tests.pipeline.curve.traces import TRACES, Ints, Trace, sizes_of, trace_of

REPLAYED = 32_000 if IS_LONG else 16_000
SAMPLED = 1_800_000 if IS_LONG else 500_000
JUDGED = 20_000 if IS_LONG else 10_000
_RECORD = np.dtype([("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")])
_SIMULATORS = {"lru": libcachesim.LRU, "sieve": libcachesim.Sieve}


class Oracle:
    """One trace in the simulator's own format.  A tape costs more than its bytes."""

    def __init__(self, trace: Trace, path: Path) -> None:
        rows = np.zeros(len(trace), _RECORD)
        rows["time"] = np.arange(len(trace))
        rows["id"] = np.unique(trace.keys, return_inverse=True)[1] + 1
        rows["size"] = trace.sizes + USUAL_COST
        rows["next"] = -2
        rows.tofile(path)
        self._path = str(path)

    def ratios(self, cache_bytes: Ints, policy: str) -> np.ndarray:
        """Miss ratio and byte miss ratio of each size; the bytes are with those that a tape costs besides."""
        kind = libcachesim.TraceType.ORACLE_GENERAL_TRACE
        simulator: Any = _SIMULATORS[policy]
        traces = ((size, libcachesim.TraceReader(self._path, kind)) for size in cache_bytes.tolist())
        return np.array([simulator(size).process_trace(trace) for size, trace in traces])


def ratios(curve: Curve, trace: Trace) -> np.ndarray:
    """Those of a curve, as the simulator has them: a missing tape is missing with what it costs besides its bytes."""
    missed_bytes = curve.byte_miss_ratio * trace.bytes + curve.miss_ratio * len(trace) * USUAL_COST
    return np.stack([curve.miss_ratio, missed_bytes / (trace.bytes + len(trace) * USUAL_COST)], axis=1)


def sampled(trace: Trace, cache_bytes: Ints, rate: float, policy: str) -> Curve:
    """The curve from a sample, taken as the pipeline takes it, without Spark."""
    kept = threshold(rate)
    parts = parted([read for read in trace.reads() if read.tape % SPACE < kept], kept / SPACE)
    missed = [[play(policy, size * share, part) for share, part in parts] for size in cache_bytes.tolist()]
    return curve_of(cache_bytes.tolist(), missed, reads=len(trace), asked_bytes=trace.bytes, rate=kept / SPACE)


@pytest.mark.parametrize(("policy", "most"), [("lru", 1e-9), ("sieve", 0.01)])
@pytest.mark.parametrize("name", some(["skewed", "scanned", "drifting"], list(TRACES)))
def test_the_whole_log_gives_the_simulators_ratios(policy: str, most: float, name: str, tmp_path: Path) -> None:
    trace = trace_of(TRACES[name](np.random.default_rng(3), REPLAYED // 8, REPLAYED))
    sizes = sizes_of(trace, 5, 0.05)
    curve = sampled(trace, sizes, 1.0, policy)
    assert curve.error is None
    off = np.abs(ratios(curve, trace) - Oracle(trace, tmp_path / "trace").ratios(sizes, policy))
    assert (off.mean(axis=0) <= most).all()


@pytest.mark.parametrize("policy", some(["lru"], ["lru", "s3-fifo"]))
@pytest.mark.parametrize("name", some(["scanned"], list(TRACES)))
def test_a_sample_of_a_tenth_is_off_by_at_most_a_hundredth(policy: str, name: str, tmp_path: Path) -> None:
    trace = trace_of(TRACES[name](np.random.default_rng(2), SAMPLED, SAMPLED))
    sizes = sizes_of(trace, 3)
    if policy in _SIMULATORS:
        whole = Oracle(trace, tmp_path / "trace").ratios(sizes, policy)
    else:
        whole = ratios(sampled(trace, sizes, 1.0, policy), trace)
    off = np.abs(ratios(sampled(trace, sizes, 0.1, policy), trace) - whole)
    assert (off.mean(axis=0) <= 0.01).all()


def test_error_bars_cover_the_true_ratio_as_often_as_stated() -> None:
    covered = []
    for name, make in TRACES.items():
        for seed in range(8 if IS_LONG else 3):
            trace = trace_of(make(np.random.default_rng(seed), JUDGED // 2, JUDGED), seed)
            sizes = sizes_of(trace, 4, 0.05)
            curve = sampled(trace, sizes, 0.2, "lru")
            assert curve.error is not None, name
            whole = sampled(trace, sizes, 1.0, "lru")
            covered.append(np.abs(curve.byte_miss_ratio - whole.byte_miss_ratio) <= curve.error)
    assert 0.9 < np.mean(covered) < 1

"""Curves compared with libCacheSim, the standard simulator: exact for the whole log, and close from a sample.

`libcachesim` replays one cache size at a time, so only a few sizes are compared: with its LRU, and with its SIEVE for
the gateway's policy of that name.  Its S3-FIFO has queues of fixed size, unlike the gateway's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import libcachesim
import numpy as np
import pytest

from gateway.pipeline.curve.kernel import Ints, Trace, missed
from gateway.pipeline.curve.simulate import USE_US, Read, play
from gateway.tape.costs import EMPTY_COST
from tests.effort import IS_LONG, some
from tests.pipeline.curve.samples import sampled
from tests.pipeline.curve.traces import TRACES, sizes_of, trace_of

SAMPLED = 1_800_000 if IS_LONG else 600_000
REPLAYED = 32_000 if IS_LONG else 16_000
_RECORD = np.dtype([("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")])


class Oracle:
    """One trace in the simulator's own format."""

    def __init__(self, trace: Trace, path: Path, *, extra: int = 0) -> None:
        rows = np.zeros(len(trace), _RECORD)
        rows["time"] = np.arange(len(trace))
        rows["id"] = np.unique(trace.keys, return_inverse=True)[1] + 1
        rows["size"] = trace.sizes + extra
        rows["next"] = -2
        rows.tofile(path)
        self._path = str(path)

    def ratios(self, cache_bytes: Ints, policy: Any = libcachesim.LRU) -> np.ndarray:
        """Miss ratio and byte miss ratio of each size."""
        kind = libcachesim.TraceType.ORACLE_GENERAL_TRACE
        return np.array(
            [policy(size).process_trace(libcachesim.TraceReader(self._path, kind)) for size in cache_bytes.tolist()]
        )


@pytest.mark.parametrize("name", TRACES)
def test_the_whole_log_gives_the_simulators_ratios(name: str, tmp_path: Path) -> None:
    trace = trace_of(TRACES[name](np.random.default_rng(1), 20_000, 60_000))
    sizes = sizes_of(trace, 6)
    found = missed(trace, sizes, 1.0)
    mine = np.stack([found.references / trace.references, found.bytes / trace.bytes], axis=1)
    assert np.abs(mine - Oracle(trace, tmp_path / "trace").ratios(sizes)).max() < 1e-9


# The samples of these two have the largest errors: by requests (0.003) and by bytes (0.005).
@pytest.mark.parametrize("name", some(["scanned", "drifting"], list(TRACES)))
def test_a_sample_of_a_tenth_is_off_by_at_most_a_hundredth(name: str, tmp_path: Path) -> None:
    trace = trace_of(TRACES[name](np.random.default_rng(2), SAMPLED, SAMPLED))
    sizes = sizes_of(trace, 3)
    curve = sampled(trace, sizes, 0.1)
    expected = Oracle(trace, tmp_path / "trace").ratios(sizes)
    assert np.abs(curve.miss_ratio - expected[:, 0]).mean() <= 0.01
    assert np.abs(curve.byte_miss_ratio - expected[:, 1]).mean() <= 0.01
    assert curve.sampled_keys >= SAMPLED // 36


def test_error_bars_cover_the_true_ratio_as_often_as_stated() -> None:
    covered = []
    for name, make in TRACES.items():
        for seed in range(8 if IS_LONG else 3):
            trace = trace_of(make(np.random.default_rng(seed), 30_000, 60_000), seed)
            sizes = sizes_of(trace, 6, 0.05)
            curve = sampled(trace, sizes, 0.2)
            assert curve.error is not None, name
            truth = missed(trace, sizes, 1.0).bytes / trace.bytes
            covered.append(np.abs(curve.byte_miss_ratio - truth) <= curve.error)
    assert np.mean(covered) > 0.9


@pytest.mark.parametrize(("policy", "simulators"), [("lru", libcachesim.LRU), ("sieve", libcachesim.Sieve)])
@pytest.mark.parametrize("name", ["skewed", "scanned", "drifting"])
def test_a_miniature_policy_behaves_like_the_simulators(
    policy: str, simulators: Any, name: str, tmp_path: Path
) -> None:
    trace = trace_of(TRACES[name](np.random.default_rng(3), REPLAYED // 8, REPLAYED))
    sizes = sizes_of(trace, 5, 0.05)
    # Every read is a use of its own, and a tape costs more than its bytes.
    reads = [
        Read(2 * number * USE_US, key, 0, size, 1.0, 1, 1)
        for number, (key, size) in enumerate(zip(trace.keys.tolist(), trace.sizes.tolist(), strict=True))
    ]
    expected = Oracle(trace, tmp_path / "trace", extra=EMPTY_COST).ratios(sizes, simulators)[:, 0]
    mine = [play(policy, size, reads).reads / len(reads) for size in sizes.tolist()]
    assert np.abs(np.array(mine) - expected).mean() <= 0.01

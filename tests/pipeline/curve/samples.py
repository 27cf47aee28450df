"""Curves from a sample, without Spark."""

from __future__ import annotations

import numpy as np

from gateway.pipeline.curve.kernel import Ints, Trace, missed
from gateway.pipeline.curve.shards import REPLICAS, SPACE, Curve, curve_of, threshold
from tests.pipeline.curve.traces import only


def sampled(trace: Trace, cache_bytes: Ints, rate: float) -> Curve:
    """The curve from a sample, taken as the pipeline takes it, without Spark."""
    kept = threshold(rate)
    sample = only(trace, np.mod(trace.keys, SPACE) < kept)
    part = np.mod(sample.keys >> 24, REPLICAS)
    share = kept / SPACE
    return curve_of(
        missed(sample, cache_bytes, share),
        [missed(only(sample, part == number), cache_bytes, share / REPLICAS) for number in range(REPLICAS)],
        references=trace.references,
        asked_bytes=trace.bytes,
        rate=share,
    )

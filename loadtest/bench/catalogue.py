"""Every benchmark, in the order in which results are shown: as in production first."""

from __future__ import annotations

from loadtest.bench import catchup, conversations, live, production, s2, secure, turnover
from loadtest.bench.stage import Benchmark


def every_benchmark() -> list[Benchmark]:
    """All benchmarks, with rows without samples."""
    kinds = (production, conversations, catchup, live, turnover, secure, s2)
    return [benchmark for kind in kinds for benchmark in kind.benchmarks()]

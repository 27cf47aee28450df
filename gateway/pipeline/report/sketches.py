"""Sketches of the gold tables, merged without Spark: Apache DataSketches' own library reads what Spark has written.

`gateway.pipeline.gold.sketches` says what the sketches hold and how exact they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from datasketches import hll_sketch, hll_union, kll_doubles_sketch

from gateway.pipeline.report.figures import Percentiles

_K: Final = 400
_LOG_REGISTERS: Final = 12
_RANKS: Final = (0.5, 0.9, 0.99)

Key = TypeVar("Key", bound=Hashable)


class Durations(Generic[Key]):
    """Merged KLL sketches of seconds, one for each key."""

    def __init__(self) -> None:
        self._merged: defaultdict[Key, kll_doubles_sketch] = defaultdict(lambda: kll_doubles_sketch(_K))

    def add(self, sketch: bytes | None, *keys: Key) -> None:
        """Merge a serialised sketch into those of these keys; None is an empty one."""
        if sketch is None:
            return
        values = kll_doubles_sketch.deserialize(sketch)
        for key in keys:
            self._merged[key].merge(values)

    def of(self, key: Key) -> Percentiles:
        """The percentiles of a key; without figures if nothing was added."""
        merged = self._merged.get(key)
        if merged is None or merged.is_empty():
            return Percentiles()
        # Inclusive, as Spark's own: the smallest value whose rank is at least the one asked for.
        p50_s, p90_s, p99_s = (float(merged.get_quantile(rank, inclusive=True)) for rank in _RANKS)
        return Percentiles(merged.n, p50_s, p90_s, p99_s, float(merged.get_max_value()))


class Readers:
    """Merged HyperLogLog sketches of distinct readers."""

    def __init__(self) -> None:
        self._merged = hll_union(_LOG_REGISTERS)

    def add(self, sketch: bytes | None) -> None:
        """Merge a serialised sketch; None is an empty one."""
        if sketch is not None:
            self._merged.update(hll_sketch.deserialize(sketch))

    def __int__(self) -> int:
        """The estimated number of distinct readers."""
        return round(float(self._merged.get_estimate()))

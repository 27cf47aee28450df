"""Merges the metric families of several workers.

Counters and histograms are summed: each event happens at one worker.  For a gauge, `GAUGES` says whether the sum means
something.  Labels stay as they are.  `worker_families` has the few figures that say more for each worker.

Between workers, families are JSON (`families_to_json`, `families_from_json`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from statistics import fmean
from typing import Any, Final

import orjson
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Exemplar, Sample


class Merge(Enum):
    """How the values of one gauge at several workers become one value."""

    SUM = "sum"
    MOST = "most"
    LEAST = "least"
    MEAN = "mean"
    """The mean of the values that are not 0: a worker without a figure states 0."""


def _mean(values: Sequence[float]) -> float:
    found = [value for value in values if value]
    return fmean(found) if found else 0.0


_MERGED: Final[Mapping[Merge, Callable[[Sequence[float]], float]]] = {
    Merge.SUM: sum,
    Merge.MOST: max,
    Merge.LEAST: min,
    Merge.MEAN: _mean,
}

_P: Final = "durable_gateway_"

GAUGES: Final[Mapping[str, Merge]] = {
    "process_virtual_memory_bytes": Merge.SUM,
    "process_resident_memory_bytes": Merge.SUM,
    "process_start_time_seconds": Merge.LEAST,
    "process_open_fds": Merge.SUM,
    "process_max_fds": Merge.SUM,
    f"{_P}subscribers": Merge.SUM,
    f"{_P}cache_bytes": Merge.SUM,
    f"{_P}cache_limit_bytes": Merge.SUM,
    f"{_P}connections_limit": Merge.MOST,
    f"{_P}followed_streams_limit": Merge.SUM,
    f"{_P}ready": Merge.LEAST,
    f"{_P}connections": Merge.SUM,
    f"{_P}lag_bytes": Merge.SUM,
    f"{_P}lag_most_bytes": Merge.MOST,
    f"{_P}followed_streams": Merge.SUM,
    f"{_P}background_tasks": Merge.SUM,
    f"{_P}flights": Merge.SUM,
    f"{_P}waiters": Merge.SUM,
    f"{_P}tapes": Merge.SUM,
    f"{_P}tape_blocks": Merge.SUM,
    f"{_P}tape_bytes": Merge.SUM,
    f"{_P}upstream_connections": Merge.SUM,
    f"{_P}upstream_connection_oldest_seconds": Merge.MOST,
    f"{_P}upstream_connection_mean_seconds": Merge.MEAN,
    f"{_P}upstream_slots": Merge.SUM,
    f"{_P}upstream_queue": Merge.SUM,
    f"{_P}origin_up": Merge.LEAST,
    f"{_P}origin_ejected": Merge.MOST,
    f"{_P}origin_in_flight": Merge.SUM,
    f"{_P}origin_waiting": Merge.SUM,
    # 1 for a state that any worker's breaker has.
    f"{_P}origin_breaker_state": Merge.MOST,
    f"{_P}admin_connections": Merge.SUM,
    f"{_P}certificate_expiry_timestamp_seconds": Merge.LEAST,
    f"{_P}client_bytes": Merge.SUM,
    f"{_P}client_bytes_limit": Merge.SUM,
    f"{_P}memory_limit_bytes": Merge.SUM,
    f"{_P}memory_pressure": Merge.MOST,
    f"{_P}http2_connections": Merge.SUM,
    f"{_P}http2_streams": Merge.SUM,
    f"{_P}upstream_http2_connections": Merge.SUM,
    f"{_P}upstream_http2_streams": Merge.SUM,
    f"{_P}auth_key_set_age_seconds": Merge.MOST,
    f"{_P}plan_taken_timestamp_seconds": Merge.LEAST,
    f"{_P}plan_hit_ratio": Merge.MEAN,
    f"{_P}plan_byte_hit_ratio": Merge.MEAN,
    f"{_P}plan_pinned_streams": Merge.SUM,
    f"{_P}plan_pinned_bytes": Merge.SUM,
    f"{_P}plan_pinned_limit_bytes": Merge.SUM,
    f"{_P}plan_unstored_streams": Merge.MOST,
    f"{_P}plan_unmatched_entries": Merge.MOST,
    f"{_P}route_info": Merge.MOST,
    f"{_P}build_info": Merge.MOST,
}
"""For each gauge, how the workers' values are merged."""

AT_EVERY_WORKER: Final = frozenset({f"{_P}reloads"})
"""Counters of events that happen at all workers at once, and count as one event."""

_COUNTED: Final = frozenset({"counter", "histogram"})

_Key = tuple[str, tuple[tuple[str, str], ...]]
"""The name and the labels of a series."""


def merge_families(workers: Iterable[Iterable[Metric]]) -> list[Metric]:
    """Merge the families of several workers, in the order in which they first appear."""
    known: dict[str, Metric] = {}
    series: dict[str, dict[_Key, list[Sample]]] = {}
    for families in workers:
        for family in families:
            known.setdefault(family.name, family)
            found = series.setdefault(family.name, {})
            for sample in family.samples:
                found.setdefault((sample.name, tuple(sorted(sample.labels.items()))), []).append(sample)
    merged = []
    for name, family in known.items():
        how = _how(family)
        one = Metric(name, family.documentation, family.type, family.unit)
        one.samples = [_merged(samples, _MERGED[how]) for samples in series[name].values()]
        merged.append(one)
    return merged


def _how(family: Metric) -> Merge:
    if family.name in AT_EVERY_WORKER:
        return Merge.MOST
    return Merge.SUM if family.type in _COUNTED else GAUGES[family.name]


def _merged(samples: Sequence[Sample], merge: Callable[[Sequence[float]], float]) -> Sample:
    first = samples[0]
    if len(samples) == 1:
        return first
    exemplars = [sample.exemplar for sample in samples if sample.exemplar is not None]
    latest = max(exemplars, key=lambda one: one.timestamp or 0.0, default=None)
    return Sample(first.name, first.labels, merge([sample.value for sample in samples]), None, latest)


def counts_of(families: Iterable[Metric]) -> list[Metric]:
    """Return the families that only ever grow: counters and histograms."""
    return [family for family in families if family.type in _COUNTED]


def families_to_json(families: Iterable[Metric]) -> bytes:
    """Return the families as JSON."""
    return orjson.dumps(
        [
            [
                family.name,
                family.documentation,
                family.type,
                [
                    [
                        sample.name,
                        sample.labels,
                        float(sample.value),
                        list(sample.exemplar) if sample.exemplar is not None else None,
                    ]
                    for sample in family.samples
                ],
            ]
            for family in families
        ],
        # Labels may be members of enums that are texts.
        option=orjson.OPT_NON_STR_KEYS,
    )


def families_from_json(text: bytes) -> list[Metric]:
    """Return the families that `families_to_json` has written.  Raises ValueError if the text is something else."""
    families = []
    try:
        for name, documentation, kind, samples in orjson.loads(text):
            family = Metric(name, documentation, kind)
            family.samples = [_sample(*one) for one in samples]
            families.append(family)
    except (TypeError, KeyError) as error:
        raise ValueError(str(error)) from None
    return families


def _sample(name: str, labels: dict[str, str], value: float, exemplar: list[Any] | None) -> Sample:
    return Sample(name, labels, value, None, Exemplar(*exemplar) if exemplar is not None else None)

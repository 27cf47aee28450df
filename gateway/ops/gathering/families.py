"""Merges the metric families of several workers.

Counters and histograms are summed, because each event happens at one worker.  The sum of a gauge may have no meaning,
so `GAUGES` states how each gauge is merged.  Labels are not changed.  `worker_families` has the few figures that are
more useful for each worker than in total.

Workers send each family to each other as a JSON list (`RawFamily`).  With many routes there are many thousands of
samples.  Families are therefore merged one after another, so that the caller can let other tasks run between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from statistics import fmean
from typing import Any, Final

import orjson
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Exemplar, Sample


class Merge(Enum):
    """A way to merge the values of one gauge at several workers."""

    SUM = "sum"
    MOST = "most"
    LEAST = "least"
    MEAN = "mean"
    """The mean of the values that are not 0, because a worker without a figure reports 0."""


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
    f"{_P}store_bytes": Merge.SUM,
    f"{_P}store_limit_bytes": Merge.SUM,
    f"{_P}store_streams": Merge.SUM,
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
    # The value of a state is 1 if the breaker of at least one worker is in this state.
    f"{_P}origin_breaker_state": Merge.MOST,
    f"{_P}fleet_member_reached": Merge.LEAST,
    f"{_P}fleet_member_share": Merge.LEAST,
    f"{_P}fleet_member_workers": Merge.LEAST,
    f"{_P}fleet_member_differs": Merge.MOST,
    f"{_P}fleet_dns_answered": Merge.LEAST,
    f"{_P}fleet_dns_addresses": Merge.LEAST,
    f"{_P}fleet_redis_answered": Merge.LEAST,
    f"{_P}fleet_redis_members_answered": Merge.LEAST,
    f"{_P}fleet_redis_members_announced": Merge.LEAST,
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
"""The way to merge the workers' values of each gauge."""

AT_EVERY_WORKER: Final = frozenset({f"{_P}reloads"})
"""The counters of events that happen at all workers and that count as one event."""

_COUNTED: Final = frozenset({"counter", "histogram"})

RawFamily = list[Any]
"""A family in the form that workers send to each other: name, help text, type, samples.  A sample has a name, labels, a
value, and an exemplar or None."""

Key = tuple[str, tuple[tuple[str, str], ...]]
"""The name and the labels of a series."""


def key_of(name: str, labels: Mapping[str, str]) -> Key:
    """Return the key of a series."""
    return name, tuple(sorted(labels.items()))


def is_counted(kind: str) -> bool:
    """Return whether the values of a family of this type can only grow."""
    return kind in _COUNTED


def raw_family(family: Metric) -> RawFamily:
    """Return a family in the form that workers send to each other."""
    samples = [
        [one.name, one.labels, float(one.value), None if one.exemplar is None else list(one.exemplar)]
        for one in family.samples
    ]
    return [family.name, family.documentation, family.type, samples]


def read_families(text: bytes) -> list[RawFamily]:
    """Parse the families of one worker.  Raises ValueError if the text has another form."""
    found = orjson.loads(text)
    if not isinstance(found, list) or not all(isinstance(one, list) and len(one) == 4 for one in found):
        raise ValueError("no families")
    return found


def merge_families(workers: Iterable[Iterable[RawFamily]]) -> Iterator[Metric]:
    """Merge the families of several workers, in the order in which they first appear."""
    parts: dict[str, list[RawFamily]] = {}
    for families in workers:
        for family in families:
            parts.setdefault(family[0], []).append(family)
    for found in parts.values():
        yield _merged_family(found)


def _merged_family(parts: Sequence[RawFamily]) -> Metric:
    name, text, kind, _ = parts[0]
    merge = _MERGED[_how(name, kind)]
    series: dict[Key, list[list[Any]]] = {}
    for *_, samples in parts:
        for sample in samples:
            series.setdefault(key_of(sample[0], sample[1]), []).append(sample)
    family = Metric(name, text, kind)
    family.samples = [_merged(samples, merge) for samples in series.values()]
    return family


def _how(name: str, kind: str) -> Merge:
    if name in AT_EVERY_WORKER:
        return Merge.MOST
    return Merge.SUM if kind in _COUNTED else GAUGES[name]


def _merged(samples: Sequence[list[Any]], merge: Callable[[Sequence[float]], float]) -> Sample:
    name, labels, _, _ = samples[0]
    exemplars = [Exemplar(*one[3]) for one in samples if one[3] is not None]
    latest = max(exemplars, key=lambda one: one.timestamp or 0.0, default=None)
    return Sample(name, labels, merge([one[2] for one in samples]), None, latest)

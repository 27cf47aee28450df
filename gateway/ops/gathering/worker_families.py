"""The families with a label `worker`: figures that are more useful for each worker than in total.

These figures show whether the workers share the load evenly, and whether a worker fails repeatedly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.metrics_core import Metric

from gateway.ops.families import counter, gauge
from gateway.ops.gathering.families import RawFamily

_LABELS = ("worker",)


def worker_families(
    families: Mapping[int, Iterable[RawFamily]], generations: Mapping[int, int | None]
) -> Iterator[Metric]:
    """Return the families with the label `worker`.  `families` has, by slot, the families of the workers that have
    answered.  `generations` has the generation of the worker in each slot; None for a slot without a worker."""
    values = {
        slot: {name: value for *_, samples in found for name, labels, value, _ in samples if not labels}
        for slot, found in families.items()
    }

    def children(name: str) -> list[tuple[tuple[str, ...], float]]:
        return [((str(slot),), found[name]) for slot, found in values.items() if name in found]

    yield gauge(
        "durable_gateway_worker_up",
        "1 for a worker that answers the admin port, else 0. Exists only with more than one worker.",
        _LABELS,
        [((str(slot),), float(slot in families)) for slot in generations],
    )
    yield counter(
        "durable_gateway_worker_starts",
        "How often a worker has been started, the first time included. Exists only with more than one worker.",
        _LABELS,
        [((str(slot),), number) for slot, number in generations.items() if number is not None],
    )
    yield gauge(
        "durable_gateway_worker_connections",
        "Client connections of each worker. Exists only with more than one worker.",
        _LABELS,
        children("durable_gateway_connections"),
    )
    yield gauge(
        "durable_gateway_worker_resident_bytes",
        "Resident memory of each worker. Exists only with more than one worker.",
        _LABELS,
        children("process_resident_memory_bytes"),
    )
    yield counter(
        "durable_gateway_worker_cpu_seconds",
        "User and system processor time of each worker and its predecessors. Exists only with more than one worker.",
        _LABELS,
        children("process_cpu_seconds_total"),
    )

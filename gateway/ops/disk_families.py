"""The metric families of the store on disk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client.metrics_core import Metric

from gateway.disk.store import DiskCounts, DiskStore
from gateway.ops.families import counter, gauge


class DiskState(NamedTuple):
    """The figures of the store on disk."""

    counts: DiskCounts
    streams: int = 0
    total_bytes: int = 0
    max_bytes: int = 0
    failed_writes: int = 0

    @classmethod
    def of(cls, disk: DiskStore | None) -> DiskState:
        """Return the present figures of a store; zeros if it is not open."""
        if disk is None:
            return cls(DiskCounts())
        return cls(disk.counts, len(disk), disk.total_bytes, disk.max_bytes, disk.errors)


def disk_families(state: DiskState) -> Iterator[Metric]:
    """Return the families with their current values."""
    counts = state.counts
    yield gauge(
        "durable_gateway_store_bytes",
        "Bytes of the segments of the store on disk. Excludes its index.",
        (),
        [((), state.total_bytes)],
    )
    yield gauge(
        "durable_gateway_store_limit_bytes", "The bound on durable_gateway_store_bytes.", (), [((), state.max_bytes)]
    )
    yield gauge("durable_gateway_store_streams", "Streams with bytes on disk.", (), [((), state.streams)])
    yield counter(
        "durable_gateway_store_read_bytes",
        "Bytes of streams that were read from disk. Excludes damaged bytes.",
        (),
        [((), counts.read_bytes)],
    )
    yield counter(
        "durable_gateway_store_written_bytes",
        "Bytes of streams that were written to disk.",
        (),
        [((), counts.written_bytes)],
    )
    yield counter(
        "durable_gateway_store_dropped_bytes",
        "Bytes of streams that were not written to disk, because the queue was full or a write failed. They may be "
        "tried, and counted, again. Excludes bytes in the seconds after a failed write, which are not tried.",
        (),
        [((), counts.dropped_bytes)],
    )
    errors = {"write": state.failed_writes, "damaged": counts.damaged, "refuted": counts.refuted}
    yield counter(
        "durable_gateway_store_errors",
        "Events by kind: write (the disk refused a write), damaged (a record could not be read, or had a wrong "
        "checksum), refuted (the origin did not confirm a stream's bytes on disk, which were dropped).",
        ("kind",),
        (((kind,), count) for kind, count in errors.items()),
    )

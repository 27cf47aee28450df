"""The gateway at a glance: its counters since the start, and its current state.

The counts are the samples of `/metrics`, summed over the labels that the overview omits, so the two always agree.
`gateway.ops.spared` defines the load that the origin is spared.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from pydantic import with_config

from gateway import __version__
from gateway.ops.admin.endpoint import API_TYPE, ApiRequest, Endpoint, Nothing
from gateway.ops.admin.subject import Subject
from gateway.ops.history import Recent
from gateway.ops.spared import Tally


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class Cache:
    """The contents of the tapes (the bytes of streams in memory)."""

    bytes: int
    limit_bytes: int
    tapes: int
    evictions: int


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class Spared:
    """The load that the origin was spared.  Both sides of a share are counted over the same window."""

    window_s: float
    reads: int
    """Reads that clients began: catch-up, long-poll, SSE and HEAD.  Live reads count when they begin to wait."""
    origin_requests: int
    """Requests sent to origins for reads.  Both sides leave out writes."""
    answer_bytes: int
    """Body bytes of answers before compression."""
    origin_bytes: int
    """Body bytes that origins sent."""
    requests_spared: float | None
    """1 - origin_requests / reads.  Null without a read.  Below 0 if the origin got more requests than the gateway got
    reads.
    """
    bytes_spared: float | None
    """1 - origin_bytes / answer_bytes.  Null without a byte."""


def spared(recent: Recent) -> Spared:
    """Return the counts of a window as the API shows them."""
    tally = recent.tally
    return Spared(
        window_s=recent.window_s,
        reads=tally.reads,
        origin_requests=tally.origin_requests,
        answer_bytes=tally.answer_bytes,
        origin_bytes=tally.origin_bytes,
        requests_spared=tally.requests_spared,
        bytes_spared=tally.bytes_spared,
    )


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class Overview:
    """Counters since the start, and current values."""

    version: str
    node: str
    now: float
    """The gateway's time, in Unix seconds."""
    uptime_s: float
    is_draining: bool
    is_ready: bool
    spared: Spared
    """The load that the origin was spared over the last ten seconds."""
    spared_since_start: Spared
    requests: dict[str, dict[str, int]]
    """Finished requests, by mode and outcome."""
    upstream_requests: dict[str, int]
    """Requests sent to origins, by mode."""
    upstream_bytes: int
    downstream_bytes: int
    retries: int
    slow_consumers: int
    subscribers: dict[str, int]
    """Live readers now, by mode."""
    connections: int
    cache: Cache
    followed_streams: int
    """Streams with live readers, or whose last reader has just left."""


class _Samples:
    """The counters and gauges of one collection, summed over all labels except the requested ones."""

    def __init__(self, subject: Subject) -> None:
        self._samples: dict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
        for family in subject.metrics.collect():
            if family.type in ("counter", "gauge"):
                for sample in family.samples:
                    if not sample.name.endswith("_created"):
                        self._samples[family.name].append((sample.labels, sample.value))

    def total(self, name: str) -> int:
        return int(sum(value for _, value in self._samples[name]))

    def by(self, name: str, label: str) -> dict[str, int]:
        sums: dict[str, int] = defaultdict(int)
        for labels, value in self._samples[name]:
            sums[labels[label]] += int(value)
        return dict(sums)

    def by_two(self, name: str, outer: str, inner: str) -> dict[str, dict[str, int]]:
        sums: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for labels, value in self._samples[name]:
            sums[labels[outer]][labels[inner]] += int(value)
        return {key: dict(value) for key, value in sums.items()}


def overview_endpoints(subject: Subject) -> list[Endpoint]:
    """Make the endpoint `GET /api/overview`."""

    async def overview(_: ApiRequest[Nothing, Nothing]) -> Overview:
        engine, samples, sample = subject.engine, _Samples(subject), subject.sample()
        uptime_s = engine.clock.now() - subject.started_at
        return Overview(
            version=__version__,
            node=subject.config.server.node_name,
            now=engine.clock.wall(),
            uptime_s=uptime_s,
            is_draining=engine.drain.is_set,
            is_ready=subject.is_ready,
            spared=spared(subject.history.recent(sample)),
            spared_since_start=spared(Recent(uptime_s, sample.tally.since(Tally()))),
            requests=samples.by_two("durable_gateway_requests", "mode", "outcome"),
            upstream_requests=samples.by("durable_gateway_upstream_requests", "mode"),
            upstream_bytes=samples.total("durable_gateway_upstream_bytes"),
            downstream_bytes=samples.total("durable_gateway_downstream_bytes"),
            retries=samples.total("durable_gateway_upstream_retries"),
            slow_consumers=samples.by("durable_gateway_slow_consumers", "action")["closed"],
            subscribers=samples.by("durable_gateway_subscribers", "mode"),
            connections=subject.connections,
            cache=Cache(
                bytes=engine.store.cost + engine.store.lent,
                limit_bytes=engine.store.budget_bytes,
                tapes=len(engine.store),
                evictions=samples.total("durable_gateway_evictions"),
            ),
            followed_streams=len(engine.live) + engine.s2.streams.followed,
        )

    return [Endpoint("GET", "/api/overview", "Counters since the start, and current values", overview, Overview)]

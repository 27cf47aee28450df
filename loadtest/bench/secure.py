"""Over TLS and HTTP/2: hits and live readers, compared with nginx and nchan with the same certificate.

Handshakes are complete before counting begins, except those of the few connections that load the hits.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from loadtest.bench import h2load, live, live_client, wrk
from loadtest.bench.certificates import HAS_HTTP2
from loadtest.bench.fetch import fetch_raw
from loadtest.bench.figures import GATEWAY, Relation, Row, Sample, Target
from loadtest.bench.live_client import NCHAN
from loadtest.bench.stage import Benchmark, Stage, Watch

IDLE: Final = 2_000
STREAMS: Final = 100
"""Readers on one HTTP/2 connection."""
_WARM_UPS: Final = 3
_PATH: Final = "/1k/secure"


def _hits(name: str, stage: Stage, peer: str) -> Mapping[str, Sample]:
    server = stage.peers.servers[peer]
    for _ in range(_WARM_UPS):
        fetch_raw(server.port, _PATH)
    watch = Watch(stage, server)
    report: wrk.WrkReport | h2load.H2Report
    if name == "h2":
        report = h2load.run(stage.tools.secure.h2load, server.secure_port, _PATH, stage.seconds, stage.cores.load)
    else:
        load = wrk.Load(_PATH, scheme="https")
        report = wrk.run(stage.tools.wrk, server.secure_port, load, stage.seconds, stage.cores.load)
    sample = watch.sample(report.requests_per_s, report.requests)
    watch.expect_no_origin()
    return {name: sample}


def _fanout(name: str, window: int, stage: Stage, peer: str) -> Mapping[str, Sample]:
    """Benchmarks of readers with a connection each, and of a hundred readers on one."""
    argv = live_client.arguments(stage, peer, stage.peers.servers[peer], is_secure=True)
    argv += ["--subscribers", str(live.SUBSCRIBERS), "--window", str(window), "--seconds", str(stage.seconds)]
    report: dict[str, Any]
    if name.startswith("h2"):
        report = live_client.run(stage, stage.tools.secure.multiplex, [*argv, "--streams", str(STREAMS)])
    else:
        report = live_client.run(stage, stage.tools.secure.live, ["fanout", *argv])
    return {name: live_client.rate(report, report["deliveries"])}


def _memory(stage: Stage, peer: str) -> Mapping[str, Sample]:
    return {"memory-tls": live.memory_each(stage, peer, "sse", IDLE, secure=stage.tools.secure.live)}


def benchmarks() -> list[Benchmark]:
    """All benchmarks over TLS, and over HTTP/2 if the gateway speaks it."""
    return [one for one in every_benchmark() if HAS_HTTP2 or not one.name.startswith("h2")]


def every_benchmark() -> list[Benchmark]:
    """All benchmarks over TLS."""
    cached, both = (GATEWAY, "nginx"), (GATEWAY, NCHAN)
    at_least = (Target(Relation.AT_LEAST_TIMES, 1.2, "nginx"),)
    at_most = (Target(Relation.AT_MOST, 12 * 1024),)
    hits = (("tls", "cached 1 KB over TLS", at_least), ("h2", "cached 1 KB over HTTP/2", ()))
    fanouts = (
        ("tls-fanout", "SSE over TLS, 1,000 subscribers, spaced out", 1),
        ("tls-saturation", "SSE over TLS, 1,000 subscribers, saturation", live.WINDOW),
        ("h2-fanout", "SSE over HTTP/2, 1,000 subscribers, spaced out", 1),
        ("h2-saturation", "SSE over HTTP/2, 1,000 subscribers, saturation", live.WINDOW),
    )
    memory = Row("memory-tls", "memory per idle SSE subscriber over TLS", "bytes", at_most, is_rate=False)
    return [
        *(
            Benchmark(name, (Row(name, title, "requests/s", targets),), cached, partial(_hits, name))
            for name, title, targets in hits
        ),
        *(
            Benchmark(name, (Row(name, title, "deliveries/s"),), both, partial(_fanout, name, window))
            for name, title, window in fanouts
        ),
        Benchmark("memory-tls", (memory,), both, _memory, most_rounds=1),
    ]

"""Cached catch-up reads and relayed requests, loaded by wrk.

A cached read is one that needs no origin: the stream is closed and its answer was given before.  That the origins
stayed idle is checked in every round, by their processor time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from loadtest.bench import wrk
from loadtest.bench.fetch import fetch_raw, header, status
from loadtest.bench.figures import GATEWAY, Relation, Row, Sample, Target
from loadtest.bench.machine import BenchError
from loadtest.bench.peers import HAS_FAST_PATH_SWITCH, STRICT
from loadtest.bench.stage import Benchmark, Stage, Watch

_WARM_UPS: Final = 3


def _at_least(times: float, *references: str) -> tuple[Target, ...]:
    return tuple(Target(Relation.AT_LEAST_TIMES, times, reference) for reference in references)


def _cached(name: str, load: wrk.Load, stage: Stage, peer: str) -> Mapping[str, Sample]:
    server = stage.peers.servers[peer]
    for _ in range(_WARM_UPS):
        fetch_raw(server.port, load.path, load.headers)
    watch = Watch(stage, server)
    report = wrk.run(stage.tools.wrk, server.port, load, stage.seconds, stage.cores.load)
    sample = watch.sample(report.requests_per_s)
    watch.expect_no_origin()
    return {name: sample}


def _conditional(name: str, path: str, stage: Stage, peer: str) -> Mapping[str, Sample]:
    port = stage.peers.servers[peer].port
    etag = header([fetch_raw(port, path) for _ in range(_WARM_UPS)][-1], "ETag")
    condition = {"If-None-Match": etag}
    if status(fetch_raw(port, path, condition)) != 304:
        raise BenchError(f"{peer} does not answer 304")
    return _cached(name, wrk.Load(path, headers=condition), stage, peer)


def _relayed(name: str, load: wrk.Load, stage: Stage, peer: str) -> Mapping[str, Sample]:
    server = stage.peers.servers[peer]
    watch = Watch(stage, server)
    report = wrk.run(stage.tools.wrk, server.port, load, stage.seconds, stage.cores.load)
    return {name: watch.sample(report.requests_per_s)}


_Work = Callable[[Stage, str], Mapping[str, Sample]]


def _benchmark(name: str, title: str, peers: tuple[str, ...], targets: tuple[Target, ...], work: _Work) -> Benchmark:
    return Benchmark(name, (Row(name, title, "requests/s", targets),), peers, work)


def benchmarks() -> list[Benchmark]:
    """Everything that wrk can load."""
    strict = (STRICT,) if HAS_FAST_PATH_SWITCH else ()
    same = (GATEWAY, *strict, "nginx", "varnish", "bare")
    three = (GATEWAY, "nginx", "varnish")
    two = (GATEWAY, "nginx")
    return [
        _benchmark(
            "same",
            "cached 1 KB, same headers",
            same,
            _at_least(1.7, "nginx", "varnish") + _at_least(3, *strict) + _at_least(0.6, "bare"),
            partial(_cached, "same", wrk.Load("/1k/same")),
        ),
        _benchmark(
            "varied",
            "cached 1 KB, new traceparent and cookie each time",
            three,
            _at_least(1.3, "nginx"),
            partial(_cached, "varied", wrk.Load("/1k/varied", script="varied.lua")),
        ),
        _benchmark("64k", "cached 64 KB", three, _at_least(1.1, "nginx"), partial(_cached, "64k", wrk.Load("/64k/a"))),
        _benchmark("1m", "cached 1 MB", three, _at_least(1.1, "nginx"), partial(_cached, "1m", wrk.Load("/1m/a"))),
        _benchmark(
            "304",
            "304 on If-None-Match",
            three,
            _at_least(1.5, "nginx"),
            partial(_conditional, "304", "/1k/conditional"),
        ),
        _benchmark(
            "head",
            "relayed HEAD",
            two,
            _at_least(0.8, "nginx"),
            partial(_relayed, "head", wrk.Load("/pass/a", script="head.lua")),
        ),
        _benchmark(
            "post",
            "relayed POST, 100 B",
            two,
            _at_least(0.8, "nginx"),
            partial(_relayed, "post", wrk.Load("/pass/a", script="post.lua")),
        ),
    ]

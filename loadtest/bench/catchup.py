"""Cached catch-up reads and relayed requests, loaded by wrk.

A cached read needs no origin: the stream is closed and its answer has been given before.  Every round checks, by their
processor time, that the origins stayed idle.

A cold read is the first read of its stream: everything is requested from the origin, and nginx stores nothing.
Requests with methods other than reads are relayed.  In both cases the responder behind the servers costs less than
either server, and every round checks that it was asked.

A read that ends at the tail of an open stream needs no origin either while the stream's live request is open.  It is
compared with a read of as many bytes that ends inside the same gateway's tape, and with nginx's hit, in requests and in
the server's processor time.
"""

from __future__ import annotations

import http.client
import itertools
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Final

from loadtest.bench import wrk
from loadtest.bench.fetch import fetch_raw, header, status
from loadtest.bench.figures import GATEWAY, Relation, Row, Sample, Target
from loadtest.bench.machine import BenchError
from loadtest.bench.nginx import COLD
from loadtest.bench.peers import HAS_FAST_PATH_SWITCH, STRICT, TAIL, TAIL_CHUNK_BYTES, fresh
from loadtest.bench.stage import Benchmark, Stage, Watch

INSIDE: Final = "inside the tape"
"""The gateway itself: a hit of as many bytes that ends before the tail."""

_COLD_CACHE: Final = "16MiB"
_WARM_UPS: Final = 3
_FOLLOWING_READS: Final = 50
"""Number of tail reads after which the stream is certainly followed."""

_numbers = itertools.count(1)


def _at_least(times: float, *references: str) -> tuple[Target, ...]:
    return tuple(Target(Relation.AT_LEAST_TIMES, times, reference) for reference in references)


def _cpu_at_most(times: float, reference: str) -> tuple[Target, ...]:
    return (Target(Relation.AT_MOST_CPU, times, reference),)


def _cached(name: str, load: wrk.Load, stage: Stage, peer: str) -> Mapping[str, Sample]:
    server = stage.peers.servers[peer]
    for _ in range(_WARM_UPS):
        fetch_raw(server.port, load.path, load.headers)
    watch = Watch(stage, server)
    report = wrk.run(stage.tools.wrk, server.port, load, stage.seconds, stage.cores.load)
    sample = watch.sample(report.requests_per_s, report.requests)
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
    watch.expect_origin(report.requests)
    return {name: watch.sample(report.requests_per_s, report.requests)}


def _cold(name: str, size: str, stage: Stage, peer: str) -> Mapping[str, Sample]:
    """A gateway of its own, with a cache so small that it is soon full and every stored stream evicts others."""
    with ExitStack() as stack:
        server = stage.peers.servers[peer]
        if peer == GATEWAY:
            here = fresh(peer, stage.tools, stage.cores, stage.peers, stage.folder, cache=_COLD_CACHE)
            server = stack.enter_context(here)
        wrk.run(stage.tools.wrk, server.port, _unseen(size), 1, stage.cores.load)
        watch = Watch(stage, server)
        report = wrk.run(stage.tools.wrk, server.port, _unseen(size), stage.seconds, stage.cores.load)
        sample = watch.sample(report.requests_per_s, report.requests)
        watch.expect_origin(report.requests)
    return {name: sample}


def _unseen(size: str) -> wrk.Load:
    return wrk.Load(f"/{size}/{COLD}/{next(_numbers)}-", script="cold.lua")


def _tail(stage: Stage, peer: str) -> Mapping[str, Sample]:
    """Reads up to the tail of a stream of one reply, or of the first of two replies; nginx has a closed stream."""
    server = stage.peers.servers["nginx" if peer == "nginx" else GATEWAY]
    path = "/1k/tail"
    if peer != "nginx":
        path = f"/tail/{next(_numbers)}"
        _create(stage.peers.origins[TAIL].port, path, TAIL_CHUNK_BYTES * (2 if peer == INSIDE else 1))
    load = wrk.Load(f"{path}?offset=-1")
    answers = [fetch_raw(server.port, load.path) for _ in range(_FOLLOWING_READS)]
    if (header(answers[-1], "Stream-Up-To-Date") == "true") is (peer == INSIDE):
        raise BenchError(f"{peer} does not end where it should")
    watch = Watch(stage, server)
    report = wrk.run(stage.tools.wrk, server.port, load, stage.seconds, stage.cores.load)
    sample = watch.sample(report.requests_per_s, report.requests)
    watch.expect_no_origin()
    return {"tail": sample}


def _create(port: int, path: str, size: int) -> None:
    """Create an open stream of that many bytes at its origin."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("PUT", path, bytes(size), {"Content-Type": "application/octet-stream"})
    reply = connection.getresponse()
    reply.read()
    connection.close()
    if reply.status != 201:
        raise BenchError(f"the origin answers {reply.status} to PUT {path}")


_Work = Callable[[Stage, str], Mapping[str, Sample]]


def _benchmark(name: str, title: str, peers: tuple[str, ...], targets: tuple[Target, ...], work: _Work) -> Benchmark:
    return Benchmark(name, (Row(name, title, "requests/s", targets),), peers, work)


def benchmarks() -> list[Benchmark]:
    """All benchmarks that wrk can load."""
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
            "tail",
            "catch-up at a followed tail, 1 KB",
            (GATEWAY, INSIDE, "nginx"),
            _cpu_at_most(1.3, INSIDE),
            _tail,
        ),
        _benchmark(
            "cold-1k",
            "catch-up of 1 KB never asked for",
            two,
            _cpu_at_most(2, "nginx"),
            partial(_cold, "cold-1k", "1k"),
        ),
        _benchmark(
            "cold-64k",
            "catch-up of 64 KB never asked for",
            two,
            _cpu_at_most(2, "nginx"),
            partial(_cold, "cold-64k", "64k"),
        ),
        _benchmark(
            "head",
            "relayed HEAD",
            two,
            _cpu_at_most(2, "nginx"),
            partial(_relayed, "head", wrk.Load("/pass/a", script="head.lua")),
        ),
        _benchmark(
            "post",
            "relayed POST, 100 B",
            two,
            _cpu_at_most(2, "nginx"),
            partial(_relayed, "post", wrk.Load("/pass/a", script="post.lua")),
        ),
    ]

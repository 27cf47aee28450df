"""S2 streams: live readers in both transports, and ranges that are read again and again.

Each is compared with what Durable Streams' clients cost the same gateway: an S2 delivery with an SSE delivery of a
Durable Stream over HTTP/1.1, with as many readers of as many bytes; a range with a cached hit of as many bytes, over
the same version of HTTP.  "direct" is the in-memory S2 origin itself.

The origin is a process of its own.  The load client appends to it by POST, so that the gateway sees records as from any
writer: by its one session.  In "saturation" an append has many records.
"""

from __future__ import annotations

import http.client
import itertools
from base64 import b64encode
from collections.abc import Mapping
from functools import partial
from typing import Final

import orjson

from gateway.s2.json_format import FORMAT_HEADER
from gateway.s2.protobuf import CONTENT_TYPE as PROTOBUF_TYPE
from loadtest.bench import h2load, live, live_client, wrk
from loadtest.bench.fetch import fetch_raw, status
from loadtest.bench.figures import GATEWAY, Relation, Row, Sample, Target
from loadtest.bench.live import DIRECT
from loadtest.bench.machine import BenchError
from loadtest.bench.peers import S2, SIZES
from loadtest.bench.stage import Benchmark, Stage, Watch

DURABLE: Final = "Durable Stream"
"""The gateway itself, with a Durable Stream."""

BASIN: Final = "bench-basin"
CONNECTIONS: Final = 20
BATCH: Final = 32
"""Records of an append in a saturated run."""

_HEADERS: Final = {"s2-basin": BASIN}
_WARM_UPS: Final = 3

_numbers = itertools.count(1)


def _stream() -> str:
    return f"/v1/streams/bench-{next(_numbers)}/records"


def _appended(port: int, path: str, bodies: list[bytes]) -> None:
    """Append records to a stream at its origin, which creates it, and its basin if that is missing."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    basin = {"config": {"create_stream_on_append": True, "create_stream_on_read": True}}
    append = {"records": [{"body": b64encode(body).decode()} for body in bodies]}
    for method, target, content in (("PUT", f"/v1/basins/{BASIN}", basin), ("POST", path, append)):
        headers = {**_HEADERS, "Content-Type": "application/json", FORMAT_HEADER: "base64"}
        connection.request(method, target, orjson.dumps(content), headers)
        reply = connection.getresponse()
        reply.read()
        if reply.status >= 300:
            raise BenchError(f"the S2 origin answers {reply.status} to {method} {target}")
    connection.close()


# -- live readers


def _fanout(prefix: str, window: int, batch: int, stage: Stage, peer: str) -> Mapping[str, Sample]:
    names = [f"{prefix}-{name}" for name in ("s2s", "s2s-alone", "sse")]
    if peer == DURABLE:
        [sample] = [one for one in live.fanout("durable", window, stage, GATEWAY).values() if one.cpu_us is not None]
        return dict.fromkeys(names, sample)
    samples = [
        _readers(stage, live.SUBSCRIBERS // CONNECTIONS, window, batch),
        _readers(stage, 1, window, batch),
        _readers(stage, 0, window, batch),
    ]
    return dict(zip(names, samples, strict=True))


def _readers(stage: Stage, streams: int, window: int, batch: int) -> Sample:
    """Readers of a new stream at its tail: sessions, `streams` to a connection, or with 0 SSE over HTTP/1.1."""
    server, origin, path = stage.peers.servers[GATEWAY], stage.peers.origins[S2], _stream()
    _appended(origin.port, path, [b"the first"])
    argv = live_client.measured(stage, server)
    argv += ["--port", str(server.port), "--path", f"/{S2}{path}?tail_offset=0", "--basin", BASIN]
    argv += ["--post", str(origin.port), "--post-path", path, "--batch", str(batch)]
    argv += ["--subscribers", str(live.SUBSCRIBERS), "--window", str(window), "--seconds", str(stage.seconds)]
    if streams:
        report = live_client.run(stage, stage.tools.multiplex, [*argv, "--streams", str(streams)])
    else:
        report = live_client.run(stage, stage.tools.live, ["fanout", *argv])
    return live_client.rate(report, report["deliveries"])


# -- ranges


def _range(
    name: str, size: str, headers: Mapping[str, str], is_h2: bool, stage: Stage, peer: str
) -> Mapping[str, Sample]:
    """Reads of a range that a limit ends: records of 1 KB, as many as make the size."""
    records, path = SIZES[size] >> 10, f"/{size}/s2"
    server = stage.peers.origins[S2] if peer == DIRECT else stage.peers.servers[GATEWAY]
    sent: Mapping[str, str] = {}
    if peer != DURABLE:
        stream = _stream()
        _appended(stage.peers.origins[S2].port, stream, [b"x" * 1024] * (records + 1))
        path = f"{'' if peer == DIRECT else '/' + S2}{stream}?seq_num=0&count={records}"
        sent = {**_HEADERS, **headers}
    for _ in range(_WARM_UPS):
        if status(fetch_raw(server.port, path, sent)) != 200:
            raise BenchError(f"{peer} does not answer {path}")
    watch = Watch(stage, server)
    report: wrk.WrkReport | h2load.H2Report
    if is_h2:
        report = h2load.run(
            stage.tools.secure.h2load, server.port, path, stage.seconds, stage.cores.load, headers=sent, scheme="http"
        )
    else:
        report = wrk.run(stage.tools.wrk, server.port, wrk.Load(path, headers=sent), stage.seconds, stage.cores.load)
    sample = watch.sample(report.requests_per_s, report.requests)
    if peer != DIRECT:
        watch.expect_no_origin()
    return {name: sample}


def benchmarks() -> list[Benchmark]:
    """All benchmarks with S2 streams."""
    twice = (Target(Relation.AT_MOST_CPU, 2, DURABLE),)
    raw = dict[str, str]()
    base64, protobuf = {FORMAT_HEADER: "base64"}, {"Accept": PROTOBUF_TYPE}
    ranges = (
        ("s2-range", "1 KB in JSON", "1k", raw, False),
        ("s2-range-base64", "1 KB in base64", "1k", base64, False),
        ("s2-range-protobuf", "1 KB in protobuf", "1k", protobuf, False),
        ("s2-range-64k", "64 KB in JSON", "64k", raw, False),
        ("s2-range-h2", "1 KB in JSON, HTTP/2", "1k", raw, True),
        ("s2-range-protobuf-h2", "1 KB in protobuf, HTTP/2", "1k", protobuf, True),
    )
    return [
        *(
            Benchmark(
                name,
                (
                    Row(f"{name}-s2s", f"S2S over HTTP/2, 1,000 on {CONNECTIONS} connections, {how}", each, twice),
                    Row(f"{name}-s2s-alone", f"S2S over HTTP/2, 1,000 connections, {how}", each, twice),
                    Row(f"{name}-sse", f"S2's SSE, 1,000 connections, {how}", each, twice),
                ),
                (GATEWAY, DURABLE),
                partial(_fanout, name, window, batch),
            )
            for name, how, window, batch, each in (
                ("s2-fanout", "spaced out", 1, 1, "deliveries/s"),
                ("s2-saturation", "saturation", live.WINDOW, BATCH, "deliveries/s"),
            )
        ),
        *(
            Benchmark(
                name,
                (Row(name, f"S2, a range of {title}", "requests/s", twice),),
                (GATEWAY, DURABLE, DIRECT),
                partial(_range, name, size, headers, is_h2),
            )
            for name, title, size, headers, is_h2 in ranges
        ),
    ]

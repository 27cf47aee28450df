"""Thousands of live readers that stay connected, held and counted by a C client (`live_client.py`).

"Spaced out" means one event at a time: the next is published once the last has reached every reader.  "Saturation"
keeps a window of events in flight: the highest rate at which no reader loses an event.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from loadtest.bench import live_client
from loadtest.bench.children import Child
from loadtest.bench.figures import GATEWAY, Relation, Row, Sample, Target
from loadtest.bench.live_client import NCHAN
from loadtest.bench.machine import BenchError, memory, pinned
from loadtest.bench.peers import fresh
from loadtest.bench.stage import Benchmark, Stage

DIRECT: Final = "direct"
NONE_STALLED: Final = "none stalled"
"""The gateway itself, with the same readers and none stalled."""

SUBSCRIBERS: Final = 1_000
STALLED: Final = 100
WINDOW: Final = 128
WAITERS: Final = 5_000
IDLE: Final = 10_000
_WARM_UP_CONNECTIONS: Final = 200
_SPARE_FILES: Final = 256


def fanout(prefix: str, window: int, stage: Stage, peer: str) -> Mapping[str, Sample]:
    """The rate and the delay of SSE readers with a connection each."""
    argv = live_client.arguments(stage, peer, stage.peers.servers[peer])
    argv += ["--subscribers", str(SUBSCRIBERS), "--window", str(window), "--seconds", str(stage.seconds)]
    result = live_client.run(stage, stage.tools.live, ["fanout", *argv])
    if peer == GATEWAY and result["upstream_live"] != 1:
        raise BenchError(f"the gateway asked the origin {result['upstream_live']} times for one live stream")
    return {
        f"{prefix}-rate": live_client.rate(result, result["deliveries"]),
        f"{prefix}-p99": Sample(result["p99_ms"]),
    }


def _stalled(stage: Stage, peer: str) -> Mapping[str, Sample]:
    """Messages large enough that the stalled readers' buffers are full before counting begins."""
    server = stage.peers.servers[GATEWAY if peer == NONE_STALLED else peer]
    argv = live_client.arguments(stage, peer, server)
    argv += ["--subscribers", str(SUBSCRIBERS - STALLED), "--window", "1", "--gap-us", "10000"]
    argv += ["--message-bytes", "4096", "--warmup", "1.5", "--seconds", str(stage.seconds)]
    argv += ["--stalled", str(0 if peer == NONE_STALLED else STALLED)]
    result = live_client.run(stage, stage.tools.live, ["fanout", *argv])
    return {"stalled-p50": Sample(result["p50_ms"]), "stalled-p99": Sample(result["p99_ms"])}


def _wake(stage: Stage, peer: str) -> Mapping[str, Sample]:
    server = stage.peers.servers[peer]
    waiters = min(WAITERS, stage.max_files - _SPARE_FILES)
    argv = [*live_client.arguments(stage, peer, server, is_long_poll=True), "--subscribers", str(waiters)]
    result = live_client.run(stage, stage.tools.live, ["wake", *argv, "--rounds", "3"])
    samples = {
        "wake-first": Sample(median(one["first_ms"] for one in result["rounds"])),
        "wake-last": Sample(median(one["last_ms"] for one in result["rounds"])),
    }
    if peer == GATEWAY:
        samples["wake-upstream"] = Sample(result["upstream_live"])
    return samples


def _delay(stage: Stage, peer: str) -> Mapping[str, Sample]:
    server = None if peer == DIRECT else stage.peers.servers[peer]
    argv = live_client.arguments(stage, peer, server)
    argv += ["--subscribers", "1", "--window", "64", "--gap-us", "2500", "--seconds", str(stage.seconds)]
    result = live_client.run(stage, stage.tools.live, ["fanout", *argv])
    return {"delay-p50": Sample(result["p50_ms"]), "delay-p99": Sample(result["p99_ms"])}


@contextmanager
def held(
    stage: Stage,
    peer: str,
    server: Child,
    mode: str,
    count: int,
    secure: Path | None = None,
    *,
    more: Sequence[str] = (),
) -> Iterator[Sample]:
    """That many idle live readers, until the end of the block; yields the rate at which they were accepted.  `more`
    are further arguments of the client."""
    argv = live_client.arguments(stage, peer, server, is_long_poll=mode == "longpoll", is_secure=secure is not None)
    argv += ["--mode", mode, "--subscribers", str(count), *more]
    with pinned(stage.cores.load):
        process = subprocess.Popen(
            [str(secure or stage.tools.live), "idle", *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        if not line:
            raise BenchError(f"live idle: {process.stderr.read().strip() or 'no output'}")
        report = json.loads(line)
        if report["open"] != count:
            raise BenchError(f"{peer} holds {report['open']} of {count} idle readers")
        try:
            yield live_client.rate(report, count)
        finally:
            process.stdin.close()


def _memory(mode: str, stage: Stage, peer: str) -> Mapping[str, Sample]:
    return {f"memory-{mode}": memory_each(stage, peer, mode, IDLE)}


def memory_each(stage: Stage, peer: str, mode: str, most: int, secure: Path | None = None) -> Sample:
    """Bytes per reader, for at most that many idle readers; `secure` is the client that speaks TLS, if they do."""
    count = min(most, stage.max_files - _SPARE_FILES)
    # A process of its own: memory freed by earlier benchmarks would be reused, and hide the cost of this one.
    with fresh(peer, stage.tools, stage.cores, stage.peers, stage.folder) as server:
        with held(stage, peer, server, mode, _WARM_UP_CONNECTIONS, secure):
            pass
        before = memory(server.pids)
        with held(stage, peer, server, mode, count, secure) as opened:
            after = memory(server.pids)
    return Sample((after.pss_bytes - before.pss_bytes) / count, cpu_us=opened.cpu_us)


def benchmarks() -> list[Benchmark]:
    """All benchmarks with live readers."""
    both = (GATEWAY, NCHAN)
    return [
        Benchmark(
            "fanout",
            (
                Row(
                    "fanout-rate",
                    "SSE, 1,000 subscribers, spaced out",
                    "deliveries/s",
                    (Target(Relation.AT_LEAST_TIMES, 1.2, NCHAN),),
                ),
                Row(
                    "fanout-p99",
                    "SSE, spaced out: delay, p99",
                    "ms",
                    (Target(Relation.BELOW, 1, NCHAN),),
                    digits=2,
                    is_rate=False,
                ),
            ),
            both,
            partial(fanout, "fanout", 1),
        ),
        Benchmark(
            "saturation",
            (
                Row(
                    "saturation-rate",
                    "SSE, 1,000 subscribers, saturation",
                    "deliveries/s",
                    (Target(Relation.AT_LEAST_TIMES, 5, NCHAN),),
                ),
                Row("saturation-p99", "SSE, saturation: delay, p99", "ms", digits=1, is_rate=False),
            ),
            both,
            partial(fanout, "saturation", WINDOW),
        ),
        Benchmark(
            "stalled",
            (
                Row("stalled-p50", "SSE, 900 beside 100 stalled: delay, p50", "ms", digits=2, is_rate=False),
                Row(
                    "stalled-p99",
                    "SSE, 900 beside 100 stalled: delay, p99",
                    "ms",
                    (Target(Relation.AT_MOST_TIMES, 1.2, NONE_STALLED),),
                    digits=2,
                    is_rate=False,
                ),
            ),
            (GATEWAY, NONE_STALLED, NCHAN),
            _stalled,
        ),
        Benchmark(
            "wake",
            (
                Row("wake-first", "long-poll, 5,000 woken: first answer", "ms", digits=1, is_rate=False),
                Row(
                    "wake-last",
                    "long-poll, 5,000 woken: last answer",
                    "ms",
                    (Target(Relation.AT_MOST_TIMES, 1.2, NCHAN),),
                    digits=1,
                    is_rate=False,
                ),
                Row(
                    "wake-upstream",
                    "long-poll, 5,000 woken: at the origin",
                    "live requests",
                    (Target(Relation.AT_MOST, 1),),
                    is_rate=False,
                ),
            ),
            both,
            _wake,
        ),
        *(
            Benchmark(
                f"memory-{mode}",
                (
                    Row(
                        f"memory-{mode}",
                        f"memory per idle {title}",
                        "bytes",
                        (Target(Relation.AT_MOST, 2_560),),
                        is_rate=False,
                    ),
                ),
                both,
                partial(_memory, mode),
                most_rounds=1,
            )
            for mode, title in (("sse", "SSE subscriber"), ("longpoll", "long-poll waiter"))
        ),
        Benchmark(
            "delay",
            (
                Row(
                    "delay-p50",
                    "delay to 1 subscriber, p50",
                    "ms",
                    (Target(Relation.AT_MOST_ABOVE, 0.5, DIRECT),),
                    digits=3,
                    is_rate=False,
                ),
                Row("delay-p99", "delay to 1 subscriber, p99", "ms", digits=3, is_rate=False),
            ),
            (GATEWAY, DIRECT),
            _delay,
        ),
    ]

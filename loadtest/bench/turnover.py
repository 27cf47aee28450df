"""Live readers that come back: long-polls that read on, and SSE readers that join and leave.

The cost of a stream's readers depends on how often they ask.  A long-poll client asks again after every message; an SSE
client whenever its page is opened, its network changes or its lifetime is over.  A server that keeps up with its
long-polls gives as many answers a second as the schedule asks for; two such servers are compared by processor time per
answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from loadtest.bench import live_client
from loadtest.bench.figures import GATEWAY, Relation, Row, Sample, Target
from loadtest.bench.live_client import NCHAN
from loadtest.bench.machine import BenchError
from loadtest.bench.stage import Benchmark, Stage

READERS: Final = 1_000
GAP_US: Final = 50_000
"""The least time between two messages; the most is twice as long."""
JOINING: Final = 50


def _read_on(stage: Stage, peer: str) -> Mapping[str, Sample]:
    argv = live_client.arguments(stage, peer, stage.peers.servers[peer], is_long_poll=True)
    argv += ["--subscribers", str(READERS), "--gap-us", str(GAP_US), "--seconds", str(stage.seconds)]
    report = live_client.run(stage, stage.tools.poll, argv)
    _expect_one_upstream(peer, report["upstream_live"])
    return {"poll-rate": live_client.rate(report, report["answers"]), "poll-p99": Sample(report["p99_ms"])}


def _join(stage: Stage, peer: str) -> Mapping[str, Sample]:
    argv = live_client.arguments(stage, peer, stage.peers.servers[peer])
    argv += ["--concurrency", str(JOINING), "--seconds", str(stage.seconds)]
    report = live_client.run(stage, stage.tools.join, argv)
    _expect_one_upstream(peer, report["upstream_live"])
    return {"join": live_client.rate(report, report["joins"])}


def _expect_one_upstream(peer: str, requests: int) -> None:
    if peer == GATEWAY and requests != 1:
        raise BenchError(f"the gateway asked the origin {requests} times for one live stream")


def benchmarks() -> list[Benchmark]:
    """All benchmarks with readers that come back."""
    both = (GATEWAY, NCHAN)
    return [
        Benchmark(
            "poll",
            (
                Row(
                    "poll-rate",
                    "long-poll, 1,000 read on, a message every 50 to 100 ms",
                    "answers/s",
                    (Target(Relation.AT_MOST_CPU, 1.0, NCHAN),),
                ),
                Row("poll-p99", "long-poll, 1,000 read on: delay, p99", "ms", digits=1, is_rate=False),
            ),
            both,
            _read_on,
        ),
        Benchmark(
            "join",
            (Row("join", "SSE, join at the tail and leave", "joins/s", (Target(Relation.AT_MOST_CPU, 1.5, NCHAN),)),),
            both,
            _join,
        ),
    ]

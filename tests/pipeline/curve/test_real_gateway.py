"""The curve and the plan beside the real gateway: logs of reads, replayed by gateways with other memory.

A log is written by a gateway with much memory, and the pipeline says what smaller ones would miss.  The same reads then
go to gateways of these sizes.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import uvloop

from gateway.aio.clock import ManualClock
from gateway.app import start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.http.outgoing import JOINED_BYTES
from gateway.origin.app import start_origin
from gateway.pipeline import tables
from gateway.pipeline.curve.measure import measure_curve
from gateway.pipeline.curve.placing import VARIANTS
from gateway.pipeline.events import Files
from gateway.pipeline.ingest import ingest
from gateway.pipeline.lake import Lake
from gateway.pipeline.planner import make_plan
from gateway.protocol.coding import Coding
from gateway.tape.costs import BODY_USUAL_BYTES, CODED_USUAL_BYTES, SMALL_BYTES
from tests.effort import IS_LONG, examples, some
from tests.scenarios.wire import Wire

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MUCH: Final = 1 << 30
READS: Final = examples(1_000, 6_000)
JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Load:
    """Streams of different sizes, and readers by Zipf's law, of whom a share accepts codings."""

    streams: int
    accepting: float
    largest: int
    exponent: float = 0.9
    pages: int = 1
    """Messages of a stream, with the offset of each of which some readers begin."""

    def bodies(self) -> list[list[bytes]]:
        """The messages of each stream."""
        rng = random.Random(5)
        words = [f"word-{rng.randrange(1 << 40):x}" for _ in range(400)]
        out = []
        for _ in range(self.streams):
            size = min(self.largest, 600 + int(rng.lognormvariate(8.6, 1.0)))
            text = " ".join(rng.choice(words) for _ in range(size // 14))
            step = -(-len(text) // self.pages)
            out.append([json.dumps({"text": text[at : at + step]}).encode() for at in range(0, len(text), step)])
        return out

    def reads(self) -> list[tuple[float, int, float, float]]:
        """Seconds since the preceding read, stream, and two numbers from 0 to 1: its beginning, and its accepted
        codings."""
        rng = random.Random(11)
        shares = [1 / (rank + 1) ** self.exponent for rank in range(self.streams)]
        streams = rng.choices(range(self.streams), shares, k=READS)
        return [(rng.expovariate(1 / 1.7), stream, rng.random(), rng.random()) for stream in streams]


LOADS: Final = {
    "coded": Load(streams=120, accepting=0.8, largest=60_000),
    "plain": Load(streams=120, accepting=0.0, largest=60_000),
    "mixed pages": Load(streams=150, accepting=0.5, largest=24_000, pages=3),
}
SHARES: Final = some((0.1, 0.4), (0.05, 0.1, 0.2, 0.4, 0.7))
"""Cache sizes as shares of what everything takes; the smallest holds half a dozen tapes."""
ERROR: Final = 0.01


async def _played(load: Load, sizes: Sequence[int], log: Path | None = None) -> list[float]:
    """The hit ratios of gateways of these sizes, one after another; `log` is that of the only one."""
    origin = await start_origin()
    out = []
    try:
        offsets = await _created(load, origin.url)
        for size in sizes:
            settings: dict[str, Any] = {"sink": "file", "path": str(log), "query": "full"} if log is not None else {}
            clock = ManualClock()
            config = GatewayConfig.for_origin(
                origin.url, listen="127.0.0.1:0", admin="127.0.0.1:0", cache_bytes=size, **settings
            )
            gateway = await start_gateway(config, clock=clock)
            wire = await Wire.open(gateway.gateway_url)
            hits = 0
            try:
                for pause_s, stream, where, accepts in load.reads():
                    clock.advance(pause_s)
                    of_stream = offsets[stream]
                    start = of_stream[int(where * (len(of_stream) - 1)) if where < 0.4 else 0]
                    coding = {"Accept-Encoding": ("gzip", "br, gzip")[accepts < load.accepting / 4]}
                    await wire.ask(f"/{stream}?offset={start}", coding if accepts < load.accepting else {})
                    head = await wire.answer("GET")
                    assert head.status == 200
                    # Bytes from memory after a question about the tail are a hit of the curve, too.
                    hits += "; fwd=uri-miss" not in head.headers["Cache-Status"]
            finally:
                await wire.closed()
                await gateway.stop()
            out.append(hits / READS)
    finally:
        await origin.stop(grace_s=0)
    return out


async def _created(load: Load, origin: str) -> list[list[str]]:
    """Create the streams, closed; return the offsets of the messages of each."""
    wire = await Wire.open(origin)
    offsets = []
    for number, messages in enumerate(load.bodies()):
        await wire.ask(f"/{number}", {"Content-Type": JSON}, "PUT", b"")
        begun = ["-1"]
        await wire.answer("PUT")
        for index, message in enumerate(messages):
            headers = {"Content-Type": JSON} | ({"Stream-Closed": "true"} if index == len(messages) - 1 else {})
            await wire.ask(f"/{number}", headers, "POST", message)
            begun.append((await wire.answer("POST")).headers["Stream-Next-Offset"])
        offsets.append(begun)
    await wire.closed()
    return offsets


def _run(load: Load, sizes: Sequence[int], log: Path | None = None) -> list[float]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_played(load, sizes, log))


@pytest.mark.parametrize("name", some(["coded"], list(LOADS)))
def test_the_curve_and_the_plan_say_what_a_gateway_of_that_size_hits(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    load, log = LOADS[name], tmp_path / "access.log"
    _run(load, [MUCH], log)
    lake = Lake(str(tmp_path / "lake"))
    ingest(spark, Files((str(log),)), lake, progress=lambda text: None)
    everything = sum(len(body) for bodies in load.bodies() for body in bodies) + 2_600 * load.streams
    sizes = [int(everything * share) for share in SHARES] + [2 * everything]
    measure_curve(spark, lake, sizes=sizes, policies=["s3-fifo"])
    curve = {row.cache_bytes: 1 - row.miss_ratio for row in lake.read(spark, tables.CURVE).collect()}
    real = dict(zip(sizes, _run(load, sizes), strict=True))
    assert all(below < above for below, above in pairwise(real[size] for size in sizes))
    assert {size: curve[size] for size in sizes} == pytest.approx(real, abs=ERROR)
    if IS_LONG:
        target = real[sizes[3]]
        plan = make_plan(spark, lake, target_hit_ratio=target, policy="s3-fifo", clock=ManualClock())
        (reached,) = _run(load, [plan.memory.cache_bytes])
        assert reached == pytest.approx(plan.memory.expected_hit_ratio, abs=ERROR)


def test_the_model_knows_all_codings_and_the_gateways_bounds() -> None:
    assert set(VARIANTS[1:]) == {coding.value for coding in Coding}
    limits = GatewayConfig.for_origin("http://127.0.0.1:1").limits
    assert limits.compress_cache_bytes == CODED_USUAL_BYTES
    assert limits.max_flight_bytes == BODY_USUAL_BYTES
    assert SMALL_BYTES == JOINED_BYTES

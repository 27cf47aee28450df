"""`bench URL`: a quick measurement of any gateway.  To get comparable figures, run the clients on a separate
machine."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gateway.aio.clock import SystemClock
from gateway.commands.failure import CommandFailed
from gateway.commands.run import allow_many_connections, run
from gateway.commands.target import Headers, Target, gateway_target

if TYPE_CHECKING:
    from gateway.commands.bench_delay import Delays
    from gateway.commands.bench_reads import Reads

_BUSY: Final = 0.85
"""If the client uses at least this share of a core, it probably limits the result itself."""


def bench(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="A gateway, or a path below which streams may be created; S2: s2://host:port/basin."
        ),
    ],
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="SECONDS", min=0.2, max=60, help="How long each part measures.")
    ] = 3,
    connections: Annotated[
        int, typer.Option("--connections", metavar="N", min=1, max=1000, help="Connections that read.")
    ] = 16,
    subscribers: Annotated[
        int,
        typer.Option("--subscribers", metavar="N", min=1, max=10_000, help="SSE connections that wait for appends."),
    ] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    header: Headers = None,
) -> None:
    """Measure cached reads per second and the delay of live deliveries, on two streams that are deleted afterwards."""
    target = gateway_target(url, header, os.environ)
    allow_many_connections()
    if not run(_bench(target, seconds, connections, subscribers, as_json)):
        raise CommandFailed("stopped before there were figures")


async def _bench(target: Target, seconds: float, connections: int, subscribers: int, as_json: bool) -> None:
    from gateway.commands.bench_delay import measure_delay
    from gateway.commands.bench_reads import measure_reads
    from gateway.commands.bench_streams import bench_streams
    from gateway.commands.exchange import open_session

    clock, headers = SystemClock(), target.headers
    name = f"durable-gateway-bench-{random.SystemRandom().getrandbits(48):012x}"
    async with open_session(target.url, headers) as session:
        streams = bench_streams(session, target)
        with _progress("reading", seconds):
            async with streams.cached(f"{name}-read") as cached:
                reads = await measure_reads(
                    cached.url, headers, cached.size_bytes, connections=connections, seconds=seconds, clock=clock
                )
        with _progress("delivering", seconds):
            async with streams.followed(f"{name}-live") as followed:
                delays = await measure_delay(
                    followed.url,
                    headers,
                    followed.event,
                    followed.append,
                    subscribers=subscribers,
                    seconds=seconds,
                    clock=clock,
                )
    if as_json:
        typer.echo(_as_json(target.url, seconds, connections, subscribers, reads, delays))
    else:
        for line in _report(seconds, connections, subscribers, reads, delays, cached.what):
            typer.echo(line)


@contextmanager
def _progress(what: str, seconds: float) -> Iterator[None]:
    """A spinner while the block runs, if stderr is a terminal."""
    from rich.console import Console

    stderr = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if not stderr.is_terminal:
        yield
        return
    # Few frames a second, because the spinner competes with the measurement.
    with stderr.status(f"{what} for {seconds:g} s", refresh_per_second=2):
        yield


def _report(seconds: float, connections: int, subscribers: int, reads: Reads, delays: Delays, what: str) -> list[str]:
    hits = "no Cache-Status" if reads.hit_ratio is None else f"hits {reads.hit_ratio:.1%}"
    share = f"client      {reads.client_share:.0%} of a core while reading"
    if reads.client_share >= _BUSY:
        share += ": the gateway may be faster than this client"
    quantiles = (("p50", delays.p50_s), ("p95", delays.p95_s), ("p99", delays.p99_s), ("max", delays.max_s))
    delivered = f"{delays.delivered} of {delays.expected} delivered"
    return [
        f"reads       {reads.per_s:,.0f}/s   p50 {_ms(reads.p50_s)}   p99 {_ms(reads.p99_s)}",
        f"            {what}, {connections} connections, {seconds:g} s; {hits}; errors {reads.errors}",
        "live delay  " + "   ".join(f"{name} {_ms(value)}" for name, value in quantiles),
        f"            append sent to event read, {subscribers} SSE subscribers, {delays.appends} appends; {delivered}",
        share,
    ]


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"


def _as_json(base: str, seconds: float, connections: int, subscribers: int, reads: Reads, delays: Delays) -> str:
    from dataclasses import asdict

    import orjson

    asked = {"url": base, "seconds": seconds, "connections": connections, "subscribers": subscribers}
    return orjson.dumps({**asked, "reads": asdict(reads), "delays": asdict(delays)}).decode()

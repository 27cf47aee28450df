"""`bench URL`: a quick measurement of any gateway.  For figures to compare, run the clients on a separate machine."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gateway.aio.clock import SystemClock
from gateway.commands.failure import CommandFailed
from gateway.commands.run import allow_many_connections, run
from gateway.commands.target import Headers, http_url, request_headers
from gateway.protocol import names

if TYPE_CHECKING:
    import aiohttp

    from gateway.commands.bench_delay import Delays
    from gateway.commands.bench_reads import Reads

_READ_BYTES: Final = 1024
_LEFTOVER_TTL_S: Final = 600
"""Stream-TTL in seconds, so that the streams expire if the bench is killed."""

_BUSY: Final = 0.85
"""Share of a core above which the client itself probably limits the figure."""


def bench(
    url: Annotated[str, typer.Argument(metavar="URL", help="A gateway, or a path below which streams may be created.")],
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
    base = http_url(url, "URL").rstrip("/")
    if "?" in base:
        raise typer.BadParameter("a gateway's URL has no query", param_hint="'URL'")
    allow_many_connections()
    if not run(_bench(base, seconds, connections, subscribers, as_json, request_headers(header))):
        raise CommandFailed("stopped before there were figures")


async def _bench(
    base: str, seconds: float, connections: int, subscribers: int, as_json: bool, headers: dict[str, str]
) -> None:
    from gateway.commands.bench_delay import measure_delay, message
    from gateway.commands.bench_reads import measure_reads
    from gateway.commands.exchange import open_session

    clock = SystemClock()
    name = f"{base}/durable-gateway-bench-{random.SystemRandom().getrandbits(48):012x}"
    async with open_session(base, headers) as session:
        with _progress("reading", seconds):
            # Only of a closed stream can a gateway answer every read without the origin.
            async with _stream(session, f"{name}-read", "text/plain", b"." * _READ_BYTES, is_closed=True) as stream:
                target = f"{stream}?offset=-1"
                reads = await measure_reads(
                    target, headers, _READ_BYTES, connections=connections, seconds=seconds, clock=clock
                )
        with _progress("delivering", seconds):
            async with _stream(session, f"{name}-live", names.JSON_TYPE, b"[%s]" % message(0)) as stream:

                async def append(body: bytes) -> None:
                    await _require(session, "POST", stream, {"Content-Type": names.JSON_TYPE}, body)

                delays = await measure_delay(
                    stream, headers, append, subscribers=subscribers, seconds=seconds, clock=clock
                )
    if as_json:
        typer.echo(_as_json(base, seconds, connections, subscribers, reads, delays))
    else:
        for line in _report(seconds, connections, subscribers, reads, delays):
            typer.echo(line)


@asynccontextmanager
async def _stream(
    session: aiohttp.ClientSession, url: str, content_type: str, body: bytes, *, is_closed: bool = False
) -> AsyncIterator[str]:
    """Create a stream that holds `body`; delete it at the end of the block."""
    closed = {names.STREAM_CLOSED: "true"} if is_closed else {}
    headers = {"Content-Type": content_type, names.STREAM_TTL: str(_LEFTOVER_TTL_S), **closed}
    await _require(session, "PUT", url, headers, body)
    try:
        yield url
    finally:
        await _require(session, "DELETE", url, {}, None)


async def _require(
    session: aiohttp.ClientSession, method: str, url: str, headers: dict[str, str], body: bytes | None
) -> None:
    """Send a request; CommandFailed unless it succeeds."""
    from gateway.commands.exchange import Transient, origin_error, request

    try:
        async with request(session, method, url, headers, body) as response:
            if response.status not in (200, 201, 204):
                raise await origin_error(response)
            await response.read()
    except Transient as error:
        raise CommandFailed(f"{method} {url}: {error}") from None


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


def _report(seconds: float, connections: int, subscribers: int, reads: Reads, delays: Delays) -> list[str]:
    hits = "no Cache-Status" if reads.hit_ratio is None else f"hits {reads.hit_ratio:.1%}"
    share = f"client      {reads.client_share:.0%} of a core while reading"
    if reads.client_share >= _BUSY:
        share += ": the gateway may be faster than this client"
    quantiles = (("p50", delays.p50_s), ("p95", delays.p95_s), ("p99", delays.p99_s), ("max", delays.max_s))
    delivered = f"{delays.delivered} of {delays.expected} delivered"
    return [
        f"reads       {reads.per_s:,.0f}/s   p50 {_ms(reads.p50_s)}   p99 {_ms(reads.p99_s)}",
        f"            1 KiB, closed stream, {connections} connections, {seconds:g} s; {hits}; errors {reads.errors}",
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

"""Measure the cost of the access log, in nanoseconds per request: `python -m loadtest.access_log`.

There are two costs: the request's own, before its answer goes out (it is put into a queue), and the log's, on the same
core a little later (lines are made and handed to a thread that writes them).  Cached reads lose both together; at
100,000 reads a second, 100 ns are 1 % of a core.  The best of several rounds counts, because other load on the machine
can only add time.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from rich.console import Console
from rich.table import Table

from gateway.aio.clock import SystemClock
from gateway.ops.access_log.lines import Hit, Lines
from gateway.ops.access_log.sinks.file import FileSink
from gateway.ops.access_log.writer import LogWriter
from gateway.ops.partition_ids import PartitionIds
from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode
from gateway.protocol.sharing import Partition
from gateway.telemetry.access_record import AccessLog, NoAccessLog, Record, Repeated
from gateway.telemetry.metrics import NoMetrics

_ROUNDS = 7
_RECORDS = 20_000
_SHORT = 1_000
_SLICE = 256
_CLIENTS = 50


def _record() -> Record:
    return Record(
        mode=Mode.CATCHUP,
        outcome=Outcome.HIT,
        method="GET",
        route="default",
        stream="/chat/room-17",
        partition=Partition("default", 0, "00112233445566778899aabbccddeeff"),
        status=200,
        ended_at=1_790_000_000.123456,
        duration_s=0.000_210,
        first_byte_s=0.000_180,
        start="-1",
        next_offset="0000000000000000_0000000000001024",
        sent_bytes=1_024,
        client="192.0.2.17",
        user_agent="Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
    )


def _request(number: int, *, traced: bool = False) -> bytes:
    head = (
        b"GET /chat/room-17?offset=-1 HTTP/1.1\r\nHost: edge.example.org\r\n"
        b"User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/%d.0\r\n"
        b"Accept: application/json\r\nAccept-Encoding: gzip, br, zstd\r\n" % (100 + number % _CLIENTS)
    )
    trace = b"traceparent: 00-%032x-%016x-01\r\n" % (Random(number).getrandbits(127) + 1, number + 1)
    return head + (trace if traced else b"") + b"\r\n"


def _best(work: Callable[[], object], records: int) -> float:
    """Nanoseconds per record in the best round."""
    took: list[int] = []
    for _ in range(_ROUNDS):
        began = time.perf_counter_ns()
        work()
        took.append(time.perf_counter_ns() - began)
    return min(took) / records


def _lines() -> Lines:
    return Lines("durable-gateway", "masked", PartitionIds())


def _making(items: list[Record | Hit]) -> float:
    lines = _lines()
    slices = [items[at : at + _SLICE] for at in range(0, len(items), _SLICE)]

    def work() -> None:
        for taken in slices:
            lines.written(taken, 0.0)

    return _best(work, len(items))


def _noting(access_log: AccessLog, requests: list[bytes]) -> float:
    """Nanoseconds that a remembered answer takes to record itself."""
    hit, now = Repeated(_record()), time.monotonic()

    def work() -> None:
        repeat = access_log.repeat
        for request in requests:
            repeat(hit, now, now, "192.0.2.17", request)

    return _best(work, len(requests))


async def _whole(folder: Path, requests: list[bytes]) -> tuple[float, float]:
    """Total nanoseconds of the loop's thread per hit, and the longest turn of the loop meanwhile, in ms."""
    clock, counts = SystemClock(), NoMetrics()
    sink = FileSink(folder / "access.log", clock, rotate_bytes=0, rotate_s=0, keep_files=0)
    log = LogWriter(
        sink,
        _lines(),
        clock,
        counts,
        queue_records=2 * len(requests) + 2,
        queue_bytes=1 << 30,
        batch_bytes=256 * 1024,
        batch_s=0.5,
        live_interval_s=0,
    )
    log.start()
    hit, longest = Repeated(_record()), 0
    began = time.thread_time_ns()
    for at in range(0, len(requests), 100):
        turn = time.perf_counter_ns()
        for request in requests[at : at + 100]:
            log.repeat(hit, clock.now(), clock.now(), "192.0.2.17", request)
        await asyncio.sleep(0)
        longest = max(longest, time.perf_counter_ns() - turn)
    await log.close(60.0)
    spent = time.thread_time_ns() - began
    lines = (folder / "access.log").read_bytes().count(b"\n")
    if lines != len(requests) or counts.counts["log_drops",]:
        raise SystemExit(f"access_log: {lines} lines of {len(requests)} requests were written")
    (folder / "access.log").unlink()
    return spent / len(requests), longest / 1e6


async def _noting_kept(requests: list[bytes]) -> float:
    """Cost of the queue at its usual length."""
    requests = requests[:_SHORT]
    clock = SystemClock()
    with tempfile.TemporaryDirectory() as folder:
        sink = FileSink(Path(folder) / "access.log", clock, rotate_bytes=0, rotate_s=0, keep_files=0)
        log = LogWriter(
            sink,
            _lines(),
            clock,
            NoMetrics(),
            queue_records=2 * _ROUNDS * len(requests) + 2,
            queue_bytes=1 << 30,
            batch_bytes=1 << 30,
            batch_s=60.0,
            live_interval_s=0,
        )
        log.start()
        price = _noting(log, requests)
        await log.close(60.0)
    return price


def main() -> int:
    """Measure and print."""
    same = [_request(number) for number in range(_RECORDS)]
    traced = [_request(number, traced=True) for number in range(_RECORDS)]
    table = Table("what", "ns a request", box=None)
    table.add_row("hit: put into the queue", f"{asyncio.run(_noting_kept(same)):.0f}")
    table.add_row("the same without a log", f"{_noting(NoAccessLog(), same):.0f}")
    table.add_row("the same, each with a trace of its own", f"{asyncio.run(_noting_kept(traced)):.0f}")
    hit, lines = Repeated(_record()), _lines()
    hits: list[Record | Hit] = [
        (hit, number / 1e5 - 1e-5, number / 1e5, "192.0.2.17", lines.ending(request))
        for number, request in enumerate(same)
    ]
    table.add_row("hit: made a line", f"{_making(hits):.0f}")
    table.add_row("other request: made a line", f"{_making([_record()] * _RECORDS):.0f}")
    with tempfile.TemporaryDirectory() as folder:
        spent, longest = min(asyncio.run(_whole(Path(folder), same * 3)) for _ in range(3))
    table.add_row("hit: all that its core pays, written to a file", f"{spent:.0f}")
    console = Console(highlight=False)
    console.print(table)
    console.print(f"longest turn of the loop meanwhile: {longest:.1f} ms")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

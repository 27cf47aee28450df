"""How the gateway's cost grows: cached reads over more and more streams, and from more and more connections."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from loadtest.bench import wrk
from loadtest.bench.children import Child
from loadtest.bench.figures import GATEWAY, Growth, GrowthPoint
from loadtest.bench.machine import busy_s, memory
from loadtest.bench.peers import fresh
from loadtest.bench.stage import Stage

STREAMS: Final = (10, 100, 1_000, 10_000)
CONNECTIONS: Final = (1, 100, 10_000)
_WARMERS: Final = 8
_WARM_UPS: Final = 3
_SPARE_FILES: Final = 256
_MANY: Final = 1_000
_CONNECTING_S: Final = 2.0
"""Time that wrk gets to open thousands of connections, before the middle of the run is measured."""


def measure(stage: Stage) -> list[Growth]:
    """Both curves, each of a gateway of its own."""
    with fresh(GATEWAY, stage.tools, stage.cores, stage.peers, stage.folder) as gateway:
        streams = [_point(stage, gateway, count, 50, count, after) for after, count in _steps(STREAMS)]
    most = stage.max_files - _SPARE_FILES
    with fresh(GATEWAY, stage.tools, stage.cores, stage.peers, stage.folder) as gateway:
        counts = sorted({min(count, most) for count in CONNECTIONS})
        connections = [_point(stage, gateway, 1, count, count, 0) for count in counts]
    return [Growth("streams", streams), Growth("connections", connections)]


def _steps(counts: Iterable[int]) -> Iterable[tuple[int, int]]:
    before = 0
    for count in counts:
        yield before, count
        before = count


def _point(stage: Stage, gateway: Child, streams: int, connections: int, count: int, known: int) -> GrowthPoint:
    _warm(gateway.port, range(known, streams))
    load = wrk.Load("/1k/", connections=connections, script="many.lua", arguments=[str(streams)])
    seconds = stage.seconds + (_CONNECTING_S if connections > _MANY else 0)
    busy, began = busy_s(gateway.pids), time.monotonic()
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(wrk.run, stage.tools.wrk, gateway.port, load, seconds, stage.cores.load)
        time.sleep(seconds * 0.75)
        used = memory(gateway.pids)
        report = running.result()
    share = (busy_s(gateway.pids) - busy) / (time.monotonic() - began)
    return GrowthPoint(count, report.requests_per_s, share, used.pss_bytes)


def _warm(port: int, streams: Iterable[int]) -> None:
    """Load these streams, and the requests for them, into the gateway: filling the cache is not measured."""
    numbers = list(streams)

    def read(part: list[int]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        for number in part:
            for _ in range(_WARM_UPS):
                connection.putrequest("GET", f"/1k/{number}", skip_accept_encoding=True)
                connection.endheaders()
                connection.getresponse().read()
        connection.close()

    with ThreadPoolExecutor(_WARMERS) as threads:
        list(threads.map(read, [numbers[first::_WARMERS] for first in range(_WARMERS)]))

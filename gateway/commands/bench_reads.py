"""Measures cached reads: the requests a second over a few busy connections.

Each connection sends the next request when an answer is complete.  For each answer the status, the length of the body
and the Cache-Status are checked.  The processor time of the client is measured too.  Near 100 % of a core, the client
limits the result instead of the gateway.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gateway.aio.clock import Clock, pause
from gateway.commands.bench_wire import Connection, connect, request_bytes
from gateway.commands.failure import CommandFailed

_WARM_UP_S: Final = 0.3


@dataclass(frozen=True, slots=True)
class Reads:
    """The result of the reads."""

    per_s: float
    hit_ratio: float | None
    """The share of hits among all answers; None if no answer has Cache-Status."""
    errors: int
    p50_s: float
    p99_s: float
    client_share: float
    """The share of a core that this process has used, from 0 to 1."""


class _Counts:
    def __init__(self) -> None:
        self.times_s: list[float] = []
        self.errors = 0
        self.hits = 0
        self.with_cache_status = 0

    def clear(self) -> None:
        self.times_s.clear()
        self.errors = self.hits = self.with_cache_status = 0


class _ReadLoop(Connection):
    """Sends the same request again after each answer."""

    def __init__(self, request: bytes, size_bytes: int, counts: _Counts, clock: Clock) -> None:
        super().__init__()
        self._request = request
        self._size_bytes = size_bytes
        self._counts = counts
        self._clock = clock
        self._sent_at = 0.0
        self._received = 0
        self._is_good = False

    def send(self) -> None:
        if self.transport is not None:
            self._received = 0
            self._sent_at = self._clock.now()
            self.transport.write(self._request)

    def on_head(self, status: int, head: bytes) -> None:
        self._is_good = status == 200
        at = head.lower().find(b"\r\ncache-status:")
        if at >= 0:
            self._counts.with_cache_status += 1
            self._counts.hits += b"; hit" in head[at : head.find(b"\r\n", at + 2)].replace(b";hit", b"; hit")

    def on_body(self, data: bytes) -> None:
        self._received += len(data)

    def on_end(self) -> None:
        if self._is_good and self._received == self._size_bytes:
            self._counts.times_s.append(self._clock.now() - self._sent_at)
        else:
            self._counts.errors += 1
        self.send()


async def measure_reads(
    url: str, headers: Mapping[str, str], size_bytes: int, *, connections: int, seconds: float, clock: Clock
) -> Reads:
    """Read `url`, whose body has `size_bytes` bytes, for `seconds`.  Raises CommandFailed."""
    counts = _Counts()
    request = request_bytes(url, headers)
    loops: list[_ReadLoop] = []
    try:
        for _ in range(connections):
            loop = await connect(url, lambda: _ReadLoop(request, size_bytes, counts, clock))
            loops.append(loop)
            loop.send()
        await pause(clock, _WARM_UP_S)
        counts.clear()
        began, used = clock.now(), time.process_time()
        await pause(clock, seconds)
        took_s = clock.now() - began
        client_share = (time.process_time() - used) / took_s
        lost = sum(loop.is_lost for loop in loops)
    finally:
        for loop in loops:
            if loop.transport is not None:
                loop.transport.abort()
    times = sorted(counts.times_s)
    if not times:
        raise CommandFailed(f"no read of {url} had a correct answer")
    answers = len(times) + counts.errors
    return Reads(
        per_s=len(times) / took_s,
        hit_ratio=counts.hits / answers if counts.with_cache_status else None,
        errors=counts.errors + lost,
        p50_s=quantile(times, 0.5),
        p99_s=quantile(times, 0.99),
        client_share=client_share,
    )


def quantile(ordered: list[float], share: float) -> float:
    """Return the smallest value such that at least the fraction `share` of all values is not greater.  `ordered` is
    sorted and not empty."""
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]

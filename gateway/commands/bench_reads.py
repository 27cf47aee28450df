"""How many cached reads a gateway answers in a second, asked by a few connections that never pause.

Each connection asks again when its answer has come whole.  Every answer is judged: the status, the length of the body,
and whether Cache-Status calls it a hit.  The client's own use of its core is measured beside it, because near 100 %
the figure is the client's and not the gateway's.
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
    """What the reads came to; times in seconds."""

    per_s: float
    hit_ratio: float | None
    """Of all answers; None where no answer says."""
    errors: int
    p50_s: float
    p99_s: float
    client_share: float
    """Of one core that this process used, 0 to 1."""


class _Tally:
    def __init__(self) -> None:
        self.times_s: list[float] = []
        self.errors = 0
        self.hits = 0
        self.said = 0

    def clear(self) -> None:
        self.times_s.clear()
        self.errors = self.hits = self.said = 0


class _Asker(Connection):
    """Asks the same again and again."""

    def __init__(self, request: bytes, size_bytes: int, tally: _Tally, clock: Clock) -> None:
        super().__init__()
        self._request = request
        self._size_bytes = size_bytes
        self._tally = tally
        self._clock = clock
        self._asked_at = 0.0
        self._received = 0
        self._is_good = False

    def ask(self) -> None:
        if self.transport is not None:
            self._received = 0
            self._asked_at = self._clock.now()
            self.transport.write(self._request)

    def on_head(self, status: int, head: bytes) -> None:
        self._is_good = status == 200
        at = head.lower().find(b"\r\ncache-status:")
        if at >= 0:
            self._tally.said += 1
            self._tally.hits += b"; hit" in head[at : head.find(b"\r\n", at + 2)].replace(b";hit", b"; hit")

    def on_body(self, data: bytes) -> None:
        self._received += len(data)

    def on_end(self) -> None:
        if self._is_good and self._received == self._size_bytes:
            self._tally.times_s.append(self._clock.now() - self._asked_at)
        else:
            self._tally.errors += 1
        self.ask()


async def measure_reads(
    url: str, headers: Mapping[str, str], size_bytes: int, *, connections: int, seconds: float, clock: Clock
) -> Reads:
    """Read `url`, whose body has `size_bytes`, for so many seconds.  Raises CommandFailed."""
    tally = _Tally()
    request = request_bytes(url, headers)
    askers: list[_Asker] = []
    try:
        for _ in range(connections):
            asker = await connect(url, lambda: _Asker(request, size_bytes, tally, clock))
            askers.append(asker)
            asker.ask()
        await pause(clock, _WARM_UP_S)
        tally.clear()
        began, used = clock.now(), time.process_time()
        await pause(clock, seconds)
        took_s = clock.now() - began
        client_share = (time.process_time() - used) / took_s
        lost = sum(asker.is_lost for asker in askers)
    finally:
        for asker in askers:
            if asker.transport is not None:
                asker.transport.abort()
    times = sorted(tally.times_s)
    if not times:
        raise CommandFailed(f"not one read of {url} was answered as it should be")
    answers = len(times) + tally.errors
    return Reads(
        per_s=len(times) / took_s,
        hit_ratio=tally.hits / answers if tally.said else None,
        errors=tally.errors + lost,
        p50_s=quantile(times, 0.5),
        p99_s=quantile(times, 0.99),
        client_share=client_share,
    )


def quantile(ordered: list[float], share: float) -> float:
    """The smallest value that `share` of all do not exceed; `ordered` is sorted and not empty."""
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]

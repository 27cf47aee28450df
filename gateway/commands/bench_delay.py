"""Measures live delivery: the time from sending an append until each subscriber has received it.

The writer and all subscribers run in one process, with one clock.  The delay includes the time that the append takes on
its way to the origin and at the origin, and the time that the client takes to read the events of all subscribers.
Appends are sent one after the other.  All deliveries are counted, to detect missing events.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from gateway.aio.clock import Clock, pause
from gateway.commands.bench_reads import quantile
from gateway.commands.bench_wire import Connection, connect, request_bytes
from gateway.commands.failure import CommandFailed
from gateway.protocol.names import SSE_TYPE
from gateway.protocol.sse import SseParser

_PAUSE_S: Final = 0.05
_PATIENCE_S: Final = 10.0
_NUMBER: Final = re.compile(rb'bench\\?": ?(\d+)')
"""The number in a JSON message, which may be inside a JSON string."""


@dataclass(frozen=True, slots=True)
class Delays:
    """The delays of deliveries, and their counts."""

    p50_s: float
    p95_s: float
    p99_s: float
    max_s: float
    appends: int
    delivered: int
    expected: int


def message(number: int) -> bytes:
    """The content of one append, with its number."""
    return b'{"bench":%d,"text":"%s"}' % (number, b"." * 100)


class _Log:
    """Records when each message was sent, and the delays of its deliveries."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.sent_at: dict[int, float] = {}
        self.delays_s: list[float] = []
        self.ready = 0
        """The number of subscribers that have received message 0, which was in the stream before they connected."""
        self.changed = asyncio.Event()

    def send(self, number: int) -> None:
        self.sent_at[number] = self._clock.now()

    def arrived(self, number: int) -> None:
        if number == 0:
            self.ready += 1
        else:
            self.delays_s.append(self._clock.now() - self.sent_at[number])
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> bool:
        """Wait until `condition` is true; return False after `_PATIENCE_S` seconds."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while not condition():
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            return False
        return True


class _Subscriber(Connection):
    """One SSE connection, from the stream's start."""

    def __init__(self, request: bytes, event: str, log: _Log) -> None:
        super().__init__()
        self._request = request
        self._event = event
        self._log = log
        self._parser = SseParser()
        self._seen: set[int] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self.transport is not None:
            self.transport.write(self._request)

    def on_body(self, data: bytes) -> None:
        for event in self._parser.feed(data):
            if event.name == self._event:
                for match in _NUMBER.finditer(event.data):
                    number = int(match[1])
                    if number not in self._seen:
                        self._seen.add(number)
                        self._log.arrived(number)


async def measure_delay(
    url: str,
    headers: Mapping[str, str],
    event: str,
    append: Callable[[int], Awaitable[None]],
    *,
    subscribers: int,
    seconds: float,
    clock: Clock,
) -> Delays:
    """Subscribe to `url`, append to its stream, and measure the delays.  Raises CommandFailed.

    The stream must have `message(0)`.  `event` is the name of the SSE events with data.
    """
    log = _Log(clock)
    request = request_bytes(url, {**headers, "Accept": SSE_TYPE})
    readers: list[_Subscriber] = []
    try:
        for _ in range(subscribers):
            readers += [await connect(url, lambda: _Subscriber(request, event, log))]
        if not await log.until(lambda: log.ready == subscribers):
            raise CommandFailed(
                f"only {log.ready} of {subscribers} subscribers received the stream within {_PATIENCE_S:g} s"
            )
        appends = max(1, round(seconds / _PAUSE_S))
        for number in range(1, appends + 1):
            log.send(number)
            await append(number)
            await pause(clock, _PAUSE_S)
        expected = appends * subscribers
        await log.until(lambda: len(log.delays_s) == expected)
    finally:
        for reader in readers:
            if reader.transport is not None:
                reader.transport.abort()
    delays = sorted(log.delays_s)
    if not delays:
        raise CommandFailed(f"none of {appends} appends reached a subscriber within {_PATIENCE_S:g} s")
    return Delays(
        p50_s=quantile(delays, 0.5),
        p95_s=quantile(delays, 0.95),
        p99_s=quantile(delays, 0.99),
        max_s=delays[-1],
        appends=appends,
        delivered=len(delays),
        expected=expected,
    )

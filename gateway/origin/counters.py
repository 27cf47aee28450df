"""Counters of the requests that reached the origin.  Concurrency tests wait for them instead of sleeping.

Only the handlers change the counters.  `until` checks its condition after every change, so a test states a condition
rather than a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import Generic, Self, TypeVar

from gateway.origin.requests import Kind


class Awaited:
    """Base class of objects for whose changes tests can wait."""

    def __init__(self) -> None:
        self._conditions: dict[asyncio.Future[None], Callable[[], bool]] = {}

    async def until(self, condition: Callable[[Self], bool]) -> None:
        """Wait until `condition` holds.  It is checked immediately and after every change."""
        if condition(self):
            return
        met: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._conditions[met] = lambda: condition(self)
        try:
            await met
        finally:
            self._conditions.pop(met, None)

    def _changed(self) -> None:
        for met, holds in tuple(self._conditions.items()):
            if not met.done() and holds():
                met.set_result(None)


Of = TypeVar("Of", bound=StrEnum)
"""The enum of the kinds by which requests are counted."""


class RequestCounters(Awaited, Generic[Of]):
    """Counts of requests and body bytes by kind, of waiting readers, and of accepted TCP connections."""

    def __init__(self, kinds: type[Of]) -> None:
        super().__init__()
        self._kinds = kinds
        self.requests: dict[Of, int] = dict.fromkeys(kinds, 0)
        self.finished: dict[Of, int] = dict.fromkeys(kinds, 0)
        """Requests that have ended, with any outcome."""
        self.body_bytes: dict[Of, int] = dict.fromkeys(kinds, 0)
        """Body bytes passed to the connection, without heads and chunk sizes."""
        self.parked = 0
        """Readers at the tail that wait for the stream to change."""
        self.connections = 0
        """TCP connections accepted by a running origin."""

    @property
    def total_requests(self) -> int:
        return sum(self.requests.values())

    def reset(self) -> None:
        """Reset the sums.  `parked` is kept."""
        for counted in (self.requests, self.finished, self.body_bytes):
            counted.update(dict.fromkeys(self._kinds, 0))
        self.connections = 0
        self._changed()

    async def reached(self, kind: Of | str, count: int) -> None:
        """Wait until at least `count` requests of this kind have arrived."""
        wanted = self._kinds(kind)
        await self.until(lambda counters: counters.requests[wanted] >= count)

    async def parked_is(self, count: int) -> None:
        """Wait until exactly `count` readers wait at a tail."""
        await self.until(lambda counters: counters.parked == count)

    # -- for the handlers

    def began(self, kind: Of) -> None:
        """Count a request that has arrived."""
        self.requests[kind] += 1
        self._changed()

    def ended(self, kind: Of) -> None:
        """Count a request that has ended."""
        self.finished[kind] += 1
        self._changed()

    def sent(self, kind: Of, size: int) -> None:
        """Count body bytes that were sent."""
        self.body_bytes[kind] += size
        self._changed()

    def parked_by(self, change: int) -> None:
        """Count a reader that has started (+1) or stopped (-1) waiting at a tail."""
        self.parked += change
        self._changed()

    def connected(self) -> None:
        """Count a TCP connection that was accepted."""
        self.connections += 1
        self._changed()


class Counters(RequestCounters[Kind]):
    """The origin's counters: also counts open live requests and their peak."""

    def __init__(self) -> None:
        super().__init__(Kind)
        self.live_open = 0
        """Long-poll and SSE requests in progress."""
        self.live_peak = 0

    def __repr__(self) -> str:
        return f"<Counters {self.total_requests} requests, {self.live_open} live, {self.parked} parked>"

    @property
    def total_body_bytes(self) -> int:
        return sum(self.body_bytes.values())

    def reset(self) -> None:
        """Reset the sums.  Open requests stay counted, and their number becomes the peak."""
        self.live_peak = self.live_open
        super().reset()

    async def live_is(self, count: int) -> None:
        """Wait until exactly `count` live requests are in progress."""
        await self.until(lambda counters: counters.live_open == count)

    def began(self, kind: Kind) -> None:
        if kind in (Kind.LONGPOLL, Kind.SSE):
            self.live_open += 1
            self.live_peak = max(self.live_peak, self.live_open)
        super().began(kind)

    def ended(self, kind: Kind) -> None:
        if kind in (Kind.LONGPOLL, Kind.SSE):
            self.live_open -= 1
        super().ended(kind)

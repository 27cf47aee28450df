"""Measures the memory that client connections hold, and drops the connections that hold the most.

The held bytes are measured by samples.  No counter is updated when bytes arrive or leave, because that would cost time.
A sample visits all connections in short slices with pauses between them, so that ten thousand connections delay no
answer.  A slice is bounded by its time, because an HTTP/2 connection with a hundred streams takes as long as a hundred
connections.  Bytes that several connections share are divided among these connections, unless the cache holds the bytes
too (`gateway.limits.memory`).

Dropping a connection that holds much memory takes up to a millisecond: the kernel frees the connection's buffers, and
the fetch that fills them ends.  If clients exceed their bound on memory, each turn of the loop therefore drops only one
connection.  If the process is short of memory, all these connections are dropped at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Final

from gateway.aio.clock import SystemClock
from gateway.limits.memory import Charges, Holding, victims
from gateway.server.client_connections import ClientConnection, Clients

SLICE_S: Final = 0.0001
"""A turn of the loop visits no further connection after this many seconds."""
PAUSE_S: Final = 0.001
"""Seconds between two slices.  A request needs five to ten turns of the loop.  With slices in consecutive turns, a
request that a sample overlapped took two to three times as long as others."""
URGENT_SLICE_S: Final = 0.0005
"""Replaces `SLICE_S` while memory rises towards the limit.  Slices then follow in consecutive turns."""


class ShedReason(StrEnum):
    """The reason why a client's connection was dropped."""

    CLIENT_BYTES = "client_bytes"
    """All clients together held more than `client_bytes`."""
    MEMORY = "memory"
    """The process came close to `memory_max_bytes`."""


class Shedding:
    """Samples the connections of all `every_clients`, and drops some of them.  Further `Clients` may be added later."""

    def __init__(self, every_clients: Iterable[Clients], now: Callable[[], float] = SystemClock.now) -> None:
        self._every_clients = every_clients
        self._now = now
        self._held: list[tuple[int, ClientConnection]] = []
        """The connections that held any memory at the latest sample, with their bytes."""
        self._to_drop: dict[ClientConnection, None] = {}
        """Connections that later turns drop.  The order is from the last to the first."""
        self.held_bytes = 0
        """The bytes that all connections held at the latest sample."""
        self.shed: Counter[ShedReason] = Counter()
        """The number of dropped connections for each reason."""

    def __repr__(self) -> str:
        return f"<Shedding {self.held_bytes} bytes held, {self.shed.total()} shed>"

    async def look(self, is_urgent: Callable[[], bool] = lambda: False) -> int:
        """Sample all connections.  Returns the bytes that all connections hold together.

        While `is_urgent` returns true, the sample does not pause.
        """
        held: list[tuple[int, list[Holding], ClientConnection]] = []
        charges, sample, total, now = Charges(), list[tuple[int, ClientConnection]](), 0, self._now
        until = now() + SLICE_S
        for clients in list(self._every_clients):
            for one in list(clients):
                if one in self._to_drop:
                    continue
                own, holdings = one.held_bytes, [holding for holding in one.holdings() if holding.size]
                if own or holdings:
                    charges.add_holdings(holdings)
                    held.append((own, holdings, one))
                if now() >= until:
                    until = await self._next_slice(is_urgent())
        for own, holdings, one in held:
            if cost := own + charges.charge_of(holdings):
                sample.append((cost, one))
                total += cost
            if now() >= until:
                until = await self._next_slice(is_urgent())
        self._held, self.held_bytes = sample, total
        return total

    async def _next_slice(self, is_urgent: bool) -> float:
        """Wait for the next slice.  Returns the time at which this slice ends."""
        await asyncio.sleep(0 if is_urgent else PAUSE_S)
        return self._now() + (URGENT_SLICE_S if is_urgent else SLICE_S)

    def shed_connections(self, excess: int, reason: ShedReason) -> int:
        """Drop the connections that hold the most, until `excess` bytes are freed.  Returns the number dropped."""
        if excess <= 0:
            return 0
        # Choose by the current bytes, because some connections hold less than at the sample.
        dropped = victims(self._held, excess, _most)
        self.held_bytes -= sum(dropped.values())
        if reason is ShedReason.MEMORY:
            for one in dropped:
                one.shed()
        elif dropped:
            if not self._to_drop:
                asyncio.get_running_loop().call_soon(self._drop_next)
            self._to_drop.update(dict.fromkeys(reversed(dropped)))
        self._held = [(cost, one) for cost, one in self._held if one not in dropped]
        self.shed[reason] += len(dropped)
        return len(dropped)

    def _drop_next(self) -> None:
        one, _ = self._to_drop.popitem()
        if self._to_drop:
            asyncio.get_running_loop().call_soon(self._drop_next)
        one.shed()

    def drop_over_bound(self, excess: int) -> int:
        """Drop connections because clients together hold `excess` bytes too many.  Returns the number dropped."""
        return self.shed_connections(excess, ShedReason.CLIENT_BYTES)

    def drop_for_memory(self, excess: int) -> int:
        """Drop connections because the process uses `excess` bytes too many.  Returns the number dropped."""
        return self.shed_connections(excess, ShedReason.MEMORY)

    def refuse_new(self, refuses: bool) -> None:
        """Refuse new connections, or accept them again."""
        for clients in self._every_clients:
            clients.is_short_of_memory = refuses

    def counts(self) -> dict[str, int]:
        """Dropped connections by reason."""
        return {reason.value: self.shed[reason] for reason in ShedReason}

    def release_connections(self) -> None:
        """Drop the references to connections until the next sample."""
        self._held = []


def _most(one: ClientConnection) -> int:
    """Return the most bytes that a connection can hold now."""
    return one.held_bytes + sum(holding.size for holding in one.holdings())

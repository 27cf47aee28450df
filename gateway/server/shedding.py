"""Memory that clients' connections hold, and shedding: dropping the connections that hold the most.

The sum is sampled, not kept: nothing is counted where bytes arrive and leave.  One look goes over all connections in
slices, with turns of the loop between them, so that ten thousand connections delay no answer.  Bytes that several
connections hold are divided among them, unless the cache holds them too (`gateway.limits.memory`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from gateway.limits.memory import Holding, charged, victims
from gateway.server.client_connections import ClientConnection, Clients

_SLICE: Final = 64
"""Connections looked at in one turn of the loop: one takes some 6 µs, and 500 were most of the turns above 2 ms."""


class ShedReason(StrEnum):
    """Why a client's connection was dropped."""

    CLIENT_BYTES = "client_bytes"
    """All clients together held more than `client_bytes`."""
    MEMORY = "memory"
    """The process came close to `memory_max_bytes`."""


class Shedding:
    """Samples and drops connections of `every_clients`, which may grow."""

    def __init__(self, every_clients: Iterable[Clients]) -> None:
        self._every_clients = every_clients
        self._held: list[tuple[int, ClientConnection]] = []
        """The connections that held anything at the latest look."""
        self.held_bytes = 0
        """Bytes that all connections together held then."""
        self.shed: Counter[ShedReason] = Counter()
        """Dropped connections by reason."""

    def __repr__(self) -> str:
        return f"<Shedding {self.held_bytes} bytes held, {self.shed.total()} shed>"

    async def look(self) -> int:
        """Sum up what connections hold, in bytes."""
        held: list[tuple[int, ClientConnection]] = []
        holdings: list[tuple[int, Holding]] = []
        for clients in list(self._every_clients):
            connections = list(clients)
            for start in range(0, len(connections), _SLICE):
                for one in connections[start : start + _SLICE]:
                    own, number = one.held_bytes, len(held)
                    found = [(number, holding) for holding in one.holdings() if holding.size]
                    holdings += found
                    if own or found:
                        held.append((own, one))
                await asyncio.sleep(0)
        shares = charged(holdings, len(held))
        self._held = [(own + share, one) for (own, one), share in zip(held, shares, strict=True) if own or share]
        self.held_bytes = sum(cost for cost, _ in self._held)
        return self.held_bytes

    def shed_connections(self, excess: int, reason: ShedReason) -> int:
        """Drop the connections that hold the most until `excess` bytes fewer are held; return how many were dropped."""
        if excess <= 0:
            return 0
        # Some hold less than when they were looked at.
        dropped = victims(self._held, excess, _most)
        for one, cost in dropped.items():
            self.held_bytes -= cost
            one.shed()
        self._held = [(cost, one) for cost, one in self._held if one not in dropped]
        self.shed[reason] += len(dropped)
        return len(dropped)

    def drop_over_bound(self, excess: int) -> int:
        """Drop the costliest because clients together hold `excess` bytes too many; return how many were dropped."""
        return self.shed_connections(excess, ShedReason.CLIENT_BYTES)

    def drop_for_memory(self, excess: int) -> int:
        """Drop the costliest because the process uses `excess` bytes too many; return how many were dropped."""
        return self.shed_connections(excess, ShedReason.MEMORY)

    def refuse_new(self, refuses: bool) -> None:
        """Refuse new connections, or accept them again."""
        for clients in self._every_clients:
            clients.is_short_of_memory = refuses

    def counts(self) -> dict[str, int]:
        """Dropped connections by reason."""
        return {reason.value: self.shed[reason] for reason in ShedReason}

    def release_connections(self) -> None:
        """Keep no connection alive until the next look."""
        self._held = []


def _most(one: ClientConnection) -> int:
    """The most that a connection can hold now."""
    return one.held_bytes + sum(holding.size for holding in one.holdings())

"""Samples of the memory that connections hold."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, cast

from gateway.limits.memory import Holding, SharedBytes
from gateway.server.client_connections import Clients
from gateway.server.shedding import Shedding


async def test_no_turn_of_the_loop_examines_more_than_a_slice_of_the_connections() -> None:
    examined: Counter[int] = Counter()
    turn = 0

    class Watched(SharedBytes):
        """Bytes that note the turns in which they are looked at."""

        def __getattribute__(self, name: str) -> Any:
            examined[turn] += 1
            return super().__getattribute__(name)

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    class Connection:
        """A connection that holds a byte of its own and ten that others may hold as well."""

        held_bytes = 1

        def __init__(self) -> None:
            self._holdings = (Holding(Watched(10), 10),)

        def holdings(self) -> tuple[Holding, ...]:
            return self._holdings

    connections = [Connection() for _ in range(1_000)]
    counting = asyncio.ensure_future(count_turns())
    examined.clear()
    assert await Shedding([cast(Clients, connections)]).look() == 11 * len(connections)
    counting.cancel()
    assert max(examined.values()) <= 4 * 64

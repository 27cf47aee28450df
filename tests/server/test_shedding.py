"""Samples of the memory that connections hold."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from gateway.aio.clock import ManualClock
from gateway.limits.memory import Holding, SharedBytes
from gateway.server.client_connections import Clients
from gateway.server.shedding import SLICE_S, URGENT_SLICE_S, Shedding

VISIT_S = 0.000_006
"""The time that a connection of one request takes."""
LOOK_S = 0.000_002
"""The time that a look at shared bytes takes."""


class Sampled:
    """Connections that take processor time when a sample reads them, and the turns of the loop in which it does."""

    def __init__(self, streams: list[int]) -> None:
        self.clock = ManualClock()
        self.turn = 0
        self.seconds: dict[int, float] = {}
        """The time that the sample took in each turn in which it read anything."""
        self.clients = [Connection(self, count) for count in streams]

    def take(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.seconds[self.turn] = self.seconds.get(self.turn, 0.0) + seconds

    async def sample(self, *, is_urgent: bool) -> int:
        """Take a sample; the bytes that all connections hold."""
        counting = asyncio.ensure_future(self._count_turns())
        try:
            return await Shedding([cast(Clients, self.clients)], self.clock.now).look(lambda: is_urgent)
        finally:
            counting.cancel()

    async def _count_turns(self) -> None:
        while True:
            self.turn += 1
            await asyncio.sleep(0)


class Connection:
    """A connection that holds a byte of its own and, for each stream, ten that other connections may hold as well."""

    held_bytes = 1

    def __init__(self, sampled: Sampled, streams: int) -> None:
        self._sampled = sampled
        self._streams = streams

    def holdings(self) -> tuple[Holding, ...]:
        self._sampled.take(VISIT_S * self._streams)
        return tuple(Holding(Watched(self._sampled), 10) for _ in range(self._streams))


class Watched(SharedBytes):
    """Ten bytes.  Each look at them takes time, so that their division among connections does."""

    __slots__ = ("_take",)

    def __init__(self, sampled: Sampled) -> None:
        super().__init__(10)
        self._take = sampled.take

    def __getattribute__(self, name: str) -> Any:
        if name in ("size", "in_cache"):
            self._take(LOOK_S)
        return super().__getattribute__(name)


@pytest.mark.parametrize("is_urgent", [False, True])
@pytest.mark.parametrize("streams", [pytest.param(1, id="HTTP/1.1"), pytest.param(100, id="HTTP/2")])
async def test_no_turn_of_the_loop_visits_connections_for_longer_than_a_slice(is_urgent: bool, streams: int) -> None:
    sampled = Sampled([streams] * (1_000 // streams))
    assert await sampled.sample(is_urgent=is_urgent) == len(sampled.clients) * (1 + 10 * streams)
    one = (VISIT_S + LOOK_S) * streams
    assert max(sampled.seconds.values()) <= (URGENT_SLICE_S if is_urgent else SLICE_S) + one


async def test_most_turns_of_the_loop_during_a_sample_visit_no_connection() -> None:
    sampled = Sampled([1] * 1_000)
    await sampled.sample(is_urgent=False)
    assert len(sampled.seconds) >= 50
    assert len(sampled.seconds) < sampled.turn / 2


async def test_an_urgent_sample_does_not_pause() -> None:
    sampled = Sampled([1] * 1_000)
    await sampled.sample(is_urgent=True)
    assert len(sampled.seconds) >= sampled.turn - 2


class Holder:
    """A connection that holds as many bytes as it says, and notes its end."""

    def __init__(self, held_bytes: int) -> None:
        self.held_bytes = held_bytes
        self.is_dropped = False

    def holdings(self) -> tuple[Holding, ...]:
        return ()

    def shed(self) -> None:
        self.is_dropped = True


async def test_connections_over_the_bound_are_dropped_one_in_a_turn_and_all_at_once_for_memory() -> None:
    holders = [Holder(1_000) for _ in range(8)]
    shedding = Shedding([cast(Clients, holders)], ManualClock().now)
    assert await shedding.look() == 8_000
    assert shedding.drop_over_bound(2_500) == 3
    dropped = []
    for _ in range(5):
        dropped.append(sum(one.is_dropped for one in holders))
        await asyncio.sleep(0)
    assert dropped == [0, 1, 2, 3, 3]
    assert (shedding.held_bytes, shedding.counts()["client_bytes"]) == (5_000, 3)
    assert shedding.drop_for_memory(1_500) == 2
    assert sum(one.is_dropped for one in holders) == 5

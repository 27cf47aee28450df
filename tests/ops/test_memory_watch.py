"""The memory watch drops no more clients than it has to, though freed memory stays resident until it is returned."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from itertools import pairwise
from random import Random

import pytest

from gateway.aio.clock import ManualClock
from gateway.limits.memory import MARKS, Pressure, victims
from gateway.ops.memory_watch import MemoryLimits, MemoryWatch
from gateway.ops.metrics import Metrics
from gateway.protocol.sharing import Group, Partition, StreamKey
from gateway.tape.eviction import S3Fifo
from gateway.tape.store import TapeStore
from gateway.upstream.incoming import Inflow
from tests.waiting import pass_turns

LIMIT = 1_000_000
HELD = 10_000
"""What each client holds."""


class Process:
    """A process whose allocator keeps what is freed until it is trimmed, and its clients."""

    def __init__(self, base: int, clients: int) -> None:
        self.clock = ManualClock()
        self.trim_takes_s = 0.03
        self.base = base
        self.clients = dict.fromkeys(range(clients), HELD)
        self.leaving = 0
        """What connections hold that have been dropped and not ended yet."""
        self.freed = 0
        self.trims = 0
        self.refuses = False
        self.was_urgent = False
        """Whether the latest sample was to be taken without pauses."""

    def resident(self) -> int:
        return self.base + sum(self.clients.values()) + self.leaving + self.freed

    def trim(self) -> None:
        self.freed = 0
        self.trims += 1
        self.clock.advance(self.trim_takes_s)

    # -- as `ClientMemory`

    async def look(self, is_urgent: Callable[[], bool]) -> int:
        self.was_urgent = is_urgent()
        self.freed, self.leaving = self.freed + self.leaving, 0
        return sum(self.clients.values())

    def drop_over_bound(self, excess: int) -> int:
        return self.drop_for_memory(excess)

    def drop_for_memory(self, excess: int) -> int:
        dropped = victims([(held, client) for client, held in self.clients.items()], excess)
        for client in dropped:
            self.leaving += self.clients.pop(client)
        return len(dropped)

    def refuse_new(self, refuses: bool) -> None:
        self.refuses = refuses

    def counts(self) -> Mapping[str, int]:
        return {}

    def release_connections(self) -> None:
        pass


def watching(process: Process) -> tuple[MemoryWatch, Callable[[], None]]:
    """The watch of this process, and a function that lets the time between two looks pass."""
    store = TapeStore(0, S3Fifo(), lambda: "", Metrics())
    limits = MemoryLimits(LIMIT, 0)
    watch = MemoryWatch(store, process, limits, lambda: 0, process.resident, process.trim, process.clock, Inflow())
    return watch, lambda: process.clock.advance(0.1)


@pytest.mark.parametrize("has_trimmed", [False, True])
async def test_clients_are_not_dropped_for_what_others_have_freed_already(has_trimmed: bool) -> None:
    process = Process(500_000, 30)
    watch, passes = watching(process)
    if has_trimmed:
        # Memory was returned to the system a moment ago, as the process came close to its limit.
        process.base = 560_000
        await watch.look()
        assert process.trims == 1
        passes()
    process.base = 650_000
    await watch.look()
    # From 950,000 to the first mark, 850,000.
    assert len(process.clients) == 20
    for _ in range(100):
        passes()
        await watch.look()
    assert len(process.clients) == 20
    assert process.resident() <= MARKS[Pressure.CACHE] * LIMIT
    assert watch.figures().pressure < Pressure.CLIENTS


async def test_clients_that_keep_coming_are_dropped_as_they_come() -> None:
    process, rng = Process(800_000, 0), Random(7)
    watch, passes = watching(process)
    for number in range(1_000):
        # In half a second no more than the room above the mark.
        process.clients.update({(number, one): HELD for one in range(rng.randrange(3))})
        passes()
        await watch.look()
        assert process.resident() < LIMIT
    # To return memory takes long, so it is not done at every look.
    assert process.trims <= 201


async def test_memory_that_grows_between_two_looks_is_noticed_before_the_next_is_due() -> None:
    process = Process(100_000, 0)
    watch, passes = watching(process)
    watching_it = asyncio.ensure_future(watch.run())
    await pass_turns()
    passes()
    await pass_turns()
    assert watch.figures().pressure == Pressure.NONE
    process.base = 900_000
    passes()
    await pass_turns()
    assert watch.figures().pressure == Pressure.CACHE
    watching_it.cancel()


async def test_a_mark_that_is_passed_is_noticed_at_once() -> None:
    process = Process(800_000, 0)
    watch, _ = watching(process)
    watching_it = asyncio.ensure_future(watch.run())
    await pass_turns()
    for base, pressure in ((860_000, Pressure.CACHE), (930_000, Pressure.CLIENTS), (980_000, Pressure.CONNECTIONS)):
        process.base = base
        process.clock.advance(0.006)
        await pass_turns()
        assert watch.figures().pressure == pressure
    assert process.refuses
    watching_it.cancel()


async def test_clients_that_come_after_others_were_dropped_are_noticed_at_once_as_well() -> None:
    process = Process(800_000, 0)
    process.trim_takes_s = 0.0
    watch, _ = watching(process)
    watching_it = asyncio.ensure_future(watch.run())
    await pass_turns()
    for number in range(200):
        # As much as there is room above the mark for comes between two ordinary looks.
        process.clients.update({(number, one): HELD for one in range(2)})
        process.clock.advance(0.006)
        await pass_turns()
        assert process.resident() < LIMIT
    watching_it.cancel()


async def test_clients_are_sampled_without_pauses_while_memory_rises_and_while_clients_are_dropped() -> None:
    process = Process(500_000, 0)
    watch, passes = watching(process)
    urgent = []
    for base in (500_000, 950_000, 950_000, 500_000, 500_000):
        process.base = base
        await watch.look()
        urgent.append(process.was_urgent)
        passes()
    assert urgent == [False, True, True, True, False]


async def test_a_look_that_fails_is_not_called_for_again_at_once(caplog: pytest.LogCaptureFixture) -> None:
    process = Process(980_000, 0)
    watch, _ = watching(process)
    looks = []

    async def look(is_urgent: Callable[[], bool]) -> int:
        looks.append(process.clock.now())
        raise ValueError

    process.look = look  # type: ignore[method-assign]
    watching_it = asyncio.ensure_future(watch.run())
    for _ in range(200):
        await pass_turns()
        process.clock.advance(0.006)
    assert 5 < len(looks) <= 13
    assert "memory could not be looked at" in caplog.text
    watching_it.cancel()


async def test_the_cache_gives_bytes_back_bit_by_bit() -> None:
    process = Process(500_000, 0)
    budget = 8 << 20
    store = TapeStore(budget, S3Fifo(), lambda: "", Metrics())
    while store.cost < budget - 10_000:
        store.open(StreamKey(Group("http://o", f"/{len(store)}"), "", Partition("")), 0.0)
    watch = MemoryWatch(
        store, process, MemoryLimits(LIMIT, 0), lambda: budget, process.resident, process.trim, process.clock, Inflow()
    )
    process.base = 5 * LIMIT
    turns: list[int] = []

    async def count() -> None:
        while True:
            turns.append(len(store))
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    await watch.look()
    counting.cancel()
    assert store.budget_bytes == watch.cache_budget_bytes < budget
    assert store.cost <= store.budget_bytes
    most = max(before - after for before, after in pairwise(turns))
    assert 0 < most < turns[0] // 4, "in each turn a few"

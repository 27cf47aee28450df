"""New connections are spread evenly over the workers."""

from __future__ import annotations

import os
import signal
import socket
from collections import Counter
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.server.connection_passing import Balancer, Passing
from gateway.workers.balance import EVERY_S, MOST_AT_ONCE, Allowance, lighter_slot
from tests.scenarios.wire import Wire
from tests.waiting import eventually
from tests.workers.test_supervisor import BOUND_S, Start, is_ready, origin, start

__all__ = ["origin", "start"]


@pytest.mark.parametrize(
    ("connections", "mine", "serving", "slot"),
    [
        ((0, 0), 0, (0, 1), None),
        ((1, 0), 0, (0, 1), None),
        ((2, 0), 0, (0, 1), 1),
        ((0, 2), 0, (0, 1), None),
        ((2, 0), 0, (0,), None),
        ((6, 0, 3), 0, (0, 2), 2),
        ((9, 4, 0), 0, (0, 1, 2), 2),
        ((110, 90), 0, (0, 1), None),
        ((120, 90), 0, (0, 1), 1),
        ((7, 7), 0, (), None),
    ],
)
def test_a_connection_is_passed_to_a_worker_with_clearly_fewer(
    connections: tuple[int, ...], mine: int, serving: tuple[int, ...], slot: int | None
) -> None:
    assert lighter_slot(connections, mine, serving) == slot


@pytest.mark.parametrize(("count", "most"), [(10, 4), (100, 32), (1_000, 290)])
def test_connections_that_the_kernel_spreads_at_random_become_even(count: int, most: int) -> None:
    for seed in range(20):
        rng, connections, passed = Random(seed), [0, 0, 0, 0], 0
        for _ in range(count):
            slot = rng.randrange(4)
            other = lighter_slot(connections, slot, range(4))
            passed += other is not None
            connections[slot if other is None else other] += 1
        assert max(connections) <= most
        assert passed <= count // 4 + 2


def test_few_connections_are_passed_in_the_long_run() -> None:
    allowance = Allowance()

    def passed(now: float) -> int:
        count = 0
        while allowance.has_room(now):
            allowance.use(now)
            count += 1
        return count

    assert [passed(100.0), passed(100.0), passed(100.0 + EVERY_S)] == [MOST_AT_ONCE, 0, 1]
    assert passed(200.0) == MOST_AT_ONCE


def test_a_connection_is_sent_until_the_queue_of_the_other_worker_is_full(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("busy", "gone", "dead")]
    queue, own, passed = (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(3))
    queue.bind(paths[0])
    balancer = Balancer.__new__(Balancer)
    shared = SimpleNamespace(owning=lambda: (0, 1))
    balancer._place, balancer._sender = cast(Any, SimpleNamespace(shared=shared, arrivals_paths=paths)), own
    balancer._is_stopped = False
    transport = cast(Any, SimpleNamespace(get_extra_info=lambda name: passed))
    found = [balancer.send(0, transport, 0, b"read") for _ in range(2_000)]
    count = found.index(Passing.LATER)
    assert found == [Passing.DONE] * count + [Passing.LATER] * (2_000 - count)
    data, descriptors, *_ = socket.recv_fds(queue, 64, 1)
    os.close(descriptors[0])
    assert data == b"0 read"
    assert balancer.send(0, transport, 0, b"read") is Passing.DONE
    assert [balancer.send(0, transport, slot, b"") for slot in (1, 2)] == [Passing.REFUSED] * 2
    for one in (queue, own, passed):
        one.close()


async def test_a_worker_with_fewer_connections_gets_the_next_ones(start: Start) -> None:
    gateway = await start()

    async def places_of(wires: list[Wire]) -> list[int]:
        return list((await gateway.workers_of(*map(port, wires))).values())

    async def opened(count: int) -> list[Wire]:
        wires = []
        for _ in range(count):
            wires.append(wire := await Wire.open(gateway.url))
            await wire.ask("/s?offset=-1")
            assert (await wire.answer()).body == b"hello"
        return wires

    async def emptied(wires: list[Wire], worker: int) -> list[Wire]:
        """Close the connections of a worker; those that are left."""
        ports = [port(wire) for wire, place in zip(wires, await places_of(wires), strict=True) if place == worker]
        for wire in wires:
            if port(wire) in ports:
                await wire.closed()
        await eventually(lambda: not any(map(gateway.worker_at, ports)), within_s=BOUND_S)
        return [wire for wire in wires if not wire.writer.is_closing()]

    wires, workers = await opened(12), gateway.worker_pids()
    places = Counter(await places_of(wires))
    assert abs(places[workers[0]] - places[workers[1]]) <= 2, places
    for worker in workers:
        wires = await emptied(wires, worker)
        latest = await opened(len(wires) // 2)
        assert {*await places_of(latest)} == {worker}
        wires += latest
    for wire in wires:
        await wire.closed()
    await gateway.stop()


async def test_what_was_passed_to_a_worker_that_dies_is_answered_by_the_next(start: Start) -> None:
    gateway = await start()
    first, second = gateway.worker_pids()
    os.kill(first, signal.SIGSTOP)
    wires = [await Wire.open(gateway.url) for _ in range(12)]
    for wire in wires:
        await wire.ask("/s?offset=-1")
    # The other worker answers some, and passes those that would make it have too many.
    await eventually(lambda: any(gateway.worker_at(port(wire)) == second for wire in wires), within_s=BOUND_S)
    gateway.kill(first)
    assert [(await wire.answer()).body for wire in wires] == [b"hello"] * 12
    await eventually(lambda: is_ready(gateway), within_s=BOUND_S)
    assert second in gateway.worker_pids()
    for wire in wires:
        await wire.closed()
    await gateway.stop()


def port(wire: Wire) -> int:
    return int(wire.writer.get_extra_info("sockname")[1])

"""Slots of the connection pool: their number, who gets them, and in which order waiting requests do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.limits.queues import Askers
from gateway.upstream.connection_pool import UNBOUNDED, ConnectionPool, Slot
from gateway.upstream.failures import NoSlot, NotConnected, Refusal
from gateway.upstream.origin_call import endpoint_of
from gateway.upstream.slots import Lane, Purpose, SlotLimits, Slots
from tests.waiting import pass_turns

HOSTS = {name: endpoint_of(f"http://{name}.test") for name in "abc"}
PURPOSES = {"r": Purpose.READ, "w": Purpose.WRITE, "u": Purpose.WRITE}


class Line:
    """Requests by name, such as `a r 1 x`: host, purpose (read, write, upload), client, and a mark; they wait for
    slots of a pool.  `got` has them in the order in which they got one."""

    def __init__(self, pool: ConnectionPool, route: str = "one") -> None:
        self.pool = pool
        self.route = route
        self.got: list[str] = []
        self.refused: dict[str, Refusal] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._slots: dict[str, Slot] = {}

    def lane(self, name: str) -> Lane:
        host, purpose, *_ = name.split()
        return self.pool.lane(HOSTS[host], self.route, PURPOSES[purpose], is_upload=purpose == "u")

    async def join(self, *names: str) -> None:
        for name in names:
            self._tasks[name] = asyncio.create_task(self._wait(name, name.split()[2]))
            await pass_turns()

    async def share(self, name: str, askers: Askers) -> None:
        self._tasks[name] = asyncio.create_task(self._wait(name, askers))
        await pass_turns()

    async def _wait(self, name: str, asker: str | Askers) -> None:
        try:
            self._slots[name] = await self.pool.acquire(self.lane(name), asker)
        except NoSlot as refused:
            self.refused[name] = refused.reason
        else:
            self.got.append(name)

    async def release(self, *names: str) -> None:
        for name in names:
            self.release_now(name)
            await pass_turns()

    def release_now(self, name: str) -> None:
        self.pool.release(self._slots.pop(name))

    async def leave(self, *names: str) -> None:
        for name in names:
            self._tasks[name].cancel()
        await asyncio.gather(*(self._tasks[name] for name in names), return_exceptions=True)

    async def until_over(self, *names: str) -> None:
        async with asyncio.timeout(20):
            await asyncio.gather(*(self._tasks[name] for name in names))

    async def release_all(self) -> None:
        """Whatever holds or awaits a slot ends."""
        while self._slots:
            await self.release(*self._slots)
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def end(self) -> None:
        """The same; no slot is lost."""
        await self.release_all()
        assert repr(self.pool) == "<ConnectionPool 0 busy, 0 idle, 0 waiting>"


def line_of(slots: int, **more: Any) -> Line:
    return Line(ConnectionPool(SlotLimits(slots, **{"wait_s": 20.0, **more})))


def names(host_and_purpose: str, client: int, count: int) -> list[str]:
    return [f"{host_and_purpose} {client} {number}" for number in range(count)]


async def test_the_requests_of_one_client_get_slots_in_their_order() -> None:
    line = line_of(2, client_requests=1)
    await line.join("a r 1 x", "a r 1 y", "a r 1 z")
    assert line.got == ["a r 1 x"]
    assert repr(line.pool) == "<ConnectionPool 1 busy, 0 idle, 2 waiting>"
    await line.release("a r 1 x")
    await line.release("a r 1 y")
    assert line.got == ["a r 1 x", "a r 1 y", "a r 1 z"]
    await line.end()


async def test_clients_take_turns() -> None:
    line = line_of(1)
    await line.join(*names("a r", 1, 4), "a r 2 x", "a r 3 x")
    for _ in range(5):
        await line.release(line.got[-1])
    assert line.got == ["a r 1 0", "a r 2 x", "a r 3 x", "a r 1 1", "a r 1 2", "a r 1 3"]
    await line.end()


@pytest.mark.parametrize("by", [3, 100])
async def test_a_client_beyond_its_bound_waits_while_others_pass(by: int) -> None:
    """The bound is the configured one, or half of all slots where that is less."""
    most = min(by, 8)
    line = line_of(16, client_requests=by)
    await line.join(*names("a r", 1, most), "a r 1 further", "a r 2 x", "a w 1 further", "a w 3 x")
    assert line.got == [*names("a r", 1, most), "a r 2 x", "a w 3 x"]
    await line.release("a r 2 x")
    assert len(line.got) == most + 2
    await line.release("a r 1 0")
    assert line.got[-1] in ("a r 1 further", "a w 1 further")
    await line.end()


async def test_requests_without_a_clients_address_have_no_bound() -> None:
    pool = ConnectionPool(SlotLimits(16, client_requests=2))
    lane = pool.lane(HOSTS["a"], "one", Purpose.READ)
    slots = [await pool.acquire(lane, "") for _ in range(12)]
    assert len(pool) == 12
    for slot in slots:
        pool.release(slot)


@pytest.mark.parametrize(("crowd", "other"), ["rw", "wr"])
async def test_reads_leave_slots_to_writes_and_writes_to_reads(crowd: str, other: str) -> None:
    line = line_of(16, client_requests=1)
    for client in range(20):
        await line.join(f"a {crowd} {client}")
    assert len(line.got) == 12
    await line.join(*(f"a {other} {client}" for client in range(30, 34)))
    assert line.got[12:] == [f"a {other} {client}" for client in range(30, 34)]
    await line.end()


async def test_uploads_leave_a_quarter_of_the_writes_to_small_ones() -> None:
    line = line_of(16, client_requests=1)
    for client in range(12):
        await line.join(f"a u {client}")
    assert len(line.got) == 9
    await line.join("a w 20", "a w 21", "a w 22", "a w 23")
    assert line.got[9:] == ["a w 20", "a w 21", "a w 22"]
    await line.release("a w 20")
    assert line.got[-1] == "a w 23"
    await line.end()


def test_an_upload_whose_body_is_sent_counts_as_a_write() -> None:
    slots = Slots(SlotLimits(4))
    upload = slots.lane(HOSTS["a"], "one", Purpose.WRITE, is_upload=True)
    assert slots.take_slot(upload, "1")
    assert slots.take_slot(upload, "2")
    assert not slots.take_slot(upload, "3")
    waiting = slots.wait(upload, ["3"], lambda: None)
    after = slots.upload_done(upload)
    assert waiting.paid_by == "3"
    assert not slots.take_slot(after, "4"), "it still is one of the writes"
    slots.release_slot(after, "1")
    slots.release_slot(upload, "2")
    slots.release_slot(upload, "3")
    assert slots.taken == 0


async def test_one_crowded_host_or_route_leaves_slots_to_the_others() -> None:
    pool = ConnectionPool(SlotLimits(16, client_requests=1, wait_s=20.0))
    pool.share_among(hosts=2, routes=2)
    first, second = Line(pool), Line(pool, "another")
    for client in range(12):
        await first.join(f"a {'rw'[client % 2]} {client}")
    assert len(first.got) == 12
    await first.join("a r 20")
    await second.join("a r 21", "b r 22")
    assert (len(first.got), second.got) == (12, ["b r 22"])
    await first.join("b r 23")
    assert len(first.got) == 12, "the route has its three quarters, whichever the host"
    # With one host and one route there is no share to keep free.
    pool.share_among(hosts=1, routes=1)
    await pass_turns()
    assert len(pool) == 16
    await first.release(*first.got[:6])
    await second.release_all()
    await first.end()


async def test_hosts_and_routes_that_are_gone_are_forgotten() -> None:
    pool = ConnectionPool(SlotLimits(4))
    for number in range(50):
        lane = pool.lane(endpoint_of(f"http://host{number}.test"), f"route{number}", Purpose.READ)
        pool.release(await pool.acquire(lane, "1"))
        pool.share_among(hosts=1, routes=1)
    assert len(pool) == 0


# -- waiting


async def test_a_cancelled_request_is_skipped_and_keeps_no_slot() -> None:
    line = line_of(1)
    await line.join(*names("a r", 1, 4))
    await line.leave("a r 1 2")
    line.release_now("a r 1 0")
    # The slot is granted to a request that no longer wants it.
    await line.leave("a r 1 1")
    await pass_turns()
    assert line.got == ["a r 1 0", "a r 1 3"]
    await line.end()


async def test_a_request_that_waits_too_long_is_refused() -> None:
    line = line_of(1, wait_s=0.01)
    await line.join("a r 1 x", "a r 2 x")
    await line.until_over("a r 2 x")
    assert line.refused == {"a r 2 x": Refusal.TIME}
    assert line.pool.slot_use().refused == {Refusal.QUEUE: 0, Refusal.CLIENT: 0, Refusal.TIME: 1}
    await line.end()


async def test_one_client_alone_gets_a_quarter_of_the_queue() -> None:
    line = line_of(1, waiting=16)
    await line.join("a r 0 x", *names("a r", 1, 4))
    assert line.pool.slot_use().waiting[Purpose.READ] == 4
    await line.join("a r 1 further")
    assert line.refused == {"a r 1 further": Refusal.CLIENT}
    await line.join("a r 2 x")
    assert line.pool.slot_use().waiting[Purpose.READ] == 5
    await line.release("a r 0 x")
    await line.end()


async def test_several_crowds_leave_room_in_the_queue_to_others() -> None:
    line = line_of(1, waiting=64)
    await line.join("a r 0 x")
    for client in range(1, 9):
        await line.join(*names("a r", client, 16))
    assert line.pool.slot_use().waiting[Purpose.READ] < 64
    await line.join("a r 99 x")
    assert "a r 99 x" not in line.refused
    await line.end()


async def test_a_full_queue_refuses_every_client() -> None:
    line = line_of(1, waiting=3)
    await line.join("a r 0 x", "a r 1 x", "a r 2 x", "a r 3 x", "a r 4 x")
    assert line.refused == {"a r 4 x": Refusal.QUEUE}
    await line.end()


async def test_a_shared_request_does_not_wait_behind_its_first_clients_bound() -> None:
    line = line_of(4, client_requests=1)
    await line.join("a r 1 x")
    askers = Askers("1")
    await line.share("a r shared", askers)
    assert line.got == ["a r 1 x"]
    askers.add_client("2")
    await pass_turns()
    assert line.got == ["a r 1 x", "a r shared"]
    # It counts for the second client now.
    await line.join("a r 2 x")
    assert line.got[-1] == "a r shared"
    await line.release("a r shared")
    assert line.got[-1] == "a r 2 x"
    askers.add_client("3")
    await line.end()


async def test_a_shared_request_is_not_refused_for_its_first_clients_crowd() -> None:
    line = line_of(1, waiting=16)
    await line.join("a r 0 x", *names("a r", 1, 4))
    askers = Askers("1")
    askers.add_client("2")
    await line.share("a r shared", askers)
    assert not line.refused
    await line.release("a r 0 x")
    await line.release("a r 1 0")
    assert line.got[-1] == "a r shared"
    await line.end()


async def test_a_closed_pool_fails_waiting_requests() -> None:
    pool = ConnectionPool(SlotLimits(1))
    lane = pool.lane(HOSTS["a"], "one", Purpose.READ)
    slot = await pool.acquire(lane, "1")
    waiting = [asyncio.create_task(pool.acquire(lane, client)) for client in ("1", "2")]
    await pass_turns()
    pool.close()
    waited = await asyncio.gather(*waiting, pool.acquire(lane, "3"), return_exceptions=True)
    assert {type(error) for error in waited} == {NotConnected}
    pool.release(slot)
    assert repr(pool) == "<ConnectionPool 0 busy, 0 idle, 0 waiting>"


async def test_an_unbounded_pool_never_waits() -> None:
    pool = ConnectionPool(UNBOUNDED)
    lane = pool.lane(HOSTS["a"], "one", Purpose.LIVE)
    for _ in range(500):
        await pool.acquire(lane, "1")
    assert len(pool) == 500

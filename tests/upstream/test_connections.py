"""Slots of the connection pool: their number, and the order in which waiting requests get them."""

from __future__ import annotations

import asyncio

from gateway.upstream.connections import ConnectionPool
from gateway.upstream.endpoint import endpoint_of
from gateway.upstream.failures import NotConnected
from tests.waiting import pass_turns

A, B, C = (endpoint_of(f"http://{name}.test") for name in "abc")


class Line:
    """Waiting requests, in the order in which they got a slot."""

    def __init__(self, pool: ConnectionPool) -> None:
        self.pool = pool
        self.got: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def join(self, *names: str) -> None:
        for name in names:
            self.tasks[name] = asyncio.create_task(self._wait(name))
            await pass_turns()

    async def _wait(self, name: str) -> None:
        await self.pool.acquire({"a": A, "b": B, "c": C}[name[0]], is_upload=name.endswith("up"))
        self.got.append(name)

    async def left(self, *names: str) -> None:
        for name in names:
            self.tasks[name].cancel()
        await asyncio.gather(*(self.tasks[name] for name in names), return_exceptions=True)


async def test_the_longest_waiting_request_is_next() -> None:
    pool = ConnectionPool(2)
    line = Line(pool)
    await line.join("a1", "b1", "a2", "b2", "a3")
    assert line.got == ["a1", "b1"]
    assert repr(pool) == "<ConnectionPool 2 busy, 0 idle, 3 waiting>"
    for _ in range(3):
        pool.release(A if len(line.got) % 2 == 0 else B)
        await pass_turns()
    assert line.got == ["a1", "b1", "a2", "b2", "a3"]


async def test_one_crowded_host_does_not_block_the_others() -> None:
    pool = ConnectionPool(4)
    pool.limit_per_host(2)
    line = Line(pool)
    await line.join("a1", "a2", "a3", "a4", "a5", "b1", "c1", "b2")
    assert line.got == ["a1", "a2", "a3", "b1"]
    pool.release(B)
    await pass_turns()
    assert line.got[-1] == "c1"
    pool.release(A)
    await pass_turns()
    assert line.got[-1] == "a4"
    pool.limit_per_host(1)
    pool.release(C)
    await pass_turns()
    assert line.got[-1] == "a5"


async def test_uploads_leave_a_quarter_of_the_slots_to_others() -> None:
    pool = ConnectionPool(4)
    line = Line(pool)
    await line.join("a1 up", "a2 up", "a3 up", "a4 up", "a5 up", "a6", "a7")
    assert line.got == ["a1 up", "a2 up", "a3 up", "a6"]
    pool.release(A)
    await pass_turns()
    assert line.got[-1] == "a7"
    # One body is sent, and its answer is still to come; after that, too, there is a slot for the next one.
    pool.upload_done(A)
    await pass_turns()
    assert line.got[-1] == "a7"
    pool.release(A)
    await pass_turns()
    assert line.got[-1] == "a4 up"
    assert repr(pool) == "<ConnectionPool 4 busy, 0 idle, 1 waiting>"


async def test_uploads_to_several_hosts_leave_slots_in_total() -> None:
    pool = ConnectionPool(8)
    pool.limit_per_host(3)
    line = Line(pool)
    await line.join("a1 up", "a2 up", "a3 up", "a4 up", "a5 up", "b1 up", "b2 up", "b3 up", "c1", "c2")
    assert line.got == ["a1 up", "a2 up", "a3 up", "a4 up", "b1 up", "b2 up", "c1", "c2"]
    await line.left("a5 up")
    pool.upload_done(A)
    pool.release(A)
    await pass_turns()
    assert line.got[-1] == "b3 up"


async def test_a_single_slot_serves_uploads_and_a_cancelled_upload_returns_it() -> None:
    pool = ConnectionPool(1)
    line = Line(pool)
    await line.join("a1", "a2 up", "a3 up")
    pool.release(A)
    await line.left("a2 up")
    await pass_turns()
    assert line.got == ["a1", "a3 up"]
    pool.release(A)
    pool.upload_done(A)
    assert repr(pool) == "<ConnectionPool 0 busy, 0 idle, 0 waiting>"


async def test_a_cancelled_request_is_skipped_and_keeps_no_slot() -> None:
    pool = ConnectionPool(1)
    line = Line(pool)
    await line.join("a1", "a2", "a3", "a4")
    await line.left("a3")
    pool.release(A)
    # The slot is granted to a request that no longer wants it.
    await line.left("a2")
    await pass_turns()
    assert line.got == ["a1", "a4"]
    pool.release(A)
    assert repr(pool) == "<ConnectionPool 0 busy, 0 idle, 0 waiting>"


async def test_a_closed_pool_fails_waiting_requests() -> None:
    pool = ConnectionPool(1)
    line = Line(pool)
    await line.join("a1", "a2", "b1")
    pool.close()
    waited = await asyncio.gather(line.tasks["a2"], line.tasks["b1"], pool.acquire(C), return_exceptions=True)
    assert {type(error) for error in waited} == {NotConnected}
    pool.release(A)
    assert repr(pool) == "<ConnectionPool 0 busy, 0 idle, 0 waiting>"


async def test_an_unbounded_pool_never_waits() -> None:
    pool = ConnectionPool(0)
    line = Line(pool)
    await line.join(*(f"a{number}" for number in range(50)))
    assert len(line.got) == len(pool) == 50

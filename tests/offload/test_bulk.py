"""A binary stream is followed by SSE, and by long-poll while its events are large, because base64 adds a third."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.origin.requests import Kind
from tests.offload.crowd import Checker
from tests.offload.stage import BINARY, Stage, bounded, stage

LARGE = bytes(range(256)) * 256
SMALL = b"small"


class Follower:
    """One SSE client, and how much of the log it has."""

    def __init__(self, on: Stage, log: bytes) -> None:
        self.checker = Checker(log, is_json=False)
        self._on = on
        self._moved = asyncio.Condition()

    async def run(self) -> None:
        client = (await self._on.clients(1))[0]
        async for _ in (await client.subscribe("/s?live=sse&offset=-1")).follow(self.checker):
            async with self._moved:
                self._moved.notify_all()

    async def has(self, size: int) -> None:
        """Wait until `size` bytes of the log have arrived."""
        async with asyncio.timeout(10), self._moved:
            await self._moved.wait_for(lambda: self.checker.position >= size)


@pytest.fixture
async def on() -> AsyncIterator[Stage]:
    async with stage() as set_up:
        await set_up.create("/s", BINARY)
        yield set_up


async def test_a_large_event_switches_to_long_poll(on: Stage) -> None:
    follower = Follower(on, LARGE * 3)
    running = asyncio.create_task(follower.run())
    await on.waiting("/s", 1)
    await on.append("/s", BINARY, LARGE)
    await bounded(on.counters.reached(Kind.LONGPOLL, 1))
    await on.append("/s", BINARY, LARGE)
    await on.append("/s", BINARY, LARGE)
    await on.close_stream("/s")
    await bounded(running)
    assert follower.checker.position == 3 * len(LARGE)
    assert on.counters.requests[Kind.SSE] == on.counters.live_peak == 1
    assert on.counters.body_bytes[Kind.LONGPOLL] == 2 * len(LARGE), "no third more"


async def test_a_pause_switches_back_to_sse(on: Stage) -> None:
    faults = on.origin.origin.faults
    follower = Follower(on, LARGE + SMALL)
    running = asyncio.create_task(follower.run())
    await on.waiting("/s", 1)
    look = faults.hold(kind=Kind.CATCHUP)
    tail = await on.append("/s", BINARY, LARGE)
    await bounded(look.waiting(1))
    nothing_new = {"Stream-Next-Offset": tail, "Stream-Up-To-Date": "true"}
    paused = faults.replace(204, nothing_new, b"", kind=Kind.LONGPOLL)
    look.release()
    await bounded(on.counters.reached(Kind.SSE, 2))
    await on.append("/s", BINARY, SMALL)
    await on.close_stream("/s")
    await bounded(running)
    assert follower.checker.position == len(LARGE + SMALL)
    assert paused.hits == on.counters.requests[Kind.LONGPOLL] == 1


async def test_an_origin_without_long_poll_is_followed_by_sse_alone(on: Stage) -> None:
    log = LARGE * 4
    refused = on.origin.origin.faults.status(400, times=None, kind=Kind.LONGPOLL)
    follower = Follower(on, log)
    running = asyncio.create_task(follower.run())
    await on.waiting("/s", 1)
    for count in range(1, 5):
        await on.append("/s", BINARY, LARGE)
        await follower.has(count * len(LARGE))
    await on.close_stream("/s")
    await bounded(running)
    assert follower.checker.position == len(log)
    assert refused.hits == 1, "once was enough to know"

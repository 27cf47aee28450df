"""A day's load in small: live readers of many streams that come and go, and writers that write through the gateway.

Origin and gateway share one manual clock that moves in steps; a step ends when every live reader has all that was
written in it.  A seed decides which readers come and go and which streams are written, so all runs are alike.
"""

from __future__ import annotations

import asyncio
import contextlib
from random import Random

from tests.offload.cases import log_of, message, position_of
from tests.offload.crowd import Checker, Client, Reply
from tests.offload.spared import catch_up
from tests.offload.stage import BINARY, JSON, Figure, Stage, manual_clock, stage
from tests.waiting import eventually

STEP_S = 0.05
_ARRIVALS_PER_S = 6
"""Readers that replace those that leave."""
_APPENDS_PER_S = 16


class Shelf:
    """One stream: all messages it will get, and how many of them are written."""

    def __init__(self, number: int, appends: int) -> None:
        self.path = f"/s/{number}"
        self.content_type = BINARY if number % 3 == 2 else JSON
        self.messages = [message(self.content_type, index, 200) for index in range(appends)]
        self.log = log_of(self.content_type, self.messages)
        self.written = 0

    @property
    def written_bytes(self) -> int:
        return position_of(self.content_type, self.messages, self.written)

    async def write(self, on: Stage) -> None:
        """The next append, through the gateway."""
        await on.write(self.path, self.content_type, self.messages[self.written])
        self.written += 1


class Reader:
    """One client: reads its stream to the tail, then follows by SSE or long-poll until it leaves or the stream ends."""

    def __init__(self, shelf: Shelf, client: Client, *, by_sse: bool, sees_writes: bool) -> None:
        """`sees_writes` is that of the gateway."""
        self._shelf = shelf
        self._sees_writes = sees_writes
        self._client = client
        self._by_sse = by_sse
        self._checker = Checker(shelf.log, is_json=shelf.content_type == JSON)
        self.task: asyncio.Task[None] | None = None
        self.is_live = False

    @property
    def has_all(self) -> bool:
        """Whether it has everything written so far, or has failed."""
        is_over = self.task is not None and self.task.done()
        return is_over or (self.is_live and self._checker.position == self._shelf.written_bytes)

    async def run(self) -> None:
        """Read until the stream is closed, and check every byte of it."""
        acknowledged = self._shelf.written_bytes if self._sees_writes else 0
        reply = await catch_up(self._client, self._shelf.path, self._checker)
        assert self._checker.position >= acknowledged, "what was acknowledged before it asked"
        self.is_live = True
        await (self._stream if self._by_sse else self._poll)(reply)
        assert self._checker.position == len(self._shelf.log)

    async def leave(self) -> None:
        """Leave midway."""
        assert self.task is not None
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task
        self._client.close()

    async def _stream(self, reply: Reply) -> None:
        at, is_closed = reply.next_offset, False
        while not is_closed:
            # The gateway ends each connection after its lifetime.
            subscription = await self._client.subscribe(f"{self._shelf.path}?offset={at}&live=sse")
            async for control in subscription.follow(self._checker):
                at, is_closed = control["streamNextOffset"], control.get("streamClosed", False)

    async def _poll(self, reply: Reply) -> None:
        while not reply.is_closed:
            cursor = f"&cursor={reply.cursor}" if reply.cursor is not None else ""
            target = f"{self._shelf.path}?offset={reply.next_offset}&live=long-poll{cursor}"
            reply = await self._client.read(target, self._checker)
            assert reply.status in (200, 204), reply


async def mixed(readers: int = 180, streams: int = 12, seconds: float = 60.0) -> Figure:
    """`readers` live readers at any time, one half by SSE and one by long-poll, for `seconds`."""
    rng, clock = Random(14), manual_clock()
    steps = round(seconds / STEP_S)
    first = 3
    schedule: list[list[int]] = [[] for _ in range(steps)]
    for _ in range(round(seconds * _APPENDS_PER_S)):
        rng.choice(schedule).append(rng.randrange(streams))
    shelves = [Shelf(number, first + sum(step.count(number) for step in schedule)) for number in range(streams)]
    async with stage(clock=clock, origin_clock=clock) as on, asyncio.TaskGroup() as group:
        for shelf in shelves:
            await on.create(shelf.path, shelf.content_type)
            for body in shelf.messages[:first]:
                await on.append(shelf.path, shelf.content_type, body)
            shelf.written = first
        present: list[Reader] = []

        async def join() -> None:
            [client] = await on.clients(1)
            shelf, by_sse = rng.choice(shelves), rng.random() < 0.5
            reader = Reader(shelf, client, by_sse=by_sse, sees_writes=on.gateway.sees_writes)
            reader.task = group.create_task(reader.run())
            present.append(reader)

        for _ in range(readers):
            await join()
        for step in schedule:
            for number in step:
                await shelves[number].write(on)
            if rng.random() < _ARRIVALS_PER_S * STEP_S:
                await present.pop(rng.randrange(len(present))).leave()
                await join()
            await eventually(lambda: all(reader.has_all for reader in present))
            await on.pass_time(STEP_S)
        for shelf in shelves:
            await on.close_stream(shelf.path)
        async with asyncio.timeout(30):
            await asyncio.gather(*(reader.task for reader in present if reader.task is not None))
        stream_bytes = sum(len(shelf.log) for shelf in shelves)
        return on.figure(
            f"{readers} live readers of {streams} streams who come and go, writers beside them, {seconds:g} s",
            stream_bytes,
        )

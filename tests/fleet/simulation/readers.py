"""Live readers that stay: each goes on from its last offset, at its member or another one, until its stream ends."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from typing import Final

from tests.fleet.simulation.truth import Life
from tests.fleet.simulation.world import World

_AGAIN_S: Final = 0.5


class Reader(ABC):
    """Checks that it gets each byte of one life once and in order."""

    def __init__(self, world: World, member: str, path: str, life: Life) -> None:
        self._world = world
        self.member = member
        self.path = path
        self.life = life
        self._floor = world.truth.floor(member, path)
        self.position = 0
        self._offset = "-1"
        self._cursor: str | None = None
        self.has_left = False
        self.task = asyncio.create_task(self._run())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.path} at {self.member}: {self.position} of {len(self.life.content)}>"

    @property
    def has_all(self) -> bool:
        """Whether it has got everything, or no longer waits for anything."""
        return self.task.done() or not self.life.is_alive or self.position == len(self.life.content)

    def leave(self) -> None:
        self.has_left = True
        self.task.cancel()

    async def _run(self) -> None:
        while self.life.is_alive:
            member = self.member
            if member not in self._world.members:
                self.member = self._world.rng.choice(list(self._world.members) or [member])
            began = self._world.loop.time()
            try:
                status = await self._once()
            except (EOFError, OSError):
                status = 0
            if status != 200 and status != 204 and self.life.is_alive:
                # A member that has not heard of the creation may answer 404 for a while.
                is_fault = status not in (0, 404) and self._world.is_calm(began)
                assert not is_fault, f"{self} was answered {status}"
                await asyncio.sleep(_AGAIN_S)

    @abstractmethod
    async def _once(self) -> int:
        """Send one request; return the status of its answer."""

    def _target(self, live: str) -> str:
        cursor = f"&cursor={self._cursor}" if self._cursor else ""
        return f"{self.path}?offset={self._offset}&live={live}{cursor}"

    def _take(self, position: int, data: bytes) -> int:
        """Judge the bytes at a position; return the position behind them."""
        end = position + len(data)
        if self.life.is_alive and not position and not self.life.content.startswith(data):
            # A member that has not heard of the re-creation may show an earlier life.
            self.life = self._world.truth.earlier(self.path, self._floor, data)
        if self.life.is_alive:
            held = bytes(self.life.content[position:end])
            assert held == data, f"{self} got {data[:40]!r} in place of {held[:40]!r}"
        return end


class SseReader(Reader):
    """Reads events, and comes back when the connection ends."""

    async def _once(self) -> int:
        client = await self._world.client(self.member)
        try:
            subscription = await client.subscribe(self._target("sse"), statuses=range(200, 600))
            if subscription.reply.status != 200:
                return subscription.reply.status
            position = self.position
            async for event in subscription.events():
                if event.name == "data":
                    position = self._take(position, event.data.encode())
                elif event.name == "control":
                    control = json.loads(event.data)
                    self.position, self._offset = position, control["streamNextOffset"]
                    self._cursor = control.get("streamCursor", self._cursor)
            return 200
        finally:
            client.close()


class PollReader(Reader):
    """Long-polls."""

    async def _once(self) -> int:
        answered = await self._world.ask(self.member, "GET", self._target("long-poll"))
        if answered is None:
            return 0
        reply, body = answered
        if reply.status in (200, 204):
            self.position = self._take(self.position, body)
            self._offset, self._cursor = reply.next_offset, reply.cursor
        return reply.status

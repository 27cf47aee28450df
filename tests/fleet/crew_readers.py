"""Readers and writers of a fleet whose members have workers."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Final

from tests.fleet.crews import Crews
from tests.offload.crowd import Client, Reply
from tests.waiting import eventually, pause
from tests.workers import site

PLAIN: Final = {"Content-Type": "text/plain"}
JSON: Final = {"Content-Type": "application/json"}
LOOK_S: Final = 0.05
_AGAIN_S: Final = 0.02


class Reader:
    """A live reader, which begins again where it was when its connection ends.  A refused request fails the test, at
    the latest in `leave`."""

    def __init__(self, fleet: Crews, member: str, path: str) -> None:
        self._fleet, self.member, self._path = fleet, member, path
        self.found: list[int] = []
        self._offset = "-1"
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while True:
            if (site := self._fleet.members.get(self.member)) is not None:
                with suppress(EOFError, OSError, TimeoutError):
                    await self._subscribe(await site.client())
            await pause(_AGAIN_S)

    async def _subscribe(self, client: Client) -> None:
        try:
            subscription = await client.subscribe(f"{self._path}?offset={self._offset}&live=sse")
            data: list[int] = []
            async for event in subscription.events():
                if event.name == "data":
                    data += json.loads(event.data)
                else:
                    self._offset = json.loads(event.data)["streamNextOffset"]
                    self.found += data
                    data.clear()
        finally:
            client.close()

    async def leave(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


async def read_all(client: Client, path: str) -> tuple[Reply, bytes]:
    """Read a stream up to its tail.  On a busy machine, an answer may stop short of it, and says so."""
    body, offset = b"", "-1"
    while True:
        reply, part = await site.read_all(client, path, offset)
        body += part
        if reply.status != 200 or "stream-up-to-date" in reply.headers:
            return reply, body
        offset = reply.next_offset


async def have_read(readers: list[Reader], last: int) -> None:
    """Wait until each reader has read the values up to `last`, each once and in order."""
    wanted = list(range(1, last + 1))
    await eventually(lambda: all(one.found == wanted for one in readers), state=lambda: [one.found for one in readers])


async def write(fleet: Crews, name: str, path: str, value: int) -> None:
    """Write a value through any worker of a member.  The first value creates the stream."""
    client = await fleet.members[name].client()
    reply = await client.send("PUT" if value == 1 else "POST", path, JSON, b"[%d]" % value)
    assert reply.status in (201, 204)
    client.close()


def open_once(fleet: Crews, paths: list[str]) -> bool:
    """Whether the origin has one live request open for each of these streams."""
    return [fleet.origin.origin.store.get(path, 0.0).live_readers for path in paths] == [1] * len(paths)


async def knows(fleet: Crews, name: str, others: dict[str, tuple[float, float]]) -> bool:
    """Whether all workers of a member have this view of the others."""
    return await fleet.views(name) == others

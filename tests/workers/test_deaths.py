"""A worker that is killed: its readers come back, the others' notice nothing, and all get every message."""

from __future__ import annotations

import asyncio
import json

from gateway.origin.requests import Kind
from tests.offload.crowd import Client
from tests.waiting import eventually
from tests.workers.site import JSON, Site

STREAMS = 6
LOST = (OSError, EOFError, asyncio.IncompleteReadError)


class Reader:
    """An SSE reader that comes back from where it was, and how much it has seen."""

    def __init__(self, site: Site, path: str) -> None:
        self.path = path
        self.seen: list[int] = []
        self.losses = 0
        self.port = 0
        """Of the connection over which it reads."""
        self._site = site
        self._at = "-1"

    async def run(self) -> None:
        while True:
            client: Client | None = None
            try:
                client = await self._site.client()
                subscription = await client.subscribe(f"{self.path}?live=sse&offset={self._at}")
                self.port = client.port
                async for event in subscription.events():
                    if event.name == "data":
                        self.seen += json.loads(event.data)
                    else:
                        self._at = json.loads(event.data)["streamNextOffset"]
            except LOST:
                self.losses += 1
            finally:
                self.port = 0
                if client is not None:
                    client.close()


async def test_every_reader_gets_every_message_while_workers_are_killed_in_turn(site: Site) -> None:
    counters = site.origin.origin.counters
    author = await site.origin_client()
    readers = [Reader(site, f"/s/{number % STREAMS}") for number in range(STREAMS * 6)]
    for number in range(STREAMS):
        await author.send("PUT", f"/s/{number}", JSON)
    counters.reset()
    count = 0
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(reader.run()) for reader in readers]

        async def all_see_the_next() -> None:
            nonlocal count
            count += 1
            for number in range(STREAMS):
                await author.send("POST", f"/s/{number}", JSON, b"%d" % (count - 1))
            await eventually(
                lambda: all(reader.seen == list(range(count)) for reader in readers),
                look_s=0.01,
                state=lambda: [(one.path, one.seen[-1:], one.port) for one in readers if len(one.seen) < count],
            )

        await eventually(lambda: all(reader.port for reader in readers), look_s=0.01)
        await all_see_the_next()
        for pid in site.gateway.worker_pids():
            workers = await site.gateway.workers_of(*(reader.port for reader in readers))
            mine = [reader for reader in readers if workers[reader.port] == pid]
            others = {reader: reader.losses for reader in readers if workers[reader.port] != pid}
            site.gateway.kill(pid)
            await all_see_the_next()
            await eventually(site.gateway.is_well, look_s=0.01)
            # Its streams may be its own again.
            await all_see_the_next()
            assert all(reader.losses for reader in mine)
            assert {reader: reader.losses for reader in others} == others, "readers at other workers notice nothing"
        for task in tasks:
            task.cancel()
    live = counters.requests[Kind.SSE] + counters.requests[Kind.LONGPOLL]
    # The stream's next owner asks at most once more, and so does the owner that is back.
    assert live <= STREAMS * (1 + 2 * site.gateway.workers)
    assert counters.live_peak <= 2 * STREAMS

"""A random walk: clients read their own writes through one member while members die, return and disagree."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.fleet.site import NAMES, Site
from tests.waiting import eventually, time_passing

STREAMS = 6
STEPS = 120
FRESH: dict[str, Any] = {"tail_fresh_s": 600}
"""Tails may be repeated for minutes.  So each read is from memory unless the gateway knows better."""


class Client:
    """The only writer of one stream.  It stays at one member, so it must read what it has written."""

    def __init__(self, site: Site, rng: Random, number: int) -> None:
        self._site = site
        self._rng = rng
        self._path = f"/s/{number}"
        self.at = rng.choice(NAMES)
        self._body: bytes | None = None
        """What the stream has; None if there is none."""
        self._lives = 0

    async def step(self) -> None:
        """Write something, or move to another member, and perhaps read what there is."""
        member, kind = self._site.members[self.at], self._rng.random()
        if kind < 0.1:
            # What was written through another member is known here only after a write through this one.
            self.at = self._rng.choice(NAMES)
            member = self._site.members[self.at]
            assert (await member.send("DELETE", self._path)).status in (204, 404)
            self._body = None
        elif self._body is None:
            self._lives += 1
            # All lives of a stream have equal offsets.
            self._body = b"life %06d" % self._lives
            assert (await member.put(self._path, self._body)).status == 201
        elif kind < 0.25:
            assert (await member.send("DELETE", self._path)).status == 204
            self._body = None
        elif kind < 0.75:
            piece = b"%06d" % self._rng.randrange(10**6)
            assert (await member.post(self._path, piece)).status == 204
            self._body += piece
        if self._rng.random() < 0.3:
            # A reader elsewhere lets another member keep the stream, and its tail.
            await self._site.members[self._rng.choice(NAMES)].get(f"{self._path}?offset=-1")
        if self._rng.random() < 0.6:
            await self.read()

    async def read(self) -> None:
        """See that a read shows exactly what has been written."""
        answer = await self._site.members[self.at].get(f"{self._path}?offset=-1")
        if self._body is None:
            assert answer.status == 404
        else:
            assert (answer.status, answer.body, answer.is_up_to_date) == (200, self._body, True)


async def test_clients_read_their_own_writes(apart: Site) -> None:
    rng = Random(2)
    await apart.start_all(**FRESH)
    clients = [Client(apart, rng, number) for number in range(STREAMS)]
    async with time_passing(apart.clock, 0.005):
        for number in range(STEPS):
            await rng.choice(clients).step()
            if rng.random() < 0.1:
                # One member believes that another one is lost.
                rng.choice(list(apart.fleet(rng.choice(NAMES)).members.values())).lose()
            if number % 40 == 39:
                name = rng.choice(NAMES)
                await apart.kill(name)
                for client in clients:
                    if client.at != name:
                        await client.read()
                await apart.start(name, **FRESH)
                # Some steps follow while the member takes its streams.
                await eventually(lambda: all(apart.reached(one) == {*NAMES} - {one} for one in NAMES))
                for client in clients:
                    await client.read()

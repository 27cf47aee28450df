"""The gateway of a case: in this process, or a program with workers; either says what the cases wait for."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from functools import partial
from itertools import chain, cycle
from random import Random
from typing import Protocol

from gateway.aio.clock import Clock
from gateway.app import RunningGateway, start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.live.topic import Topic
from tests.fleet.crews import views_in
from tests.ports import kept_port
from tests.waiting import eventually
from tests.workers.clock import SharedClock
from tests.workers.process import GatewayProcess


class Gateway(Protocol):
    """A gateway that accepts connections.  `stop` is owed."""

    has_workers: bool
    sees_writes: bool
    """Whether a write of one client is in the next read of each other client.  Members of a fleet promise this only for
    clients of the same member."""

    @property
    def url(self) -> str: ...

    async def all_wait(self, path: str, readers: int) -> bool:
        """Whether so many live readers wait at the tail of a stream."""

    async def has_brought(self, path: str, end: str, *, is_closed: bool) -> bool:
        """Whether a followed stream's live request has brought the bytes up to `end`, and the closure if any."""

    async def readers(self) -> int:
        """The live readers of all streams."""

    async def followed(self) -> int:
        """The streams with a live request, or with a live reader."""

    async def stop(self) -> object: ...


class GatewayHere:
    """A gateway in this process, on this loop."""

    has_workers = False
    sees_writes = True

    def __init__(self, running: RunningGateway) -> None:
        self.running = running

    @classmethod
    async def start(cls, config: GatewayConfig, clock: Clock) -> GatewayHere:
        """Start one."""
        return cls(await start_gateway(config, clock=clock, rng=Random(1)))

    @property
    def url(self) -> str:
        return self.running.gateway_url

    def topic(self, path: str) -> Topic | None:
        """The topic of a stream."""
        live = self.running.engine.live
        return next((topic for topic in live.topics() if topic.stream.key.group.path == path), None)

    async def all_wait(self, path: str, readers: int) -> bool:
        topic = self.topic(path)
        return topic is not None and topic.readers == readers and topic.is_confirmed

    async def has_brought(self, path: str, end: str, *, is_closed: bool) -> bool:
        topic = self.topic(path)
        if topic is None or topic.position is None:
            return True
        return topic.position >= end and (not is_closed or topic.stream.tape.closed_at is not None)

    async def readers(self) -> int:
        return sum(topic.readers for topic in self.running.engine.live.topics())

    async def followed(self) -> int:
        return len(self.running.engine.live)

    async def stop(self) -> None:
        await self.running.stop()


class Workers:
    """A gateway with workers, seen by its admin port."""

    has_workers = True
    sees_writes = True

    def __init__(self, process: GatewayProcess) -> None:
        self.process = process

    @classmethod
    async def start(cls, config: GatewayConfig, workers: int, clock: SharedClock | None) -> Workers:
        """Start one."""
        return cls(await GatewayProcess.start(config, workers, clock=clock))

    @property
    def url(self) -> str:
        return self.process.url

    async def all_wait(self, path: str, readers: int) -> bool:
        page = json.loads((await self.process.admin(f"/api/streams?prefix={path}&limit=50")).body)
        found = [one for one in page["streams"] if one["path"] == path]
        return sum(int(one["readers"]) for one in found) == readers

    async def has_brought(self, path: str, end: str, *, is_closed: bool) -> bool:
        return True  # who asks too early asks again

    async def readers(self) -> int:
        return (await self.process.figures())["durable_gateway_subscribers"]

    async def followed(self) -> int:
        return (await self.process.figures())["durable_gateway_followed_streams"]

    async def stop(self) -> None:
        await self.process.stop()


class Members:
    """A fleet of gateways with workers, of which clients reach one after the other.

    The first client writes, and the second one reaches the same member, so that it reads these writes at once."""

    has_workers = True
    sees_writes = False

    def __init__(self, members: list[Workers], ports: ExitStack, clock: SharedClock | None) -> None:
        self._members = members
        self._clock = clock
        self._ports = ports
        urls = [one.url for one in members]
        self._urls = chain(urls[:1], cycle(urls))

    @classmethod
    async def start(cls, config: GatewayConfig, count: int, workers: int, clock: SharedClock | None) -> Members:
        """Start them, and wait until they reach each other."""
        ports = ExitStack()
        names = [f"m{number}" for number in range(count)]
        listed = [{"name": one, "url": f"http://127.0.0.1:{ports.enter_context(kept_port())}"} for one in names]
        started = [Workers.start(_member(config, listed, number), workers, clock) for number in range(count)]
        made = cls(list(await asyncio.gather(*started)), ports, clock)
        await eventually(partial(made._have_joined, workers), within_s=60, look_s=0.05)
        return made

    async def _have_joined(self, workers: int) -> bool:
        self._pass(0.1)
        views = [views_in(await one.process.exposition()) for one in self._members]
        others = len(self._members) - 1
        return all(list(one.values()) == [(1.0, workers)] * others for one in views)

    def _pass(self, seconds: float) -> None:
        """Let some time pass for the members' probes, and for their further attempts to reach each other."""
        if self._clock is not None:
            self._clock.advance(seconds)

    @property
    def url(self) -> str:
        return next(self._urls)

    async def all_wait(self, path: str, readers: int) -> bool:
        self._pass(0.01)
        pages = [(await one.process.admin(f"/api/streams?prefix={path}&limit=50")).body for one in self._members]
        rows = [row for page in pages for row in json.loads(page)["streams"] if row["path"] == path]
        return sum(int(row["readers"]) for row in rows) == readers

    async def has_brought(self, path: str, end: str, *, is_closed: bool) -> bool:
        return True  # who asks too early asks again

    async def readers(self) -> int:
        return sum([await one.readers() for one in self._members])

    async def followed(self) -> int:
        return sum([await one.followed() for one in self._members])

    async def stop(self) -> None:
        await asyncio.gather(*(one.stop() for one in self._members))
        self._ports.close()


def _member(config: GatewayConfig, listed: list[dict[str, str]], number: int) -> GatewayConfig:
    name, url = listed[number]["name"], listed[number]["url"]
    parts = {"name": name, "listen": url.removeprefix("http://"), "members": listed, "secret": "s" * 32}
    tree = config.model_dump(mode="json", exclude_unset=True)
    tree["server"]["node_name"] = name
    return GatewayConfig.model_validate({**tree, "fleet": parts})

"""The gateway of a case: in this process, or a program with workers; either says what the cases wait for."""

from __future__ import annotations

import json
from random import Random
from typing import Protocol

from gateway.aio.clock import Clock
from gateway.app import RunningGateway, start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.live.topic import Topic
from tests.workers.clock import SharedClock
from tests.workers.process import GatewayProcess


class Gateway(Protocol):
    """A gateway that accepts connections.  `stop` is owed."""

    has_workers: bool

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

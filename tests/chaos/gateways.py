"""The gateway of a run: in this process, or a supervisor with its workers.

Both are started, told what to do and looked at by the same methods, so that actors and rules need not know which it is.
"""

from __future__ import annotations

from random import Random
from typing import Protocol

from gateway.aio.clock import Clock
from gateway.app import RunningGateway, start_gateway
from gateway.config.gateway import GatewayConfig
from tests.scenarios.wire import Wire


class Gateway(Protocol):
    """A gateway that accepts connections.  `stop` is owed."""

    @property
    def url(self) -> str:
        """Where clients are accepted."""

    @property
    def admin_url(self) -> str: ...

    async def drain(self, within_s: float) -> None: ...

    async def undo_drain(self) -> None: ...

    async def reload(self, config: GatewayConfig) -> None:
        """Have another configuration, as SIGHUP does."""

    async def purge(self, stream: str, *, is_soft: bool) -> None:
        """Purge a path by the admin port."""

    async def is_well(self) -> bool:
        """Whether all of it serves, and takes every origin for well."""

    async def left_over(self) -> list[str]:
        """What it holds; empty if it holds nothing for any client."""

    async def stop(self) -> str:
        """End it in order.  Returns its metrics at the end."""


class GatewayHere:
    """A gateway in this process, on this loop."""

    def __init__(self) -> None:
        self._running: RunningGateway | None = None
        self._config: GatewayConfig | None = None

    @classmethod
    async def start(cls, config: GatewayConfig, clock: Clock, rng: Random) -> GatewayHere:
        """Start one with this configuration."""
        made = cls()
        made._config = config
        made._running = await start_gateway(config, clock=clock, rng=rng, load=made._load, environ={})
        return made

    def _load(self) -> GatewayConfig:
        assert self._config is not None
        return self._config

    @property
    def running(self) -> RunningGateway:
        assert self._running is not None
        return self._running

    @property
    def url(self) -> str:
        return self.running.gateway_url

    @property
    def admin_url(self) -> str:
        return self.running.admin_url

    async def drain(self, within_s: float) -> None:
        self.running.drain(within_s)

    async def undo_drain(self) -> None:
        self.running.undo_drain()

    async def reload(self, config: GatewayConfig) -> None:
        self._config = config
        await self.running.reload()

    async def purge(self, stream: str, *, is_soft: bool) -> None:
        wire = await Wire.open(self.admin_url)
        try:
            body = b'{"stream":"%s","soft":%s}' % (stream.encode(), b"true" if is_soft else b"false")
            await wire.ask("/api/purge", {"Host": "localhost", "Content-Type": "application/json"}, "POST", body)
            answer = await wire.answer()
            assert answer.status == 200, answer.body
        finally:
            await wire.closed()

    async def is_well(self) -> bool:
        return all(origin.retry_in_s is None for origin in self.running.engine.origins.snapshot())

    async def left_over(self) -> list[str]:
        engine = self.running.engine
        counts = {
            "topics": len(engine.live),
            "flights": len(engine.fetches),
            "connections in use at the origin": engine.client.open_connections,
            "pins": sum(stream.holds for stream in engine.store),
            "clients": self.running.connections,
        }
        left = [f"{count} {what}" for what, count in counts.items() if count]
        cost = sum(stream.cost for stream in engine.store)
        return left + ([f"costs of {engine.store.cost} for tapes of {cost}"] if engine.store.cost != cost else [])

    async def stop(self) -> str:
        await self.running.stop()
        return self.running.metrics.exposition()[0].decode()

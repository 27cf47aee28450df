"""A fleet of gateways in one process, in front of one in-memory origin."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from random import Random
from typing import Any, Final

from gateway.aio.clock import ManualClock
from gateway.app import start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.engine.fleet import Fleet
from gateway.origin.app import RunningOrigin
from gateway.origin.requests import Kind
from tests.ports import kept_port
from tests.scenarios.conftest import Edge
from tests.waiting import eventually

SECRET: Final = "a secret that only members of the fleet know"
NAMES: Final = ("a", "b", "c")


class Site:
    """The members by name, and their origin."""

    def __init__(self, origin: RunningOrigin, clock: ManualClock, names: tuple[str, ...] = NAMES) -> None:
        self.origin = origin
        self.clock = clock
        self._ports = ExitStack()
        self.urls = {name: f"http://127.0.0.1:{self._ports.enter_context(kept_port())}" for name in names}
        self.listed = names
        """The names in the list of a member that starts or reloads its configuration."""
        self.members: dict[str, Edge] = {}
        self._dead: list[Edge] = []
        self.reloaded: dict[str, Any] = {}
        """The values that a member takes at its next reload."""
        self._silent: asyncio.Server | None = None
        self.counters = origin.origin.counters

    @property
    def live_requests(self) -> int:
        """How many live requests the origin has had."""
        return self.counters.requests[Kind.SSE] + self.counters.requests[Kind.LONGPOLL]

    def config(self, name: str, fleet: dict[str, Any] | None = None, **more: Any) -> GatewayConfig:
        """The configuration of a member.  `fleet` has values other than those of the other members."""
        parts = {
            "name": name,
            "listen": self.urls[name].removeprefix("http://"),
            "members": [{"name": one, "url": self.urls[one]} for one in self.listed],
            "secret": SECRET,
            **(fleet or {}),
        }
        return GatewayConfig.for_origin(
            self.origin.url,
            **{
                "listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "workers": 1, "node_name": name,
                "shutdown_timeout_s": 1, "live_linger_s": 0, "fleet": parts, **more
            },
        )  # fmt: skip

    async def start(self, name: str, fleet: dict[str, Any] | None = None, **more: Any) -> Edge:
        """Start a member."""
        config = self.config(name, fleet, **more)

        def load() -> GatewayConfig:
            return self.config(name, fleet, **{**more, **self.reloaded})

        gateway = await start_gateway(config, clock=self.clock, rng=Random(7), load=load)
        self.members[name] = Edge(gateway, self.clock)
        return self.members[name]

    async def start_all(self, **more: Any) -> None:
        """Start all members, and wait until each can reach each."""
        for name in self.urls:
            await self.start(name, **more)
        await self.until_joined()

    async def list_members(self, *names: str, at: tuple[str, ...]) -> None:
        """Let some members reload their configuration, in which the fleet has these members."""
        self.listed = names
        for name in at:
            change = await self.members[name].gateway.reload()
            assert (change.changed, change.needs_restart) == (("fleet.members",), ())

    def fleet(self, name: str) -> Fleet:
        """A member's view of its fleet."""
        fleet = self.members[name].gateway.engine.fleet
        assert fleet is not None
        return fleet

    def reached(self, name: str) -> set[str]:
        """The other members that a member can reach."""
        return {one.name for one in self.fleet(name).members.values() if not one.why_not}

    def have_joined(self) -> bool:
        """Whether each running member can reach each other one, and nobody else, and asks it for all of its streams."""
        return all(
            self.reached(name) == set(self.members) - {name}
            and all(one.weight == 1 for one in self.fleet(name).members.values() if not one.why_not)
            for name in self.members
        )

    async def until_joined(self) -> None:
        """Wait until each running member can reach each other one, and nobody else."""

        def have_joined() -> bool:
            self.clock.advance(0.1)
            return self.have_joined()

        await eventually(have_joined, state=lambda: [self.fleet(name) for name in self.members])

    def owner(self, path: str) -> str:
        """The member that owns the stream."""
        name = next(iter(self.members))
        fleet = self.fleet(name)
        index = fleet.owners.other_owner(fleet.owners.cell_of(self.origin.url, path))
        return name if index is None else fleet.members[index].name

    def path_of(self, owner: str) -> str:
        """The path of a stream that this member owns."""
        return next(path for path in (f"/s/{number}" for number in range(1_000)) if self.owner(path) == owner)

    async def stop(self, name: str) -> None:
        """Stop a member in the proper way."""
        await self._stop(self.members.pop(name))

    async def _stop(self, edge: Edge) -> None:
        await edge.leave()
        stopping = asyncio.create_task(edge.gateway.stop())

        def has_stopped() -> bool:
            self.clock.advance(0.1)
            return stopping.done()

        await eventually(has_stopped)
        await stopping

    async def kill(self, name: str, *, is_silent: bool = False) -> None:
        """End a member as if its process had died: all of its connections are cut, and its port is closed.

        `is_silent`: connections are accepted at its port, and no request is answered, as by a process that hangs.
        """
        edge = self.members.pop(name)
        self._dead.append(edge)
        edge.gateway.listeners.close()
        if is_silent:
            port = int(self.urls[name].rpartition(":")[2])
            self._silent = await asyncio.start_server(self._hang, "127.0.0.1", port)
        members = edge.gateway.listeners.members
        assert members is not None
        await members.abort()
        await edge.gateway.engine.close()

    @staticmethod
    async def _hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read requests, and answer none."""
        while await reader.read(1 << 16):
            pass
        writer.close()
        await writer.wait_closed()

    async def close(self) -> None:
        for edge in self.members.values():
            await edge.leave()
        for edge in self.members.values():
            await edge.until_idle()
        try:
            for name in list(self.members):
                await self.stop(name)
            for edge in self._dead:
                await self._stop(edge)
        finally:
            if self._silent is not None:
                self._silent.close()
                await self._silent.wait_closed()
            self._ports.close()

"""A fleet in memory: the real gateways and the real in-memory origin, on a simulated network and clock."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from random import Random
from typing import Any, Final

from gateway.app import RunningGateway, start_gateway
from gateway.config.fleet import MemberConfig
from gateway.config.gateway import GatewayConfig
from gateway.engine.fleet import Fleet
from gateway.origin.app import Origin, OriginSettings, RunningOrigin, start_origin
from tests.fleet.simulation.network import SimulatedClock, SimulatedLoop
from tests.fleet.simulation.truth import Counts, Truth
from tests.offload.crowd import Client, Reply, Tally

NAMES: Final = ("a", "b", "c")
PATHS: Final = tuple(f"/s/{number}" for number in range(6))
HOSTS: Final = {name: f"10.0.0.{number}" for number, name in enumerate(NAMES, 1)}
CALM_S: Final = 40.0
"""How long a fault may have effects.  A member that has failed is not asked for up to 36 s."""
_SECRET: Final = "a secret that only members of the fleet know"
_LOST: Final = (EOFError, OSError)


class World:
    """The members that run, their origin, and what is true.  `close` ends all of it."""

    def __init__(self, loop: SimulatedLoop, rng: Random, origin: RunningOrigin, **settings: Any) -> None:
        self.loop = loop
        self.rng = rng
        self.network = loop.network
        self.clock = SimulatedClock(loop)
        self.origin = origin
        self.truth = Truth(origin.origin.store, loop.time)
        self.counts = Counts()
        self.members: dict[str, RunningGateway] = {}
        self._dead: list[RunningGateway] = []
        self._settings = settings
        self._clients: list[Client] = []
        self._idle: dict[str, list[Client]] = {name: [] for name in NAMES}
        self._troubled_at = loop.time()
        self.network.hosts = {host: name for name, host in HOSTS.items()}

    @classmethod
    async def start(cls, loop: SimulatedLoop, rng: Random, **settings: Any) -> World:
        """Start an origin and all members."""
        settled = OriginSettings(host="10.0.0.9", port=4438)
        held = Origin(settled, clock=SimulatedClock(loop), random=Random(rng.random()))
        origin = await start_origin(settled, origin=held)
        world = cls(loop, rng, origin, **settings)
        for name in NAMES:
            await world.start_member(name)
        return world

    # -- members

    async def start_member(self, name: str) -> None:
        """Start a member, as another process of that name."""
        urls = [{"name": one, "url": f"http://{host}:4439"} for one, host in HOSTS.items()]
        fleet = {"name": name, "listen": f"{HOSTS[name]}:4439", "members": urls, "secret": _SECRET}
        fixed: dict[str, Any] = {
            "listen": f"{HOSTS[name]}:80", "admin": "127.0.0.1:0", "workers": 1, "node_name": name,
            "shutdown_timeout_s": 1, "client_new_streams_per_s": 0, "fleet": fleet,
        }  # fmt: skip
        config = GatewayConfig.for_origin(self.origin.url, **{**fixed, **self._settings})
        rng = Random(self.rng.random())
        self.members[name] = await start_gateway(config, clock=self.clock, rng=rng, environ={})

    def fleet(self, name: str) -> Fleet:
        """A member's view of its fleet."""
        fleet = self.members[name].engine.fleet
        assert fleet is not None
        return fleet

    async def kill(self, name: str) -> None:
        """End a member as if its process had died."""
        gateway = self.members.pop(name)
        self._dead.append(gateway)
        self._idle[name].clear()
        self.network.cut(HOSTS[name])
        gateway.listeners.close()
        await gateway.engine.close()

    def list_members(self, name: str, listed: Iterable[str]) -> None:
        """Change the list of a member."""
        self.fleet(name).replace_members(MemberConfig(name=one, url=f"http://{HOSTS[one]}:4439") for one in listed)

    async def drain(self, name: str) -> None:
        """Let a member end in order: the others take its streams, then it dies."""
        gateway = self.members[name]
        gateway.drain()
        assert gateway.engine.fleet is not None
        await gateway.engine.fleet.until_told(1.0)
        await self.kill(name)

    # -- faults

    def trouble(self) -> None:
        """Record a fault: for a while, requests may fail."""
        self._troubled_at = self.loop.time()

    @property
    def is_broken(self) -> bool:
        """Whether a fault goes on now."""
        return bool(self.network.stalled or self.network.parted or len(self.members) < len(NAMES))

    def is_calm(self, since: float) -> bool:
        """Whether no fault has had effects since then."""
        return not self.is_broken and self._troubled_at + CALM_S < since

    async def heal(self) -> None:
        """End all faults, and wait until all members agree that all can be reached."""
        self.trouble()
        for name in sorted(self.network.stalled):
            self.network.resume(name)
        self.network.parted.clear()
        for name in NAMES:
            if name not in self.members:
                await self.start_member(name)
            self.list_members(name, NAMES)
        for _ in range(200):
            await asyncio.sleep(0.5)
            if all(not one.why_not for name in NAMES for one in self.fleet(name).members.values()):
                return
        raise AssertionError(f"members do not join: {[self.fleet(name) for name in NAMES]}")

    # -- clients

    async def ask(self, member: str, method: str, target: str, body: bytes = b"") -> tuple[Reply, bytes] | None:
        """Send a request to a member; None if it failed, which it may only during faults."""
        began = self.loop.time()
        client: Client | None = None
        parts: list[bytes] = []
        headers = {"Content-Type": "text/plain"} if body else {}
        try:
            client = await self.client(member)
            reply = await client.send(method, target, headers, body, take=parts.append)
        except _LOST as error:
            if client is not None:
                client.close()
            assert not self.is_calm(began), f"{method} {target} at {member}: {error!r}"
            self.counts.count("failed")
            return None
        if not client.is_closed and member in self.members:
            self._idle[member].append(client)
        else:
            client.close()
        if reply.status >= 500:
            assert not self.is_calm(began), f"{method} {target} at {member}: {reply}"
            self.counts.count("refused")
            return None
        return reply, b"".join(parts)

    async def client(self, member: str) -> Client:
        """A connection to a member, which may have been used before.  Raises OSError."""
        idle = self._idle[member]
        while idle:
            client = idle.pop()
            if not client.is_closed:
                return client
            client.close()
        client = await Client.open(f"http://{HOSTS[member]}:80", Tally())
        for one in [one for one in self._clients if one.is_closed]:
            one.close()
            self._clients.remove(one)
        self._clients.append(client)
        return client

    async def close(self) -> None:
        """End everything."""
        for client in self._clients:
            client.close()
        for name in list(self.members):
            await self.kill(name)
        for gateway in self._dead:
            with suppress(*_LOST):
                await gateway.stop()
        await self.origin.stop(grace_s=0)

"""One member's view of its fleet: which other members can be reached, and how they are asked.

Each member asks each other one regularly for its name, its configuration, and whether it is leaving (`PROBE`).  A
member that does not answer, or whose configuration differs, owns no streams in this member's view.  A request that
cannot reach a member has the same effect at once.  `Fleet.members` has the reasons, for the operator.

A member may have several workers.  Each of them has a view of its own, and asks any worker of each other member.  A
member is one gateway to the others: its workers have the counts of its writes, and its name from its start to its end
(`MemberField.instance`), in common.

The list of members may change while the gateway runs (`Fleet.replace_members`).  A member that comes into the list is
asked for its streams gradually.  A member that leaves the list loses its streams to the others at once, and its process
gets no new answers.  The same holds for a process once another one answers at the member's URL in the list.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from random import Random
from typing import Final

from multidict import CIMultiDict

from gateway.aio.clock import Clock, Timer
from gateway.config.fleet import FleetConfig, MemberConfig
from gateway.config.gateway import GatewayConfig
from gateway.engine.fleet_discovery import FoundMembers
from gateway.engine.fleet_orders import FleetOrders
from gateway.engine.fleet_processes import MemberProcesses
from gateway.engine.fleet_reachability import CONNECT_S, NOT_ASKED, Member
from gateway.engine.fleet_redis import OrdersByRedis
from gateway.engine.fleet_writes import CountedWrites
from gateway.errors import UpstreamUnreachable
from gateway.protocol.fleet_headers import FLEET, PROBE, MemberAnswer, MemberField, WriteCount
from gateway.protocol.fleet_orders import FLEET_ORDERS, NO_ORDERS, OutcomeAsk, Since
from gateway.protocol.member_session import MemberKey
from gateway.protocol.sharing import Group
from gateway.upstream.client import MemberClient
from gateway.upstream.origin_call import Bounds, OriginCall
from gateway.upstream.reply import answer_to
from gateway.workers.member_owners import MemberOwners
from gateway.workers.place import WorkerPlace
from gateway.workers.write_counts import WriteCounts

PROBE_S: Final = 0.5
"""Seconds between two probes of a member, varied by a fifth."""
_FIRST_S: Final = 1.5
"""The most seconds for which the start waits for the first answers of the other members."""
_MOST_TOLD_S: Final = 1.0
"""The most seconds for which a member that is leaving waits for the next probe of each other one."""
_MOST_ORDERS_BYTES: Final = 1 << 26
"""The largest answer with purges and revocations."""

_log = logging.getLogger("gateway.fleet")


class Fleet:
    """The other members of the fleet, as one member sees them.  Owner of the list of members."""

    def __init__(
        self,
        config: FleetConfig,
        clock: Clock,
        rng: Random,
        client: MemberClient | None = None,
        crew: WorkerPlace | None = None,
    ) -> None:
        """`crew` are the other workers of this member; None if this process is the only one."""
        self.clock = clock
        self._rng = rng
        self._crew = crew
        self._secret = secret = config.key
        self.key: Final = MemberKey(config.name, secret)
        names = [member.name for member in config.members]
        own = names.index(config.name)
        self.owners: Final = MemberOwners(names, own, secret)
        counts = None if crew is None else WriteCounts(crew.shared, crew.slot)
        self.counts: Final = CountedWrites(self.owners, counts)
        workers, urls = 1 if crew is None else crew.shared.workers, {one.name: one.url for one in config.members}
        self.client: Final = client or MemberClient(self.key, urls, workers)
        process = secrets.token_hex(8)
        if crew is None:
            instance, self.worker = process, 0
        else:
            instance, self.worker = crew.shared.name, crew.slot
            crew.shared.set_orders(crew.slot, NO_ORDERS)
        self.field = MemberField(config.name, instance, "0" * 16, worker=self.worker, process=process)
        """What this member says of itself in requests."""
        self.orders: Final = FleetOrders(
            process, clock.now, self._ask_about_orders, self._names_of_others, self._knows_orders
        )
        """The operator's orders, at any member."""
        self.orders.peer = self.field.peer
        self.routes_without_owners: frozenset[str] = frozenset()
        """The names of the routes whose streams have no owner among the members."""
        self.is_replaced = False
        """Whether another version of this gateway goes on in place of this one."""
        self.found: FoundMembers | None = None
        """Finds the members in DNS or in Redis; None if the configuration lists them."""
        self.by_redis: OrdersByRedis | None = None
        """Copies the operator's orders to Redis, and learns of them there; None without Redis."""
        self.node = ""
        """A digest of this member's `server.node_name`."""
        self.on_silent: Callable[[int], object] = lambda index: None
        """Called with the index of a member that sends nothing more of the answers that it has begun."""
        self.on_members: Callable[[], object] = lambda: None
        """Called when the list of members has changed."""
        self.processes: Final = MemberProcesses(clock.now)
        self.met: Final = self.processes.met
        """Returns how this process has met a member's process."""
        self._told: set[str] = set()
        """The members that have asked for this member's state since it is leaving."""
        self._on_told = asyncio.Event()
        self.has_started = False
        """Whether the start is over.  A member that answers later has come or returned, and is asked for its streams
        gradually."""
        self._is_probing = self._has_stopped = False
        self.members: Final = {
            index: Member(self, index, member.name, member.url)
            for index, member in enumerate(config.members)
            if index != own
        }
        """The other members by their index."""
        self._all_answered = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Fleet {self.field.name}: {list(self.members.values())}>"

    @property
    def owner_name(self) -> str:
        """The name of this process in statements about its records."""
        return f"{self.field.name}.{self.field.process}"

    @property
    def is_first_worker(self) -> bool:
        """Whether this is the first of this member's workers that serve."""
        return self._crew is None or self._crew.shared.owning()[:1] in ((), (self.worker,))

    def configure(self, config: GatewayConfig) -> None:
        """Compare this configuration with those of the other members from now on."""
        parts = [
            [route.model_dump(mode="json") for route in config.routes],
            config.origins.model_dump(mode="json"),
        ]
        self.field = self.field._replace(config=self._digest(json.dumps(parts, sort_keys=True)))
        self.node = self._digest(config.server.node_name)
        self.routes_without_owners = frozenset(route.name for route in config.routes if route.protocol == "s2")

    def _digest(self, text: str) -> str:
        return hashlib.blake2b(text.encode(), digest_size=8, key=self._secret).hexdigest()

    def field_for(self, group: Group | None = None) -> MemberField:
        """Return what this member says of itself in a probe, or in a request for a stream of this path."""
        writes = WriteCount() if group is None else self.counts.count(group)
        # This number is not less than that of the latest append to the path, because it is read later.
        return self.field._replace(writes=writes, appended=self.counts.appended())

    def answer(self, *, is_leaving: bool) -> MemberAnswer:
        """Return what this member says of itself in its answers."""
        name, instance, config, orders, _, worker, process, _ = self.field
        workers = (worker,) if self._crew is None else self._crew.shared.owning() or (worker,)
        knows_all = self.orders.notice_siblings()
        return MemberAnswer(name, instance, config, is_leaving, self.node, orders, worker, workers, knows_all, process)

    def _names_of_others(self) -> list[str]:
        return [member.name for member in self.members.values()]

    def _knows_orders(self, digest: str) -> None:
        self.field = self.field._replace(orders=digest)
        if self._crew is not None:
            self._crew.shared.set_orders(self.worker, digest)
        if self.by_redis is not None:
            self.by_redis.wake()

    async def _ask_about_orders(self, peer: str, asked: Since | OutcomeAsk, within_s: float) -> tuple[int, bytes]:
        name, _, worker = peer.partition("/")
        if name == self.field.name and self.orders.siblings is not None:
            return await self.orders.siblings.ask(int(worker), asked, within_s)
        member = next((one for one in self.members.values() if one.name == name), None)
        if member is None:
            raise UpstreamUnreachable("it is not in this member's list")
        url = member.url_of(int(worker)) if worker else member.url
        headers = CIMultiDict({FLEET: self.field.rendered(), FLEET_ORDERS: asked.rendered()})
        bounds = Bounds(CONNECT_S, within_s, within_s, within_s)
        async with await answer_to(self.client.ask, OriginCall(PROBE, f"{url}/", headers, bounds)) as reply:
            return reply.status, await reply.read(_MOST_ORDERS_BYTES)

    def later(self, probe: Callable[[], object]) -> Timer:
        """Call `probe` when the next probe is due."""
        return self.clock.call_later(self.varied(PROBE_S), probe)

    def varied(self, seconds: float) -> float:
        """Vary a time by a fifth, so that members do not act together."""
        return seconds * self._rng.uniform(0.8, 1.2)

    async def start(self) -> None:
        """Begin the probes, and wait for the first answers and the other members' orders, but not for long."""
        if self.found is not None:
            await self.found.start()
        self._is_probing = True
        first_looks = [] if self.by_redis is None else [self.by_redis.start()]
        for member in self.members.values():
            member.probe()
        self.member_answered()
        # Another member may not know a purge that only the other workers know.
        self.orders.notice_siblings()
        with suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_S):
                for look in first_looks:
                    await asyncio.wait([look])
                await self._all_answered.wait()
                await self.orders.settled()
        self.orders.begin()
        self.has_started = True

    def replace_members(self, members: Iterable[MemberConfig]) -> None:
        """Use a new list of members, which contains this member, from now on.

        A member that comes is probed, and is asked for its streams gradually.  A member that goes is asked for nothing
        more, and its process gets no new answers.  Its streams go to the others.  Answers under way are completed.  A
        member whose URL has changed is asked at the new one, as a member that comes.
        """
        listed = {one.name: one.url for one in members if one.name != self.field.name}
        gone = [index for index, one in self.members.items() if listed.get(one.name) != one.url]
        for index in gone:
            self._remove(index, is_listed=self.members[index].name in listed)
        known = set(self._names_of_others())
        come = [self._add(name, url) for name, url in listed.items() if name not in known]
        if not gone and not come:
            return
        self.client.use_members({one.name: one.url for one in self.members.values()})
        self.on_members()
        if self._is_probing and not self._has_stopped:
            for member in come:
                member.probe()
        self.member_answered()
        self._on_told.set()

    def _add(self, name: str, url: str) -> Member:
        index = self.owners.add(name)
        member = self.members[index] = Member(self, index, name, url)
        _log.warning("member %s at %s has come into the list", name, url)
        return member

    def _remove(self, index: int, *, is_listed: bool) -> None:
        """Remove a member.  `is_listed`: it stays in the list with another URL.  Its process is then answered until
        another process answers at that URL."""
        member = self.members.pop(index)
        self.owners.remove(index)
        member.leave()
        self.orders.forget(member.name)
        self._told.discard(member.name)
        if not is_listed:
            self.processes.remove(member.name)
        _log.warning("member %s at %s has left the list", member.name, member.url)

    def has_left(self, sender: MemberField) -> bool:
        """Return whether the sender of a request is a process that has left the list, or that was replaced."""
        return self.processes.has_left(sender.name, sender.instance)

    def is_listed(self, name: str) -> bool:
        """Return whether a member of this name is in the list."""
        return any(member.name == name for member in self.members.values())

    def probed(self, sender: MemberField) -> None:
        """Record that a process has asked for this member's state.  The first time, a process that is not in the list
        has a line in the log."""
        self.met(sender.name, sender.instance)
        process = sender.name, sender.instance
        if not self.is_listed(sender.name) and self.processes.is_new_unlisted(*process):
            _log.warning("a gateway named %s asks that is not in the list of members (process %s)", *process)

    def member_answered(self) -> None:
        """Record that a member has answered a probe, or has failed to."""
        if all(member.why_not != NOT_ASKED for member in self.members.values()):
            self._all_answered.set()

    def told(self, name: str, *, is_leaving: bool) -> None:
        """Record that a member has been told of this one's state."""
        if is_leaving:
            self._told.add(name)
            self._on_told.set()
        else:
            self._told.discard(name)

    async def until_told(self, within_s: float) -> None:
        """Wait until the members that can be reached know that this one is leaving, but not for long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, min(within_s, _MOST_TOLD_S))):
                # The workers of other members may have asked other workers of this member.
                while not self._has_stopped and any(
                    not one.why_not and (self._crew is not None or one.name not in self._told)
                    for one in self.members.values()
                ):
                    self._on_told.clear()
                    await self._on_told.wait()

    def stop(self) -> None:
        """End the probes."""
        self._has_stopped = True
        self._on_told.set()
        for member in self.members.values():
            member.stop()

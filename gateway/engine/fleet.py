"""One member's view of its fleet: which other members can be reached, and how they are asked.

Each member asks each other one regularly for its name, its configuration, and whether it is leaving (`PROBE`).  A
member that does not answer, or whose configuration differs, owns no streams in this member's view.  A request that
cannot reach a member has the same effect at once.  `Fleet.members` has the reasons, for the operator.

A member that often fails must not lose and get its streams twice a second: one that answers probes but not requests, or
one that is too busy for some seconds.  So after a failure it is asked again only after a while, which doubles with each
such loss (`Member.lose`).

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
from math import inf
from random import Random
from typing import Final

from multidict import CIMultiDict

from gateway.aio.clock import Clock, Timer
from gateway.config.fleet import FleetConfig, MemberConfig
from gateway.config.gateway import GatewayConfig
from gateway.engine.fleet_dns import MembersByDns
from gateway.engine.fleet_orders import FleetOrders
from gateway.engine.fleet_processes import MemberProcesses
from gateway.engine.fleet_redis import OrdersByRedis
from gateway.engine.fleet_writes import CountedWrites
from gateway.errors import GatewayError, UpstreamTimeout, UpstreamUnreachable
from gateway.http.reply_parser import Interim
from gateway.protocol.fleet_headers import FLEET, NOT_LISTED, PROBE, MemberAnswer, MemberField
from gateway.protocol.fleet_orders import FLEET_ORDERS, NO_ORDERS, OutcomeAsk, Since
from gateway.protocol.member_session import ANOTHER_SERVER, MemberKey
from gateway.upstream.client import MemberClient
from gateway.upstream.failures import NotAMember
from gateway.upstream.incoming import no_op
from gateway.upstream.origin_call import Bounds, OriginCall
from gateway.upstream.reply import PendingRequest, Reply, answer_to
from gateway.workers.members import MemberOwners

PROBE_S: Final = 0.5
"""Seconds between two probes of a member, varied by a fifth."""
RAMP_PROBES: Final = 10
"""A member that comes or returns is asked for a tenth of its streams after its first answer, for two tenths after the
second one, and so on."""
_LEAST_HOLD_S: Final = 0.5
_MOST_HOLD_S: Final = 30.0
"""The least and the most seconds for which a member is not asked after a failure, varied by a fifth."""
_STEADY_S: Final = 10.0
"""A member that was asked for this number of seconds without a failure is held off for `_LEAST_HOLD_S` again."""
CONNECT_S: Final = 1.0
"""The most seconds for a connection to a member."""
_MOST_FAILING_S: Final = 4 * CONNECT_S
"""The time that a request takes at most to fail: two attempts, each with a wait for its turn to connect."""
_PROBE_BOUNDS: Final = Bounds(CONNECT_S, 1.0, 1.0, 2.0)
_FIRST_S: Final = 1.5
"""The most seconds for which the start waits for the first answers of the other members."""
_MOST_TOLD_S: Final = 1.0
"""The most seconds for which a member that is leaving waits for the next probe of each other one."""
_MOST_ORDERS_BYTES: Final = 1 << 26
"""The largest answer with purges and revocations."""
_NOT_ASKED: Final = "not asked yet"
_FAILED: Final = "a request has failed"
_GONE: Final = "it has left this member's list"
_NOT_IN_ITS_LIST: Final = "this member is not in its list"

_log = logging.getLogger("gateway.fleet")


class Member:
    """Another member of the fleet.  It is the requester of its probes."""

    def __init__(self, fleet: Fleet, index: int, name: str, url: str) -> None:
        self._fleet = fleet
        self._index = index
        self.name = name
        self.url = url
        self.why_not = _NOT_ASKED
        """Why the member is not asked for streams; empty if it is."""
        self.has_differed = False
        """Whether the member's configuration has differed at its latest answer."""
        self.losses = 0
        """How often the member could be reached no more."""
        self.asked = 0
        """How many requests for streams were sent to the member."""
        self._pending: PendingRequest | None = None
        self._timer: Timer | None = None
        self._is_namesake = False
        """Whether the member has been found to have this one's `server.node_name`."""
        self._is_late = False
        """Whether the latest probe was not answered in time."""
        self._is_leaving = False
        """Whether the member was leaving at its latest answer."""
        self.answers = False
        """Whether the member has answered the latest probe."""
        self._instance = ""
        """The process that has given the latest answer."""
        self._is_doubted = False
        """Whether a request has failed since the latest answer to a probe."""
        self._vouched_at = -inf
        """When a probe after a failed request was answered, if no request was answered since."""
        self._reached_at = self._held_until = -inf
        self._lost_by = ""
        """Why the member could be reached no more when it was last held off."""
        self._hold_s = _LEAST_HOLD_S

    def __repr__(self) -> str:
        return f"<Member {self.name} {self.why_not or 'reached'}>"

    @property
    def weight(self) -> float:
        """The part of its streams for which the member is asked, if it is asked."""
        return self._fleet.owners.weight(self._index)

    def probe(self) -> None:
        """Ask the member for its state, and go on to do so until `stop`."""
        fleet = self._fleet
        self._timer = None
        headers = CIMultiDict({FLEET: fleet.field.rendered()})
        pending = fleet.client.ask(self, OriginCall(PROBE, f"{self.url}/", headers, _PROBE_BOUNDS))
        if self._timer is None:
            self._pending = pending

    def stop(self) -> None:
        """End the probes."""
        if self._timer is not None:
            self._timer.cancel()
        if (pending := self._pending) is not None:
            self._pending = None
            pending.give_up()

    def leave(self) -> None:
        """End the probes for good, because the member has left the list.  If it has not answered in time, its answers
        are cut, because no further probe would show that it hangs."""
        self.stop()
        self.why_not = _GONE
        if self._is_late:
            self._fleet.on_silent(self._index)

    def judge(self, why_not: str, *, differs: bool = False) -> None:
        """Record why the member is not asked for streams; empty if it is.  A change is logged.  `differs`: the operator
        has to change something."""
        if why_not == self.why_not:
            return
        self.losses += self.why_not == ""
        self._reached_at = self._fleet.clock.now()
        self.why_not = why_not
        self.has_differed = differs
        if why_not:
            level = logging.ERROR if self.has_differed else logging.WARNING
            _log.log(level, "member %s at %s owns no streams: %s", self.name, self.url, why_not)
        else:
            _log.warning("member %s at %s can be reached", self.name, self.url)
        self._fleet.owners.set_reached(self._index, is_reached=not why_not)

    def _reach(self) -> None:
        """Ask the member for a greater part of its streams than before, unless it is held off."""
        fleet, index = self._fleet, self._index
        if self.why_not and fleet.clock.now() < self._held_until:
            self.judge(self._lost_by)
            return
        weight = 1.0
        if fleet.has_started:
            tenths = 0 if self.why_not else round(fleet.owners.weight(index) * RAMP_PROBES)
            weight = min(1.0, (tenths + 1) / RAMP_PROBES)
        fleet.owners.set_weight(index, weight)
        self.judge("")

    def answered(self) -> None:
        """Record that a request was answered."""
        self._vouched_at = -inf

    def doubt(self) -> None:
        """Record that a request has failed.  A probe at once decides whether the member is lost.

        A member that answers only probes is lost at the next failure, unless the request may be older than the probe.
        """
        if self.why_not:
            return
        if _MOST_FAILING_S <= self._fleet.clock.now() - self._vouched_at < _STEADY_S:
            self.lose()
            return
        self._is_doubted = True
        if self._timer is not None:
            self._timer.cancel()
            self.probe()

    def lose(self, why_not: str = _FAILED) -> None:
        """Record that requests or a probe have failed.  The member is held off for a while."""
        fleet = self._fleet
        if self.why_not:
            return
        now = fleet.clock.now()
        is_steady = now >= self._reached_at + _STEADY_S
        self._hold_s = _LEAST_HOLD_S if is_steady else min(_MOST_HOLD_S, 2 * self._hold_s)
        self._held_until = now + fleet.varied(self._hold_s)
        self._lost_by = why_not
        self.judge(why_not)

    # -- called by the client of other members

    @property
    def sent(self) -> Callable[[], object]:
        """Do nothing: only requests to origins count as sent."""
        return no_op

    def informed(self, interim: Interim) -> None:
        """Ignore an interim reply."""

    def head_arrived(self, reply: Reply) -> None:
        text = reply.headers.get(FLEET)
        answer = MemberAnswer.parse(text) if text is not None else None
        reply.close()
        if answer is not None and not answer.is_leaving:
            # A process that leaves may answer for a while after the next one has started.
            self._fleet.processes.identify(self.name, answer.instance)
        if reply.status == NOT_LISTED:
            # The answers that the member has begun before go on.
            self._is_late = self._is_doubted = False
            self.answers = True
            self.judge(_NOT_IN_ITS_LIST)
            if answer is not None and answer.orders != NO_ORDERS:
                # Without orders, the member does not show which ones it knows.
                self._fleet.orders.notice(self.name, answer.instance, answer.orders)
            self._go_on()
            return
        if answer is None:
            self.judge(ANOTHER_SERVER)
        elif answer.config != self._fleet.field.config:
            self.judge("its configuration of routes or origins differs", differs=True)
        elif answer.is_leaving:
            self.judge("it is leaving")
        else:
            self._reach()
        if answer is not None:
            self._fleet.orders.notice(self.name, answer.instance, answer.orders)
        if answer is not None and answer.node == self._fleet.node and not self._is_namesake:
            self._is_namesake = True
            _log.warning("member %s has the same server.node_name as this one", self.name)
        instance = answer.instance if answer is not None else ""
        if instance != self._instance and not self._is_leaving:
            # The earlier process has ended, perhaps with its machine, so that nothing has closed its connections.
            self._fleet.on_silent(self._index)
        self._instance = instance
        self._is_late, self._is_leaving = False, answer is not None and answer.is_leaving
        self.answers = answer is not None
        if self._is_doubted:
            self._is_doubted, now = False, self._fleet.clock.now()
            if now >= self._vouched_at + _STEADY_S:
                self._vouched_at = now
        self._go_on()

    def failed(self, error: GatewayError) -> None:
        was_late, self._is_late = self._is_late, isinstance(error, UpstreamTimeout)
        if self._is_late and not was_late and (self._is_leaving or not self.why_not):
            # The member may only be busy.  Ask once more before its streams get other owners and its answers are cut.
            self._pending = None
            self.probe()
            return
        self.answers = False
        cause = error.__cause__
        if isinstance(cause, NotAMember):
            self.judge(str(cause), differs=cause.differs)
        else:
            why_not = "it does not answer in time" if isinstance(error, UpstreamTimeout) else "it cannot be reached"
            self.lose(why_not)
            self.judge(why_not)
        self._is_doubted = False
        if self._is_late or not self._is_leaving:
            # A member that leaves accepts no connections at last, but ends its answers.
            self._fleet.on_silent(self._index)
        self._go_on()

    def _go_on(self) -> None:
        self._pending = None
        self._fleet.member_answered()
        self._timer = self._fleet.later(self.probe)


class Fleet:
    """The other members of the fleet, as one member sees them.  Owner of the list of members."""

    def __init__(self, config: FleetConfig, clock: Clock, rng: Random, client: MemberClient | None = None) -> None:
        self.clock = clock
        self._rng = rng
        secret = hashlib.sha256(config.secret.get_secret_value().encode()).digest()
        self._secret = secret
        self.key: Final = MemberKey(config.name, secret)
        names = [member.name for member in config.members]
        own = names.index(config.name)
        self.owners: Final = MemberOwners(names, own, secret)
        self.counts: Final = CountedWrites(self.owners)
        self.client: Final = client or MemberClient(self.key, {member.name: member.url for member in config.members})
        self.field = MemberField(config.name, secrets.token_hex(8), "0" * 16)
        """What this member says of itself in requests."""
        self.orders: Final = FleetOrders(
            self.field.instance, clock.now, self._ask_about_orders, self._names_of_others, self._knows_orders
        )
        """The operator's orders, at any member."""
        self.by_dns: MembersByDns | None = None
        """Finds the members by DNS; None if the configuration lists them."""
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
        """Returns when this process first heard of a member's process (monotonic seconds)."""
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
        return f"{self.field.name}.{self.field.instance}"

    def configure(self, config: GatewayConfig) -> None:
        """Compare this configuration with those of the other members from now on."""
        parts = [
            [route.model_dump(mode="json") for route in config.routes],
            config.origins.model_dump(mode="json"),
        ]
        self.field = self.field._replace(config=self._digest(json.dumps(parts, sort_keys=True)))
        self.node = self._digest(config.server.node_name)

    def _digest(self, text: str) -> str:
        return hashlib.blake2b(text.encode(), digest_size=8, key=self._secret).hexdigest()

    def answer(self, *, is_leaving: bool) -> MemberAnswer:
        """Return what this member says of itself in its answers."""
        field = self.field
        return MemberAnswer(field.name, field.instance, field.config, is_leaving, self.node, field.orders)

    def _names_of_others(self) -> list[str]:
        return [member.name for member in self.members.values()]

    def _knows_orders(self, digest: str) -> None:
        self.field = self.field._replace(orders=digest)
        if self.by_redis is not None:
            self.by_redis.wake()

    async def _ask_about_orders(self, name: str, asked: Since | OutcomeAsk, within_s: float) -> tuple[int, bytes]:
        member = next((one for one in self.members.values() if one.name == name), None)
        if member is None:
            raise UpstreamUnreachable("it is not in this member's list")
        headers = CIMultiDict({FLEET: self.field.rendered(), FLEET_ORDERS: asked.rendered()})
        bounds = Bounds(CONNECT_S, within_s, within_s, within_s)
        async with await answer_to(self.client.ask, OriginCall(PROBE, f"{member.url}/", headers, bounds)) as reply:
            return reply.status, await reply.read(_MOST_ORDERS_BYTES)

    def later(self, probe: Callable[[], object]) -> Timer:
        """Call `probe` when the next probe is due."""
        return self.clock.call_later(self.varied(PROBE_S), probe)

    def varied(self, seconds: float) -> float:
        """Vary a time by a fifth, so that members do not act together."""
        return seconds * self._rng.uniform(0.8, 1.2)

    async def start(self) -> None:
        """Begin the probes, and wait for the first answers and the other members' orders, but not for long."""
        if self.by_dns is not None:
            await self.by_dns.start()
        self._is_probing = True
        first_looks = [] if self.by_redis is None else [self.by_redis.start()]
        for member in self.members.values():
            member.probe()
        self.member_answered()
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
        if all(member.why_not != _NOT_ASKED for member in self.members.values()):
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
                while not self._has_stopped and any(
                    not one.why_not and one.name not in self._told for one in self.members.values()
                ):
                    self._on_told.clear()
                    await self._on_told.wait()

    def stop(self) -> None:
        """End the probes."""
        self._has_stopped = True
        self._on_told.set()
        for member in self.members.values():
            member.stop()

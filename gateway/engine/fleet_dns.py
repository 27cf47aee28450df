"""The members of a fleet by DNS: the addresses of one name, such as that of a headless service in Kubernetes.

A member is named by its address, HOST:PORT.  The port is that of `fleet.members_dns`, the same at all members.  All
members use addresses of one kind, IPv4 or IPv6, because a member with an address of each kind would be listed twice:
each member asks for addresses of the kind that its own address has.

The name is looked up again when the records' time to live is over, within bounds.  A look-up that fails, or finds no
address, changes nothing.  A member that is missing in an answer stays while it answers probes, and leaves the list at a
later look-up, when it can no longer be reached.  So a DNS server that is away, or gives wrong answers for a while,
costs the fleet no member that answers.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import Final, Protocol

from gateway.aio.clock import Clock, Timer
from gateway.aio.tasks import Tasks
from gateway.config.addresses import Address, normal_host, parse_address
from gateway.config.errors import ConfigError
from gateway.config.fleet import MOST_MEMBERS, FleetConfig, MemberConfig

LEAST_TTL_S: Final = 1.0
MOST_TTL_S: Final = 60.0
"""The least and the most seconds until the next look-up."""
RETRY_S: Final = 5.0
"""Seconds until the next look-up after one that has failed."""
_LOOK_UP_S: Final = 5.0
"""The most seconds for a look-up."""
_FIRST_S: Final = 3.0
"""The most seconds for which the start waits for the first look-up: several tries at a server."""
_NORMAL_ANSWERS: Final = 2
"""A gateway that starts may be missing in this many answers, because its address comes into DNS a moment later."""
_SETTLE_S: Final = 0.1
"""The most seconds for which the end waits for a look-up that is under way."""
_TARGETS: Final = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses for documentation (RFC 5737, RFC 3849), to which nothing is sent."""
_KINDS: Final = {
    "": (socket.AF_INET, socket.AF_INET6),
    "0.0.0.0": (socket.AF_INET,),
    "::": (socket.AF_INET6,),
}
"""The kinds of addresses at which a listener at all addresses is reached, the preferred one first.  A listener at `::`
accepts no connections by IPv4 (IPV6_V6ONLY)."""

_log = logging.getLogger("gateway.fleet")


class AddressRecords(Protocol):
    """The addresses of a name: `gateway.upstream.dns_records.AddressRecords`."""

    @property
    def addresses(self) -> Sequence[str]: ...

    @property
    def ttl_s(self) -> float: ...


class LookUp(Protocol):
    """Looks up a name: `gateway.upstream.dns_records.address_records`."""

    def __call__(self, name: str, *, is_v6: bool, within_s: float) -> Awaitable[AddressRecords]:
        """Return the addresses.  Raises OSError with a short line."""


def source_address(kind: socket.AddressFamily) -> str:
    """Return the address from which this machine reaches other networks.  Raises OSError if it reaches none."""
    with socket.socket(kind, socket.SOCK_DGRAM) as probe:
        # This sends nothing.
        probe.connect((_TARGETS[kind], 9))
        return str(probe.getsockname()[0])


def own_address(config: FleetConfig, source: Callable[[socket.AddressFamily], str] = source_address) -> Address:
    """Return the address at which other members find this gateway in DNS.

    It is `fleet.name`, or else the address of `fleet.listen`, or else the address from which this machine reaches other
    networks.  Raises ConfigError if there is none.
    """
    if (named := config.own_place) is not None:
        return named
    host, port = parse_address(config.listen).host, config.dns_name.port
    if host not in _KINDS:
        return Address(host, port)
    for kind in _KINDS[host]:
        with suppress(OSError):
            return Address(source(kind), port)
    raise ConfigError("fleet.name: is needed: this machine has no address from which it reaches other networks")


def places_at(addresses: Iterable[str], port: int) -> list[Address]:
    """Return the members' places at this port, in the order of their addresses, each once."""
    return [Address(str(one), port) for one in sorted({ip_address(normal_host(text)) for text in addresses}, key=int)]


def listed_members(
    places: Collection[Address], own: Address, answering: Collection[Address] = ()
) -> list[MemberConfig]:
    """Return the members after an answer of DNS with these places.

    They are this member, the present members that answer probes, and then the others in their order, up to
    `MOST_MEMBERS`.  So new places push out no member that answers.  Members that start together use the same first
    places.
    """
    return [member_at(place) for place in list(dict.fromkeys((own, *answering, *places)))[:MOST_MEMBERS]]


def problem_of(
    places: Collection[Address], own: Address, answering: Collection[Address], answers_without_own: int
) -> str:
    """Return what is wrong with an answer of DNS, for the operator; empty if it is right.

    `answers_without_own` is the number of answers in a row, this one included, in which this gateway is missing.
    """
    problems = []
    if answers_without_own > _NORMAL_ANSWERS:
        problems.append(
            f"{own} is not among the addresses: fleet.name may have to be set to this gateway's address there"
        )
    if len({own, *answering, *places}) > MOST_MEMBERS:
        problems.append(f"there are too many addresses: only {MOST_MEMBERS} are members")
    return "; ".join(problems)


def member_at(place: Address) -> MemberConfig:
    """Return the member at an address."""
    return MemberConfig(name=str(place), url=f"http://{place}")


class MembersByDns:
    """Looks the members up again and again, from `start` to `close`."""

    def __init__(
        self,
        name: str,
        own: Address,
        look_up: LookUp,
        answering: Callable[[], Collection[Address]],
        on_members: Callable[[list[MemberConfig]], object],
        clock: Clock,
    ) -> None:
        """`answering` returns the present members that answer probes.  `on_members` is called with each new list."""
        self.name = name
        self._own = own
        self._look_up = look_up
        self._answering = answering
        self._on_members = on_members
        self._clock = clock
        self.problem = ""
        """The problem of the latest look-up, for the operator."""
        self.has_answer = False
        """Whether the latest look-up has found addresses."""
        self.found = 0
        """How many addresses the latest answer had."""
        self.looked_up = 0
        """How many look-ups have ended."""
        self._answers_without_own = 0
        """The number of answers in a row in which this gateway is missing."""
        self._is_alone = True
        """Whether the latest list has no other member."""
        self._timer: Timer | None = None
        self._tasks = Tasks()

    def __repr__(self) -> str:
        return f"<MembersByDns {self.name}: {self.problem or self.shown_found}>"

    @property
    def shown_found(self) -> str:
        """The number of addresses in words."""
        return "1 address" if self.found == 1 else f"{self.found} addresses"

    async def start(self) -> None:
        """Begin the look-ups, and wait for the first one, but not for long."""
        first = self._begin()
        with suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_S):
                await asyncio.shield(first)

    async def close(self) -> None:
        """End the look-ups."""
        self._cancel_timer()
        # uvloop leaks a UDP socket if its making is cancelled, and closing the loop then hangs.  A look-up makes its
        # socket at once, so let a look-up that has just begun go on for a moment.
        with suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_S):
                await self._tasks.finished()
        await self._tasks.close()
        self._cancel_timer()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self) -> asyncio.Task[None]:
        self._timer = None
        return self._tasks.start(self._look(), f"look up {self.name}")

    async def _look(self) -> None:
        again_s, has_answer = RETRY_S, False
        try:
            records = await self._look_up(self.name, is_v6=":" in self._own.host, within_s=_LOOK_UP_S)
        except OSError as error:
            self._report_failure(str(error))
        else:
            try:
                again_s = self._take(records)
                has_answer = True
            except Exception as error:
                # The look-ups must go on, and the start must not fail.
                self._report_failure(f"the addresses could not be used ({type(error).__name__})", error)
        self.has_answer = has_answer
        self.looked_up += 1
        self._timer = self._clock.call_later(again_s, self._begin)

    def _take(self, records: AddressRecords) -> float:
        """Use an answer.  Return the seconds until the next look-up."""
        own, answering = self._own, self._answering()
        places = places_at(records.addresses, own.port)
        members = listed_members(places, own, answering)
        self._on_members(members)
        self.found = len(places)
        self._is_alone = len(members) == 1
        self._answers_without_own = 0 if own in places else self._answers_without_own + 1
        self._report(problem_of(places, own, answering, self._answers_without_own))
        return min(MOST_TTL_S, max(LEAST_TTL_S, records.ttl_s))

    def _report_failure(self, failure: str, error: Exception | None = None) -> None:
        effect = "this gateway serves alone" if self._is_alone else "the present members stay"
        self._report(f"{failure}; {effect}", error)

    def _report(self, problem: str, error: Exception | None = None) -> None:
        if problem == self.problem:
            return
        self.problem = problem
        _log.warning(
            "fleet.members_dns = %s: %s", self.name, problem or "the addresses are usable again", exc_info=error
        )

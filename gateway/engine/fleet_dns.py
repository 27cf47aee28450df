"""The members of a fleet by DNS: the addresses of one name, such as that of a headless service in Kubernetes.

A member is named by its address, HOST:PORT.  The port is that of `fleet.members_dns`, the same at all members.  All
members use addresses of one kind, IPv4 or IPv6, because a member with an address of each kind would be listed twice:
each member asks for addresses of the kind that its own address has.

The name is looked up again when the records' time to live is over, within bounds.  A look-up that fails, or finds no
address, changes nothing.  So a DNS server that is away, or gives wrong answers for a while, costs the fleet no members.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import Final, Protocol

from gateway.aio.clock import Clock, Timer
from gateway.aio.tasks import Tasks
from gateway.config.addresses import Address, parse_address
from gateway.config.errors import ConfigError
from gateway.config.fleet import MOST_MEMBERS, FleetConfig, MemberConfig

LEAST_TTL_S: Final = 1.0
MOST_TTL_S: Final = 60.0
"""The least and the most seconds until the next look-up."""
RETRY_S: Final = 5.0
"""Seconds until the next look-up after one that has failed."""
_LOOK_UP_S: Final = 5.0
"""The most seconds for a look-up."""
_FIRST_S: Final = 2.0
"""The most seconds for which the start waits for the first look-up."""
_SETTLE_S: Final = 0.1
"""The most seconds for which the end waits for a look-up that is under way."""
_TARGETS: Final = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses for documentation (RFC 5737, RFC 3849), to which nothing is sent."""
_KINDS: Final = {
    "": (socket.AF_INET, socket.AF_INET6),
    "0.0.0.0": (socket.AF_INET,),
    "::": (socket.AF_INET6, socket.AF_INET),
}
"""The kinds of addresses that a member may have which listens at all of its addresses, the preferred one first."""

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
    if config.name:
        return parse_address(config.name)
    host, port = parse_address(config.listen).host, config.dns_name.port
    if host not in _KINDS:
        return Address(host, port)
    for kind in _KINDS[host]:
        with suppress(OSError):
            return Address(source(kind), port)
    raise ConfigError("fleet.name: is needed: this machine has no address from which it reaches other networks")


def listed_members(addresses: Iterable[str], own: Address) -> tuple[list[MemberConfig], str]:
    """Return the members at these addresses, this one included, and what is wrong with the addresses.

    If there are too many, all members use the same first ones."""
    places = [Address(str(one), own.port) for one in sorted({ip_address(text) for text in addresses}, key=int)]
    others, problem = [place for place in places if place != own], ""
    if len(others) == len(places):
        problem = f"{own} is not among the addresses: fleet.name may have to be set to this gateway's address there"
    if len(others) >= MOST_MEMBERS:
        problem = f"there are too many addresses: only the first {MOST_MEMBERS} are members"
        others = others[: MOST_MEMBERS - 1]
    return [member_at(own), *map(member_at, others)], problem


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
        on_members: Callable[[list[MemberConfig]], object],
        clock: Clock,
    ) -> None:
        """`on_members` is called with each list that was found."""
        self.name = name
        self._own = own
        self._look_up = look_up
        self._on_members = on_members
        self._clock = clock
        self.problem = ""
        """What is wrong with the latest look-up, for the operator."""
        self.found = 0
        """How many addresses the latest answer had."""
        self.looked_up = 0
        """How many look-ups have ended."""
        self._timer: Timer | None = None
        self._tasks = Tasks()

    def __repr__(self) -> str:
        return f"<MembersByDns {self.name}: {self.problem or f'{self.found} addresses'}>"

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
        try:
            records = await self._look_up(self.name, is_v6=":" in self._own.host, within_s=_LOOK_UP_S)
        except OSError as error:
            self._report(f"{error}; the present members stay")
            again_s = RETRY_S
        else:
            again_s = self._take(records)
        self.looked_up += 1
        self._timer = self._clock.call_later(again_s, self._begin)

    def _take(self, records: AddressRecords) -> float:
        """Use an answer.  Return the seconds until the next look-up."""
        self.found = len(records.addresses)
        members, problem = listed_members(records.addresses, self._own)
        self._report(problem)
        self._on_members(members)
        return min(MOST_TTL_S, max(LEAST_TTL_S, records.ttl_s))

    def _report(self, problem: str) -> None:
        if problem == self.problem:
            return
        self.problem = problem
        _log.warning("fleet.members_dns = %s: %s", self.name, problem or "the addresses are usable again")

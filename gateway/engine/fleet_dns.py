"""Finds the members of a fleet in DNS: they are the addresses of one name, such as the name of a headless service in
Kubernetes.

A member is named by its address, HOST:PORT.  The port is the one in `fleet.members_dns`, which is the same at all
members.  Each member asks only for addresses of the kind of its own address, IPv4 or IPv6.  Otherwise, a member with an
address of each kind would be listed twice.

The name is looked up again when the records' time to live is over, within bounds.  A look-up that fails, or finds no
address, changes nothing.  A member that is missing in an answer stays in the list while it answers probes.  It leaves
the list at the first look-up that neither contains it nor finds it reachable.  The fleet therefore keeps all members
that answer, even while a DNS server is unreachable or gives wrong answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from ipaddress import ip_address
from typing import Final, Protocol

from gateway.config.addresses import Address, normal_host
from gateway.config.fleet import MemberConfig
from gateway.engine.fleet_discovery import Finding, first_members, surplus_problem

LEAST_TTL_S: Final = 1.0
MOST_TTL_S: Final = 60.0
"""The least and the most seconds until the next look-up."""
RETRY_S: Final = 5.0
"""Seconds from a failed look-up to the next look-up."""
_LOOK_UP_S: Final = 5.0
"""The most seconds for a look-up."""
_NORMAL_ANSWERS: Final = 2
"""A starting gateway may be missing in this many answers without a report, because DNS lists its address a moment
after the start."""


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


def places_at(addresses: Iterable[str], port: int) -> list[Address]:
    """Return the members' addresses with this port, sorted by IP address, each once."""
    return [Address(str(one), port) for one in sorted({ip_address(normal_host(text)) for text in addresses}, key=int)]


def listed_members(
    places: Collection[Address], own: Address, answering: Collection[Address] = ()
) -> list[MemberConfig]:
    """Return the members after an answer of DNS with the addresses `places`.

    The members are, up to `MOST_MEMBERS`: this member, the present members that answer probes, and then the other
    addresses in their order.  New addresses therefore displace no member that answers, and members that start together
    choose the same addresses.
    """
    return first_members(*map(member_at, (own, *answering, *places)))


def problem_of(
    places: Collection[Address], own: Address, answering: Collection[Address], answers_without_own: int
) -> str:
    """Return what is wrong with an answer of DNS, for the operator; empty if nothing is wrong.

    `answers_without_own` is the number of successive answers, including this one, that lack this gateway's address.
    """
    problems = [surplus_problem(len({own, *answering, *places}), "addresses")]
    if answers_without_own > _NORMAL_ANSWERS:
        problems.insert(
            0, f"{own} is not among the addresses: fleet.name may have to be set to this gateway's address there"
        )
    return "; ".join(filter(None, problems))


def member_at(place: Address) -> MemberConfig:
    """Return the member at an address."""
    return MemberConfig(name=str(place), url=f"http://{place}")


class MembersInDns:
    """Looks up the members in DNS (`gateway.engine.fleet_discovery.MembersSource`)."""

    def __init__(self, name: str, own: Address, look_up: LookUp, answering: Callable[[], Collection[Address]]) -> None:
        """`answering` returns the present members that answer probes."""
        self.where: Final = f"at {name}"
        self.setting: Final = f"fleet.members_dns = {name}"
        self.noun: Final = "address", "addresses"
        self.retry_s: Final = RETRY_S
        self._name = name
        self._own = own
        self._look_up = look_up
        self._answering = answering
        self._answers_without_own = 0
        """The number of successive answers that lack this gateway's address."""

    def __repr__(self) -> str:
        return f"<MembersInDns {self.where}>"

    async def look(self) -> Finding:
        """Look up the name."""
        own = self._own
        records = await self._look_up(self._name, is_v6=":" in own.host, within_s=_LOOK_UP_S)
        answering, places = self._answering(), places_at(records.addresses, own.port)
        self._answers_without_own = 0 if own in places else self._answers_without_own + 1
        return Finding(
            listed_members(places, own, answering),
            len(places),
            problem_of(places, own, answering, self._answers_without_own),
            min(MOST_TTL_S, max(LEAST_TTL_S, records.ttl_s)),
        )

    async def close(self) -> None:
        """Do nothing, because nothing stays open after a look-up."""

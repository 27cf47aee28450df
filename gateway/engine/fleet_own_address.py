"""The address at which the other members of a fleet reach this gateway, if members are found in DNS or in Redis."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from gateway.config.addresses import Address, parse_address
from gateway.config.errors import ConfigError
from gateway.config.fleet import FleetConfig, MemberConfig

_TARGETS: Final = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses that are reserved for documentation (RFC 5737, RFC 3849).  Nothing is sent to them."""
_KINDS: Final = {
    "": (socket.AF_INET, socket.AF_INET6),
    "0.0.0.0": (socket.AF_INET,),
    "::": (socket.AF_INET6,),
}
"""For each host that means all addresses: the kinds of addresses at which such a listener is reached, the preferred
kind first.  A listener at `::` accepts no connections by IPv4 (IPV6_V6ONLY)."""


def source_address(kind: socket.AddressFamily) -> str:
    """Return the address from which this machine reaches other networks.  Raises OSError if it has no such address."""
    with socket.socket(kind, socket.SOCK_DGRAM) as probe:
        # To connect a datagram socket chooses the source address, and sends nothing.
        probe.connect((_TARGETS[kind], 9))
        return str(probe.getsockname()[0])


def own_address(config: FleetConfig, source: Callable[[socket.AddressFamily], str] = source_address) -> Address:
    """Return the address at which other members find this gateway in DNS.

    The address is `fleet.name`.  Without `fleet.name`, it is the address of `fleet.listen`.  If `fleet.listen` means
    all addresses, it is the address from which this machine reaches other networks.  Raises ConfigError if the machine
    has no such address.
    """
    if (named := config.own_place) is not None:
        return named
    return _listening_at(config, config.dns_name.port, "name", source)


def own_member(config: FleetConfig, source: Callable[[socket.AddressFamily], str] = source_address) -> MemberConfig:
    """Return this gateway as it announces itself in Redis.

    The URL is `fleet.url`.  Without `fleet.url`, it has the address and port of `fleet.listen`.  If `fleet.listen`
    means all addresses, the URL has the address from which this machine reaches other networks.  Raises ConfigError if
    the machine has no such address.
    """
    if config.url:
        return MemberConfig(name=config.name or str(config.url_place), url=config.url)
    place = _listening_at(config, parse_address(config.listen).port, "url", source)
    return MemberConfig(name=config.name or str(place), url=f"http://{place}")


def _listening_at(config: FleetConfig, port: int, field: str, source: Callable[[socket.AddressFamily], str]) -> Address:
    """Return the address at which other members reach the listener of `fleet.listen`, with this port.  `field` names
    the field of `[fleet]` that the operator has to set if no address is found."""
    host = parse_address(config.listen).host
    if host not in _KINDS:
        return Address(host, port)
    for kind in _KINDS[host]:
        with suppress(OSError):
            return Address(source(kind), port)
    raise ConfigError(f"fleet.{field}: is needed: this machine has no address from which it reaches other networks")

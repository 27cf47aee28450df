"""The address at which the other members of a fleet reach this gateway, if they find it in DNS or in Redis."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from gateway.config.addresses import Address, parse_address
from gateway.config.errors import ConfigError
from gateway.config.fleet import FleetConfig, MemberConfig

_TARGETS: Final = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses for documentation (RFC 5737, RFC 3849), to which nothing is sent."""
_KINDS: Final = {
    "": (socket.AF_INET, socket.AF_INET6),
    "0.0.0.0": (socket.AF_INET,),
    "::": (socket.AF_INET6,),
}
"""The kinds of addresses at which a listener at all addresses is reached, the preferred one first.  A listener at `::`
accepts no connections by IPv4 (IPV6_V6ONLY)."""


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
    return _listening_at(config, config.dns_name.port, "name", source)


def own_member(config: FleetConfig, source: Callable[[socket.AddressFamily], str] = source_address) -> MemberConfig:
    """Return this gateway as it announces itself in Redis.

    Its URL is `fleet.url`, or else has the address and port of `fleet.listen`, with the address from which this machine
    reaches other networks if the listener has none.  Raises ConfigError if there is none.
    """
    if config.url:
        return MemberConfig(name=config.name or str(config.url_place), url=config.url)
    place = _listening_at(config, parse_address(config.listen).port, "url", source)
    return MemberConfig(name=config.name or str(place), url=f"http://{place}")


def _listening_at(config: FleetConfig, port: int, field: str, source: Callable[[socket.AddressFamily], str]) -> Address:
    """Return the address of `fleet.listen` as other members reach it, with this port.  `field` is the field that has
    to be set if there is none."""
    host = parse_address(config.listen).host
    if host not in _KINDS:
        return Address(host, port)
    for kind in _KINDS[host]:
        with suppress(OSError):
            return Address(source(kind), port)
    raise ConfigError(f"fleet.{field}: is needed: this machine has no address from which it reaches other networks")

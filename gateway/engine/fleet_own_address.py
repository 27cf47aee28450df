"""The address at which the other members of a fleet reach this gateway, if they find it in DNS."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from gateway.config.addresses import Address, parse_address
from gateway.config.errors import ConfigError
from gateway.config.fleet import FleetConfig

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
    host, port = parse_address(config.listen).host, config.dns_name.port
    if host not in _KINDS:
        return Address(host, port)
    for kind in _KINDS[host]:
        with suppress(OSError):
            return Address(source(kind), port)
    raise ConfigError("fleet.name: is needed: this machine has no address from which it reaches other networks")

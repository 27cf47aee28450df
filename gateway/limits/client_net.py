"""The network that stands for a client: its address, with the host part of an IPv6 address cut off.

An IPv6 host has at least a /64 of addresses and may use a new one for every request (RFC 8981), so a limit per address
would be none.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from functools import lru_cache
from typing import Final

UNKNOWN: Final = ""
"""The net of clients without an address: those on a Unix socket, and the gateway itself."""

ClientNet = Callable[[str | None], str]
"""Gives the net of an address."""


def client_nets(v4_bits: int, v6_bits: int) -> ClientNet:
    """A function that gives the net of an address (None: unknown) as text, such as `192.0.2.7` or `2001:db8::/64`.

    `v4_bits` and `v6_bits` are the lengths of the prefixes that are kept.
    """

    @lru_cache(16_384)
    def client_net(address: str | None) -> str:
        if address is None:
            return UNKNOWN
        try:
            plain = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return UNKNOWN
        if isinstance(plain, ipaddress.IPv6Address) and plain.ipv4_mapped is not None:
            plain = plain.ipv4_mapped
        bits = v4_bits if plain.version == 4 else v6_bits
        if bits == plain.max_prefixlen:
            return str(plain)
        return str(ipaddress.ip_network((plain, bits), strict=False))

    return client_net

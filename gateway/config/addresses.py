"""Addresses to listen at."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

_LABEL: Final = r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?"
HOST_NAME: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NUMBERS: Final = re.compile(r"(?:0x[0-9a-f]+|[0-9]+)(?:\.(?:0x[0-9a-f]+|[0-9]+)){0,3}")
"""An IPv4 address in any form that inet_aton(3) accepts."""
MAX_PORT: Final = 65_535
DEFAULT_ADMIN: Final = "127.0.0.1:9437"
"""The admin port's address unless it is configured."""


@dataclass(frozen=True, slots=True)
class Address:
    """A TCP address to listen at.

    `host` is a name or an IP address without brackets; empty for all interfaces.  Port 0 picks a free port.
    """

    host: str
    port: int

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts to bind.  For all interfaces: IPv4, and then IPv6, which the machine may not have."""
        return EVERY[""] if not self.host else (self.host,)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Parse `host:port`, `[v6]:port`, or `:port` for all interfaces.  Raises ValueError with a one-line message."""
    host, colon, port = text.rpartition(":")
    expected = f"expected HOST:PORT such as 127.0.0.1:4437, [::1]:4437 or :4437, got {text!r}"
    if not colon or not port.isascii() or not port.isdecimal() or len(port) > len(str(MAX_PORT)):
        raise ValueError(expected)
    if int(port) > MAX_PORT:
        raise ValueError(f"a port is 0 to {MAX_PORT}, got {port}")
    if host.startswith("[") and host.endswith("]"):
        try:
            return Address(normal_host(str(ipaddress.IPv6Address(host[1:-1]))), int(port))
        except ValueError:
            raise ValueError(f"{host!r} is not an IPv6 address") from None
    if host and not HOST_NAME.fullmatch(host.lower()):
        raise ValueError(expected)
    return Address(normal_host(host), int(port))


def normal_host(host: str) -> str:
    """Return the canonical spelling of a host without brackets.

    `127.1` and `::ffff:127.0.0.1` become `127.0.0.1`, and names become lower case.
    """
    host = host.lower()
    if _NUMBERS.fullmatch(host):
        with suppress(ValueError):
            return str(_ipv4(host.split(".")))
    if ":" in host:
        with suppress(ValueError):
            address = ipaddress.IPv6Address(host)
            return str(address.ipv4_mapped or address)
    return host


def _ipv4(parts: list[str]) -> ipaddress.IPv4Address:
    """Parse an address of one to four numbers; the last number fills the remaining bytes.

    Raises ValueError if a number is too large.
    """
    *first, last = (int(part, 16 if part.startswith("0x") else 8 if part.startswith("0") else 10) for part in parts)
    if any(part > 0xFF for part in first) or last >= 1 << 8 * (4 - len(first)):
        raise ValueError("a number is too large")
    return ipaddress.IPv4Address(sum(part << 8 * (3 - at) for at, part in enumerate(first)) + last)


EVERY: Final[Mapping[str, tuple[str, ...]]] = {"": ("0.0.0.0", "::"), "localhost": ("127.0.0.1", "::1")}
"""Hosts that stand for two addresses, one for IPv4 and one for IPv6."""


def overlap(one: Address, other: Address) -> bool:
    """Whether two sockets cannot listen at these addresses at the same time.

    Names other than `localhost` are not resolved.
    """
    if one.port != other.port or not one.port:
        return False
    return any(
        first == second or ((":" in first) == (":" in second) and ({first, second} & {"0.0.0.0", "::"}))
        for first in EVERY.get(one.host, (one.host,))
        for second in EVERY.get(other.host, (other.host,))
    )


def http_url(address: Address, port: int) -> str:
    """Return the URL of an HTTP server at the first host of an address."""
    host = address.hosts[0]
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{port}"

"""Addresses to listen at."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_LABEL: Final = r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?"
HOST_NAME: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
MAX_PORT: Final = 65_535
DEFAULT_ADMIN: Final = "127.0.0.1:9437"
"""The admin port's address unless it is configured."""


@dataclass(frozen=True, slots=True)
class Address:
    """A TCP address to listen at: a host name or IP address without brackets, empty for every interface, and a port (0
    picks a free one)."""

    host: str
    port: int

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts to bind, one after the other: IPv4 first, and IPv6 if the machine has it."""
        return _EVERY[""] if not self.host else (self.host,)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Parse `host:port`, `[v6]:port`, or `:port` (every interface, IPv4 and IPv6).  Raises ValueError with one line."""
    host, colon, port = text.rpartition(":")
    expected = f"expected HOST:PORT such as 127.0.0.1:4437, [::1]:4437 or :4437, got {text!r}"
    if not colon or not port.isascii() or not port.isdecimal() or len(port) > len(str(MAX_PORT)):
        raise ValueError(expected)
    if int(port) > MAX_PORT:
        raise ValueError(f"a port is 0 to {MAX_PORT}, got {port}")
    if host.startswith("[") and host.endswith("]"):
        try:
            return Address(str(ipaddress.IPv6Address(host[1:-1])), int(port))
        except ValueError:
            raise ValueError(f"{host!r} is not an IPv6 address") from None
    if host and not HOST_NAME.fullmatch(host.lower()):
        raise ValueError(expected)
    return Address(host.lower(), int(port))


_EVERY: Final[Mapping[str, tuple[str, ...]]] = {"": ("0.0.0.0", "::"), "localhost": ("127.0.0.1", "::1")}
"""Hosts that stand for an address of each family."""


def overlap(one: Address, other: Address) -> bool:
    """Whether two sockets cannot listen at these addresses at once; names other than localhost are not looked up."""
    if one.port != other.port or not one.port:
        return False
    return any(
        first == second or ((":" in first) == (":" in second) and ({first, second} & {"0.0.0.0", "::"}))
        for first in _EVERY.get(one.host, (one.host,))
        for second in _EVERY.get(other.host, (other.host,))
    )

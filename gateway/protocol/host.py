"""Host names as clients spell them: in Host, `:authority`, an absolute-form target and SNI (RFC 3986 section 3.2.2).

One host has one name here, whatever its spelling: in lower case, without a port, without the dot that ends a fully
qualified name, and with IPv6 addresses in their shortest form.  Routes and certificates are chosen by that name.
"""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from typing import Final

_AUTHORITY: Final = re.compile(r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9_~.-]+))(?::[0-9]{0,5})?")
_LONGEST: Final = 255
"""Characters of the longest name in DNS."""


class BadHost(ValueError):
    """The text names no host; the message is one line for the client."""


@lru_cache(maxsize=1_024)
def host_of(authority: str) -> str:
    """The host of `host`, `host:port`, `[v6]` or `[v6]:port`; an IPv6 address in brackets.  Raises BadHost."""
    found = _AUTHORITY.fullmatch(authority) if len(authority) <= _LONGEST + 7 else None
    if found is None:
        raise BadHost("Invalid host")
    if (address := found["address"]) is not None:
        try:
            return f"[{ipaddress.IPv6Address(address)}]"
        except ValueError:
            raise BadHost("Invalid host") from None
    name = canonical_name(found["name"])
    if not name or name.startswith(".") or ".." in name or name.endswith("."):
        raise BadHost("Invalid host")
    return name


def canonical_name(name: str) -> str:
    """The one spelling of a host name."""
    return name.lower().removesuffix(".")

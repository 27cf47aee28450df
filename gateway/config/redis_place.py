"""Where a Redis or Valkey server is, and how a client shows that it may use it."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from gateway.config.addresses import Address, parse_address

_URL: Final = re.compile(r"(rediss?)://(?:([^@/?#:]*)(:[^@/?#]*)?@)?([^@/?#]+)(?:/(\d{1,5})?)?")
_DEFAULT_PORT: Final = 6_379


class RedisPlace(NamedTuple):
    """One database of a server."""

    host: str
    port: int
    database: int = 0
    user: str = ""
    password: str = ""
    is_tls: bool = False
    ca_file: str = ""
    """A file with the authorities of the server's certificate; empty for those of the system."""

    def __repr__(self) -> str:
        return f"<RedisPlace {Address(self.host, self.port)}>"


def parse_redis_url(url: str) -> RedisPlace:
    """Read redis[s]://[USER@]HOST[:PORT][/DATABASE].  Raises ValueError, without the password if the URL has one."""
    expected = "expected redis://[USER@]HOST[:PORT][/DATABASE], or rediss:// for TLS"
    found = _URL.fullmatch(url)
    if found is None:
        raise ValueError(expected)
    scheme, user, password, host, database = found.groups()
    if password is not None:
        raise ValueError("has a password: set fleet.redis_password")
    has_port = ":" in host.rpartition("]")[2]
    try:
        place = parse_address(host if has_port else f"{host}:{_DEFAULT_PORT}")
    except ValueError:
        raise ValueError(expected) from None
    if not place.host or not place.port:
        raise ValueError(expected)
    return RedisPlace(place.host, place.port, int(database or 0), user or "", is_tls=scheme == "rediss")

"""Where connections lead to: scheme, host and port."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from yarl import URL


class Endpoint(NamedTuple):
    """One server, as connections to it are told from those to others."""

    scheme: str
    host: str
    """A name in lower case, or an address without brackets."""
    port: int
    says: str
    """What a request's Host field says."""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.says}"


@lru_cache(1_024)
def _endpoint(scheme: str, authority: str) -> Endpoint:
    url = URL(f"{scheme}://{authority}", encoded=True)
    if scheme not in ("http", "https") or not url.raw_host or not url.port:
        raise ValueError("no URL to send requests to")
    return Endpoint(scheme, url.raw_host, url.port, url.host_port_subcomponent or "")


def endpoint_of(url: URL) -> Endpoint:
    """The server that a URL names; ValueError where it names none that speaks HTTP."""
    return _endpoint(url.scheme, url.raw_authority)

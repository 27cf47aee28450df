"""Where requests go, as they are told: a URL's parts, and the server that connections lead to.

URLs are text here.  Those of streams differ from request to request, and to have one parsed in full costs as much as to
read the reply to it.
"""

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


def split_url(url: str) -> tuple[str, str]:
    """A URL's origin, as in `http://host:port`, and the target of a request for it in origin form."""
    start = url.find("/", url.find("://") + 3)
    return (url[:start], url[start:]) if start > 0 else (url, "/")


@lru_cache(1_024)
def endpoint_of(origin: str) -> Endpoint:
    """The server of that origin; ValueError where it is none that speaks HTTP."""
    url = URL(origin, encoded=True)
    if url.scheme not in ("http", "https") or not url.raw_host or not url.port:
        raise ValueError("no URL to send requests to")
    return Endpoint(url.scheme, url.raw_host, url.port, url.host_port_subcomponent or "")

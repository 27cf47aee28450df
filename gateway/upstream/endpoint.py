"""Endpoints: the parts of a URL, and the server that a connection leads to.

URLs are plain text here.  A stream's URL differs from request to request, and a full parse costs as much as reading
the reply.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from yarl import URL


class Endpoint(NamedTuple):
    """One server; connections are pooled by it."""

    scheme: str
    host: str
    """A name in lower case, or an address without brackets."""
    port: int
    host_header: str
    """The value of a request's Host field."""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host_header}"


def split_url(url: str) -> tuple[str, str]:
    """A URL's origin, as in `http://host:port`, and its request target in origin form."""
    start = url.find("/", url.find("://") + 3)
    return (url[:start], url[start:]) if start > 0 else (url, "/")


@lru_cache(1_024)
def endpoint_of(origin: str) -> Endpoint:
    """The server of an origin.  ValueError if it is not an HTTP URL."""
    url = URL(origin, encoded=True)
    if url.scheme not in ("http", "https") or not url.raw_host or not url.port:
        raise ValueError("no URL to send requests to")
    return Endpoint(url.scheme, url.raw_host, url.port, url.host_port_subcomponent or "")

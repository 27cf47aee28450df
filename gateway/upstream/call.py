"""Calls: everything that is asked of an origin, and the endpoint that a connection leads to.

An `Endpoint` is the server that a URL names.  URLs are plain text here.  A stream's URL differs from request to
request, and a full parse costs as much as reading the reply.

An `OriginCall` is one value that no layer on the way takes apart or copies.  A `Source` is where a stream's bytes come
from: the URL at the origin, and the headers of a shared fetch.  A shared fetch does not send anything that is not part
of the tape's key.  If an origin depends on a header that the route does not list as a credential, it refuses the fetch,
and the operator lists the header.  It can never give one reader's bytes to another.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from multidict import CIMultiDict
from yarl import URL

from gateway.http.outgoing import request_head
from gateway.limits.queues import Askers
from gateway.protocol.forwarded_headers import Headers
from gateway.protocol.target import Target, upstream_query


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


Body: TypeAlias = AsyncIterator[bytes] | bytes | None
"""A request's body: streamed, complete, or none."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Time limits of an exchange, in seconds, for each phase."""

    connect_s: float = 5.0
    first_byte_s: float = 30.0
    idle_s: float = 30.0
    total_s: float | None = 600.0


class RepeatedUrl:
    """The URL of calls that are repeated, with what follows from it, and the latest head that was sent."""

    __slots__ = ("_head", "_headers", "_host", "_length", "parts", "url")

    def __init__(self, url: str) -> None:
        self.url = url
        route_url, target = split_url(url)
        self.parts: Final = route_url, target, target.partition("?")[0]
        """The URL's origin, its target in origin form, and the path of that."""
        self._headers: Headers | None = None
        self._host = ""
        self._length: int | None = None
        self._head = b""

    def head(
        self, method: str, target: str, host: str, headers: Headers, length: int | None, *, is_chunked: bool = False
    ) -> bytes:
        """The head of a call with this URL, as `request_head` renders it.  The method is always the same one, and the
        headers do not change."""
        if headers is self._headers and length == self._length and host == self._host and not is_chunked:
            return self._head
        head = request_head(method, target, host, headers, length, is_chunked=is_chunked)
        if not is_chunked:
            self._headers, self._host, self._length, self._head = headers, host, length, head
        return head


class OriginCall(NamedTuple):
    """One request to an origin."""

    method: str
    url: str
    """`route://<route>/<path at the origin>`, or the URL of a host."""
    headers: CIMultiDict[str]
    bounds: Bounds
    body: Body = None
    """A body iterator that fails aborts the connection, so that the origin never takes a part for the whole."""
    is_live: bool = False
    """Whether it may last for minutes."""
    client: str | Askers = ""
    """The net of the client that it is made for, or the nets of several; empty for the gateway's own."""
    repeated: RepeatedUrl | None = None
    """The URL, if the call is likely to be repeated."""

    @property
    def is_upload(self) -> bool:
        """Whether the body is streamed."""
        return not (self.body is None or isinstance(self.body, bytes))


class Source(NamedTuple):
    """One stream at its origin, as one partition requests it."""

    base: str
    """Scheme, authority and path, percent-encoded, without a query."""
    target: Target
    headers: CIMultiDict[str]
    bounds: Bounds
    live_bounds: Bounds
    client: str = ""
    """The net of the client that the fetch is made for; empty for the gateway's own."""

    @property
    def asker(self) -> int:
        """Tells whether two requests have the same headers, as far as those are sent."""
        return hash(tuple(self.headers.items()))

    def url(self, offset: str | None, live: str | None = None, cursor: str | None = None) -> str:
        """The URL of a read, with the protocol parameters in canonical order."""
        query = upstream_query(self.target, offset=offset, live=live, cursor=cursor)
        return f"{self.base}?{query}" if query else self.base

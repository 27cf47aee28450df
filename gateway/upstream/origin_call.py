"""Descriptions of requests to origins.

An `Endpoint` is a server.  URLs are plain text here, because parsing the URL of each request would cost as much as
reading the reply.

An `OriginCall` is one request.  A `Source` has the URL and the headers of shared fetches of one stream.

A shared fetch sends only headers that are part of the key of the stream in memory.  The bytes for one reader are
therefore never sent to a reader with other credentials.  An origin may need a header that the route does not list as a
credential.  The fetch then lacks this header, and the origin refuses the fetch until the operator lists the header.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from multidict import CIMultiDict
from yarl import URL

from gateway.http.outgoing import request_head
from gateway.limits.queues import Askers
from gateway.protocol.header_forwarding import Headers
from gateway.protocol.sharing import StreamKey
from gateway.protocol.target import Target, upstream_query


class Endpoint(NamedTuple):
    """A server.  The connection pool groups connections by `Endpoint`."""

    scheme: str
    host: str
    """The host: a name in lower case, or an IP address without brackets."""
    port: int
    host_header: str
    """The value of a request's Host field."""
    user: str = ""
    """The user part of the URL.  In the URL of a fleet's member, it is the number of one of the member's workers."""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host_header}"


def split_url(url: str) -> tuple[str, str]:
    """Split a URL into its origin, as in `http://host:port`, and its request target in origin form."""
    start = url.find("/", url.find("://") + 3)
    return (url[:start], url[start:]) if start > 0 else (url, "/")


@lru_cache(1_024)
def endpoint_of(origin: str) -> Endpoint:
    """Return the server of an origin.  Raises ValueError if `origin` is not an HTTP URL."""
    url = URL(origin, encoded=True)
    if url.scheme not in ("http", "https") or not url.raw_host or not url.port:
        raise ValueError("no URL to send requests to")
    return Endpoint(url.scheme, url.raw_host, url.port, url.host_port_subcomponent or "", url.raw_user or "")


class Handed(Enum):
    """Whether a request is made for another process, and for which kind of process."""

    NO = 0
    BY_WORKER = 1
    """The request is for another worker of this gateway.  It may be sent to another member of the fleet."""
    BY_MEMBER = 2
    """The request is for another member of the fleet.  It is sent to the origin."""

    def is_nearer(self, other: Handed) -> bool:
        """Return whether the request has come through fewer processes than a request with `other`."""
        return self.value < other.value


class Shared(NamedTuple):
    """The tape (a stream's bytes in memory) for which a shared request is sent.  With several workers, the owner of the
    stream sends the request."""

    key: StreamKey
    handed: Handed
    """Whether the request is for another process.  Such a request must not be handed on to a third worker."""
    facts_suffice: bool = False
    """Whether the reply need not state the current tail.  The stream's owner may then answer from memory."""


Body: TypeAlias = AsyncIterator[bytes] | bytes | None
"""A request's body: streamed, complete, or none."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The time limits of each phase of an exchange, in seconds."""

    connect_s: float = 5.0
    first_byte_s: float = 30.0
    idle_s: float = 30.0
    total_s: float | None = 600.0


class RepeatedUrl:
    """The URL of repeated calls.  Keeps the URL's parts and the latest request head, to save work on each call."""

    __slots__ = ("_head", "_headers", "_host", "_length", "parts", "url")

    def __init__(self, url: str) -> None:
        self.url = url
        route_url, target = split_url(url)
        self.parts: Final = route_url, target, target.partition("?")[0]
        """The URL's origin, its request target in origin form, and the path of the target."""
        self._headers: Headers | None = None
        self._host = ""
        self._length: int | None = None
        self._head = b""

    def head(
        self, method: str, target: str, host: str, headers: Headers, length: int | None, *, is_chunked: bool = False
    ) -> bytes:
        """Return the head of a call with this URL, as rendered by `request_head`.

        All calls must have the same method, and the headers object must not be changed.
        """
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
    """The URL: `route://<route>/<path at the origin>`, or an HTTP URL."""
    headers: CIMultiDict[str]
    bounds: Bounds
    body: Body = None
    """The request body.  If the body is an iterator that raises, the connection is aborted, so that the origin detects
    the truncation.
    """
    is_live: bool = False
    """Whether the request may last for minutes."""
    client: str | Askers = ""
    """The network of the client that the request is for, or the networks of several clients.  Empty for the gateway's
    own requests.
    """
    repeated: RepeatedUrl | None = None
    """The shared state for `url`, if the call is likely to be repeated."""
    shared: Shared | None = None
    """The tape that the call is for; None if the reply is for one client alone."""
    has_own_credentials: bool = False
    """Whether the call is sent with the client's credentials, or with none, although the route has credentials for its
    origins.  The gateway has not authorised such a call, so it lends no authority of its own to it."""

    @property
    def is_upload(self) -> bool:
        """Whether the body is streamed."""
        return not (self.body is None or isinstance(self.body, bytes))


class Source(NamedTuple):
    """The address of a stream at its origin, and the request headers of one partition (readers with equal
    credentials)."""

    base: str
    """Scheme, authority and path, percent-encoded, without a query."""
    target: Target
    headers: CIMultiDict[str]
    bounds: Bounds
    live_bounds: Bounds
    client: str = ""
    """The network of the client that fetches are for; empty for the gateway's own fetches."""
    handed: Handed = Handed.NO
    """Whether requests are for another worker (`Shared.handed`)."""

    @property
    def is_handed(self) -> bool:
        """Whether requests are for another process."""
        return self.handed is not Handed.NO

    @property
    def asker(self) -> int:
        """A hash of the headers.  Requests with equal headers have equal hashes."""
        return hash(tuple(self.headers.items()))

    def url(self, offset: str | None, live: str | None = None, cursor: str | None = None) -> str:
        """Return the URL of a read, with the protocol parameters in canonical order."""
        query = upstream_query(self.target, offset=offset, live=live, cursor=cursor)
        return f"{self.base}?{query}" if query else self.base

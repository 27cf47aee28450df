"""What the request handler derives from a header section, computed once for all requests that share the section.

None of it depends on the request line, so it is kept with the section (`gateway.http.request.Fields.facts`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from multidict import CIMultiDict

from gateway.engine.route import Route
from gateway.errors import LoopDetected
from gateway.http.outgoing import RenderedHeaders
from gateway.protocol.coding import AcceptedCodings, negotiate
from gateway.protocol.etag import readable
from gateway.protocol.forwarded_headers import is_looping, joined, passed_nodes, request_headers_for_origin
from gateway.protocol.freshness import requested_max_age
from gateway.protocol.sharing import Partition
from gateway.protocol.target import BadHost, host_of
from gateway.server.request import Request

_MOST_SENDERS: Final = 8
"""Bound on the senders of one section for which the headers to the origin are kept."""


class SharingFacts(NamedTuple):
    """What a section means to one route."""

    has_credentials: bool
    partition: Partition
    """Requests share tapes with others of the same partition."""
    headers: CIMultiDict[str]
    """The headers of a shared fetch."""
    accepted: AcceptedCodings
    web_origin: str | None
    """The Origin header, if neither the gateway answers for it nor the partition holds it."""
    max_age_s: float | None
    """The age up to which the client accepts bytes in memory, in seconds; None if it states none."""


class HeaderFacts:
    """What one header section means to one request handler."""

    __slots__ = (
        "_by_route",
        "_forwarded",
        "_headers",
        "_node",
        "host",
        "host_count",
        "host_name",
        "if_none_match",
        "is_looping",
        "nodes",
    )

    def __init__(self, headers: CIMultiDict[str], node: str) -> None:
        self._headers = headers
        self._node = node
        self._by_route: dict[Route, SharingFacts] = {}
        self._forwarded: dict[tuple[str | None, bool, str, str, bool], RenderedHeaders] = {}
        hosts = headers.getall("Host", ())
        self.host_count = len(hosts)
        self.host = hosts[0] if hosts else ""
        self.host_name: str | None = ""
        """The one spelling of the host; None if the field names no host."""
        if hosts:
            try:
                self.host_name = host_of(self.host)
            except BadHost:
                self.host_name = None
        self.nodes: tuple[str, ...] = ()
        self.is_looping = is_looping(headers, node)
        """Whether the request has passed this node before, or more gateways than a sensible chain has."""
        try:
            self.nodes = passed_nodes(headers)
        except LoopDetected:
            self.is_looping = True
        self.if_none_match = readable(joined(headers, "If-None-Match"))

    def for_route(self, route: Route) -> SharingFacts:
        """What the section means to a route."""
        sharing = self._by_route.get(route)
        if sharing is None:
            headers = self._headers
            credentials, cache_control = route.credentials(headers), joined(headers, "Cache-Control")
            sharing = self._by_route[route] = SharingFacts(
                bool(credentials),
                route.partition(credentials, self.nodes),
                route.source_headers(credentials, self.nodes),
                negotiate(joined(headers, "Accept-Encoding"), cache_control, route.codings),
                joined(headers, "Origin") if route.heeds_origin else None,
                requested_max_age(cache_control),
            )
        return sharing

    def forwarded(self, request: Request, *, is_plain: bool) -> RenderedHeaders:
        """The headers that go on to the origin; `is_plain` asks the origin for an answer without content coding."""
        channel = request.channel
        if channel.proxies is None:
            sender = (channel.client, False, channel.scheme, request.head.version, is_plain)
        else:
            sender = (request.peer, request.is_from_proxy, request.scheme, request.version, is_plain)
        headers = self._forwarded.get(sender)
        if headers is None:
            peer, is_from_proxy, scheme, version, _ = sender
            made = request_headers_for_origin(
                self._headers,
                node=self._node,
                client=peer,
                is_from_proxy=is_from_proxy,
                host=self.host,
                scheme=scheme,
                http_version=version,
            )
            if is_plain:
                made["Accept-Encoding"] = "identity"
            if len(self._forwarded) >= _MOST_SENDERS:
                self._forwarded.clear()
            headers = self._forwarded[sender] = RenderedHeaders.of(made)
        return headers

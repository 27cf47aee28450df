"""What a header section says to the request handler: read once, for all requests that have it in common.

None of it depends on the request line, so that it may be kept with the section (`gateway.http.request.Fields.facts`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from multidict import CIMultiDict

from gateway.engine.route import Route
from gateway.errors import LoopDetected
from gateway.http.outgoing import RenderedHeaders
from gateway.protocol.coding import AcceptedCodings, negotiate
from gateway.protocol.forwarding import is_looping, passed_nodes, request_headers_for_origin
from gateway.protocol.stream_key import Partition
from gateway.server.request import Request

_MOST_SENDERS: Final = 8
"""Of one section, whose headers for the origin are kept."""


class SharingFacts(NamedTuple):
    """What it shows to a route."""

    has_credentials: bool
    partition: Partition
    """Who shares tapes with it."""
    headers: CIMultiDict[str]
    """Those that a shared fetch carries."""
    accepted: AcceptedCodings


class HeaderFacts:
    """What one section says to one front."""

    __slots__ = (
        "_forwarded",
        "_headers",
        "_node",
        "_shown",
        "host",
        "host_count",
        "if_none_match",
        "is_looping",
        "nodes",
    )

    def __init__(self, headers: CIMultiDict[str], node: str) -> None:
        self._headers = headers
        self._node = node
        self._shown: dict[Route, SharingFacts] = {}
        self._forwarded: dict[tuple[str | None, bool, str, str, bool], RenderedHeaders] = {}
        hosts = headers.getall("Host", ())
        self.host_count = len(hosts)
        self.host = hosts[0] if hosts else ""
        self.nodes: tuple[str, ...] = ()
        self.is_looping = is_looping(headers, node)
        """Whether the request has been here before, or by more gateways than a sensible chain has."""
        try:
            self.nodes = passed_nodes(headers)
        except LoopDetected:
            self.is_looping = True
        self.if_none_match = _joined(headers, "If-None-Match")

    def shown(self, route: Route) -> SharingFacts:
        """What it shows to a route."""
        shown = self._shown.get(route)
        if shown is None:
            headers = self._headers
            credentials = route.credentials(headers)
            shown = self._shown[route] = SharingFacts(
                bool(credentials),
                route.partition(credentials, self.nodes),
                route.source_headers(credentials, self.nodes),
                negotiate(_joined(headers, "Accept-Encoding"), _joined(headers, "Cache-Control"), route.codings),
            )
        return shown

    def forwarded(self, request: Request, *, is_plain: bool) -> RenderedHeaders:
        """The headers as they go on to the origin; `is_plain` where its answer is to be in no coding."""
        peer, is_from_proxy = request.peer, request.is_from_proxy
        sender = (peer, is_from_proxy, request.scheme, request.version, is_plain)
        headers = self._forwarded.get(sender)
        if headers is None:
            made = request_headers_for_origin(
                self._headers,
                node=self._node,
                client=peer,
                is_from_proxy=is_from_proxy,
                host=self.host,
                scheme=request.scheme,
                http_version=request.version,
            )
            if is_plain:
                made["Accept-Encoding"] = "identity"
            if len(self._forwarded) >= _MOST_SENDERS:
                self._forwarded.clear()
            headers = self._forwarded[sender] = RenderedHeaders.of(made)
        return headers


def _joined(headers: CIMultiDict[str], name: str) -> str | None:
    """All lines of a header as one, None where there is none (RFC 9110 section 5.3)."""
    lines = headers.getall(name, None)
    return ", ".join(lines) if lines is not None else None

"""Interprets a parsed request: its target, mode, route and stream, and the read that may be shared.

`gateway.server.reading` parses the bytes of requests.  This module does not decide how the request is answered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_plus

from multidict import CIMultiDict

from gateway.auth.guard import Guard
from gateway.auth.verdict import Forbidden
from gateway.engine.read import Read
from gateway.engine.relayed_request import RelayedRequest
from gateway.engine.route import Route, SharingFacts, route_for
from gateway.engine.s2.request import (
    S2Request,
    is_session,
    named_basin,
    parse_s2,
    recorded_start,
    recorded_stream,
    s2_mode,
)
from gateway.errors import BadRequest, LoopDetected, MethodRefused, NoRoute, VersionNotSupported
from gateway.http.known import VARIED
from gateway.http.outgoing import RenderedHeaders
from gateway.limits.accounts import ClientNet
from gateway.limits.memory import evict_oldest
from gateway.protocol.client_address import Proxies
from gateway.protocol.etag import readable
from gateway.protocol.header_forwarding import is_looping, joined, passed_nodes, request_headers_for_origin
from gateway.protocol.mode import Mode
from gateway.protocol.names import START, STREAM_FORKED_FROM, is_well_formed
from gateway.protocol.sharing import Ground, StreamKey
from gateway.protocol.target import BadHost, BadTarget, Target, host_of, is_reserved, parse_target
from gateway.server.context import RequestContext
from gateway.server.request import Request
from gateway.telemetry.access_record import RecordedStream
from gateway.tuples import make
from gateway.upstream.origin_call import Handed

_METHODS: Final = {"HEAD": Mode.HEAD, "PUT": Mode.CREATE, "POST": Mode.APPEND, "DELETE": Mode.DELETE}
LIVE: Final = frozenset({Mode.LONGPOLL, Mode.SSE})


_MOST_SENDERS: Final = 8
"""A header section keeps the headers that are sent to the origin, for at most this many senders (pairs of address and
scheme)."""
_MOST_KNOWN: Final = 1_024
_MOST_REMEMBERED_CHARS: Final = 256
"""A request is kept only if its target has at most this many characters."""


class HeaderFacts:
    """The values that a request handler derives from a header section.

    The values do not depend on the request line, so they are computed once for all requests with the same section.  The
    section keeps them (`gateway.http.request_parser.Fields.facts`).
    """

    __slots__ = (
        "_by_route",
        "_forwarded",
        "_headers",
        "_node",
        "forked",
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
        self._forwarded: dict[tuple[str | None, bool, str, str, bool, str], RenderedHeaders] = {}
        hosts = headers.getall("Host", ())
        self.host_count = len(hosts)
        self.host = hosts[0] if hosts else ""
        self.host_name: str | None = ""
        """The host's canonical name; None if the Host header has no valid host."""
        if hosts:
            try:
                self.host_name = host_of(self.host)
            except BadHost:
                self.host_name = None
        self.nodes: tuple[str, ...] = ()
        self.is_looping = is_looping(headers, node)
        """Whether the request has passed this gateway before, or has passed too many gateways."""
        try:
            self.nodes = passed_nodes(headers)
        except LoopDetected:
            self.is_looping = True
        self.if_none_match = readable(joined(headers, "If-None-Match"))
        self.forked = headers.getall(STREAM_FORKED_FROM, None)
        """The lines that name the stream to fork; None without such a line."""

    def for_route(self, route: Route) -> SharingFacts:
        """Return the facts of the section that depend on the route."""
        sharing = self._by_route.get(route)
        if sharing is None:
            sharing = self._by_route[route] = route.sharing_of(self._headers, self.nodes)
        return sharing

    def forwarded(self, request: Request, *, is_plain: bool) -> RenderedHeaders:
        """Return the headers for the origin.  `is_plain` asks the origin for an answer without content coding."""
        channel = request.channel
        host = self.host if request.target.startswith("/") else request.host
        if channel.proxies is None:
            sender = (channel.client, False, channel.scheme, request.head.version, is_plain, host)
        else:
            sender = (request.peer, request.is_from_proxy, request.scheme, request.version, is_plain, host)
        headers = self._forwarded.get(sender)
        if headers is None:
            peer, is_from_proxy, scheme, version, _, _ = sender
            made = request_headers_for_origin(
                self._headers,
                node=self._node,
                client=peer,
                is_from_proxy=is_from_proxy,
                host=host,
                scheme=scheme,
                http_version=version,
            )
            if is_plain:
                made["Accept-Encoding"] = "identity"
            if len(self._forwarded) >= _MOST_SENDERS:
                self._forwarded.clear()
            headers = self._forwarded[sender] = RenderedHeaders.of(made)
        return headers


@dataclass(slots=True)
class RequestMeaning:
    """The interpretation of one request.  Equal requests of one client share it."""

    mode: Mode
    route: Route
    target: Target
    key: StreamKey
    shares: bool
    """Whether other clients' requests may share the answer.  If they may, a change by this request is also recorded on
    the shared tape (the stream's content in memory).
    """
    facts: HeaderFacts
    read: Read | None
    """The read for the engine.  None if the request is no read, or if its answer must not be shared."""
    client: str
    """The client's network; empty if it is unknown."""
    s2: S2Request | None = None
    """The read of an S2 stream; None if the request is no read of an S2 stream, or has to be relayed."""
    named: RecordedStream | None = None
    """The stream's name in records, if it differs from the target's."""
    basin: str | None = None
    """The S2 basin (a namespace of streams), if only the request's host contains its name."""
    is_session: bool = False
    """Whether the bodies of request and answer both stay open, as in an S2 append session."""
    why_alone: str | None = None
    """The reason why a read is relayed although its route shares answers; None otherwise."""
    relayed: RelayedRequest | None = None
    """The request in the form that is relayed to the origin; None before the first relay."""
    parameters: Mapping[str, str] | None = None
    """The credentials taken out of the query, by name; None if the query had no credentials."""
    forked: str | None = None
    """The canonical path of the stream to fork, as clients name it; None if the request forks no stream.  Empty if the
    request names no stream of its own route, so that the route's guard must refuse it."""

    @property
    def recorded(self) -> RecordedStream:
        """The stream's name in records."""
        return self.named or RecordedStream.of(self.route.name, self.target, self.key.partition)

    @property
    def start(self) -> str | None:
        """The offset that the client asked for, as records show it."""
        return self.target.offset if self.s2 is None else recorded_start(self.s2.asked)


_Asked = tuple[HeaderFacts, str, str, bool, str | None, Proxies | None, str]
"""The key of a repeated request: its header section, method and target, whether it has a body, its connection's address
and proxies, and its scheme."""

# Module names are faster to look up than enum members, and every request needs these members.
_CATCHUP, _HEAD, _LONGPOLL, _OTHER, _SSE = Mode.CATCHUP, Mode.HEAD, Mode.LONGPOLL, Mode.OTHER, Mode.SSE


class RequestInterpreter:
    """Parses requests for these routes, and keeps the interpretation of repeated requests."""

    def __init__(self, node: str, routes: Sequence[Route], net_of: ClientNet) -> None:
        self._node = node
        self.routes = sorted(routes, key=lambda route: route.precedence, reverse=True)
        """The routes in descending order of precedence."""
        self._known: OrderedDict[_Asked, RequestMeaning] = OrderedDict()
        """Repeated requests other than GETs.  The oldest are evicted first."""
        self._has_decisive_numbers = any(not VARIED.isdisjoint(route.credential_names) for route in routes)
        """Whether the credentials of any route include a header whose value differs from one append to the next
        (`VARIED`)."""
        self._speaks_s2 = bool(routes) and all(route.is_s2 for route in routes)
        self._net_of = net_of

    def __repr__(self) -> str:
        return f"<RequestInterpreter remembers {len(self._known)} requests>"

    def interpret(self, context: RequestContext) -> RequestMeaning:
        """Interpret the request.  The context gets the mode and the route, even if an error follows.

        Raises BadTarget or another GatewayError.
        """
        request = context.request
        head, channel = request.head, request.channel
        context.speaks_s2 = self._speaks_s2
        if (known := head.known) is not None:
            meant: RequestMeaning
            owner, client, proxies, scheme, meant = known
            if owner is self and client == channel.client and proxies is channel.proxies and scheme == channel.scheme:
                context.mode, context.route = meant.mode, meant.route
                context.is_session, context.why_alone = meant.is_session, meant.why_alone
                return meant
        fields = head.fields
        facts = fields.facts.get(self)
        if (
            facts is None
            or (fields.varied and self._has_decisive_numbers)
            or request.method == "GET"
            or request.version != "1.1"
        ):
            return self._interpret(context)
        # The section has been parsed before, so this client probably repeats its request.
        target, has_body = request.target, request.body is not None
        asked = (facts, request.method, target, has_body, channel.client, channel.proxies, channel.scheme)
        meaning = self._known.get(asked)
        if meaning is not None:
            head.known = self, channel.client, channel.proxies, channel.scheme, meaning
            context.mode, context.route = meaning.mode, meaning.route
            context.is_session, context.why_alone = meaning.is_session, meaning.why_alone
            return meaning
        meaning = self._interpret(context)
        if len(target) <= _MOST_REMEMBERED_CHARS:
            self._known[asked] = meaning
            evict_oldest(self._known, _MOST_KNOWN)
        return meaning

    def _interpret(self, context: RequestContext) -> RequestMeaning:
        request = context.request
        if request.version not in request.channel.versions:
            raise VersionNotSupported
        target = parse_target(request.target)
        mode = context.mode = mode_of(request.method, target)
        if mode is _OTHER and request.method == "TRACE":
            raise MethodRefused
        facts = self._facts(request)
        if facts.host_count > 1 or (not facts.host_count and request.version != "1.0"):
            raise BadRequest("Exactly one Host header is needed")
        if facts.host_name is None:
            raise BadRequest("Invalid Host header")
        host = facts.host_name if target.authority is None else host_of(target.authority)
        route = context.route = route_for(self.routes, host, target.path)
        if route is None:
            raise NoRoute
        if facts.is_looping:
            raise LoopDetected
        parameters = None
        if route.guard is not None:
            target, parameters = take_credentials(target, route.guard)
        sharing = facts.for_route(route)
        key = route.key(target, sharing.partition)
        client = self._net_of(request.client)
        if route.is_s2:
            basin, is_in_host = named_basin(request.headers, target, route, host)
            named = recorded_stream(target, route, sharing, basin)
            s2 = None
            if request.method == "GET" and request.body is None:
                s2 = parse_s2(request.headers, target, route, sharing, client, named, basin)
            # Do not call `mode_of`, which is for Durable Streams: S2 reserves no path, and its query does not select
            # live reads.
            by_method = _METHODS.get(request.method, _OTHER)
            context.mode = (
                s2_mode(request.method, request.headers, target.query, s2.asked if s2 is not None else None)
                or by_method
            )
            context.is_session = request.body is not None and is_session(request.headers)
            if s2 is not None and sharing.web_origin is not None:
                # Relay the read, so that the origin itself answers this web origin.  A shared answer has no CORS
                # headers of the origin.
                context.why_alone, s2 = Ground.ORIGIN, None
                route.notice(Ground.ORIGIN, request.headers)
            return RequestMeaning(
                context.mode,
                route,
                target,
                key,
                False,
                facts,
                None,
                client,
                s2,
                named,
                basin if is_in_host else None,
                context.is_session,
                context.why_alone,
            )
        shares = route.is_cached and not (sharing.has_credentials and route.is_bypassed)
        is_read = request.method in ("GET", "HEAD") and request.body is None and mode is not _OTHER
        read: Read | None = None
        if shares and is_read and not route.relays(target.offset or ""):
            is_live = mode in LIVE
            read = make(
                Read,
                (
                    route,
                    key,
                    route.source(target, sharing.headers, client, key.group),
                    _start(target, mode),
                    target.cursor,
                    facts.if_none_match,
                    sharing.has_credentials and not route.is_shared,
                    sharing.accepted,
                    is_live,
                    sharing.web_origin,
                    # Browsers send `no-cache` with every SSE request, so `no-cache` is ignored for live reads.
                    None if is_live else sharing.max_age_s,
                    Handed.NO,
                ),
            )
        meaning = RequestMeaning(mode, route, target, key, shares, facts, read, client)
        if parameters is not None:
            meaning.parameters = parameters
        # Do not depend on the method: an origin may take a request with another method for a PUT.
        if facts.forked is not None and request.method not in ("GET", "HEAD"):
            try:
                meaning.forked = self._fork_source(facts.forked, host, route)
            except (BadRequest, Forbidden):
                if route.guard is None:
                    raise
                # Let the guard authenticate the client first.
                meaning.forked = ""
        return meaning

    def _fork_source(self, lines: Sequence[str], host: str, route: Route) -> str:
        """Return the canonical path of the stream to fork, as clients name it.

        The origin forks any of its streams, so the stream must be one of the route's own: the stream of a request with
        this host and path.  Otherwise a client could read, by a fork, what another route keeps from it.

        Raises BadRequest if the lines name no stream, and Forbidden if the stream is not of this route.
        """
        try:
            target = parse_target(lines[0].strip()) if len(lines) == 1 else None
            if target is None or target != Target(target.path, "", None, None, None) or is_reserved(target.path):
                raise BadTarget
            # This is the path that the origin gets, and it may be invalid without the route's prefix.
            route.upstream_path(target.path)
        except BadTarget:
            raise BadRequest("Stream-Forked-From must be the path of a stream") from None
        if route_for(self.routes, host, target.path) is not route:
            raise Forbidden("The stream to fork is not of this route")
        return target.path

    def _facts(self, request: Request) -> HeaderFacts:
        """Return the facts of the request's header section, computed at most once for each section."""
        if request.head.fields.varied and self._has_decisive_numbers:
            return HeaderFacts(request.headers, self._node)
        known = request.head.fields.facts
        facts = known.get(self)
        if facts is None:
            facts = known[self] = HeaderFacts(request.head.fields.common, self._node)
        return facts


def take_credentials(target: Target, guard: Guard) -> tuple[Target, Mapping[str, str] | None]:
    """Take the credentials out of the target's query.  Returns the target without them, and the decoded credentials by
    name.

    The second value is None if the query has no credentials.  Raises BadTarget if a credential occurs twice.
    """
    names = guard.credential_parameters(target.query)
    if not names:
        return target, None
    found: dict[str, str] = {}
    others: list[str] = []
    for pair in target.query.split("&"):
        name, _, value = pair.partition("=")
        if name not in names:
            others.append(pair)
        elif name in found:
            raise BadTarget(f"Multiple {name} parameters not allowed")
        else:
            found[name] = unquote_plus(value, errors="surrogateescape")
    return target._replace(query="&".join(others)), found


def mode_of(method: str, target: Target) -> Mode:
    """Return the mode of a request for a Durable Stream."""
    if is_reserved(target.path):
        return _OTHER
    if method != "GET":
        return _METHODS.get(method, _OTHER)
    match target.live:
        case None:
            return _CATCHUP
        case "long-poll":
            return _LONGPOLL
        case "sse":
            return _SSE
        case _:
            return _OTHER


def _start(target: Target, mode: Mode) -> str:
    offset = target.offset
    if mode is _HEAD:
        return START
    if offset is None:
        if mode is not _CATCHUP:
            raise BadRequest("A live read needs an offset")
        return START
    if not is_well_formed(offset):
        raise BadRequest("Invalid offset format")
    return offset

"""What a request asks for: its target, mode, route and stream, and the read that may be shared.

The bytes have been parsed already (`gateway.server.reading`); this is their meaning to the gateway.  Nothing is decided
here about how the request is answered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from gateway.engine.core import route_for
from gateway.engine.read import Read
from gateway.engine.route import Route
from gateway.engine.s2.request import is_session
from gateway.errors import BadRequest, LoopDetected, MethodRefused, NoRoute, VersionNotSupported
from gateway.http.known import VARIED
from gateway.limits.accounts import ClientNet
from gateway.limits.oldest import evict_oldest
from gateway.protocol.client_address import Proxies
from gateway.protocol.mode import Mode
from gateway.protocol.names import START, is_well_formed
from gateway.protocol.sharing import Ground
from gateway.protocol.target import Target, host_of, parse_target
from gateway.server.authorising import take_credentials
from gateway.server.context import ParsedRequest, RequestContext
from gateway.server.header_facts import HeaderFacts
from gateway.server.request import Request
from gateway.server.s2_request import named_basin, parse_s2, recorded_stream, s2_mode

_METHODS: Final = {"HEAD": Mode.HEAD, "PUT": Mode.CREATE, "POST": Mode.APPEND, "DELETE": Mode.DELETE}
_RESERVED: Final = "/__ds"
"""The protocol's subscriptions live below this path; a path under it is never a stream."""
LIVE: Final = frozenset({Mode.LONGPOLL, Mode.SSE})


_MOST_PARSED: Final = 1_024
_MOST_REMEMBERED_CHARS: Final = 256
"""Bound on the target of a request whose meaning is remembered."""

_Asked = tuple[HeaderFacts, str, str, bool, str | None, Proxies | None, str]
"""A header section with the method, the target, whether there is a body, the address and the proxies of its connection,
and the scheme."""

# Enum members are slow to reach in Python 3.11, and every request passes here.
_CATCHUP, _HEAD, _LONGPOLL, _OTHER, _SSE = Mode.CATCHUP, Mode.HEAD, Mode.LONGPOLL, Mode.OTHER, Mode.SSE


class RequestParser:
    """Parses requests for these routes, and remembers the meaning of those that clients repeat."""

    def __init__(self, node: str, routes: Sequence[Route], net_of: ClientNet) -> None:
        self._node = node
        self._routes = sorted(routes, key=lambda route: route.precedence, reverse=True)
        self._parsed: OrderedDict[_Asked, ParsedRequest] = OrderedDict()
        """Requests, other than GETs, whose header section had been seen before; the oldest of many is dropped."""
        self._has_decisive_numbers = any(not VARIED.isdisjoint(route.credential_names) for route in routes)
        """Whether a route takes for credentials what differs from one append to the next."""
        self._speaks_s2 = bool(routes) and all(route.is_s2 for route in routes)
        self._net_of = net_of

    def __repr__(self) -> str:
        return f"<RequestParser remembers {len(self._parsed)} requests>"

    def parse(self, context: RequestContext) -> ParsedRequest:
        """What the request asks for, and its route; the context has the mode and the route as soon as they are known.

        Raises BadTarget and GatewayError.
        """
        request = context.request
        context.speaks_s2 = self._speaks_s2
        fields = request.head.fields
        facts = fields.facts.get(self)
        if (
            facts is None
            or (fields.varied and self._has_decisive_numbers)
            or request.method == "GET"
            or request.version != "1.1"
        ):
            return self._parse(context)
        # The section has been seen before: the same client asks again for what it asked before.
        channel, target = request.channel, request.target
        has_body = request.body is not None
        asked = (facts, request.method, target, has_body, channel.client, channel.proxies, channel.scheme)
        parsed = self._parsed.get(asked)
        if parsed is not None:
            context.mode, context.route = parsed.mode, parsed.route
            context.is_session, context.why_alone = parsed.is_session, parsed.why_alone
            return parsed
        parsed = self._parse(context)
        if len(target) <= _MOST_REMEMBERED_CHARS:
            self._parsed[asked] = parsed
            evict_oldest(self._parsed, _MOST_PARSED)
        return parsed

    def _parse(self, context: RequestContext) -> ParsedRequest:
        request = context.request
        if request.version not in request.channel.versions:
            raise VersionNotSupported
        target = parse_target(request.target)
        mode = context.mode = _mode(request.method, target)
        if mode is _OTHER and request.method == "TRACE":
            raise MethodRefused
        facts = self._facts(request)
        if facts.host_count > 1 or (not facts.host_count and request.version != "1.0"):
            raise BadRequest("Exactly one Host header is needed")
        if facts.host_name is None:
            raise BadRequest("Invalid Host header")
        host = facts.host_name if target.authority is None else host_of(target.authority)
        route = context.route = route_for(self._routes, host, target.path)
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
            basin, is_in_host = named_basin(request, target, route, host)
            named = recorded_stream(target, route, sharing, basin)
            s2 = parse_s2(request, target, route, sharing, client, named, basin)
            # No path is reserved there, and no query makes a read live.
            by_method = _METHODS.get(request.method, _OTHER)
            context.mode = s2_mode(request, target.query, s2.asked if s2 is not None else None) or by_method
            context.is_session = request.body is not None and is_session(request.headers)
            if s2 is not None and sharing.web_origin is not None:
                # A shared answer has no CORS fields but the gateway's own.
                context.why_alone, s2 = Ground.ORIGIN, None
                route.notice(Ground.ORIGIN, request.headers)
            return ParsedRequest(
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
            read = Read(
                route,
                key,
                route.source(target, sharing.headers, client, key.group),
                _start(target, mode),
                target.cursor,
                facts.if_none_match,
                # By position: names would be collected in a dictionary first.
                sharing.has_credentials and not route.is_shared,
                sharing.accepted,
                mode in LIVE,
                sharing.web_origin,
                # Browsers send `no-cache` with every SSE request.
                sharing.max_age_s if mode not in LIVE else None,
            )
        parsed = ParsedRequest(mode, route, target, key, shares, facts, read, client)
        if parameters is not None:
            parsed.parameters = parameters
        return parsed

    def _facts(self, request: Request) -> HeaderFacts:
        """What the request's header section means, computed at most once per section."""
        if request.head.fields.varied and self._has_decisive_numbers:
            return HeaderFacts(request.headers, self._node)
        known = request.head.fields.facts
        facts = known.get(self)
        if facts is None:
            facts = known[self] = HeaderFacts(request.head.fields.common, self._node)
        return facts


def _mode(method: str, target: Target) -> Mode:
    path = target.path
    if f"{_RESERVED}/" in path or path.endswith(_RESERVED):
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

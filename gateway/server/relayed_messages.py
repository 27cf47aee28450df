"""Relayed messages: the request for the origin, the headers of the reply for its client, and the end of an SSE replay.

If no tape (a stream's bytes in memory) can hold a stream's bytes, the origin replays the bytes to each reader
separately.  Once such a reader is up to date, the gateway ends the reader's answer properly.  The reader then
reconnects at the tail, and shares the stream's one live request.  Otherwise the origin would hold a live connection for
each of these readers.

The answer of a stream's owner, another worker, is passed on too (`gateway.engine.passed_read`).  The owner has made the
answer in the form that clients get.  Only the headers that depend on the client or on this worker are added here: the
headers of every response, CORS headers and `RateLimit`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from multidict import CIMultiDict, istr

from gateway.engine.relayed_request import RelayedRequest, origin_url
from gateway.engine.route import Route
from gateway.engine.s2.request import BASIN_HEADER
from gateway.http.outgoing import JOINED_BYTES, Fields, PassedFields, field_lines
from gateway.http.reply_lines import NOT_ALIKE, Head
from gateway.limits.memory import NOTHING, Holding, SharedBytes
from gateway.protocol.cache_status import Outcome, cache_status
from gateway.protocol.header_forwarding import PROTOCOL_PREFIXES, Headers, end_to_end, response_headers_for_client
from gateway.protocol.mode import Mode
from gateway.protocol.names import EVENT_CONTROL, STREAM_FORKED_FROM
from gateway.protocol.sse import SseParser, SseTooLarge, parse_control
from gateway.protocol.worker_headers import HOP_OUTCOME, HOP_SAVED
from gateway.server.authorising import headers_for_origin, is_preflight, without_credentials
from gateway.server.context import RequestContext, ResponseRecorder
from gateway.server.cors import named_origin
from gateway.server.interpreting import LIVE, RequestMeaning
from gateway.server.request import Answered, Work
from gateway.upstream.origin_call import RepeatedUrl
from gateway.upstream.reply import Reply

_CACHE_STATUS: Final = istr("Cache-Status")
_LOCATION: Final = istr("Location")
_ORIGIN: Final = istr("Origin")


class _Shared(NamedTuple):
    """The headers that clients get with all messages of one shape (with the same header lines)."""

    fields: CIMultiDict[str]
    """The headers.  Many messages share them, so they must not be changed."""
    lines: bytes


def relayed_request(context: RequestContext, meaning: RequestMeaning, *, is_expecting: bool) -> RelayedRequest:
    """Return the request as it is sent to the origin."""
    request, target, key, mode = context.request, meaning.target, meaning.key, context.mode
    # Origins use the same strong ETag for every content coding.  Without a coding, the ETags of relayed answers are
    # unambiguous.
    is_plain = request.method in ("GET", "HEAD") and mode is not Mode.OTHER
    headers: CIMultiDict[str] = meaning.facts.forwarded(request, is_plain=is_plain)
    if meaning.basin is not None:
        headers = headers.copy()
        headers[BASIN_HEADER] = meaning.basin
    if is_expecting:
        headers = headers.copy()
        headers["Expect"] = "100-continue"
    raw_query = request.target.partition("?")[2].partition("#")[0] if "?" in request.target else ""
    if meaning.parameters:
        raw_query = without_credentials(raw_query, meaning.parameters)
    has_own_credentials = False
    if (guard := meaning.route.guard) is not None:
        headers = headers_for_origin(headers, meaning.route.config, guard, context.allowed)
        has_own_credentials = context.allowed is None or is_preflight(request, guard)
    if meaning.facts.forked is not None:
        headers = headers.copy()
        if meaning.forked and not has_own_credentials:
            # The origin has names of its own for its streams, and may read an unusual spelling in another way.
            headers[STREAM_FORKED_FROM] = meaning.route.upstream_path(meaning.forked)
        else:
            # Nothing has checked the source, and an origin may take the request for a PUT.
            headers.popall(STREAM_FORKED_FROM, None)
    return RelayedRequest(
        meaning.route,
        key.group,
        key if meaning.shares else None,
        mode,
        request.method,
        target.path,
        target.query,
        raw_query,
        headers,
        meaning.client,
        context.is_session,
        key.partition,
        context.is_session or mode in LIVE,
        RepeatedUrl(origin_url(meaning.route, key.group, raw_query)),
        has_own_credentials,
    )


def relayed_fields(recorder: ResponseRecorder, context: RequestContext, head: Head) -> Fields:
    """Return the headers of a reply for its client.  The result includes all headers of the gateway except `RateLimit`.

    Replies with the same header lines have the same shape.  The headers for clients are made once for each shape.
    """
    request, route, shape = context.request, context.route, head.shape
    web_origin = request.headers.get(_ORIGIN)
    if shape is None or shape.kinds & NOT_ALIKE or _is_guarded(route):
        headers = _passed(recorder, context, head.status, head.headers)
        if route is not None and (location := headers.get(_LOCATION)) is not None:
            headers[_LOCATION] = route.public_location(location, f"{request.scheme}://{request.host}")
        if route is not None and route.guard is not None and is_preflight(request, route.guard):
            # The client is unknown.  The headers of a stream are for clients that may read the stream.
            for name in [one for one in headers if one.lower().startswith(PROTOCOL_PREFIXES)]:
                headers.popall(name, None)
        recorder.dress(route, web_origin, headers, is_public=context.is_public)
        return headers
    # Use the allowed origin rather than the client's Origin header, which clients may choose freely.
    named = named_origin(route.cors, web_origin) if route is not None and route.cors is not None else None
    key = recorder, route, head.status, context.why_alone, request.method == "GET", named
    shared: _Shared | None = shape.facts.get(key)
    if shared is None:
        fields = _passed(recorder, context, head.status, shape.headers)
        recorder.dress(route, web_origin, fields)
        shared = _Shared(fields, field_lines(fields))
        shape.derived(key, shared)
    return PassedFields(shared.fields, shared.lines, head.own)


def _is_guarded(route: Route | None) -> bool:
    """Return whether the route has rules of authorisation.

    The caching headers of an authorised answer have to be changed, and the shape need not include these headers.  So
    the headers of such an answer are made for each reply separately.
    """
    return route is not None and route.guard is not None


def _passed(recorder: ResponseRecorder, context: RequestContext, status: int, headers: Headers) -> CIMultiDict[str]:
    """Return the origin's headers as passed on to a client, with this gateway's Cache-Status."""
    passed = response_headers_for_client(headers, node=recorder.node, http_version="1.1")
    by_method = context.request.method != "GET"
    said = cache_status(recorder.node, Outcome.PASS, fwd_status=status, detail=context.why_alone, by_method=by_method)
    if (earlier := passed.popall(_CACHE_STATUS, None)) is not None:
        said = ", ".join([*earlier, said])
    passed.add(_CACHE_STATUS, said)
    return passed


_KEPT_BYTES: Final = 1 << 13
"""The number of bytes kept from the end of the body.  Every control event is shorter.  Data events may have any size.
"""


class CatchUpEnd:
    """Detects the end of catch-up in an SSE body (section 5.8 of the protocol): the first chunk that ends with an
    up-to-date control event."""

    __slots__ = ("_kept", "is_reached")

    def __init__(self) -> None:
        self._kept = b""
        self.is_reached = False

    def see(self, chunk: bytes) -> None:
        """Inspect the next chunk of the body."""
        self._kept = (self._kept + chunk)[-_KEPT_BYTES:]
        self.is_reached = _is_up_to_date(self._kept)


def _is_up_to_date(end: bytes) -> bool:
    lines = end.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if not lines.endswith(b"\n\n"):
        return False
    start = lines.rfind(b"\n\n", 0, -2)
    try:
        events = SseParser(_KEPT_BYTES).feed(lines[start + 2 if start >= 0 else 0 :])
        return any(event.name == EVENT_CONTROL and parse_control(event.data).up_to_date for event in events)
    except (SseTooLarge, ValueError):
        # The relay does not validate the body.  For an invalid event, continue until the origin ends the body.
        return False


# -- the answers of other workers

_OWNERS: Final = "the owner's answer"


def pass_on(recorder: ResponseRecorder, context: RequestContext, reply: Reply) -> Answered | Work:
    """Pass the owner's answer on and close it.  Returns the remaining work if the body is large or still arriving."""
    try:
        head = reply.head
        context.outcome = Outcome(head.get(HOP_OUTCOME) or "")
        saved = head.own[-1].value if head.own and head.own[-1].name == HOP_SAVED else None
        context.saved_bytes = int(saved or 0)
        headers = _passed_fields(recorder, context, head)
        recorder.state_limits(context, headers)
        if not reply.has_arrived:
            return _rest(context, reply, headers)
        body = reply.take() or b""
        if len(body) > JOINED_BYTES:
            return _rest(context, reply, headers, body)
        answered = context.delivery.passed_on(reply.status, head.reason, headers, body)
    except BaseException:
        reply.close()
        raise
    reply.close()
    return answered


async def _rest(context: RequestContext, reply: Reply, headers: Fields, first: bytes = b"") -> Answered:
    """Pass on a body of any size, as fast as the client takes it."""
    try:
        body = _PassedBody(reply, first)
        context.request.held = body
        fields = headers if isinstance(headers, CIMultiDict) else headers.table()
        return await context.delivery.stream(reply.status, reply.head.reason, fields, None, body.parts())
    finally:
        reply.close()


class _PassedBody:
    """A body on its way.  Implements `gateway.server.request.Holder`."""

    __slots__ = ("_part", "_reply")

    def __init__(self, reply: Reply, first: bytes) -> None:
        self._reply = reply
        self._part = first
        """The part that is being written."""

    def holdings(self) -> tuple[Holding, ...]:
        size = len(self._part)
        return (Holding(SharedBytes(size), size),) if size else NOTHING

    async def parts(self) -> AsyncIterator[bytes]:
        if self._part:
            yield self._part
        async for part in self._reply.chunks():
            self._part = part
            yield part


def _passed_fields(recorder: ResponseRecorder, context: RequestContext, head: Head) -> Fields:
    """Return the headers of the owner's answer for the client.  They are made once for all answers with one shape."""
    route, shape = context.route, head.shape
    web_origin = context.request.headers.get(_ORIGIN)
    if shape is None or shape.kinds & NOT_ALIKE or context.saved_bytes or _is_guarded(route):
        headers = end_to_end(head.headers)
        recorder.dress(route, web_origin, headers, is_public=context.is_public)
        return headers
    named = named_origin(route.cors, web_origin) if route is not None and route.cors is not None else None
    key = _OWNERS, recorder, route, named
    shared: _Shared | None = shape.facts.get(key)
    if shared is None:
        fields = end_to_end(shape.headers)
        recorder.dress(route, web_origin, fields)
        shared = _Shared(fields, field_lines(fields))
        shape.derived(key, shared)
    return PassedFields(shared.fields, shared.lines, head.own)

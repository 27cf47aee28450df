"""Passes the answer of a stream's owner, another worker, on to the client (`gateway.engine.passed_read`).

The owner has made the answer as for a client of its own.  Only the headers that depend on the client or on this worker
are added here: the headers of every response, CORS headers and `RateLimit`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from multidict import CIMultiDict, istr

from gateway.http.outgoing import JOINED_BYTES, Fields, PassedFields, field_lines
from gateway.http.reply_lines import NOT_ALIKE, Head
from gateway.limits.memory import NOTHING, Holding, SharedBytes
from gateway.protocol.cache_status import Outcome
from gateway.protocol.forwarded_headers import end_to_end
from gateway.protocol.hop import HOP_OUTCOME, HOP_SAVED
from gateway.server.context import RequestContext, ResponseRecorder
from gateway.server.cors import named_origin
from gateway.server.request import Answered, Work
from gateway.upstream.reply import Reply

_ORIGIN: Final = istr("Origin")
_OWNERS: Final = "the owner's answer"


class _Shared(NamedTuple):
    """The headers that clients get with all answers of one shape (with the same header lines)."""

    fields: CIMultiDict[str]
    """The headers.  Many answers share them, so they must not be changed."""
    lines: bytes


def pass_on(recorder: ResponseRecorder, context: RequestContext, reply: Reply) -> Answered | Work:
    """Pass an answer on and close it.  Returns the work that is left if the body is large or still arriving."""
    try:
        head = reply.head
        context.outcome = Outcome(head.get(HOP_OUTCOME) or "")
        saved = head.own[-1].value if head.own and head.own[-1].name == HOP_SAVED else None
        context.saved_bytes = int(saved or 0)
        headers = _fields(recorder, context, head)
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
        body = _Body(reply, first)
        context.request.held = body
        fields = headers if isinstance(headers, CIMultiDict) else headers.table()
        return await context.delivery.stream(reply.status, reply.head.reason, fields, None, body.parts())
    finally:
        reply.close()


class _Body:
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


def _fields(recorder: ResponseRecorder, context: RequestContext, head: Head) -> Fields:
    """Return the headers of an answer for its client.  They are made once for all answers with the same shape."""
    route, shape = context.route, head.shape
    web_origin = context.request.headers.get(_ORIGIN)
    if shape is None or shape.kinds & NOT_ALIKE or context.saved_bytes:
        headers = end_to_end(head.headers)
        recorder.dress(route, web_origin, headers)
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

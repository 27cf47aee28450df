"""Concealing routes (`route.conceal`): refusals and the 404s of absent streams are one answer of the gateway's own.

A client that may not read a stream must not learn whether there is one, nor one that may read it that others may not.
So a refusal passes everything that a read of an absent stream passes: the rate limits, the bound on reads of unknown
streams, the body of a write, and the time that the origin would take (`gateway.auth.concealment`).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from gateway.aio.clock import pause
from gateway.auth.concealment import Concealment
from gateway.auth.verdict import Concealed
from gateway.config.limits import LimitsConfig
from gateway.engine.core import Engine
from gateway.engine.read import Read
from gateway.errors import BodyTooLarge
from gateway.protocol.mode import Mode
from gateway.protocol.names import NOW, START
from gateway.server.context import RequestContext, ResponseRecorder
from gateway.server.parsing import LIVE, ParsedRequest
from gateway.server.request import Answered, ask_for_body, is_expecting

_STREAM: Final = "stream"
_METADATA: Final = "metadata"
"""A 404 to a HEAD answers only reads that begin with one."""


def concealment_of(context: RequestContext) -> Concealment | None:
    """How the request's route conceals streams; None if it does not, if everybody may read the stream, or if the origin
    alone judges the request."""
    route = context.route
    if route is None or route.guard is None or context.allowed is None or context.is_public:
        return None
    return route.guard.concealment


def conceal_absence(
    recorder: ResponseRecorder, context: RequestContext, concealment: Concealment, *, is_from_origin: bool
) -> Answered:
    """Answer a request for an absent stream as a refusal is answered."""
    if is_from_origin and context.mode not in LIVE:
        # A live read may have waited for long before its stream was deleted.
        concealment.note(context.mode, recorder.now() - context.began - context.undecided_s, is_absent=True)
    outcome = context.outcome
    answered = recorder.refuse(context, Concealed())
    # The log and the metrics say how it was answered.
    context.outcome = outcome
    return answered


async def refuse_concealed(
    engine: Engine, limits: LimitsConfig, concealment: Concealment, context: RequestContext, parsed: ParsedRequest
) -> Answered | None:
    """Refuse the request when an absent stream's 404 would come.  Raises a GatewayError."""
    # The wait for a verdict is the same for all streams, and comes before the time that the origin would take.
    began = context.began + context.undecided_s
    if context.request.body is not None:
        await _read_body(context, limits)
        began = engine.clock.now()
    if (read := parsed.read) is not None:
        name, (known, learns) = (parsed.key.group.path, parsed.target.query), _kinds(context.mode, read)
        given_at = concealment.given_at(name, known, began)
        if given_at is None:
            engine.count_concealed(read)
            given_at = began + concealment.delay_s(context.mode)
            concealment.remember(name, learns, given_at, began + read.route.absent_s)
    else:
        given_at = began + concealment.delay_s(context.mode)
    wait_s = given_at - engine.clock.now()
    if wait_s > 0:
        await pause(engine.clock, wait_s)
    raise Concealed


async def _read_body(context: RequestContext, limits: LimitsConfig) -> None:
    """Read the request's body to its end, as a relay does.  Raises a GatewayError where that would refuse it."""
    request, is_delete = context.request, context.mode is Mode.DELETE
    body = request.body
    assert body is not None
    body.check(request.head, limits)
    if is_expecting(request) and not body.unread_bytes:
        ask_for_body(request)
    whole = await body.gather(limits, is_awaited=is_delete)
    if whole is not None and len(whole) <= limits.max_request_bytes:
        return
    if whole is not None or is_delete:
        raise BodyTooLarge
    async for _ in body.chunks(limits):
        pass


def _kinds(mode: Mode, read: Read) -> tuple[tuple[Hashable, ...], Hashable]:
    """Which earlier 404s would answer the read, and which reads its own 404 would."""
    if mode is Mode.HEAD or (read.is_live and read.start != START):
        return (_STREAM, _METADATA), _METADATA
    return (_STREAM,), _METADATA if read.start == NOW else _STREAM

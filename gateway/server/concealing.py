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
    if (body := context.request.body) is not None:
        body.check(context.request.head, limits)
        if is_expecting(context.request) and not body.unread_bytes:
            ask_for_body(context.request)
        await body.gather(limits, is_awaited=context.mode is Mode.DELETE)
        began = engine.clock.now()
    read, name = parsed.read, (parsed.key.group.path, parsed.target.query)
    if read is not None:
        known, learns = _kinds(context.mode, read)
        if concealment.is_repeated(name, known, began):
            raise Concealed
        engine.count_concealed(read)
        concealment.remember(name, learns, began + read.route.absent_s)
    wait_s = concealment.delay_s(context.mode) - (engine.clock.now() - began)
    if wait_s > 0:
        await pause(engine.clock, wait_s)
    raise Concealed


def _kinds(mode: Mode, read: Read) -> tuple[tuple[Hashable, ...], Hashable]:
    """Which earlier 404s would answer the read, and which reads its own 404 would."""
    if mode is Mode.HEAD or (read.is_live and read.start != START):
        return (_STREAM, _METADATA), _METADATA
    return (_STREAM,), _METADATA if read.start == NOW else _STREAM

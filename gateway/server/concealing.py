"""Concealing routes (`route.conceal`): a refusal looks exactly like the 404 for an absent stream.

A client without permission must not learn whether a stream exists.  A client with permission must not learn whether
other clients are refused.  A refusal therefore takes the same steps as a request for an absent stream: the rate limits,
the bound on reads of unknown streams, reading the body of a write, and the origin's usual delay
(`gateway.auth.absence_times`).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from gateway.aio.clock import pause
from gateway.auth.absence_times import AbsenceTimes
from gateway.auth.verdict import Concealed
from gateway.config.limits import LimitsConfig
from gateway.engine.core import Engine
from gateway.engine.read import Read
from gateway.errors import BodyTooLarge
from gateway.protocol.mode import Mode
from gateway.protocol.names import NOW, START
from gateway.server.context import RequestContext, ResponseRecorder
from gateway.server.interpreting import LIVE, RequestMeaning
from gateway.server.request import Answered, ask_for_body, is_expecting

_STREAM: Final = "stream"
_METADATA: Final = "metadata"
"""The kinds of remembered 404s: the origin's 404 to a GET, and its 404 to a HEAD.  The 404 to a HEAD answers only reads
for which the gateway would first send a HEAD to the origin.
"""


def absence_times_of(context: RequestContext) -> AbsenceTimes | None:
    """Return the times of the 404s of the request's route.  None if the route conceals nothing, the stream is public,
    or only the origin authorises the request.
    """
    route = context.route
    if route is None or route.guard is None or context.allowed is None or context.is_public:
        return None
    return route.guard.absence_times


def conceal_absence(
    recorder: ResponseRecorder, context: RequestContext, absence_times: AbsenceTimes, *, is_from_origin: bool
) -> Answered:
    """Answer a request for an absent stream in the same way as a refused request."""
    if is_from_origin and context.mode not in LIVE:
        # Do not note the time of a live read, because it may have waited long before its stream was deleted.
        absence_times.note(context.mode, recorder.now() - context.began - context.undecided_s, is_absent=True)
    outcome = context.outcome
    answered = recorder.refuse(context, Concealed())
    # Keep the real outcome for the log and the metrics: `refuse` has set another outcome.
    context.outcome = outcome
    return answered


async def refuse_concealed(
    engine: Engine, limits: LimitsConfig, absence_times: AbsenceTimes, context: RequestContext, meaning: RequestMeaning
) -> Answered | None:
    """Refuse the request at the time when the 404 for an absent stream would be sent.  Always raises: Concealed, or the
    GatewayError of an earlier step.
    """
    # Begin the origin's usual delay after the wait for the verdict, because that wait does not depend on whether the
    # stream exists.
    began = context.began + context.undecided_s
    if context.request.body is not None:
        await _read_body(context, limits)
        began = engine.clock.now()
    if (read := meaning.read) is not None:
        name, (known, learns) = (meaning.key.group.path, meaning.target.query), _kinds(context.mode, read)
        given_at = absence_times.given_at(name, known, began)
        if given_at is None:
            engine.count_concealed(read)
            given_at = began + absence_times.delay_s(context.mode)
            absence_times.remember(name, learns, given_at, began + read.route.absent_s)
    else:
        given_at = began + absence_times.delay_s(context.mode)
    wait_s = given_at - engine.clock.now()
    if wait_s > 0:
        await pause(engine.clock, wait_s)
    raise Concealed


async def _read_body(context: RequestContext, limits: LimitsConfig) -> None:
    """Read the request's body to its end, as a relay does.  Raises the relay's GatewayErrors."""
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
    """Return the kinds of remembered 404s that would answer the read, and the kind under which the read's own 404 is
    remembered.
    """
    if mode is Mode.HEAD or (read.is_live and read.start != START):
        return (_STREAM, _METADATA), _METADATA
    return (_STREAM,), _METADATA if read.start == NOW else _STREAM

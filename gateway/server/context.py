"""The state of one request in the request handler, and the records made at its end.

`learn_hit` remembers an answer from memory, so that the next equal request skips the handler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from multidict import CIMultiDict, istr

from gateway.auth.remembered_verdicts import Allowed
from gateway.auth.usage import Usage
from gateway.engine.answer import NamedTail
from gateway.engine.response_heads import failure_answer
from gateway.engine.route import Route
from gateway.errors import GatewayError
from gateway.http.outgoing import Fields
from gateway.limits.accounts import NO_PARTIES, UNKNOWN, Parties
from gateway.protocol.cache_status import Outcome
from gateway.protocol.coding import applied
from gateway.protocol.freshness_headers import keep_private
from gateway.protocol.mode import Mode
from gateway.protocol.names import STREAM_NEXT_OFFSET
from gateway.s2 import json_format
from gateway.s2.errors import S2ErrorCode, error_body
from gateway.server import cors
from gateway.server.delivery import Delivery
from gateway.server.query_credentials import NamedStream
from gateway.server.remembered import RememberedAnswer, Repeatable
from gateway.server.request import Answered, Request
from gateway.server.request_admission import Admission
from gateway.server.request_records import Observed, Observers
from gateway.telemetry.access_record import note_repeated
from gateway.telemetry.metrics import NO_ROUTE, MetricsRecorder, Sent
from gateway.tuples import make

_ORIGIN: Final = istr("Origin")
_SERVER: Final = istr("Server")
_VIA: Final = istr("Via")
_LIVE_MODES: Final = frozenset({Mode.LONGPOLL, Mode.SSE})
_BY_CLIENT: Final = frozenset({400, 408, 414, 429, 431})
"""The statuses of refusals that the client has caused, by the content or the rate of its requests."""


class Stage(Enum):
    """The part of the gateway that answers a request now, and records its end."""

    HANDLED = "the request handler, at once or in a task"
    RELAYED = "a relay, without a task"
    LIVE = "a live reader, which counts and records its own end"
    ENDED = "the answer is out, or has been given up"


@dataclass(slots=True)
class RequestContext:
    """One request in progress: the data for its answer and for its records in the metrics, the log and the trace."""

    request: Request
    delivery: Delivery
    began: float
    observed: Observed | None
    """The request's log record and span; None without a log and a tracer."""
    stage: Stage = Stage.HANDLED
    mode: Mode = Mode.OTHER
    outcome: Outcome = Outcome.REFUSED
    route: Route | None = None
    saved_bytes: int = 0
    """Bytes that content coding (compression) saved in an answer that was sent in one piece."""
    is_replay: bool = False
    """Whether a live read is relayed only until its reader has caught up with the end of the stream."""
    why_alone: str | None = None
    """The reason why a read is relayed although its route shares answers; None if the read is shared."""
    client: str = UNKNOWN
    """The client's network, for rate limits."""
    fields: tuple[str, str] | None = None
    """The answer's RateLimit-Policy and RateLimit fields; None if no rate limit applies."""
    is_session: bool = False
    """Whether the bodies of request and answer both stay open, as in an S2 append session."""
    allowed: Allowed | None = None
    """The verdict of authorisation; None on a route without rules."""
    stream: NamedStream | None = None
    """The stream for which the verdict is remembered.  None if the verdict is remembered for the request line, or not
    at all.
    """
    parties: Parties = NO_PARTIES
    """The principal (the authenticated party) and its tenant, for the rate limits that count the request."""
    undecided_s: float = 0.0
    """The seconds for which the request waited for its authorisation."""
    usage: Usage | None = None
    """The tenant's usage; None without a tenant, and for a request that a limit refuses."""
    is_public: bool = False
    """Whether the request reads a public stream."""
    is_passed: bool = False
    """Whether the request comes from another worker, which passes the answer on to a client."""
    speaks_s2: bool = False
    """Whether refusals use S2's error format while the route is unknown."""

    @property
    def route_name(self) -> str:
        """The route's name in the metrics."""
        return self.route.name if self.route is not None else NO_ROUTE


# Module names are faster to look up than enum members, and every request needs these members.
_ENDED, _LIVE, _RELAYED = Stage.ENDED, Stage.LIVE, Stage.RELAYED
_FAILED, _REFUSED = Outcome.FAILED, Outcome.REFUSED


class ResponseRecorder:
    """Adds the headers that all responses have in common, and records the end of each request."""

    def __init__(
        self,
        node: str,
        metrics: MetricsRecorder,
        now: Callable[[], float],
        admission: Admission,
        observers: Observers,
    ) -> None:
        self._admission = admission
        self._observers = observers
        self.node = node
        self.via: Final = f"1.1 {node}"
        """The gateway's member of Via (RFC 9110 section 7.6.3)."""
        self.metrics = metrics
        self.now = now

    def record_end(self, context: RequestContext, answered: Answered | None) -> None:
        """Record the end of a request in the metrics, the log and the trace, and free its channel (the HTTP/1.1
        connection or HTTP/2 stream).

        Does nothing if the request's end was recorded before, or if the request has a live answer, which records its
        own end.

        `answered` is the answer's head; None if the answer was not sent in full.  In that case, the channel is freed
        only if the request was being relayed.
        """
        stage, observed = context.stage, context.observed
        if stage is _ENDED or stage is _LIVE:
            return
        context.stage = _ENDED
        mode, outcome, delivery, began = context.mode, context.outcome, context.delivery, context.began
        route = context.route.name if context.route is not None else None
        first_byte_s = delivery.first_byte_at - began if delivery.first_byte_at is not None else None
        sent = make(Sent, (first_byte_s, delivery.sent_bytes, context.saved_bytes))
        self.metrics.request(
            mode,
            outcome,
            self.now() - began,
            route or NO_ROUTE,
            sent,
            trace_id=observed.sampled_trace_id if observed is not None else None,
        )
        request = context.request
        if (body := request.body) is not None and body.exceeded is not None:
            self.metrics.client_limited(body.exceeded)
        if sent.body_bytes and route is not None:
            self._admission.charge(context.client, route, sent.body_bytes, context.parties)
        if (usage := context.usage) is not None:
            is_answered = outcome is not _FAILED and outcome is not _REFUSED
            sent_bytes = sent.body_bytes if outcome is not _REFUSED else 0
            if mode not in _LIVE_MODES:
                usage.add(sent_bytes, is_answered=is_answered)
            else:
                # The usage counts a live read at the end of the read: one request, its duration, and the bytes of a
                # live answer.  Here, add the bytes of an answer that was not live.  Subtract the request if it was not
                # answered.
                usage.sent_bytes += sent_bytes
                usage.requests -= not is_answered
        if observed is not None:
            self._observers.request_ended(observed, answered, mode, outcome, route, began, sent)
        if answered is not None or stage is _RELAYED:
            # Free the channel even if the client has left.  The connection may have been kept only for this answer.
            request.channel.response_written(request)

    def refuse(self, context: RequestContext, error: GatewayError) -> Answered:
        """Send an error as a response, with a line of text or S2's JSON as its body."""
        if error.limit is not None:
            self.metrics.client_limited(error.limit)
        answer = failure_answer(self.node, error)
        context.outcome, headers, body = answer.outcome, answer.headers, answer.body
        if context.speaks_s2 or (context.route is not None and context.route.is_s2):
            headers["Content-Type"], body = json_format.CONTENT_TYPE, s2_error_body(error)
        self.finish(context, headers)
        request = context.request
        if answer.status in _BY_CLIENT and self._admission.refused(request.channel.use):
            request.keeps_alive = False
        return context.delivery.text(answer.status, headers, body)

    def finish(self, context: RequestContext, headers: CIMultiDict[str]) -> None:
        """Add the headers that every response carries, and the RateLimit fields."""
        self.state_limits(context, headers)
        self.dress(context.route, context.request.headers.get(_ORIGIN), headers, is_public=context.is_public)

    @staticmethod
    def state_limits(context: RequestContext, headers: Fields) -> None:
        """Add the RateLimit fields."""
        if (fields := context.fields) is not None:
            # Add members rather than replace the fields, because the origin may have stated limits of its own.
            headers.add("RateLimit-Policy", fields[0])
            headers.add("RateLimit", fields[1])

    def dress(
        self, route: Route | None, origin: str | None, headers: CIMultiDict[str], *, is_public: bool = False
    ) -> None:
        """Add the headers that every response carries.

        `origin` is the request's Origin header.  `is_public` means that the answer is from a public stream.
        """
        config = None
        if route is not None:
            config = route.cors
            if route.guard is not None and (not is_public or route.sharing.stores_private):
                keep_private(headers, route.guard.vary)
        if config is not None:
            cors.apply(config, origin, headers)
        if _VIA not in headers:
            headers.add(_VIA, self.via)
        if _SERVER not in headers:
            headers.add(_SERVER, self.node)


def s2_error_body(error: GatewayError) -> bytes:
    """Return the body of an error of the gateway's own in S2's format."""
    if error.status == S2ErrorCode.RATE_LIMITED.status:
        code = S2ErrorCode.RATE_LIMITED
    else:
        # Use the code `unavailable` only for a request that was not sent, because it promises that the request had no
        # effect.
        code = S2ErrorCode.UNAVAILABLE if error.is_unsent else S2ErrorCode.OTHER
    return error_body(code, str(error))


def learn_hit(
    context: RequestContext, route: Route, answer: Repeatable, trust_s: float, tail: NamedTail | None = None
) -> None:
    """Remember the answer to the context's request.

    The answer may be repeated until `trust_s` seconds have passed since the origin last confirmed the stream.  An
    answer that contains a `tail` is repeated only until the tail changes.
    """
    if not context.request.channel.learns:
        return
    size, headers = sum(map(len, answer.body)), answer.headers.copy()
    if context.fields is not None:
        # Leave the RateLimit fields out, because the allowance left differs with each request.
        for name in ("RateLimit-Policy", "RateLimit"):
            headers.popall(name, None)
    if answer.status == 200:
        headers["Content-Length"] = str(size)
    coding = applied(headers.get("Content-Encoding"))
    repeated = note_repeated(
        answer.outcome, answer.status, headers.get(STREAM_NEXT_OFFSET), coding, size, answer.saved_bytes
    )
    remembered = RememberedAnswer(
        answer._replace(headers=headers),
        trust_s,
        tail,
        context.mode,
        route.config.name,
        repeated,
        (context.stream or b"") if route.guard is not None else None,
    )
    context.request.channel.learn(remembered, route.header_rules)

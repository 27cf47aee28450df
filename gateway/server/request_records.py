"""Records for the access log and spans for the tracer, from the arrival of a request to its end.

`Observers` makes an `Observed` for each request if there is a log or a tracer.  While code works for the request, a
context variable holds the request's `Observed`, so that all this code can add to the record and the span
(`gateway.telemetry.access_record`, `gateway.telemetry.tracing`).  A relayed or live answer keeps the `Observed`, and
ends it when the answer ends.

`end_sse` records the end of an SSE answer over HTTP/1.1 and HTTP/2: in the gauge of readers, the metrics of the
request, and the access log.
"""

from __future__ import annotations

from contextvars import Token
from typing import Final, Protocol

from gateway.aio.clock import Clock
from gateway.protocol.cache_status import Outcome
from gateway.protocol.coding import applied
from gateway.protocol.header_forwarding import trace_id_of
from gateway.protocol.mode import Mode
from gateway.protocol.names import STREAM_NEXT_OFFSET
from gateway.protocol.target import without_authority
from gateway.server.client_connections import Clients
from gateway.server.request import Answered, Note, Request
from gateway.telemetry.access_record import AccessLog, CloseReason, Record, record_now
from gateway.telemetry.metrics import Sent
from gateway.telemetry.tracing import NO_REQUEST, NO_TRACER, RequestSpan, Tracer, request_now

Tokens = tuple[Token[Record | None], Token[RequestSpan]]


class Observed:
    """The record and the span of one request."""

    __slots__ = ("record", "span")

    def __init__(self, record: Record | None, span: RequestSpan) -> None:
        self.record = record
        """The request's record; None without an access log."""
        self.span = span
        """The request's span; `NO_REQUEST` without a tracer."""

    @property
    def is_traced(self) -> bool:
        """Whether there is a span."""
        return self.span is not NO_REQUEST

    @property
    def sampled_trace_id(self) -> str:
        """The trace's id, for exemplars in the metrics; empty if the trace is not sampled."""
        return self.span.trace_id if self.span.is_sampled else ""

    def enter(self) -> Tokens:
        """Make this record and this span the current ones.  A task that serves only this request need not call
        `exit`."""
        return record_now.set(self.record), request_now.set(self.span)

    @staticmethod
    def exit(tokens: Tokens) -> None:
        """Undo `enter`."""
        record_now.reset(tokens[0])
        request_now.reset(tokens[1])


class Observers:
    """Begins and ends the records and spans of requests.  It has no state of its own."""

    def __init__(self, access_log: AccessLog, tracer: Tracer, clock: Clock) -> None:
        self.access_log = access_log
        self.tracer = tracer
        self._clock = clock
        self.is_traced = tracer is not NO_TRACER
        self.is_on = access_log.is_kept or self.is_traced
        """Whether each request has an `Observed`."""

    def request_arrived(self, request: Request) -> Observed:
        """Begin the record and the span of a request."""
        headers, span = request.headers, NO_REQUEST
        # Record the target as sent until the request is parsed.  An invalid target is logged in this form.
        target = without_authority(request.target)
        if self.is_traced:
            span = self.tracer.request(request.method, target.partition("?")[0], headers)
        record = None
        if self.access_log.is_kept:
            traces = headers.getall("traceparent", ())
            record = Record(
                method=request.method,
                stream=target,
                client=request.client,
                user_agent=headers.get("User-Agent"),
                # Prefer the trace of this gateway's span to the client's trace, so that log lines match spans.
                trace_id=span.trace_id or (trace_id_of(traces[0]) if len(traces) == 1 else None),
            )
        return Observed(record, span)

    def request_ended(
        self,
        observed: Observed,
        answered: Answered | None,
        mode: Mode,
        outcome: Outcome,
        route: str | None,
        began: float,
        sent: Sent,
    ) -> None:
        """Record the end of a request.  `answered` is the answer's head if it was sent in full."""
        span, record = observed.span, observed.record
        status = answered.status if answered is not None else 500 if outcome is Outcome.FAILED else 0
        if span is not NO_REQUEST:
            span.describe(mode, outcome, route)
            if status:
                span.set_status(status)
            else:
                span.aborted()
            span.end_span()
        if record is None:
            return
        record.mode, record.outcome, record.status = mode, outcome, status
        record.first_byte_s, record.sent_bytes, record.saved_bytes = sent
        if answered is not None:
            record.next_offset = answered.headers.get(STREAM_NEXT_OFFSET, record.next_offset)
            record.coding = applied(answered.headers.get("Content-Encoding"))
        record.ended_at, record.duration_s = self._clock.wall(), self._clock.now() - began
        self.access_log.record(record)


# Module names are faster to look up than enum members, and every SSE answer needs these members.
_SSE: Final = Mode.SSE
_FOLLOWED, _ABORTED = Outcome.FOLLOWED, Outcome.ABORTED
_LEFT: Final = CloseReason.LEFT


class SseChannel(Protocol):
    """The attributes of a channel (an HTTP/1.1 connection or an HTTP/2 stream) with an SSE answer.  A separate object
    for each reader would cost memory and time."""

    sse_route: str | None
    """The route of the SSE answer in progress; None if there is none."""
    sse_note: Note | None
    live_began: float
    """The time at which the request was read, by the streams' clock."""
    live_bytes: int
    live_first_byte_s: float
    cut_reason: CloseReason | None


def end_sse(channel: SseChannel, clients: Clients, route: str, reason: CloseReason, *, in_order: bool) -> None:
    """Record the end of the channel's SSE answer.  `in_order` means that the answer is complete."""
    outcome = _FOLLOWED if in_order else _ABORTED
    note, channel.sse_note, channel.sse_route = channel.sse_note, None, None
    metrics = clients.metrics
    metrics.subscribers(_SSE, -1, route)
    metrics.request(
        _SSE,
        outcome,
        clients.now() - channel.live_began,
        route,
        Sent(channel.live_first_byte_s, channel.live_bytes),
        # None would select the current context's trace, which belongs to another request.
        trace_id=(note.trace_id if note is not None else None) or "",
    )
    if note is not None:
        note.record_end(outcome, channel.cut_reason or reason if reason is _LEFT else reason)

"""The tracing interface of the request path.

A request span lasts from reading a client's request to the end of its answer.  A flight span lasts as long as a shared
fetch, and is a child of the span of the request that started the flight (its leader).  An exchange span covers one
request to an origin.  The span of a request that joins a flight has links to the flight and to the leader.  Such links
are necessary because a span has only one parent, but a thousand requests may join a flight.

The current spans are in the context of the running task (`contextvars`), not in arguments.  A task inherits the spans
of the request that starts it, so a flight becomes a child of the right request.  A task that outlives its request first
calls `detach`.  `gateway.ops.opentelemetry_tracer` implements the interface.  Without tracing, the request path calls
`NO_TRACER` once for each fetch, and never for a hit.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol

from multidict import CIMultiDict, CIMultiDictProxy

from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode

Headers = CIMultiDict[str] | CIMultiDictProxy[str]


class RequestSpan(Protocol):
    """The span of a client's request.  The owner must call `end_span`.  Later calls do nothing."""

    @property
    def trace_id(self) -> str:
        """The trace id in 32 hexadecimal digits; empty without tracing."""

    @property
    def is_sampled(self) -> bool:
        """Whether the trace is exported.  Only an exported trace can be looked up."""

    def describe(self, mode: Mode, outcome: Outcome, route: str | None) -> None:
        """Record the mode, the outcome, and the route's name if there is one."""

    def set_status(self, status: int) -> None:
        """Record the HTTP status of the answer."""

    def aborted(self) -> None:
        """Record that the connection was dropped before the answer was complete."""

    def end_span(self) -> None:
        """End the span, because the answer has ended."""


class FlightSpan(Protocol):
    """The span of a shared fetch.  The owner must call `end_span`."""

    def enter(self) -> None:
        """Begin to count the running task's exchanges as children of this flight."""

    def joined(self) -> None:
        """Link the current request, which shares this flight, to the flight and to its leader."""

    def end_span(self, result: str, status: int | None, size: int) -> None:
        """End the span.  Records the result in one word, the status that the flight's readers get (None without a
        status), and the number of body bytes.
        """


class ExchangeSpan(Protocol):
    """The span of a request to an origin.  The owner must call `end_span`."""

    headers: CIMultiDict[str]
    """The headers to send.  These are the headers of the request, with this span in `traceparent`."""

    def set_status(self, status: int) -> None:
        """Record the status of the answer, whose head has arrived."""

    def failed(self, error: BaseException) -> None:
        """Record that there is no complete answer."""

    def end_span(self) -> None:
        """End the span, because the exchange is over."""


class Tracer(Protocol):
    """Starts spans.  All calls are synchronous and cheap, and never fail.  The owner must call `close`."""

    def request(self, method: str, path: str, headers: Headers) -> RequestSpan:
        """Start the span of a client's request.  `headers` may contain the client's trace (W3C Trace Context)."""

    def chooses(self, request: bytes) -> bool:
        """Return whether to trace the request with these header bytes.  If the result is true, the caller calls
        `request` next.
        """

    def hit(self, request: bytes, mode: Mode, outcome: Outcome) -> None:
        """Record a request whose answer is repeated from memory, if the request is sampled.  `request` is the bytes of
        the request.
        """

    def flight(self, kind: str) -> FlightSpan:
        """Start the span of a shared fetch that the current request starts.  `kind` is one of a few words."""

    def exchange(self, method: str, url: str, headers: CIMultiDict[str]) -> ExchangeSpan | None:
        """Start the span of a request to an origin.  Returns None without tracing."""

    async def close(self, within_s: float) -> None:
        """Export the recorded spans, for at most `within_s` seconds."""


class _NoRequest:
    __slots__ = ()
    trace_id = ""
    is_sampled = False

    def describe(self, mode: Mode, outcome: Outcome, route: str | None) -> None: ...

    def set_status(self, status: int) -> None: ...

    def aborted(self) -> None: ...

    def end_span(self) -> None: ...


class _NoFlight:
    __slots__ = ()

    def enter(self) -> None: ...

    def joined(self) -> None: ...

    def end_span(self, result: str, status: int | None, size: int) -> None: ...


NO_REQUEST: RequestSpan = _NoRequest()
NO_FLIGHT: FlightSpan = _NoFlight()


class _NoTracer:
    __slots__ = ()

    def request(self, method: str, path: str, headers: Headers) -> RequestSpan:
        return NO_REQUEST

    def chooses(self, request: bytes) -> bool:
        return False

    def hit(self, request: bytes, mode: Mode, outcome: Outcome) -> None: ...

    def flight(self, kind: str) -> FlightSpan:
        return NO_FLIGHT

    def exchange(self, method: str, url: str, headers: CIMultiDict[str]) -> ExchangeSpan | None:
        return None

    async def close(self, within_s: float) -> None: ...


NO_TRACER: Tracer = _NoTracer()

request_now: ContextVar[RequestSpan] = ContextVar("request_now", default=NO_REQUEST)
"""The span of the request that the running task serves."""
flight_now: ContextVar[FlightSpan] = ContextVar("flight_now", default=NO_FLIGHT)
"""The span of the flight that the running task performs."""


def current() -> RequestSpan:
    """Return the current request's span; `NO_REQUEST` without tracing."""
    return request_now.get()


def detach() -> None:
    """Detach the running task from its request and its flight."""
    request_now.set(NO_REQUEST)
    flight_now.set(NO_FLIGHT)

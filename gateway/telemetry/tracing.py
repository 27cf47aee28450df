"""The tracing interface of the request path.

A *request span* lasts from reading a client's request to the end of its answer.  A *flight span* lasts as long as a
shared fetch and is a child of the request that launched it.  An *exchange* is one request to an origin.  A request that
joins a flight is linked to the flight and to its leader, because a span has one parent and a flight may have a thousand
followers.

The current spans travel in the context of the running task (`contextvars`) instead of in arguments.  A task that a
request starts inherits them, so a flight belongs to the read that launches it without knowing that read.  A task that
outlives its starter calls `detach` first.  `gateway.ops.tracing` implements the interface; without it the request path
calls `NO_TRACER` once per fetch and not at all on a hit.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol

from multidict import CIMultiDict, CIMultiDictProxy

from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode

Headers = CIMultiDict[str] | CIMultiDictProxy[str]


class RequestSpan(Protocol):
    """One client's request.  The owner must call `end_span`; calls after it do nothing."""

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits; empty without tracing."""

    @property
    def is_sampled(self) -> bool:
        """Whether the trace is exported, so that it can be looked up."""

    def describe(self, mode: Mode, outcome: Outcome, route: str | None) -> None:
        """Record the mode, the outcome, and the route's name if there is one."""

    def set_status(self, status: int) -> None:
        """Record the HTTP status of the answer."""

    def aborted(self) -> None:
        """The connection was dropped before the answer was complete."""

    def end_span(self) -> None:
        """The answer has ended."""


class FlightSpan(Protocol):
    """One shared fetch.  The owner must call `end_span`."""

    def enter(self) -> None:
        """Attribute the running task's requests to this flight from now on."""

    def joined(self) -> None:
        """The current request shares this flight: link it to the flight and to its leader."""

    def end_span(self, result: str, status: int | None, size: int) -> None:
        """The flight ended: its result in one word, the status its readers were given, if any, and body bytes."""


class ExchangeSpan(Protocol):
    """One request to an origin.  The owner must call `end_span`."""

    headers: CIMultiDict[str]
    """The headers to send: the request's own with this span in `traceparent`."""

    def set_status(self, status: int) -> None:
        """The head of the answer has arrived."""

    def failed(self, error: BaseException) -> None:
        """There is no answer, or no complete one."""

    def end_span(self) -> None:
        """The exchange is over."""


class Tracer(Protocol):
    """Starts spans.  Every call is synchronous and cheap and never fails; the owner must call `close`."""

    def request(self, method: str, path: str, headers: Headers) -> RequestSpan:
        """A client's request was read; `headers` may name its trace (W3C Trace Context)."""

    def chooses(self, request: bytes) -> bool:
        """Whether the request with these header bytes is to be traced; if so, `request` is called for it."""

    def hit(self, request: bytes, mode: Mode, outcome: Outcome) -> None:
        """A whole request, given as its bytes, was answered from a remembered answer."""

    def flight(self, kind: str) -> FlightSpan:
        """A shared fetch is launched for the current request; `kind` is one of a few words."""

    def exchange(self, method: str, url: str, headers: CIMultiDict[str]) -> ExchangeSpan | None:
        """A request is about to be sent to an origin; None without tracing."""

    async def close(self, within_s: float) -> None:
        """Export what has been recorded, for at most `within_s` seconds."""


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
"""The request that the running task serves."""
flight_now: ContextVar[FlightSpan] = ContextVar("flight_now", default=NO_FLIGHT)
"""The flight that the running task performs."""


def current() -> RequestSpan:
    """The current request's span; `NO_REQUEST` without tracing."""
    return request_now.get()


def detach() -> None:
    """Detach the running task from its request and flight."""
    request_now.set(NO_REQUEST)
    flight_now.set(NO_FLIGHT)

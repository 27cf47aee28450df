"""What the request path tells a tracer, without knowing which, or whether there is one.

A *request span* lasts from reading a client's request to the end of its answer; a *flight span* as long as a shared
fetch, as a child of the request that launched it; an *exchange* is one request to an origin.  Whoever joins a flight is
linked to it and to its leader, because a span has one parent and a flight may have a thousand followers.

What belongs to whom is handed down by the context of the running task (`contextvars`), and not as an argument: a task
that a request starts inherits it, so the flight that a read launches is that read's without the read being known there.
A task that outlives its starter says `detach` first.  `gateway.ops.tracing` is the implementation; without one the
request path meets `NO_TRACER` once a fetch, and nothing at all on a hit.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol

from multidict import CIMultiDict, CIMultiDictProxy

from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode

Headers = CIMultiDict[str] | CIMultiDictProxy[str]


class RequestSpan(Protocol):
    """One client's request.  `end` is owed; calls after it do nothing."""

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits; empty where nothing is traced."""

    @property
    def is_parked(self) -> bool:
        """Whether the answer goes on after the handler has returned, so that whoever gives it ends the span."""

    @property
    def is_sampled(self) -> bool:
        """Whether the trace is kept, so that it can be looked at."""

    def tell(self, mode: Mode, outcome: Outcome, route: str | None) -> None:
        """What was asked for, how it was answered, and the route's name where one was found."""

    def answered(self, status: int) -> None:
        """The HTTP status of the answer."""

    def park(self) -> None:
        """The answer is a live one, and `end` comes from where it ends."""

    def aborted(self) -> None:
        """The connection was dropped before the answer was whole."""

    def end(self) -> None:
        """The answer is over."""


class FlightSpan(Protocol):
    """One shared fetch.  `end` is owed."""

    def enter(self) -> None:
        """What the running task sends from here on is sent for this flight."""

    def joined(self) -> None:
        """The running request shares this flight: link it to the flight and to its leader."""

    def end(self, result: str, status: int | None, size: int) -> None:
        """How it ended, in one word; the status that all who shared it are told, if any; body bytes that came."""


class ExchangeSpan(Protocol):
    """One request to an origin.  `end` is owed."""

    headers: CIMultiDict[str]
    """What to send: the request's own headers with this span in `traceparent`."""

    def answered(self, status: int) -> None:
        """The head of the answer is here."""

    def failed(self, error: BaseException) -> None:
        """There is no answer, or no whole one."""

    def end(self) -> None:
        """The exchange is over."""


class Tracer(Protocol):
    """Begins spans.  Every call is synchronous, cheap and never fails; `close` is owed."""

    def request(self, method: str, path: str, headers: Headers) -> RequestSpan:
        """A client's request has been read; `headers` may name the trace it belongs to (W3C Trace Context)."""

    def hit(self, request: bytes, mode: Mode, outcome: Outcome) -> None:
        """A whole request, in its own bytes, was answered at once from ready bytes."""

    def flight(self, kind: str) -> FlightSpan:
        """A shared fetch is launched for the running request; `kind` is one of few words."""

    def exchange(self, method: str, url: str, headers: CIMultiDict[str]) -> ExchangeSpan | None:
        """A request is about to be sent to an origin; None where nothing is traced."""

    async def close(self, within_s: float) -> None:
        """Hand on what has been recorded, as far as that can be done in so many seconds."""


class _NoRequest:
    __slots__ = ()
    trace_id = ""
    is_sampled = False
    is_parked = False

    def tell(self, mode: Mode, outcome: Outcome, route: str | None) -> None: ...

    def answered(self, status: int) -> None: ...

    def park(self) -> None: ...

    def aborted(self) -> None: ...

    def end(self) -> None: ...


class _NoFlight:
    __slots__ = ()

    def enter(self) -> None: ...

    def joined(self) -> None: ...

    def end(self, result: str, status: int | None, size: int) -> None: ...


NO_REQUEST: RequestSpan = _NoRequest()
NO_FLIGHT: FlightSpan = _NoFlight()


class _NoTracer:
    __slots__ = ()

    def request(self, method: str, path: str, headers: Headers) -> RequestSpan:
        return NO_REQUEST

    def hit(self, request: bytes, mode: Mode, outcome: Outcome) -> None: ...

    def flight(self, kind: str) -> FlightSpan:
        return NO_FLIGHT

    def exchange(self, method: str, url: str, headers: CIMultiDict[str]) -> ExchangeSpan | None:
        return None

    async def close(self, within_s: float) -> None: ...


NO_TRACER: Tracer = _NoTracer()

request_now: ContextVar[RequestSpan] = ContextVar("request_now", default=NO_REQUEST)
"""The request that the running task works for."""
flight_now: ContextVar[FlightSpan] = ContextVar("flight_now", default=NO_FLIGHT)
"""The flight that the running task flies."""


def current() -> RequestSpan:
    """The running request's span; one that takes no note of anything where nothing is traced."""
    return request_now.get()


def detach() -> None:
    """What the running task does from here on it does for nobody in particular."""
    request_now.set(NO_REQUEST)
    flight_now.set(NO_FLIGHT)

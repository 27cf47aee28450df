"""The gateway's exceptions.

Each class determines the HTTP status, the party at fault, and whether a retry can help.  `gateway.upstream` translates
the exceptions of other libraries into these classes.  Only `gateway.engine.response_heads.failure_answer` makes
responses of them.  Their texts are fixed, and never contain text from an origin or a client.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable
from enum import StrEnum
from typing import Any, ClassVar, Protocol, Self, TypeVar

_Error = TypeVar("_Error", bound=BaseException)


class Fault(StrEnum):
    """The party that caused a failure."""

    CLIENT = "client"
    UPSTREAM = "upstream"
    GATEWAY = "gateway"


class GatewayError(Exception):
    """A failure with an HTTP status, the party at fault, and a one-line text for the client."""

    status: ClassVar[int] = 500
    fault: ClassVar[Fault] = Fault.GATEWAY
    text: ClassVar[str] = "Gateway error"
    limit: ClassVar[str | None] = None
    """The configuration key of the limit that refused the request, under which the metrics count the refusal.  None if
    there is no such limit, or if the limit counts its refusals itself."""
    challenge: str | None = None
    """The answer's WWW-Authenticate field (RFC 9110 section 11.6.1); None if there is none."""

    def __init__(self, text: str | None = None, *, is_unsent: bool = False) -> None:
        super().__init__(text or self.text)
        self.is_unsent = is_unsent
        """Whether no byte of the request was sent, so that the origin cannot have received it."""

    def anew(self) -> Self:
        """Return a copy of this failure, to be raised while the original is kept for other callers.

        A raised error refers to the frames that it passes.  These may refer to the owner of the failure, which would be
        a reference cycle.
        """
        other = type(self).__new__(type(self))
        other.args = self.args
        other.__dict__.update(self.__dict__)
        return other

    @property
    def retry_after_s(self) -> int | None:
        """Seconds that a client should wait before a retry; None if a retry cannot help or needs no pause."""
        return 1 if self.status in (502, 503, 504) else None


class BadRequest(GatewayError):
    """The request cannot be understood (RFC 9110 §15.5.1)."""

    status = 400
    fault = Fault.CLIENT
    text = "Bad request"


class NoRoute(GatewayError):
    """No route of the configuration matches host and path."""

    status = 404
    fault = Fault.CLIENT
    text = "No route"


class BodyTooLarge(GatewayError):
    """The request body exceeds the configured bound (RFC 9110 §15.5.14)."""

    status = 413
    fault = Fault.CLIENT
    text = "Request body too large"
    limit = "max_request_bytes"


class VersionNotSupported(GatewayError):
    """The request's major version of HTTP is not supported (RFC 9110 §15.6.6)."""

    status = 505
    fault = Fault.CLIENT
    text = "HTTP version not supported"


class UnknownTransferCoding(GatewayError):
    """The request body has a transfer coding other than chunked, which a relay would lose (RFC 9112 §6.1)."""

    status = 501
    fault = Fault.CLIENT
    text = "Transfer coding not implemented"


class MethodRefused(GatewayError):
    """The method is TRACE, whose answer would echo the fields of the request (RFC 9110 §9.3.8)."""

    status = 501
    fault = Fault.CLIENT
    text = "Method not implemented"


class RequestTimeout(GatewayError):
    """The client stopped sending its body (RFC 9110 §15.5.9)."""

    status = 408
    fault = Fault.CLIENT
    text = "Request timeout"


class TooManyRequests(GatewayError):
    """The client exceeds a limit per client or a rate limit (RFC 6585 §4).  `retry_after_s` is in whole seconds."""

    status = 429
    fault = Fault.CLIENT
    text = "Too many requests"

    def __init__(self, retry_after_s: int, text: str | None = None, *, fields: tuple[str, str] | None = None) -> None:
        super().__init__(text)
        self._retry_after_s = retry_after_s
        self.fields = fields
        """The answer's RateLimit-Policy and RateLimit fields; None if no rate limit applies."""

    @property
    def retry_after_s(self) -> int:
        return self._retry_after_s


class LoopDetected(GatewayError):
    """The request has passed through this gateway before (RFC 8586 §2)."""

    status = 508
    fault = Fault.GATEWAY
    text = "Loop detected"


class TooManyFollowed(GatewayError):
    """The number of live requests to origins has reached the configured bound."""

    status = 503
    text = "Too many live streams"
    limit = "followed_streams"


class TooManyAbsent(GatewayError):
    """Reads of streams that do not exist exceed the configured rate at which the origin may be asked."""

    status = 503
    text = "Too many reads of unknown streams"
    limit = "absent_per_s"


class UpstreamCongested(GatewayError):
    """No connection to the origin was free in time, or too many requests wait for a connection.  Nothing was sent to
    the origin, which may be healthy."""

    status = 503
    text = "Too many requests wait for the origin"

    def __init__(self) -> None:
        super().__init__(is_unsent=True)


class ShortOfMemory(GatewayError):
    """The process is close to its memory limit, so it begins no fetch and no live request."""

    status = 503
    text = "Short of memory"


class Stopping(GatewayError):
    """The gateway will stop so soon that an SSE answer would be shorter than clients expect."""

    status = 503
    text = "Gateway stopping"


class UpstreamUnreachable(GatewayError):
    """The connection to the origin failed, or was lost before the answer."""

    status = 502
    fault = Fault.UPSTREAM
    text = "Origin unreachable"


class UpstreamBroken(GatewayError):
    """The origin's answer is invalid: malformed HTTP, a truncated body, or contradictory offsets."""

    status = 502
    fault = Fault.UPSTREAM
    text = "Invalid answer from origin"


class UpstreamTimeout(GatewayError):
    """The origin did not answer within its timeout."""

    status = 504
    fault = Fault.UPSTREAM
    text = "Origin timed out"


class UpstreamUnavailable(GatewayError):
    """The origin is known to fail, so the gateway does not wait for its answer."""

    status = 503
    fault = Fault.UPSTREAM
    text = "Origin unavailable"


class Recovery(Protocol):
    """An announcement that an origin is back: `gateway.aio.signal.Signal`."""

    def wait_within(self, clock: Any, delay_s: float) -> Awaitable[bool]:
        """Wait for the announcement, for at most `delay_s` seconds of `clock`; return whether it came."""


class CircuitOpen(UpstreamUnavailable):
    """The origin's circuit breaker is open, or too many requests wait for the origin.  Nothing was sent to the origin,
    and the client is answered at once."""

    def __init__(self, retry_in_s: float = 0.0, recovered: Recovery | None = None) -> None:
        super().__init__(is_unsent=True)
        self._retry_in_s = retry_in_s
        self.recovered = recovered
        """Fires when the origin may be asked again; None if there is no such signal."""

    @property
    def retry_after_s(self) -> int:
        """Whole seconds until the next probe, at least 1 (RFC 9110 §10.2.3)."""
        return max(1, math.ceil(self._retry_in_s))


class TailMovedBack(UpstreamBroken):
    """The origin's tail is before an offset that the origin has stated earlier: the stream was re-created."""

    text = "Stream was re-created"


def bare(error: _Error) -> _Error:
    """Return the error without its traceback and the tracebacks of its causes.  An object to which their frames refer
    can then keep the error without a reference cycle."""
    one: BaseException | None = error
    while one is not None:
        one.__traceback__ = one.__context__ = None
        one = one.__cause__
    return error

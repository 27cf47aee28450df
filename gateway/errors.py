"""Everything that can go wrong, as a small tree.

Each class fixes its HTTP status, whose fault it is, and whether a client may retry.  `upstream/` translates foreign
exceptions into these, once; `server/` turns them into responses, once.  Texts are fixed: nothing an origin or a
client sent is ever echoed.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import ClassVar, Self, TypeVar

_Error = TypeVar("_Error", bound=BaseException)


class Fault(StrEnum):
    """Whose fault a failure is."""

    CLIENT = "client"
    UPSTREAM = "upstream"
    GATEWAY = "gateway"


class GatewayError(Exception):
    """A failure with a status, an owner and a one-line text fit for a client."""

    status: ClassVar[int] = 500
    fault: ClassVar[Fault] = Fault.GATEWAY
    text: ClassVar[str] = "Gateway error"

    def __init__(self, text: str | None = None, *, is_unsent: bool = False) -> None:
        super().__init__(text or self.text)
        self.is_unsent = is_unsent
        """Whether the origin has certainly not had the request: no byte of it was sent."""

    def anew(self) -> Self:
        """The same failure, to be raised where this one is kept for others.

        What is raised keeps the frames that it passes, and they keep whatever keeps the failure: a cycle.
        """
        other = type(self).__new__(type(self))
        other.args = self.args
        other.__dict__.update(self.__dict__)
        return other

    @property
    def retry_after_s(self) -> int | None:
        """Seconds a client should wait, or None where a retry cannot help or needs no pause."""
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


class VersionNotSupported(GatewayError):
    """A major version of HTTP that is not spoken here (RFC 9110 §15.6.6)."""

    status = 505
    fault = Fault.CLIENT
    text = "HTTP version not supported"


class UnknownTransferCoding(GatewayError):
    """The request body is in a transfer coding beside chunked, which would be lost on the way (RFC 9112 §6.1)."""

    status = 501
    fault = Fault.CLIENT
    text = "Transfer coding not implemented"


class RequestTimeout(GatewayError):
    """The client stopped sending its body (RFC 9110 §15.5.9)."""

    status = 408
    fault = Fault.CLIENT
    text = "Request timeout"


class LoopDetected(GatewayError):
    """The request has passed through this gateway before (RFC 8586 §2)."""

    status = 508
    fault = Fault.GATEWAY
    text = "Loop detected"


class TooManyFollowed(GatewayError):
    """As many streams are followed live as the configuration allows."""

    status = 503
    text = "Too many live streams"


class TooManyAbsent(GatewayError):
    """Reads of streams that do not exist come faster than the origin may be asked for them."""

    status = 503
    text = "Too many reads of unknown streams"


class UpstreamUnreachable(GatewayError):
    """No connection to the origin, or it was lost before an answer."""

    status = 502
    fault = Fault.UPSTREAM
    text = "Origin unreachable"


class UpstreamBroken(GatewayError):
    """The origin's answer is not valid: broken HTTP, a body that ends early, offsets that contradict."""

    status = 502
    fault = Fault.UPSTREAM
    text = "Invalid answer from origin"


class UpstreamTimeout(GatewayError):
    """The origin did not answer within its bound."""

    status = 504
    fault = Fault.UPSTREAM
    text = "Origin timed out"


class UpstreamUnavailable(GatewayError):
    """The origin is known to be failing and its answer was not waited for."""

    status = 503
    fault = Fault.UPSTREAM
    text = "Origin unavailable"


class CircuitOpen(UpstreamUnavailable):
    """The origin's circuit breaker is open, or no connection to it may be added: nothing was sent, and an answer is to
    be had at once."""

    def __init__(self, retry_in_s: float = 0.0) -> None:
        super().__init__(is_unsent=True)
        self._retry_in_s = retry_in_s

    @property
    def retry_after_s(self) -> int:
        """Until the next probe is due; a whole number of seconds (RFC 9110 §10.2.3)."""
        return max(1, math.ceil(self._retry_in_s))


class TailMovedBack(UpstreamBroken):
    """The origin's tail lies before one it gave out: the stream is not the one that was known."""

    text = "Stream was re-created"


def bare(error: _Error) -> _Error:
    """The same error without the tracebacks of itself and of its causes, to be kept by what their frames lead to."""
    one: BaseException | None = error
    while one is not None:
        one.__traceback__ = one.__context__ = None
        one = one.__cause__
    return error

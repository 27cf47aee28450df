"""The failures of an exchange with an origin, and a short reason for each, for an operator.

Reasons come from a fixed set.  They include no address and no text from an origin.
"""

from __future__ import annotations

import errno
import socket
import ssl
from enum import StrEnum
from typing import Final, NamedTuple

from gateway.http.outgoing import InvalidRequest
from gateway.http.reply_parser import ReplyBroken, TooManyInterim


class Refusal(StrEnum):
    """Why a request gets no connection slot."""

    QUEUE = "queue"
    """Too many requests of all clients wait."""
    CLIENT = "client"
    """Too many requests of the same client wait."""
    TIME = "time"
    """The request has waited for too long."""


class Delay(StrEnum):
    """Why a request waits for a connection slot."""

    CONNECTIONS = "connections"
    """All `upstream_connections`, or all connections of a share, are in use."""
    CLIENT = "client"
    """The client has `client_upstream_requests` in progress, or uses half of `upstream_connections`."""


class NotConnected(OSError):
    """No connection could be made.  `__cause__` is the error of the operating system or of TLS."""


class NotAMember(NotConnected):
    """The server has not proved to be the expected member of the fleet.  The text is the reason.

    `differs` is as in `gateway.protocol.member_session.NotProved`."""

    def __init__(self, reason: str, *, differs: bool) -> None:
        super().__init__(reason)
        self.differs = differs


class ConnectTimedOut(NotConnected):
    """No connection was made in time."""


class ConnectionLost(OSError):
    """The connection ended before the reply was complete.  `__cause__` is the operating system's error, if any."""

    is_reported = False
    """Whether another request on the same connection has reported the loss."""


class NoHttp2(NotConnected):
    """The origin does not speak HTTP/2, or accepts no requests over it."""


class RequestReset(ConnectionLost):
    """The origin has reset the request's stream."""


class Unprocessed(RequestReset):
    """The origin has stated that it did not process the request (RFC 9113 section 8.7)."""


class UploadFailed(Exception):
    """The request's body ended early or did not have the announced length."""


class NoSlot(Exception):
    """No connection slot was free in time, or too many requests wait for a slot."""

    def __init__(self, reason: Refusal) -> None:
        super().__init__(reason.value)
        self.reason = reason


_BY_ERRNO: Final = {
    errno.ECONNREFUSED: "connection refused",
    errno.ECONNRESET: "connection reset",
    errno.EHOSTUNREACH: "no route to host",
    errno.ENETUNREACH: "network unreachable",
    errno.ETIMEDOUT: "connect timed out",
}
_LOCAL_SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""Errors of local resource shortages."""


def is_local_fault(error: BaseException) -> bool:
    """Return whether the origin did not cause the failure: the request was invalid, or local resources or slots ran
    out.
    """
    if isinstance(error, NotConnected):
        return isinstance(error.__cause__, OSError) and error.__cause__.errno in _LOCAL_SHORTAGES
    return isinstance(error, InvalidRequest | NoSlot)


def is_loss(error: BaseException) -> bool:
    """Return whether the connection was lost.  False if only a request on the connection was reset."""
    return isinstance(error, ConnectionLost) and not isinstance(error, RequestReset)


def is_no_sign(error: BaseException, *, is_patient: bool, is_reused: bool) -> bool:
    """Return whether a failure before the head of the reply does not count against the origin's health.

    `is_patient`: the origin may be silent for long, as on a live read, so a timeout does not count as a failure.
    `is_reused`: the connection had carried other requests, and was lost before any byte of the reply.  Such a loss does
    not count, because an origin may close idle connections at any time.  The next request will use a new connection.

    Two further failures do not count: the gateway's refusal of too many interim replies, and a loss that another
    request has reported.
    """
    if isinstance(error, ConnectionLost | ReplyBroken) and error.is_reported:
        return True
    if isinstance(error, TooManyInterim) or (is_reused and (is_loss(error) or isinstance(error, Unprocessed))):
        return True
    is_silence = isinstance(error, TimeoutError) and not isinstance(error, NotConnected)
    return (is_silence and is_patient) or is_local_fault(error)


def reason_of(error: BaseException) -> str:
    """Return the reason for an exception that ended a request before the head of its reply."""
    match error:
        case ConnectTimedOut():
            return "connect timed out"
        case NoSlot():
            return "no connection free"
        case NoHttp2():
            return "does not speak HTTP/2"
        case NotConnected(__cause__=socket.gaierror()):
            return "name does not resolve"
        case NotConnected(__cause__=ssl.SSLCertVerificationError()):
            return "certificate refused"
        case NotConnected(__cause__=ssl.SSLError()) | ConnectionLost(__cause__=ssl.SSLError()):
            # With TLS 1.3, an origin reports a missing client certificate only after the handshake.
            return "TLS failed"
        case NotConnected(__cause__=OSError(errno=number)):
            return _BY_ERRNO.get(number or 0, "cannot connect")
        case NotConnected():
            return "cannot connect"
        case RequestReset():
            return "request reset"
        case ConnectionLost(__cause__=OSError(errno=number)):
            return _BY_ERRNO.get(number or 0, "connection lost")
        case ConnectionLost():
            return "connection lost"
        case TimeoutError():
            return "timed out"
    return "invalid answer"


def reason_of_status(status: int) -> str:
    """Return the reason for a status by which an origin reports a failure."""
    return f"answered {status}"


class RequestFailure(NamedTuple):
    """The facts about a failed request that the circuit breaker (`gateway.upstream.breaker`) uses."""

    had_succeeded: bool = False
    """Whether the request has been counted as a success."""
    is_loss: bool = False
    """Whether the connection was lost."""
    is_answer: bool = False
    """Whether the origin reported the failure by a status."""
    in_progress: int | None = 0
    """The number of other requests that wait for an answer; None if a request was answered while the failed request was
    in progress."""


PLAIN_FAILURE: Final = RequestFailure()

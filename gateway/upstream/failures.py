"""Failures of an exchange with an origin, and their reasons in a few words for an operator.

The words of reasons come from a closed set: they repeat no address and nothing that an origin sent.
"""

from __future__ import annotations

import errno
import socket
import ssl
from enum import StrEnum
from typing import Final

from gateway.http.outgoing import InvalidRequest
from gateway.http.reply import ReplyBroken, TooManyInterim


class Refusal(StrEnum):
    """Why a request gets no connection slot."""

    QUEUE = "queue"
    """Too many requests wait, over all clients."""
    CLIENT = "client"
    """Too many requests of its client wait."""
    TIME = "time"
    """The request has waited for too long."""


class Delay(StrEnum):
    """Why a request waits for a connection slot."""

    CONNECTIONS = "connections"
    """`upstream_connections`, or a share of them, are taken."""
    CLIENT = "client"
    """The client has `client_upstream_requests` under way, or half of `upstream_connections`."""


class NotConnected(OSError):
    """No connection could be made; the cause is the error of the operating system or of TLS."""


class ConnectTimedOut(NotConnected):
    """No connection was made within its bound."""


class ConnectionLost(OSError):
    """The connection ended before the reply did; the cause, if any, is the operating system's error."""

    is_reported = False
    """Whether another request reports the loss of the same connection."""


class NoHttp2(NotConnected):
    """The origin does not speak HTTP/2, or takes no request over it."""


class RequestReset(ConnectionLost):
    """The origin has reset the request's stream."""


class Unprocessed(RequestReset):
    """The origin says that it has not processed the request (RFC 9113 section 8.7)."""


class UploadFailed(Exception):
    """The request's body ended early or did not have the announced length."""


class NoSlot(Exception):
    """No connection slot was free in time, or too many requests wait for one."""

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
"""Local resource shortages, which say nothing about an origin."""


def is_local_fault(error: BaseException) -> bool:
    """Whether a failure says nothing about the origin: an invalid request, or a shortage of local resources or of
    connection slots."""
    if isinstance(error, NotConnected):
        return isinstance(error.__cause__, OSError) and error.__cause__.errno in _LOCAL_SHORTAGES
    return isinstance(error, InvalidRequest | NoSlot)


def is_loss(error: BaseException) -> bool:
    """Whether the connection was lost, rather than the request reset on a connection that goes on."""
    return isinstance(error, ConnectionLost) and not isinstance(error, RequestReset)


def is_no_sign(error: BaseException, *, is_patient: bool, is_reused: bool) -> bool:
    """Whether a request that failed like this, before the head of its answer, says nothing about the origin's health.

    Interim replies that come too fast are refused by the gateway's own choice.  `is_patient`: the origin may rightly be
    silent for long, as to a live read, so its silence is no failure.  `is_reused`: the connection had served other
    requests and was lost before a byte of the reply.  An origin closes idle connections whenever it likes, and the next
    request on a new connection shows whether it is there.  An HTTP/2 origin that is about to close a connection names
    the requests that it has not processed.
    """
    if isinstance(error, ConnectionLost | ReplyBroken) and error.is_reported:
        return True
    if isinstance(error, TooManyInterim) or (is_reused and (is_loss(error) or isinstance(error, Unprocessed))):
        return True
    is_silence = isinstance(error, TimeoutError) and not isinstance(error, NotConnected)
    return (is_silence and is_patient) or is_local_fault(error)


def reason_of(error: BaseException) -> str:
    """The words for an exception that ended a request before the head of its answer."""
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
            # This also covers errors after the handshake, because in TLS 1.3 an origin reports a missing client
            # certificate only then.
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
    """The words for a status that reports a failing origin."""
    return f"answered {status}"

"""Why a request to an origin failed, in a few words for an operator.

The words come from a closed set: they repeat no address and nothing that an origin sent.
"""

from __future__ import annotations

import errno
import socket
import ssl
from typing import Final

from gateway.http.outgoing import InvalidRequest
from gateway.http.reply import ReplyBroken, TooManyInterim
from gateway.upstream.failures import (
    ConnectionLost,
    ConnectTimedOut,
    NoHttp2,
    NoSlot,
    NotConnected,
    RequestReset,
    Unprocessed,
)

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

    Interim replies that come too fast are refused by the gateway's own choice.
    `is_patient`: the origin may rightly be silent for long, as to a live read, so its silence is no failure.
    `is_reused`: the connection had served other requests and was lost before a byte of the reply.  An origin closes
    idle connections whenever it likes, and the next request on a new connection shows whether it is there.  An origin
    of HTTP/2 that is about to close a connection says so of the requests that it has not processed.
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
            # Also after the handshake: in TLS 1.3 an origin reports a missing client certificate only then.
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

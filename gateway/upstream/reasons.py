"""Why a request to an origin came to nothing, in a few words for an operator.

The words are from a closed set: nothing that an origin sent and no address is repeated.
"""

from __future__ import annotations

import errno
import socket
import ssl
from typing import Final

from gateway.http.outgoing import InvalidRequest
from gateway.upstream.failures import ConnectionLost, ConnectTimedOut, NotConnected

_BY_NUMBER: Final = {
    errno.ECONNREFUSED: "connection refused",
    errno.ECONNRESET: "connection reset",
    errno.EHOSTUNREACH: "no route to host",
    errno.ENETUNREACH: "network unreachable",
    errno.ETIMEDOUT: "connect timed out",
}
_OWN: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""What this machine lacks, and no origin is to be judged by."""


def is_own_fault(error: BaseException) -> bool:
    """Whether a failure says nothing of the origin: the request may not be written, or this machine lacks something."""
    if isinstance(error, NotConnected):
        return isinstance(error.__cause__, OSError) and error.__cause__.errno in _OWN
    return isinstance(error, InvalidRequest)


def reason_of(error: BaseException) -> str:
    """What to call an exception that ended a request before its answer's head."""
    match error:
        case ConnectTimedOut():
            return "connect timed out"
        case NotConnected(__cause__=socket.gaierror()):
            return "name does not resolve"
        case NotConnected(__cause__=ssl.SSLCertVerificationError()):
            return "certificate refused"
        case NotConnected(__cause__=ssl.SSLError()) | ConnectionLost(__cause__=ssl.SSLError()):
            # After the handshake, too: by TLS 1.3 an origin that misses a certificate says so only then.
            return "TLS failed"
        case NotConnected(__cause__=OSError(errno=number)):
            return _BY_NUMBER.get(number or 0, "cannot connect")
        case NotConnected():
            return "cannot connect"
        case ConnectionLost(__cause__=OSError(errno=number)):
            return _BY_NUMBER.get(number or 0, "connection lost")
        case ConnectionLost():
            return "connection lost"
        case TimeoutError():
            return "timed out"
    return "invalid answer"


def reason_of_status(status: int) -> str:
    """The same for an answer that says that the origin fails."""
    return f"answered {status}"

"""Why a request to an origin came to nothing, in a few words for an operator.

The words are from a closed set: nothing that an origin sent and no address is repeated.
"""

from __future__ import annotations

import errno
import socket
import ssl
from typing import Final

import aiohttp

_BY_NUMBER: Final = {
    errno.ECONNREFUSED: "connection refused",
    errno.ECONNRESET: "connection reset",
    errno.EHOSTUNREACH: "no route to host",
    errno.ENETUNREACH: "network unreachable",
    errno.ETIMEDOUT: "connect timed out",
}
_OWN: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""What this machine lacks, and no origin is to be judged by."""


def is_unsent(error: BaseException) -> bool:
    """Whether a failure came before any byte of the request was sent."""
    return isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError | ssl.CertificateError)


def is_own_fault(error: BaseException) -> bool:
    """Whether a failure says nothing of the origin: the request may not be written, or this machine lacks something."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.os_error.errno in _OWN
    # aiohttp's own errors in reading an answer are others: these are headers that may not be sent.
    return isinstance(error, ValueError) and not isinstance(error, aiohttp.ClientConnectionError | ssl.SSLError)


def reason_of(error: BaseException) -> str:
    """What to call a foreign exception that ended a request before its answer's head."""
    match error:
        case aiohttp.ClientConnectorDNSError():
            return "name does not resolve"
        case aiohttp.ClientConnectorCertificateError() | ssl.CertificateError():
            return "certificate refused"
        case aiohttp.ClientSSLError():
            return "TLS failed"
        case aiohttp.ConnectionTimeoutError():
            return "connect timed out"
        case TimeoutError():
            return "timed out"
        case aiohttp.ClientConnectorError(os_error=inner):
            if isinstance(inner, socket.gaierror):
                return "name does not resolve"
            return _BY_NUMBER.get(inner.errno or 0, "cannot connect")
        case aiohttp.ServerDisconnectedError():
            return "connection lost"
        case OSError(errno=number):
            return _BY_NUMBER.get(number or 0, "connection lost")
    return "invalid answer"


def reason_of_status(status: int) -> str:
    """The same for an answer that says that the origin fails."""
    return f"answered {status}"

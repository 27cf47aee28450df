"""Failures of an exchange with an origin, before `exchange` translates and `reasons` names them.

Some requests are sent to the origin once more, without a report of a failure.  A kept connection may be dead: the
origin closed it while the request was on its way.  A GET or HEAD without a body is then sent once more, on a new
connection, if no byte of the reply has arrived (RFC 9112 section 9.3.1).  There is at most one repetition for each
reply that arrived completely before, so an origin in trouble gets no extra load.  Over HTTP/2 the origin may say that
it has not processed a request (RFC 9113 section 8.7); under the same bound, it is sent once more whatever its method,
unless its body was streamed.

Nothing else is repeated at this level.  A fetch that fails is retried by `gateway.engine.fetch`, within a budget.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Refusal(StrEnum):
    """Why a request gets no connection slot."""

    QUEUE = "queue"
    """Too many requests wait, over all clients."""
    CLIENT = "client"
    """Too many requests of its client wait."""
    TIME = "time"
    """It has waited for too long."""


class Delay(StrEnum):
    """Why a request waits for a connection slot."""

    CONNECTIONS = "connections"
    """`upstream_connections`, or a share of them, are taken."""
    CLIENT = "client"
    """Its client has `client_upstream_requests` under way, or half of `upstream_connections`."""


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


_REPEATED_METHODS: Final = frozenset({"GET", "HEAD"})


def is_repeatable(error: BaseException, method: str, *, has_body: bool, is_streamed: bool) -> bool:
    """Whether a request that failed like this, before any byte of its reply, may be sent once more.

    `has_body` says whether it has a body at all, `is_streamed` whether that was sent while it arrived.
    """
    if isinstance(error, Unprocessed):
        return not is_streamed
    return isinstance(error, ConnectionLost) and not has_body and method in _REPEATED_METHODS

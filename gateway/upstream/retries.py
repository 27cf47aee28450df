"""The rule by which an exchange sends a request to the origin once more, without a report of a failure.

A kept connection may be dead: the origin closed it while the request was on its way.  A GET or HEAD without a body is
then sent once more, on a new connection, if no byte of the reply has arrived (RFC 9112 section 9.3.1).  There is at
most one repetition for each reply that arrived completely before, so an origin in trouble gets no extra load.

Over HTTP/2 the origin may say that it has not processed a request (RFC 9113 section 8.7).  Under the same bound, the
request is sent once more whatever its method, unless its body was streamed.

Nothing else is repeated at this level.  A fetch that fails is retried by `gateway.engine.fetch`, within a budget.
"""

from __future__ import annotations

from typing import Final

from gateway.upstream.failures import ConnectionLost, Unprocessed

_REPEATED_METHODS: Final = frozenset({"GET", "HEAD"})


def is_repeatable(error: BaseException, method: str, *, has_body: bool, is_streamed: bool) -> bool:
    """Whether a request that failed like this, before any byte of its reply, may be sent once more.

    `has_body` says whether the request has a body, and `is_streamed` whether the body was sent while it arrived.
    """
    if isinstance(error, Unprocessed):
        return not is_streamed
    return isinstance(error, ConnectionLost) and not has_body and method in _REPEATED_METHODS

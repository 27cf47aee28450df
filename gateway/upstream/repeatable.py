"""The rule for repeating a request after the loss of a kept connection.

An origin may close a kept connection while a request is on its way.  A GET or HEAD without a body is then sent once
more on a new connection, if no byte of the reply has arrived (RFC 9112 section 9.3.1).  Each complete reply allows one
repetition, so repetitions add no load to an origin that fails.  The loss is not reported as a failure.

An HTTP/2 origin may state that it has not processed a request (RFC 9113 section 8.7).  The request is then repeated
with any method, unless its body was streamed, within the same bound.

Other failures are not repeated here.  `gateway.engine.fetch` retries failed fetches, within a budget.
"""

from __future__ import annotations

from typing import Final

from gateway.upstream.failures import ConnectionLost, Unprocessed

_REPEATED_METHODS: Final = frozenset({"GET", "HEAD"})


def is_repeatable(error: BaseException, method: str, *, has_body: bool, is_streamed: bool) -> bool:
    """Return whether a request may be repeated after `error`, which occurred before any byte of the reply.

    `is_streamed`: the request's body was sent while it was being received from the client.
    """
    if isinstance(error, Unprocessed):
        return not is_streamed
    return isinstance(error, ConnectionLost) and not has_body and method in _REPEATED_METHODS

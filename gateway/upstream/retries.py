"""The rules by which a request to an origin is sent again: repetitions and retries.

Repetition follows the loss of a kept connection.  An origin may close a kept connection while a request is on its way.
A GET or HEAD without a body is then sent once more on a new connection, if no byte of the reply has arrived (RFC 9112
section 9.3.1).  Each complete reply allows one repetition, so repetitions add no load to an origin that fails.  The
loss is not reported as a failure.  An HTTP/2 origin may state that it has not processed a request (RFC 9113 section
8.7).  The request is then repeated with any method, unless its body was streamed, within the same bound.

Other failures of shared fetches are retried by `gateway.engine.fetch`, within the retry budget of the origin.
"""

from __future__ import annotations

from typing import Final

from gateway.upstream.failures import ConnectionLost, Unprocessed

_REPEATED_METHODS: Final = frozenset({"GET", "HEAD"})
_MOST_TOKENS: Final = 10.0


def is_repeatable(error: BaseException, method: str, *, has_body: bool, is_streamed: bool) -> bool:
    """Return whether a request may be repeated after `error`, which occurred before any byte of the reply.

    `is_streamed`: the request's body was sent while it was being received from the client.
    """
    if isinstance(error, Unprocessed):
        return not is_streamed
    return isinstance(error, ConnectionLost) and not has_body and method in _REPEATED_METHODS


class RetryBudget:
    """A token bucket of retries for one origin.  It starts full."""

    __slots__ = ("tokens",)

    def __init__(self) -> None:
        self.tokens = _MOST_TOKENS

    def __repr__(self) -> str:
        return f"<RetryBudget {self.tokens:g} retries>"


class RouteRetries:
    """A route's use of an origin's retry budget.  Each request adds `ratio` tokens.  A `ratio` of 0 disables
    retries."""

    __slots__ = ("_budget", "_ratio")

    def __init__(self, budget: RetryBudget, ratio: float) -> None:
        self._budget = budget
        self._ratio = ratio

    def request(self) -> None:
        """Count a request that is not a retry."""
        self._budget.tokens = min(_MOST_TOKENS, self._budget.tokens + self._ratio)

    @property
    def has_retry(self) -> bool:
        """Whether a failed request may be retried."""
        return self._ratio > 0 and self._budget.tokens >= 1

    def retry(self) -> None:
        """Count a retry."""
        self._budget.tokens -= 1

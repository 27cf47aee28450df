"""The retry budget of an origin: how many failed requests may be sent again.

`gateway.engine.fetch` retries failed fetches within this budget.  Requests on a kept connection that was lost are
repeated by another rule (`gateway.upstream.repeatable`).
"""

from __future__ import annotations

from typing import Final

_MOST_TOKENS: Final = 10.0


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

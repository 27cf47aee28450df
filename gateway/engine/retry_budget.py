"""A retry budget per origin, so that retries do not overload a failing one.

All routes to an origin share its budget.  Each request adds a fraction of a retry, which its route configures, and each
retry takes one out.  The savings are bounded, so a long quiet time does not allow a storm of retries.
"""

from __future__ import annotations

from typing import Final

_MOST_TOKENS: Final = 10.0


class RetryBudget:
    """The token bucket of one origin.  Starts full."""

    __slots__ = ("tokens",)

    def __init__(self) -> None:
        self.tokens = _MOST_TOKENS

    def __repr__(self) -> str:
        return f"<RetryBudget {self.tokens:g} retries>"


class RouteRetries:
    """The budget as one route uses it: each request adds `ratio`; 0 disables retries."""

    __slots__ = ("_budget", "_ratio")

    def __init__(self, budget: RetryBudget, ratio: float) -> None:
        self._budget = budget
        self._ratio = ratio

    def request(self) -> None:
        """Count a request that is no retry."""
        self._budget.tokens = min(_MOST_TOKENS, self._budget.tokens + self._ratio)

    @property
    def has_retry(self) -> bool:
        """Whether a failed request may be retried."""
        return self._ratio > 0 and self._budget.tokens >= 1

    def retry(self) -> None:
        """Count a retry."""
        self._budget.tokens -= 1

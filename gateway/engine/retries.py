"""Retries within a budget, so that a sick origin is not hit harder.

An origin has one budget, whatever routes lead to it.  Each request pays a share of a retry in, which its route sets,
and a retry takes one out; what is saved up is bounded, so that a long calm does not allow a storm.
"""

from __future__ import annotations

from typing import Final

_MOST_TOKENS: Final = 10.0


class RetryBudget:
    """The token bucket of one origin.  Begins full."""

    __slots__ = ("tokens",)

    def __init__(self) -> None:
        self.tokens = _MOST_TOKENS

    def __repr__(self) -> str:
        return f"<RetryBudget {self.tokens:g} retries>"


class RouteRetries:
    """The budget as one route uses it: `ratio` is what its requests pay in, and 0 is no retries."""

    __slots__ = ("_budget", "_ratio")

    def __init__(self, budget: RetryBudget, ratio: float) -> None:
        self._budget = budget
        self._ratio = ratio

    def request(self) -> None:
        """A request is sent that is no retry."""
        self._budget.tokens = min(_MOST_TOKENS, self._budget.tokens + self._ratio)

    @property
    def has_retry(self) -> bool:
        """Whether a failed request may be sent again."""
        return self._ratio > 0 and self._budget.tokens >= 1

    def retry(self) -> None:
        """A failed request is sent again."""
        self._budget.tokens -= 1

"""When a request to an origin is sent again: repetitions, retries, and pauses between fetches without progress.

A request is repeated after the loss of a kept connection.  An origin may close a kept connection while a request is on
its way.  If no byte of the reply has arrived, a GET or HEAD without a body is sent once more on a new connection (RFC
9112 section 9.3.1).  Each complete reply allows one repetition, so repetitions add no load to an origin that fails.
The loss does not count as a failure.  An HTTP/2 origin may state that it has not processed a request (RFC 9113 section
8.7).  Such a request is repeated whatever its method, unless its body was streamed.  The same bound applies.

Other failures of shared fetches are retried by `gateway.engine.fetch`, within the retry budget of the origin.

A *walk* is a series of fetches that reads a stream up to its tail.  A faulty origin may send empty replies that never
reach the tail.  Without a pause, the gateway would send requests to such an origin in a tight loop while any reader
waits.  Empty replies therefore delay the next fetch.  The first few empty replies cause no pause.  Each further empty
reply doubles the pause.  Replies with few bytes are legal, because messages may be small, so only the rate of such
replies is bounded.  A reply that reaches the tail, or has at least `LITTLE_BYTES`, causes no pause, and all earlier
replies are forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from gateway.limits.memory import evict_oldest
from gateway.upstream.failures import ConnectionLost, Unprocessed

_REPEATED_METHODS: Final = frozenset({"GET", "HEAD"})
_MOST_TOKENS: Final = 10.0


def is_repeatable(error: BaseException, method: str, *, has_body: bool, is_streamed: bool) -> bool:
    """Return whether a request may be repeated after `error`.  The error occurred before any byte of the reply.

    `is_streamed`: the gateway sent the request's body while it was receiving the body from the client.
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


# -- walks

LITTLE_BYTES: Final = 256
"""A reply is small if it stops short of the tail and has fewer bytes than this."""
LITTLE_PER_S: Final = 200.0
"""The most small replies a second for the fetches of one stream, after `LITTLE_BURST` small replies."""
LITTLE_BURST: Final = 256
"""The number of consecutive small replies that cause no pause."""
_FREE: Final = 8
"""The number of consecutive empty replies that cause no pause."""
_FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0
_FORGET_S: Final = 10.0
"""The seconds without a fetch after which the earlier replies of a stream are forgotten."""
_MOST_STREAMS: Final = 4_096
"""The most streams whose replies are remembered.  The least recently fetched streams are forgotten."""


@dataclass(slots=True)
class _Walk:
    empty: int = 0
    """The number of consecutive empty replies."""
    little: float = 0.0
    """The level of a leaky bucket.  Each small or empty reply adds 1, and `LITTLE_PER_S` leak each second."""
    at: float = 0.0
    """The time at which the latest fetch ended (monotonic seconds)."""
    pause_s: float = 0.0
    """The seconds after `at` until the next fetch may be sent."""


class WalkPace:
    """The progress of the latest fetches of each stream.  Times are monotonic seconds."""

    def __init__(self) -> None:
        self._walks: OrderedDict[Hashable, _Walk] = OrderedDict()

    def __repr__(self) -> str:
        return f"<WalkPace of {len(self._walks)} streams>"

    def pause_s(self, stream: Hashable, now: float) -> float:
        """Return the seconds that the next fetch of the stream must wait."""
        walk = self._walks.get(stream)
        return max(0.0, walk.at + walk.pause_s - now) if walk is not None else 0.0

    def ended(self, stream: Hashable, size: int, now: float, *, is_up_to_date: bool) -> None:
        """Record that a fetch of the stream has brought `size` bytes."""
        if is_up_to_date or size >= LITTLE_BYTES:
            self._walks.pop(stream, None)
            return
        walk = self._walks.pop(stream, None)
        if walk is None or now - walk.at > _FORGET_S:
            walk = _Walk()
        walk.empty = walk.empty + 1 if not size else 0
        walk.little = max(0.0, walk.little - (now - walk.at) * LITTLE_PER_S) + 1
        walk.little = min(walk.little, LITTLE_BURST + LITTLE_PER_S * LONGEST_PAUSE_S)
        walk.at = now
        walk.pause_s = max(0.0, (walk.little - LITTLE_BURST) / LITTLE_PER_S)
        if walk.empty > _FREE:
            walk.pause_s = min(LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(walk.empty - _FREE - 1, 10))
        self._walks[stream] = walk
        evict_oldest(self._walks, _MOST_STREAMS)

"""A circuit breaker: whether one origin is asked at all.

It is a state machine and nothing else: it sends nothing, reads no clock and draws no randomness of its own.  `now` and
`rng` come in as arguments; what happens comes in as `admit`, `succeeded`, `failed` and `abandoned`.

    closed     every request passes.  Consecutive failures, or a share of failures within a window, trip it.
    open       no request passes for a while that grows from trip to trip, jittered so that several gateways do not
               come back at once.
    half-open  a bounded number of probes pass.  A success closes it, a failure opens it again for longer.

Each request that passes takes a `Pass` and gives it back with its result.  A pass carries the term of the state in
which it was taken: what was sent before the breaker opened can neither close it nor open it again, because it tells of
the time before.  The growing open time is forgotten only after the breaker has stayed closed for as long as it may
ever stay open, so that an origin that answers its probes and fails under load is not asked more often for that.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_BUCKETS: Final = 10
"""The window moves on by a tenth of its length."""
_LEAST_JITTER: Final = 0.5
"""An open time is drawn between this share of it and the whole."""
_MOST_DOUBLINGS: Final = 30


class State(StrEnum):
    """Where a breaker stands."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Event(StrEnum):
    """What can move it."""

    TRIPPED = "tripped"
    """Too many requests failed."""
    DUE = "due"
    """The open time is over, and a request asks."""
    RECOVERED = "recovered"
    """A probe succeeded."""
    RELAPSED = "relapsed"
    """A probe failed."""


TRANSITIONS: Final[Mapping[tuple[State, Event], State]] = {
    (State.CLOSED, Event.TRIPPED): State.OPEN,
    (State.OPEN, Event.DUE): State.HALF_OPEN,
    (State.HALF_OPEN, Event.RECOVERED): State.CLOSED,
    (State.HALF_OPEN, Event.RELAPSED): State.OPEN,
}
"""All moves there are; what is not here leaves the state as it is."""


@dataclass(frozen=True, slots=True)
class Policy:
    """When a breaker opens and how it comes back."""

    failures: int = 5
    """So many failures in a row open it; 0 is a breaker that never opens."""
    ratio: float = 0.5
    """So large a share of failures within the window opens it."""
    window_s: float = 10.0
    least_requests: int = 20
    """Within the window, before the share counts."""
    open_s: float = 1.0
    """The first open time; it doubles with each further one."""
    longest_open_s: float = 15.0
    probes: int = 1
    """Requests that pass at once while it is half-open."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One request that may be sent."""

    term: int
    is_probe: bool


class _Window:
    """Results of the last `length_s` seconds, in buckets."""

    __slots__ = ("_buckets", "_width_s")

    def __init__(self, length_s: float) -> None:
        self._width_s = length_s / _BUCKETS
        self._buckets: deque[tuple[int, list[int]]] = deque()
        """Number of the bucket, and its successes and failures."""

    def add(self, now: float, *, is_failure: bool) -> None:
        number = int(now // self._width_s)
        if not self._buckets or self._buckets[-1][0] != number:
            self._buckets.append((number, [0, 0]))
            while self._buckets[0][0] <= number - _BUCKETS:
                self._buckets.popleft()
        self._buckets[-1][1][is_failure] += 1

    def take_back(self) -> None:
        """A success proved to be none."""
        for _, counts in reversed(self._buckets):
            if counts[False]:
                counts[False] -= 1
                return

    def counts(self, now: float) -> tuple[int, int]:
        """Requests and failures."""
        oldest = int(now // self._width_s) - _BUCKETS
        kept = [counts for number, counts in self._buckets if number > oldest]
        failures = sum(counts[True] for counts in kept)
        return failures + sum(counts[False] for counts in kept), failures

    def clear(self) -> None:
        self._buckets.clear()


class Breaker:
    """The breaker of one origin.  Owner of its state; a plain object of one thread."""

    __slots__ = (
        "_closed_at",
        "_consecutive",
        "_policy",
        "_probes",
        "_rng",
        "_term",
        "_trips",
        "_until",
        "_window",
        "since",
        "state",
        "transitions",
    )

    def __init__(self, policy: Policy, rng: random.Random, now: float) -> None:
        self._policy = policy
        self._rng = rng
        self.state = State.CLOSED
        self.since = now
        """When it came to this state; a stay that is interrupted by a failed probe counts from before that."""
        self.transitions: Counter[State] = Counter()
        """How often it came to each state."""
        self._term = 0
        self._trips = 0
        self._until = now
        self._closed_at = now
        self._probes = 0
        self._consecutive = 0
        self._window = _Window(policy.window_s)

    def __repr__(self) -> str:
        return f"<Breaker {self.state}, {self._consecutive} failures in a row, {self._probes} probes out>"

    def take(self, policy: Policy) -> None:
        """Go by another policy from here on; the state stays."""
        if policy != self._policy:
            self._policy = policy
            self._window = _Window(policy.window_s)

    def admit(self, now: float) -> Pass | None:
        """A pass for one request, None where it must not be sent.  Each pass is owed a result."""
        if self.state is State.OPEN and now >= self._until:
            self._move(Event.DUE, now)
        if self.state is State.CLOSED:
            return Pass(self._term, is_probe=False)
        if self.state is State.HALF_OPEN and self._probes < self._policy.probes:
            self._probes += 1
            return Pass(self._term, is_probe=True)
        return None

    def would_admit(self, now: float) -> bool:
        """Whether `admit` would give a pass, without taking one."""
        if self.state is State.HALF_OPEN:
            return self._probes < self._policy.probes
        return self.state is State.CLOSED or now >= self._until

    def retry_in_s(self, now: float) -> float | None:
        """Seconds until the next probe may be sent; None while closed, 0 when it may be or is under way."""
        return None if self.state is State.CLOSED else max(0.0, self._until - now)

    def succeeded(self, taken: Pass, now: float) -> None:
        """The origin answered."""
        if taken.term != self._term:
            return
        if taken.is_probe:
            self._move(Event.RECOVERED, now)
        else:
            self._consecutive = 0
            self._window.add(now, is_failure=False)

    def failed(self, taken: Pass, now: float, *, had_succeeded: bool = False) -> None:
        """The origin could not be reached, was silent too long, or said that it fails; `had_succeeded` where the
        request was held to be a success before."""
        if taken.term != self._term:
            return
        if taken.is_probe:
            self._move(Event.RELAPSED, now)
            return
        self._consecutive += 1
        self._window.add(now, is_failure=True)
        if had_succeeded:
            self._window.take_back()
        requests, failures = self._window.counts(now)
        is_bad_share = requests >= self._policy.least_requests and failures >= self._policy.ratio * requests
        if self._policy.failures and (self._consecutive >= self._policy.failures or is_bad_share):
            self._move(Event.TRIPPED, now)

    def abandoned(self, taken: Pass) -> None:
        """The request came to no result by no fault of the origin: its client left."""
        if taken.is_probe and taken.term == self._term:
            self._probes -= 1

    def _move(self, event: Event, now: float) -> None:
        state = TRANSITIONS.get((self.state, event))
        if state is None:
            return
        if not (event is Event.DUE or event is Event.RELAPSED):
            self.since = now
        self.state = state
        self.transitions[state] += 1
        self._term += 1
        self._probes = 0
        self._consecutive = 0
        if state is State.OPEN:
            self._open(event, now)
        elif state is State.CLOSED:
            self._closed_at = now
            self._window.clear()

    def _open(self, event: Event, now: float) -> None:
        policy = self._policy
        if event is Event.TRIPPED and now - self._closed_at >= policy.longest_open_s:
            self._trips = 0
        longest = min(policy.longest_open_s, policy.open_s * 2 ** min(self._trips, _MOST_DOUBLINGS))
        self._until = now + longest * self._rng.uniform(_LEAST_JITTER, 1.0)
        self._trips += 1

"""A circuit breaker: decides whether one origin may be used.

It is a pure state machine: it sends nothing, reads no clock and has no randomness of its own.  `now` and `rng` are
arguments; the events are `admit`, `succeeded`, `failed` and `abandoned`.  Each origin has one
(`gateway.upstream.origins`).

    closed     all requests pass.  Consecutive failures, or a share of failures within a window, open the breaker.
    open       no request passes for a time that grows from trip to trip.  It is jittered, so that several gateways do
               not return at the same moment.
    half-open  a bounded number of probes pass.  A success closes the breaker, a failure opens it again for longer.

Each admitted request holds a `Permit` and returns it with its result.  A permit carries the term of the state in which
it was given: a request sent before the breaker opened can neither close nor reopen it, because its result describes an
earlier time.  The open time is reset only after the breaker has stayed closed for the longest open time.  An origin
that answers its probes but fails under load therefore gets no extra traffic.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

_BUCKETS: Final = 10
"""The window advances by a tenth of its length."""
_LEAST_JITTER: Final = 0.5
"""The open time is drawn between this share of its full length and the whole."""
_MOST_DOUBLINGS: Final = 30


class State(StrEnum):
    """The state of a breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Event(StrEnum):
    """An event that may change the state."""

    TRIPPED = "tripped"
    """Too many requests failed."""
    DUE = "due"
    """The open time is over, and a request arrives."""
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
"""All transitions; any other event leaves the state unchanged."""


@dataclass(frozen=True, slots=True)
class Policy:
    """When a breaker opens, and how it recovers."""

    failures: int = 5
    """This many consecutive failures open it; 0 means that it never opens."""
    ratio: float = 0.5
    """This share of failures within the window opens it."""
    window_s: float = 10.0
    least_requests: int = 20
    """Requests within the window before the share counts."""
    open_s: float = 1.0
    """The first open time; each further one doubles."""
    longest_open_s: float = 15.0
    probes: int = 1
    """Concurrent requests that pass while it is half-open."""


class Permit(NamedTuple):
    """Permission to send one request."""

    term: int
    is_probe: bool


class _Window:
    """Results of the last `length_s` seconds, in buckets."""

    __slots__ = ("_buckets", "_width_s")

    def __init__(self, length_s: float) -> None:
        self._width_s = length_s / _BUCKETS
        self._buckets: deque[tuple[int, list[int]]] = deque()
        """The number of each bucket, and its successes and failures."""

    def add(self, now: float, *, is_failure: bool) -> None:
        buckets, number = self._buckets, int(now // self._width_s)
        if not buckets or buckets[-1][0] != number:
            buckets.append((number, [0, 0]))
            while buckets[0][0] <= number - _BUCKETS:
                buckets.popleft()
        buckets[-1][1][is_failure] += 1

    def take_back(self) -> None:
        """Remove one success that turned out to be a failure."""
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
        """When it was created, last tripped or last recovered; failed probes do not change it."""
        self.transitions: Counter[State] = Counter()
        """How often each state was entered."""
        self._term = 0
        self._trips = 0
        self._until = now
        self._closed_at = now
        self._probes = 0
        self._consecutive = 0
        self._window = _Window(policy.window_s)

    def __repr__(self) -> str:
        return f"<Breaker {self.state}, {self._consecutive} failures in a row, {self._probes} probes out>"

    def configure(self, policy: Policy) -> None:
        """Use another policy from now on; the state does not change."""
        if policy != self._policy:
            self._policy = policy
            self._window = _Window(policy.window_s)

    def admit(self, now: float) -> Permit | None:
        """A permit for one request, or None if it must not be sent.  Every permit must be returned with a result."""
        if self.state is State.OPEN and now >= self._until:
            self._move(Event.DUE, now)
        if self.state is State.CLOSED:
            return Permit(self._term, is_probe=False)
        if self.state is State.HALF_OPEN and self._probes < self._policy.probes:
            self._probes += 1
            return Permit(self._term, is_probe=True)
        return None

    def would_admit(self, now: float) -> bool:
        """Whether `admit` would give a permit; takes none."""
        if self.state is State.HALF_OPEN:
            return self._probes < self._policy.probes
        return self.state is State.CLOSED or now >= self._until

    def retry_in_s(self, now: float) -> float | None:
        """Seconds until the next probe may be sent; None while closed, 0 if it is due or under way."""
        return None if self.state is State.CLOSED else max(0.0, self._until - now)

    def succeeded(self, permit: Permit, now: float) -> None:
        """The origin answered."""
        if permit.term != self._term:
            return
        if permit.is_probe:
            self._move(Event.RECOVERED, now)
        else:
            self._consecutive = 0
            self._window.add(now, is_failure=False)

    def failed(self, permit: Permit, now: float, *, had_succeeded: bool = False) -> None:
        """The origin could not be reached, did not answer in time, or reported a failure.  `had_succeeded`: the request
        was counted as a success before."""
        if permit.term != self._term:
            return
        if permit.is_probe:
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

    def abandoned(self, permit: Permit) -> None:
        """The request has no result through no fault of the origin, such as a client that left."""
        if permit.is_probe and permit.term == self._term:
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

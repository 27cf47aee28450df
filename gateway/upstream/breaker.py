"""The circuit breaker and the retry budget of an origin: whether it may be used, and whether it may be asked again.

The breaker is a pure state machine: it sends nothing, reads no clock and has no randomness of its own.  `now` and `rng`
are arguments; the events are `admit`, `succeeded`, `record_failure` and `abandoned`.  Each origin has a breaker
(`gateway.upstream.origin_state`).

    closed     all requests pass.  Consecutive failures, or a share of failures within a window, open the breaker.
    open       no request passes for a time that grows from trip to trip.  It is jittered, so that several gateways do
               not return at the same moment.
    half-open  a bounded number of probes pass.  A success closes the breaker, a failure opens it again for longer.

A lost connection counts as half a failure.  A network that resets one connection in five produces five losses in a row
every few thousand connections, and ten practically never.

The gateway's own probes (`gateway.upstream.health`) and clients' requests both serve as probes.  While own probes are
sent (`watched`), most requests of clients are refused, because their clients would wait for a silent origin until they
time out.  Own probes do not take the places of clients' requests, so a client's request without an answer does not
delay the recovery.  A failed own probe does not lengthen the open time.

Own probes request one path, and a proxy in front of the origin may answer them.  Only a client's request can show
whether the origin serves streams:

    own probe answered, or its connection was lost    The next requests of clients pass, up to the number of probes.
    no result                                         One client's request passes every `CLIENTS_TURN_S`.

A success of a client's request closes the breaker.  So do two good own probes in a row without a client's request in
between.  If a client's request came or failed after a good own probe, own probes close the breaker only when no client
has come for `QUIET_S`.  Live requests count as clients' requests, including those of followers.  But the origin may
hold them without an answer, so a live request that is not answered does not keep own probes from closing the breaker.

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
from math import inf
from typing import Final, NamedTuple

_BUCKETS: Final = 10
"""The window advances by a tenth of its length."""
_LEAST_JITTER: Final = 0.5
"""The open time is drawn between this share of its full length and the whole."""
_MOST_DOUBLINGS: Final = 30
_LOSS: Final = 0.5
"""The share of a failure that a lost connection counts for."""
CLIENTS_TURN_S: Final = 2.0
"""Seconds for which a client's request that probes a watched origin keeps its place."""
QUIET_S: Final = 10.0
"""Seconds without a client's request after which own probes count again, if a client's request has contradicted
them."""


class BreakerState(StrEnum):
    """The state of a breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


# Enum members are slow to reach in Python 3.11, and every request passes here.
_CLOSED: Final = BreakerState.CLOSED


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


TRANSITIONS: Final[Mapping[tuple[BreakerState, Event], BreakerState]] = {
    (BreakerState.CLOSED, Event.TRIPPED): BreakerState.OPEN,
    (BreakerState.OPEN, Event.DUE): BreakerState.HALF_OPEN,
    (BreakerState.HALF_OPEN, Event.RECOVERED): BreakerState.CLOSED,
    (BreakerState.HALF_OPEN, Event.RELAPSED): BreakerState.OPEN,
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
    longest_open_s: float = 2.0
    probes: int = 1
    """Concurrent requests of clients that pass while it is half-open."""


class Permit(NamedTuple):
    """Permission to send one request."""

    term: int
    is_probe: bool
    is_own: bool = False
    """Whether the probe is one of the gateway's own."""


class _Window:
    """Results of the last `length_s` seconds, in buckets."""

    __slots__ = ("_buckets", "_width_s", "last", "until")

    def __init__(self, length_s: float) -> None:
        self._width_s = length_s / _BUCKETS
        self._buckets: deque[tuple[int, list[float]]] = deque()
        """The number of each bucket, and its successes and failures."""
        self.last: list[float] = [0, 0]
        """The counts of the last bucket, until its end."""
        self.until = -inf

    def count(self, now: float, successes: float, failures: float) -> None:
        if now >= self.until:
            self.begin_bucket(now)
        counts = self.last
        counts[False] += successes
        counts[True] += failures

    def begin_bucket(self, now: float) -> None:
        number, buckets = int(now // self._width_s), self._buckets
        self.last = [0, 0]
        self.until = (number + 1) * self._width_s
        buckets.append((number, self.last))
        while buckets[0][0] <= number - _BUCKETS:
            buckets.popleft()

    def take_back(self) -> None:
        """Remove one success that turned out to be a failure."""
        for _, counts in reversed(self._buckets):
            if counts[False] >= 1:
                counts[False] -= 1
                return

    def counts(self, now: float) -> tuple[float, float]:
        """Requests and failures."""
        oldest = int(now // self._width_s) - _BUCKETS
        kept = [counts for number, counts in self._buckets if number > oldest]
        failures = sum(counts[True] for counts in kept)
        return failures + sum(counts[False] for counts in kept), failures

    def clear(self) -> None:
        self._buckets.clear()
        self.until = -inf


class Breaker:
    """The breaker of one origin.  Owner of its state; a plain object of one thread."""

    __slots__ = (
        "_alone_from",
        "_clients_from",
        "_closed_at",
        "_consecutive",
        "_is_proved",
        "_is_vouched",
        "_policy",
        "_probes",
        "_rng",
        "_term",
        "_trips",
        "_until",
        "_window",
        "permit",
        "since",
        "state",
        "transitions",
    )

    def __init__(self, policy: Policy, rng: random.Random, now: float) -> None:
        self._policy = policy
        self._rng = rng
        self.state = BreakerState.CLOSED
        self.since = now
        """When the breaker was created, last tripped or last recovered; failed probes do not change this time."""
        self.transitions: Counter[BreakerState] = Counter()
        """How often each state was entered."""
        self._term = 0
        self.permit = Permit(0, is_probe=False)
        """The permit of all requests while the breaker is closed."""
        self._trips = 0
        self._until = now
        self._closed_at = now
        self._probes = 0
        self._clients_from = -inf
        """When the next request of a client may probe."""
        self._is_vouched = False
        """Whether the latest own probe was good."""
        self._alone_from = -inf
        """When own probes alone may close the breaker."""
        self._is_proved = True
        """Whether a client's request has succeeded since own probes alone closed the breaker."""
        self._consecutive = 0.0
        self._window = _Window(policy.window_s)

    def __repr__(self) -> str:
        return f"<Breaker {self.state}, {self._consecutive:g} failures in a row, {self._probes} probes out>"

    def set_policy(self, policy: Policy) -> None:
        """Use another policy from now on; the state does not change."""
        if policy != self._policy:
            self._policy = policy
            self._window = _Window(policy.window_s)

    @property
    def first_pause_s(self) -> float:
        """The first open time, in seconds."""
        return self._policy.open_s

    def watched(self, now: float) -> None:
        """Record that own probes are sent from now on until the breaker closes."""
        self._clients_from = now + CLIENTS_TURN_S

    @property
    def _is_watched(self) -> bool:
        return self._clients_from > -inf

    def admit(self, now: float, *, is_own: bool = False, is_live: bool = False) -> Permit | None:
        """A permit for one request, or None if it must not be sent.  Every permit must be returned with a result.
        `is_own` means a probe of the gateway's own, `is_live` a request that the origin may hold."""
        if self.state is _CLOSED:
            return self.permit
        if not is_own and not self.would_admit(now):
            return None
        if self.state is BreakerState.OPEN and now >= self._until:
            self._move(Event.DUE, now)
        if self.state is not BreakerState.HALF_OPEN:
            return None
        if not is_own:
            self._admit_client(now, is_live=is_live)
        return Permit(self._term, is_probe=True, is_own=is_own)

    def would_admit(self, now: float) -> bool:
        """Whether `admit` would give a permit to a client's request; takes none."""
        if self.state is BreakerState.CLOSED:
            return True
        if now < self._clients_from:
            return False
        if self.state is BreakerState.OPEN:
            return now >= self._until
        return self._is_watched or self._probes < self._policy.probes

    def _admit_client(self, now: float, *, is_live: bool) -> None:
        if self._is_watched:
            if self._probes >= self._policy.probes:
                # The turn of the clients that hold the places is over.
                self._probes = 0
            if not self._is_vouched or self._probes + 1 >= self._policy.probes:
                self._clients_from = now + CLIENTS_TURN_S
            if self._is_vouched and not is_live:
                self._alone_from = now + QUIET_S
        self._probes += 1

    def _let_clients_in(self, now: float) -> None:
        """Let clients' requests probe now, unless the most allowed probes are in progress."""
        if self._probes < self._policy.probes:
            self._clients_from = min(self._clients_from, now)

    def retry_in_s(self, now: float) -> float | None:
        """Seconds until the next probe may be sent; None while closed, 0 if a probe is due or in progress."""
        return None if self.state is BreakerState.CLOSED else max(0.0, self._until - now)

    def succeeded(self, permit: Permit, now: float) -> None:
        """The origin answered."""
        if permit.term != self._term:
            return
        if permit.is_own:
            self._vouch(now)
        elif permit.is_probe:
            self._move(Event.RECOVERED, now)
        else:
            self.count_success(now)

    def count_success(self, now: float) -> None:
        """The origin answered a request that was admitted since the breaker closed."""
        self._is_proved = True
        self._consecutive = 0
        window = self._window
        if now >= window.until:
            window.begin_bucket(now)
        window.last[False] += 1

    def record_failure(
        self,
        permit: Permit,
        now: float,
        *,
        had_succeeded: bool = False,
        is_loss: bool = False,
        is_answer: bool = False,
    ) -> None:
        """The origin could not be reached, did not answer in time, or reported a failure.

        `had_succeeded`: the request was counted as a success before.  `is_loss`: its connection was lost.  `is_answer`:
        the origin reported the failure itself.
        """
        if permit.term != self._term:
            return
        if permit.is_own:
            self._is_vouched = False
            if is_answer or is_loss:
                # The origin is there.  Only the request for a stream can show whether it serves streams.
                self._let_clients_in(now)
                return
            if self._probes:
                # A client's request is in progress, and its result has to count: it may take longer than a probe.
                return
        if permit.is_probe:
            self._move(Event.RELAPSED, now, is_own=permit.is_own)
            if self._is_vouched:
                self._alone_from = self._until + QUIET_S
            return
        weight = _LOSS if is_loss else 1.0
        self._consecutive += weight
        self._window.count(now, 1 - weight, weight)
        if had_succeeded:
            self._window.take_back()
        requests, failures = self._window.counts(now)
        is_bad_share = requests >= self._policy.least_requests and failures >= self._policy.ratio * requests
        if self._policy.failures and (self._consecutive >= self._policy.failures or is_bad_share):
            self._move(Event.TRIPPED, now)

    def abandoned(self, permit: Permit) -> None:
        """The request has no result through no fault of the origin, such as a client that left."""
        if permit.is_probe and not permit.is_own and permit.term == self._term:
            self._probes = max(0, self._probes - 1)

    def _vouch(self, now: float) -> None:
        """Record that an own probe has succeeded."""
        if self._is_vouched and now >= self._alone_from:
            self._move(Event.RECOVERED, now)
            self._is_proved = False
            return
        if not self._is_vouched:
            # Earlier requests of clients were sent to an origin in trouble: their results no longer count.
            self._is_vouched = True
            self._term += 1
            self._probes = 0
        self._let_clients_in(now)

    def _move(self, event: Event, now: float, *, is_own: bool = False) -> None:
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
        if state is BreakerState.OPEN:
            self._open(event, now, is_own=is_own)
            if event is Event.TRIPPED:
                # If no client's request has succeeded since own probes closed the breaker, they are contradicted.
                self._is_vouched = not self._is_proved
                self._alone_from = -inf if self._is_proved else self._until + QUIET_S
        elif state is BreakerState.CLOSED:
            self.permit = Permit(self._term, is_probe=False)
            self._closed_at = now
            self._is_proved = True
            self._clients_from = -inf
            self._window.clear()

    def _open(self, event: Event, now: float, *, is_own: bool) -> None:
        policy = self._policy
        if is_own:
            self._until = now + policy.open_s * self._rng.uniform(_LEAST_JITTER, 1.0)
            return
        if event is Event.TRIPPED and now - self._closed_at >= policy.longest_open_s:
            self._trips = 0
        longest = min(policy.longest_open_s, policy.open_s * 2 ** min(self._trips, _MOST_DOUBLINGS))
        self._until = now + longest * self._rng.uniform(_LEAST_JITTER, 1.0)
        self._trips += 1


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

"""The circuit breaker of an origin.

The breaker is a pure state machine: it sends nothing and reads no clock.  Each origin has a breaker of its own
(`gateway.upstream.origin_state`), which all workers share (`gateway.upstream.shared_breaker`).  Its states are:

    closed     All requests pass.  Consecutive failures, or a share of failures within a window, open the breaker.
    open       No request passes for a time, which grows from trip to trip.  The time is jittered, so that several
               gateways do not return at the same moment.
    half-open  A bounded number of requests pass as probes.  A success closes the breaker.  A failure opens it again,
               for a longer time.

A lost connection counts as half a failure.  On a network that resets one connection in five, a series of five losses is
frequent, but a series of ten is very rare.  The results of concurrent requests may arrive in any order, so a burst of
requests may well begin or end with ten losses.  A lost request therefore counts in the series only if no other request
was answered between its start and its loss.  To decide whether losses open the breaker, all requests that still wait
for an answer count as successes.

Both clients' requests and the gateway's own probes (`gateway.upstream.health`) probe the origin.  While own probes are
sent (`watched`), most clients' requests are refused, because with a silent origin these requests would wait until they
time out.  Own probes are sent even while clients' requests are in progress, so a client's request without an answer
does not delay the recovery.  A failed own probe does not lengthen the open time.  A client's request whose connection
is lost does not lengthen it either, because the reason may be a flaky network.

Own probes request one path, and a proxy in front of the origin may answer them.  Only a client's request shows whether
the origin serves streams.  The result of the latest own probe decides how many clients' requests pass:

    answered           The next clients' requests pass, up to the configured number of probes.
    connection lost    The next clients' requests pass, as after an answer.  After one of them has lost its connection
                       too, only one client's request passes every `CLIENTS_TURN_S`.
    no result          One client's request passes every `CLIENTS_TURN_S`.

A successful client's request closes the breaker.  Two successful own probes in a row also close the breaker, if no
client's request was admitted in between.  After a client's request has been admitted, own probes close the breaker only
after `QUIET_S` without another one.  The gateway's live requests count as clients' requests.  An
origin may hold a live request without an answer, so such a request does not keep own probes from closing the breaker.

An admitted request holds a `Permit`, and returns the permit with the request's result.  Each change of state begins a
new term, and a permit has the number of its term.  The result of a request from an earlier term is ignored, because the
origin may have changed since.  The open time starts again from its first length only after a long time without a trip:
at least as long as the longest open time.  For an origin that answers probes but fails under load, the open time
therefore keeps growing.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Final, NamedTuple

from gateway.upstream.failures import PLAIN_FAILURE, RequestFailure

_BUCKETS: Final = 10
"""The number of buckets in the window."""
LEAST_JITTER: Final = 0.5
"""The open time is a random value between this share of its full length and the full length."""
_MOST_DOUBLINGS: Final = 30
_LOSS: Final = 0.5
"""The weight of a lost connection, compared with another failure."""
CLIENTS_TURN_S: Final = 2.0
"""A client's request without a result counts as a probe in progress for this number of seconds."""
QUIET_S: Final = 10.0
"""If a client's request has failed after a successful own probe, own probes can close the breaker again after this
number of seconds without a client's request.
"""


class BreakerState(StrEnum):
    """The state of a breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


# Module names are faster to look up than enum members, and every request needs these members.
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
"""All transitions.  Any other event leaves the state unchanged."""


@dataclass(frozen=True, slots=True)
class Policy:
    """When a breaker opens, and how it recovers."""

    failures: int = 5
    """The consecutive failures that open the breaker.  0 means that the breaker never opens."""
    ratio: float = 0.5
    """The share of failures within the window that opens the breaker."""
    window_s: float = 10.0
    least_requests: int = 20
    """`ratio` applies only if the window has at least this number of requests."""
    open_s: float = 1.0
    """The first open time.  Each further open time is twice as long as its predecessor, up to `longest_open_s`."""
    longest_open_s: float = 2.0
    probes: int = 1
    """The number of concurrent clients' requests that pass while the breaker is half-open."""


class Permit(NamedTuple):
    """Permission to send one request."""

    term: int
    is_probe: bool
    is_own: bool = False
    """Whether the probe is one of the gateway's own."""


class Window:
    """The successes and failures of the last `length_s` seconds, in buckets."""

    __slots__ = ("_buckets", "_width_s", "last", "until")

    def __init__(self, length_s: float) -> None:
        self._width_s = length_s / _BUCKETS
        self._buckets: deque[tuple[int, list[float]]] = deque()
        """The number of each bucket, with its counts of successes and failures."""
        self.last: list[float] = [0, 0]
        """The counts of the latest bucket."""
        self.until = -inf
        """When the latest bucket ends."""

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
        """Subtract one success, because the request has failed after the head of its reply."""
        for _, counts in reversed(self._buckets):
            if counts[False] >= 1:
                counts[False] -= 1
                return

    def counts(self, now: float) -> tuple[float, float]:
        """Return the numbers of requests and failures in the window."""
        oldest = int(now // self._width_s) - _BUCKETS
        kept = [counts for number, counts in self._buckets if number > oldest]
        failures = sum(counts[True] for counts in kept)
        return failures + sum(counts[False] for counts in kept), failures

    def clear(self) -> None:
        self._buckets.clear()
        self.until = -inf


class Breaker:
    """The breaker of one origin."""

    __slots__ = (
        "_alone_from",
        "_answers",
        "_clients_from",
        "_closed_at",
        "_failures",
        "_is_proved",
        "_is_vouched",
        "_losses",
        "_policy",
        "_probes",
        "_rng",
        "_term",
        "_trips",
        "_turn_ends",
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
        """When the breaker was created, last tripped or last recovered.  Failed probes do not change this time."""
        self.transitions: Counter[BreakerState] = Counter()
        """The number of times each state was entered."""
        self._term = 0
        self.permit = Permit(0, is_probe=False)
        """The permit of all requests while the breaker is closed."""
        self._trips = 0
        self._until = now
        """When the open time ends."""
        self._closed_at = now
        self._probes = 0
        """The number of clients' requests that probe now."""
        self._clients_from = -inf
        """When the next client's request may probe.  -inf if no own probes are sent."""
        self._turn_ends = -inf
        """Until this time, clients' requests pass singly, one every `CLIENTS_TURN_S`.  A lost connection of an own
        probe, after which more would pass, does not change that.  Set when a client's probe has lost its connection
        too."""
        self._is_vouched = False
        """Whether the latest own probe has succeeded."""
        self._alone_from = -inf
        """When own probes may close the breaker without a client's request."""
        self._is_proved = True
        """False after own probes have closed the breaker, until a client's request succeeds."""
        self._failures = 0
        """The number of consecutive failures other than losses."""
        self._losses = 0
        """The number of consecutive losses."""
        self._answers = 0
        self._window = self._new_window()

    def __repr__(self) -> str:
        return f"<Breaker {self.state}, {self._failures + self._losses} failures in a row, {self._probes} probes out>"

    def set_policy(self, policy: Policy) -> None:
        """Replace the policy.  The state does not change."""
        if policy != self._policy:
            self._policy = policy
            self._window = self._new_window()

    def _new_window(self) -> Window:
        return Window(self._policy.window_s)

    def refresh(self) -> None:
        """Take over the changes that other workers have made.  Does nothing in a gateway of one process."""

    @property
    def answers(self) -> int:
        """The number of requests that the origin has answered while the breaker was closed."""
        return self._answers

    @property
    def first_pause_s(self) -> float:
        """The first open time, in seconds."""
        return self._policy.open_s

    def watched(self, now: float) -> None:
        """Record that the gateway sends own probes until the breaker closes."""
        self._clients_from = now + CLIENTS_TURN_S

    @property
    def _is_watched(self) -> bool:
        return self._clients_from > -inf

    def admit(self, now: float, *, is_own: bool = False, is_live: bool = False) -> Permit | None:
        """Return a permit for one request, or None if the request must not be sent.  Each permit must be returned with
        a result.

        `is_own`: an own probe of the gateway.  `is_live`: a request that the origin may leave unanswered for long.
        """
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
        """Return whether `admit` would return a permit for a client's request.  Changes nothing."""
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
                # Admit this request too: the probes in progress have had no result within `CLIENTS_TURN_S`.
                self._probes = 0
            if not self._is_vouched or self._probes + 1 >= self._policy.probes:
                self._clients_from = now + CLIENTS_TURN_S
            if self._is_vouched and not is_live:
                self._alone_from = now + QUIET_S
        self._probes += 1

    def _let_clients_in(self, now: float) -> None:
        """Let clients' requests probe from now on, unless enough probes are in progress."""
        if self._probes < self._policy.probes:
            self._clients_from = min(self._clients_from, now)

    def retry_in_s(self, now: float) -> float | None:
        """Return the seconds until the next probe is due.  None while the breaker is closed, 0 if a probe is due or in
        progress.
        """
        return None if self.state is BreakerState.CLOSED else max(0.0, self._until - now)

    def succeeded(self, permit: Permit, now: float) -> None:
        """Record that the origin has answered the request of this permit."""
        if permit.term != self._term:
            return
        if permit.is_own:
            self._vouch(now)
        elif permit.is_probe:
            self._move(Event.RECOVERED, now)
        else:
            self.count_success(now)

    def count_success(self, now: float) -> None:
        """Record that the origin has answered a request.  Must be called only while the breaker is closed."""
        self._is_proved = True
        self._answers += 1
        self._failures = self._losses = 0
        window = self._window
        if now >= window.until:
            window.begin_bucket(now)
        window.last[False] += 1

    def record_failure(self, permit: Permit, now: float, failure: RequestFailure = PLAIN_FAILURE) -> None:
        """Record that the origin was unreachable, did not answer in time, or reported a failure."""
        had_succeeded, is_loss, is_answer, in_progress = failure
        if permit.term != self._term:
            return
        if permit.is_own:
            self._is_vouched = False
            if is_answer or is_loss:
                # The origin is reachable.  Only a client's request can show whether the origin serves streams.
                if is_answer or now >= self._turn_ends:
                    self._let_clients_in(now)
                return
            if self._probes:
                # A client's request is in progress.  Wait for its result, which may take longer.
                return
        if permit.is_probe:
            if is_loss:
                self._turn_ends = now + CLIENTS_TURN_S
            self._move(Event.RELAPSED, now, is_short=permit.is_own or is_loss)
            if self._is_vouched:
                self._alone_from = self._until + QUIET_S
            return
        weight = _LOSS if is_loss else 1.0
        self._window.count(now, 1 - weight, weight)
        if had_succeeded:
            self._window.take_back()
        others = in_progress or 0
        if self._policy.failures and (
            self._is_series(others, is_loss=is_loss, is_stale=in_progress is None)
            or self._is_bad_share(now, others if is_loss else 0)
        ):
            self._move(Event.TRIPPED, now)

    def _is_series(self, others: int, *, is_loss: bool, is_stale: bool) -> bool:
        """Count a failure in the series of consecutive failures; return whether the series opens the breaker."""
        if not is_loss:
            self._failures += 1
        elif is_stale:
            return False
        else:
            self._losses += 1
        failures, losses, policy = self._failures, self._losses, self._policy
        length = failures + losses
        return failures >= policy.failures or (
            failures + losses * _LOSS >= policy.failures and length >= policy.ratio * (length + others)
        )

    def _is_bad_share(self, now: float, others: int) -> bool:
        requests, failures = self._window.counts(now)
        return requests >= self._policy.least_requests and failures >= self._policy.ratio * (requests + others)

    def abandoned(self, permit: Permit) -> None:
        """Record that the request has no result, for a reason other than the origin: for example, because the client
        left.
        """
        if permit.is_probe and not permit.is_own and permit.term == self._term:
            self._probes = max(0, self._probes - 1)

    def _vouch(self, now: float) -> None:
        """Record that an own probe has succeeded."""
        if self._is_vouched and now >= self._alone_from:
            self._move(Event.RECOVERED, now)
            self._is_proved = False
            return
        if not self._is_vouched:
            # Clients' requests in progress were sent while the origin was failing.  Ignore their results.
            self._is_vouched = True
            self._term += 1
            self._probes = 0
        self._let_clients_in(now)

    def _move(self, event: Event, now: float, *, is_short: bool = False) -> None:
        state = TRANSITIONS.get((self.state, event))
        if state is None:
            return
        if not (event is Event.DUE or event is Event.RELAPSED):
            self.since = now
        self.state = state
        self.transitions[state] += 1
        self._term += 1
        self._probes = 0
        self._failures = self._losses = 0
        if state is BreakerState.OPEN:
            self._open(event, now, is_short=is_short)
            if event is Event.TRIPPED:
                # If no client's request has succeeded since own probes closed the breaker, the probes were misleading.
                # Own probes then close the breaker only after `QUIET_S` without a client's request.
                self._is_vouched = not self._is_proved
                self._alone_from = -inf if self._is_proved else self._until + QUIET_S
        elif state is BreakerState.CLOSED:
            self.permit = Permit(self._term, is_probe=False)
            self._closed_at = now
            self._is_proved = True
            self._clients_from = -inf
            self._window.clear()

    def _open(self, event: Event, now: float, *, is_short: bool) -> None:
        policy = self._policy
        if is_short:
            self._until = now + policy.open_s * self._rng.uniform(LEAST_JITTER, 1.0)
            return
        if event is Event.TRIPPED and now - self._closed_at >= policy.longest_open_s:
            self._trips = 0
        longest = min(policy.longest_open_s, policy.open_s * 2 ** min(self._trips, _MOST_DOUBLINGS))
        self._until = now + longest * self._rng.uniform(LEAST_JITTER, 1.0)
        self._trips += 1

"""The state of each origin: its health, its requests in progress, and whether it may be used.

An `Origin` is one server (scheme, host, port).  All routes that use the server share its `Origin`.  It has a circuit
breaker, and may be ejected by health checks.  An `OriginRequest` is one request to an origin.  Its owner must call
`took_head` or `gave_up` once, and `close` at the end.

These count as failures of an origin: no connection, no head in time, a reply that is not HTTP, a truncated body, and
the statuses 502, 503 and 504.  A 500 does not count, because it may concern only one stream.  A 4xx, a client that
leaves, and a shortage of local resources do not count either.  `gateway.upstream.failures.is_no_sign` states which
further failures do not count.

The operator gets one log line when an origin becomes unreachable, and another line when the origin is back.  This
module does no I/O.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, Protocol

from gateway.aio.signal import Signal
from gateway.config.origins import OriginsConfig
from gateway.errors import CircuitOpen
from gateway.http.reply_parser import ReplyBroken
from gateway.upstream.breaker import BreakerState, Permit
from gateway.upstream.failures import ConnectionLost, RequestFailure, is_loss, is_no_sign, reason_of, reason_of_status
from gateway.upstream.shared_breaker import SharedBreaker, make_breaker, policy_of
from gateway.upstream.slots import three_quarters
from gateway.workers.shared_origins import OriginRow

FAILING: Final = frozenset({502, 503, 504})
"""The statuses that count as failures of an origin."""
_MAY_DRAIN: Final = 503
"""The status by which a server may report that it is about to shut down."""
_BUSY_RETRY_S: Final = 1.0
"""The Retry-After of a request that is refused because too many wait."""
# Module names are faster to look up than enum members, and every request needs these members.
_CLOSED: Final = BreakerState.CLOSED

Say = Callable[[str], None]


class OriginEvents(Protocol):
    """Receives the changes of origins."""

    def say(self, line: str) -> None:
        """Log one line for the operator."""

    def on_open(self, origin: Origin) -> None:
        """Start probes of an origin whose breaker has opened."""

    def on_change(self, origin: Origin) -> None:
        """Tell the other workers that a breaker has opened or closed, or that the origin is ejected or readmitted."""


class LivePin(Protocol):
    """The part of an `OriginPool` that a live request uses."""

    def leads_to(self, origin: Origin) -> bool:
        """Return whether the route still sends requests to this origin."""

    def has_other(self, origin: Origin) -> bool:
        """Return whether another origin could take over this origin's live requests now."""


class Origin:
    """One server that requests are sent to."""

    def __init__(
        self,
        authority: str,
        config: OriginsConfig,
        rng: random.Random,
        now: Callable[[], float],
        events: OriginEvents,
        row: OriginRow | None = None,
    ) -> None:
        """`row` is the state of the origin that all workers share; None if this process is the only one."""
        self.authority = authority
        self.now = now
        """Returns monotonic seconds."""
        self._row = row
        self.breaker = make_breaker(config, rng, now(), row, self._changed_elsewhere)
        self._most_waiting = config.waiting_requests
        self._events = events
        self.routes: tuple[str, ...] = ()
        self.weight = 0
        self.requests = 0
        self.failures = 0
        self.refused = 0
        self.overflows = 0
        self.redirects = 0
        self.ejections = 0
        self.waiting = 0
        self.checks = {True: 0, False: 0}
        """The numbers of successful (True) and failed (False) health checks."""
        self._sent: dict[OriginRequest, None] = {}
        self._ejected: dict[object, float] = {}
        """The health checks that have ejected the origin, each with the time."""
        self.heard_at: float | None = None
        """When data last arrived from the origin (monotonic seconds)."""
        self.reason: str | None = None
        """The reason of the latest failure."""
        self.recovered = Signal()
        """Wakes all waiters when the breaker closes.  Wakes one waiter when a client's request may probe the origin."""

    def __repr__(self) -> str:
        ejected = ", ejected" if self.is_ejected else ""
        return f"<Origin {self.authority} {self.breaker.state}{ejected}, {self.in_flight} in flight>"

    def configure(self, config: OriginsConfig) -> None:
        """Replace the configuration."""
        self.breaker.set_policy(policy_of(config))
        self._most_waiting = config.waiting_requests

    @property
    def in_flight(self) -> int:
        """The number of requests whose replies have not ended."""
        return len(self._sent)

    # -- availability

    @property
    def is_ejected(self) -> bool:
        """Whether a health check has ejected the origin."""
        return bool(self._ejected)

    @property
    def ejected_at(self) -> float | None:
        """When health checks ejected the origin (monotonic seconds); None if it is not ejected."""
        return min(self._ejected.values(), default=None)

    def is_available(self, now: float) -> bool:
        """Return whether the origin is not ejected and its breaker would admit a request."""
        return not self._ejected and self.breaker.would_admit(now)

    def probe(self, now: float) -> OriginRequest | None:
        """Return a new request for a probe by the gateway itself; None if no probe is due."""
        permit = self.breaker.admit(now, is_own=True)
        return None if permit is None else OriginRequest(self, permit, is_live=True)

    def admit(self, now: float, *, is_live: bool, is_upload: bool = False) -> OriginRequest | None:
        """Return a new request to this origin; None if the breaker is open.

        Raises CircuitOpen if too many requests wait for a reply.  Uploads may take only three quarters of the places
        for waiting requests, because uploads may wait for long.
        """
        if not is_live and self.waiting >= (three_quarters(self._most_waiting) if is_upload else self._most_waiting):
            self.overflows += 1
            raise CircuitOpen(_BUSY_RETRY_S)
        breaker = self.breaker
        is_closed = breaker.state is _CLOSED and self._row is None
        permit = breaker.permit if is_closed else breaker.admit(now, is_live=is_live)
        return None if permit is None else OriginRequest(self, permit, is_live=is_live)

    # -- outcomes

    def record_failure(
        self,
        permit: Permit,
        reason: str,
        now: float,
        *,
        is_answer: bool = False,
        is_loss: bool = False,
        had_succeeded: bool = False,
        is_stale: bool = False,
    ) -> None:
        """Record that a request has failed.

        `is_answer`: the origin reported the failure by a status.  `is_loss`: the connection was lost.  `had_succeeded`:
        the head of the reply has been counted as a success.  `is_stale`: a request was answered while this request was
        in progress.
        """
        self.failures += 1
        self.reason = reason
        breaker, opened = self.breaker, self.breaker.transitions[BreakerState.OPEN]
        failure = RequestFailure(had_succeeded, is_loss, is_answer, in_progress=None if is_stale else self.waiting)
        breaker.record_failure(permit, now, failure)
        if breaker.transitions[BreakerState.OPEN] == opened:
            return
        if not permit.is_probe:
            self._events.say(f"origin {self.authority} {'fails' if is_answer else 'is unreachable'}: {reason}")
            self._opened()
        self._events.on_change(self)

    def succeeded(self, permit: Permit, now: float) -> None:
        """Record that the origin has answered a request without a failure."""
        since, closed = self.breaker.since, self.breaker.transitions[BreakerState.CLOSED]
        self.breaker.succeeded(permit, now)
        if self.breaker.transitions[BreakerState.CLOSED] != closed:
            self._events.say(f"origin {self.authority} answers again after {_duration_text(now - since)}")
            self.recovered.fire()
            self._events.on_change(self)
        elif permit.is_own and self.breaker.would_admit(now):
            # Wake one follower (the live request of a stream with readers).  If no client sends a request, the
            # follower's request shows whether the origin serves streams.
            self.recovered.fire_one()

    def _opened(self) -> None:
        self._events.on_open(self)
        self.end_live_requests()

    # -- other workers

    def count_waiting(self, by: int) -> None:
        """Change the number of requests that wait for an answer."""
        self.waiting += by
        if self._row is not None:
            self._row.set_waiting(self.waiting)

    @property
    def is_alone(self) -> bool:
        """Whether this process shares the origin's breaker with no other."""
        return self._row is None

    def share(self, row: OriginRow) -> None:
        """Share the breaker with the other workers from now on, although this process began without them.

        Call this only while this process's breaker is closed.  The shared breaker replaces it without taking over its
        state."""
        self._row = row
        row.set_waiting(self.waiting)
        self.breaker = SharedBreaker.replacing(self.breaker, row, self.now(), self._changed_elsewhere)
        # The other workers may have opened the shared breaker.
        self.breaker.refresh()

    def leave(self) -> None:
        """Share nothing with other workers, because no route uses the origin any more."""
        if isinstance(self.breaker, SharedBreaker):
            self._row = None
            self.breaker = self.breaker.leave(self.now())

    def _changed_elsewhere(self) -> None:
        """Act on a breaker that another worker has opened or closed."""
        if self.breaker.state is BreakerState.CLOSED:
            self.recovered.fire()
        else:
            self._opened()

    # -- health checks

    def eject(self, by: object, reason: str, now: float, *, is_told: bool = False) -> bool:
        """Eject the origin because the health check `by` has failed.  Return False if the origin was ejected already.

        `is_told`: another worker has ejected the origin, and has logged the ejection."""
        is_first = not self._ejected
        self._ejected.setdefault(by, now)
        if is_first:
            self.ejections += 1
            self.reason = reason
            if not is_told:
                self._events.say(f"origin {self.authority} is ejected by its health checks: {reason}")
            self.end_live_requests()
        return is_first

    def readmit(self, by: object, now: float, *, is_told: bool = False) -> None:
        """Remove an ejection, because the health check `by` has succeeded or no longer runs."""
        since = self._ejected.pop(by, None)
        if since is not None and not self._ejected and not is_told:
            self._events.say(
                f"origin {self.authority} is taken back by its health checks after {_duration_text(now - since)}"
            )

    def end_live_requests(self) -> None:
        """End live requests that another origin can serve, so that they restart there."""
        for sent in tuple(self._sent):
            if sent.pin is not None and sent.pin.has_other(self):
                sent.restart_elsewhere()

    def restart_moved(self) -> None:
        """End live requests of routes that no longer use this origin, so that they restart at the new origins."""
        for sent in tuple(self._sent):
            if sent.pin is not None and not sent.pin.leads_to(self):
                sent.restart_elsewhere()


class OriginRequest:
    """One request to one origin, from its admission to the end of its reply."""

    __slots__ = (
        "_answers",
        "_is_reported",
        "_is_undecided",
        "_is_waiting",
        "_permit",
        "has_ended",
        "is_live",
        "may_drain",
        "on_close",
        "on_end",
        "origin",
        "pin",
    )

    def __init__(self, origin: Origin, permit: Permit, *, is_live: bool) -> None:
        self.origin = origin
        self.is_live = is_live
        self.may_drain = False
        """Whether the body of a 503 may state that the server is about to shut down, which is not a failure.  A 503 is
        then reported only at the end of its body."""
        self.has_ended = False
        """Whether `restart_elsewhere` has ended the request, so that its failure does not count."""
        self.pin: LivePin | None = None
        """The pool of a live request, which knows whether another origin can take the request over; None for other
        requests."""
        self.on_end: Callable[[], None] | None = None
        """Ends the request, or its reply after the head has arrived."""
        self.on_close: Callable[[], None] | None = None
        self._permit = permit
        self._answers = origin.breaker.answers
        """The number of answered requests when this request was admitted.  At a failure, it shows whether another
        request was answered in the meantime."""
        self._is_reported = False
        self._is_undecided = False
        """Whether a 503 has not been reported yet."""
        self._is_waiting = not is_live
        origin.requests += 1
        if not is_live:
            origin.count_waiting(1)
        origin._sent[self] = None

    # -- events

    def end_by(self, end: Callable[[], None]) -> None:
        """Set the function that ends the request.  If the request has been ended already, call the function at once."""
        self.on_end = end
        if self.has_ended:
            end()

    def took_head(self, status: int, cut: Callable[[], None]) -> None:
        """Record the arrival of the head.  From now on `cut` ends the request, by cutting off the body."""
        self.on_end = cut
        if status == _MAY_DRAIN and self.may_drain:
            self._is_undecided = True
            self._no_longer_waits()
        else:
            self.status_arrived(status, self.origin.now())

    def drains(self) -> None:
        """Record that the 503 states that the server is about to shut down."""
        self._is_undecided = False

    def gave_up(self, error: BaseException, *, by_client: bool, is_reused: bool = False) -> bool:
        """Record that the request has ended without a head; return whether `restart_elsewhere` ended it.

        `by_client`: the client of the request is the cause.  `is_reused`: the connection has carried other requests,
        and no byte of the reply has arrived.
        """
        is_patient = self.is_live and not self._permit.is_own
        if by_client or is_no_sign(error, is_patient=is_patient, is_reused=is_reused):
            self.abandoned()
        else:
            self.record_failure(reason_of(error), self.origin.now(), is_loss=is_loss(error))
        self.close()
        return self.has_ended

    def took_part(self) -> None:
        """Record that a part of the body has arrived."""
        self.origin.heard_at = self.origin.now()

    def cut_off(self, error: BaseException) -> bool:
        """Record that the body was truncated; return whether `restart_elsewhere` caused the truncation."""
        self._decide()
        if not (isinstance(error, ConnectionLost | ReplyBroken) and error.is_reported):
            self.broke(self.origin.now(), is_loss=is_loss(error))
        return self.has_ended

    def close(self) -> None:
        """Record that the request and its reply are over.  May be called twice."""
        if self._is_undecided:
            self._decide()
        self.on_end = None
        if not self._is_reported:
            self.abandoned()
        if self in self.origin._sent:
            del self.origin._sent[self]
            if self.on_close is not None:
                self.on_close()

    def restart_elsewhere(self) -> None:
        """End the request, so that it is restarted at another origin."""
        self.has_ended = True
        if self.on_end is not None:
            self.on_end()

    # -- results for the origin's health

    def status_arrived(self, status: int, now: float) -> None:
        """Report the status of the reply."""
        origin, permit = self.origin, self._permit
        self._no_longer_waits()
        self._is_reported = True
        origin.heard_at = now
        breaker = origin.breaker
        if status in FAILING:
            origin.record_failure(permit, reason_of_status(status), now, is_answer=True)
        elif permit is breaker.permit and breaker.state is _CLOSED:
            breaker.count_success(now)
        else:
            origin.succeeded(permit, now)

    def record_failure(self, reason: str, now: float, *, is_loss: bool = False) -> None:
        """Report a request without a valid reply.  `is_loss`: the connection was lost."""
        self._no_longer_waits()
        if self.has_ended:
            self.abandoned()
        elif not self._is_reported:
            self._is_reported = True
            origin = self.origin
            is_stale = origin.breaker.answers != self._answers
            origin.record_failure(self._permit, reason, now, is_loss=is_loss, is_stale=is_stale)

    def abandoned(self) -> None:
        """Report that the request has no result, for a reason other than the origin."""
        self._no_longer_waits()
        if not self._is_reported:
            self._is_reported = True
            self.origin.breaker.abandoned(self._permit)

    def broke(self, now: float, *, is_loss: bool = False) -> None:
        """Report a truncated reply.  `is_loss`: the connection was lost.

        A live reply does not count, because proxies end long replies.
        """
        if not self.is_live and not self.has_ended:
            self.origin.record_failure(
                self._permit, "answer cut off", now, is_loss=is_loss, had_succeeded=True, is_stale=True
            )

    def _decide(self) -> None:
        if self._is_undecided:
            self._is_undecided = False
            self.status_arrived(_MAY_DRAIN, self.origin.now())

    def _no_longer_waits(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self.origin.count_waiting(-1)


def _duration_text(seconds: float) -> str:
    """Format a duration in whole units, at least one second: `12 s`, `3 min`, `2 h`."""
    if seconds < 120:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 7_200 else f"{round(seconds / 3600)} h"

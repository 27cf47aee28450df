"""The origins: what is known of each server that requests are sent to, and which of them may be asked now.

`Origin` is one authority (scheme, host, port): its circuit breaker, whether health checks have ejected it, what is in
flight to it, what was last wrong.  It is shared by all routes that lead to it.  `Sent` is one request on its way to
one; every `Sent` is owed exactly one of `answered`, `failed` and `abandoned`, and `close` in the end.

What counts as a failure: no connection, silence before the head, an answer that is not HTTP, a body cut off, and the
statuses 502, 503 and 504.  A 500 does not: it answers one request, and one stream that an origin cannot serve must not
cut off all others.  Neither does a 4xx, nor a client that leaves, nor what this machine lacks.

Nothing here does I/O.  All changes are plain functions; the operator gets one line when an origin becomes unreachable
and one when it is back.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from gateway.config.origins import OriginsConfig
from gateway.errors import CircuitOpen
from gateway.upstream.breaker import Breaker, Pass, Policy, State
from gateway.upstream.connections import most_of
from gateway.upstream.reasons import reason_of_status

FAILING: Final = frozenset({502, 503, 504})
"""Statuses by which an origin says that it fails."""
_BUSY_RETRY_S: Final = 1.0

Say = Callable[[str], None]


class News(Protocol):
    """Takes note of what changes with origins."""

    def say(self, line: str) -> None:
        """Something that an operator should know, in one line."""

    def on_open(self, origin: Origin) -> None:
        """A breaker has opened."""


def policy_of(config: OriginsConfig) -> Policy:
    """The breaker's policy as it is configured."""
    return Policy(
        failures=config.breaker_failures,
        ratio=config.breaker_ratio,
        window_s=config.breaker_window_s,
        least_requests=config.breaker_requests,
        open_s=config.breaker_open_s,
        longest_open_s=config.breaker_longest_open_s,
        probes=config.breaker_probes,
    )


@dataclass(frozen=True, slots=True)
class OriginState:
    """One look at an origin."""

    origin: str
    """Scheme, host and port."""
    routes: tuple[str, ...]
    weight: int
    """The largest that a route gives it; 0 where it is only ever redirected to."""
    state: State
    is_ejected: bool
    reason: str | None
    """What is wrong, None while nothing is."""
    since_s: float
    """Seconds since it came to this state."""
    retry_in_s: float | None
    """Seconds until the next probe is due; None while its breaker is closed."""
    requests: int
    failures: int
    refused: int
    """Requests that were not sent because its breaker was open."""
    overflows: int
    """Requests that were not sent because too many waited."""
    redirects: int
    """Requests that another origin's redirect led to it."""
    ejections: int
    checks: dict[bool, int]
    """Active health checks, by whether they were good."""
    transitions: dict[State, int]
    in_flight: int
    waiting: int
    last_heard_s: float | None

    @property
    def is_up(self) -> bool:
        """Whether requests are sent to it as usual."""
        return self.state is State.CLOSED and not self.is_ejected


class ConnectionKeeper(Protocol):
    """Keeps a stream's live requests at one origin."""

    def leads_to(self, origin: Origin) -> bool:
        """Whether they may still be there."""

    def has_other(self, origin: Origin) -> bool:
        """Whether another origin could take them over now."""


class Origin:
    """One server.  Owner of all that is known of it."""

    def __init__(self, authority: str, config: OriginsConfig, rng: random.Random, now: float, news: News) -> None:
        self.authority = authority
        self.breaker = Breaker(policy_of(config), rng, now)
        self._most_waiting = config.waiting_requests
        self._news = news
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
        """Active health checks, by whether they were good."""
        self._sent: dict[Sent, None] = {}
        self._ejected: dict[object, float] = {}
        """Health checks that hold it to be away, and since when."""
        self._heard_at: float | None = None
        self._reason: str | None = None

    def __repr__(self) -> str:
        ejected = ", ejected" if self.is_ejected else ""
        return f"<Origin {self.authority} {self.breaker.state}{ejected}, {len(self._sent)} in flight>"

    def take(self, config: OriginsConfig) -> None:
        """Be judged by another configuration from here on."""
        self.breaker.take(policy_of(config))
        self._most_waiting = config.waiting_requests

    def look(self, now: float) -> OriginState:
        """The origin as it is now."""
        is_well = self.breaker.state is State.CLOSED and not self._ejected
        since = min(self._ejected.values(), default=self.breaker.since)
        if self.breaker.state is not State.CLOSED:
            since = min(since, self.breaker.since)
        return OriginState(
            origin=self.authority,
            routes=self.routes,
            weight=self.weight,
            state=self.breaker.state,
            is_ejected=self.is_ejected,
            reason=None if is_well else self._reason,
            since_s=max(0.0, now - since),
            retry_in_s=self.breaker.retry_in_s(now),
            requests=self.requests,
            failures=self.failures,
            refused=self.refused,
            overflows=self.overflows,
            redirects=self.redirects,
            ejections=self.ejections,
            checks=dict(self.checks),
            transitions={state: self.breaker.transitions[state] for state in State},
            in_flight=len(self._sent),
            waiting=self.waiting,
            last_heard_s=None if self._heard_at is None else max(0.0, now - self._heard_at),
        )

    # -- may it be asked

    @property
    def is_ejected(self) -> bool:
        """Whether a health check holds it to be away."""
        return bool(self._ejected)

    def is_available(self, now: float) -> bool:
        """Whether a request would be sent to it, another origin or not."""
        return not self._ejected and self.breaker.would_admit(now)

    def admit(self, now: float, *, is_live: bool, is_upload: bool = False) -> Sent | None:
        """A request that may be sent now, None where the breaker is open; CircuitOpen where too many wait, among whom
        uploads, which may wait for long, leave room for others."""
        most = most_of(self._most_waiting) if is_upload else self._most_waiting
        if not is_live and self.waiting >= most:
            self.overflows += 1
            raise CircuitOpen(_BUSY_RETRY_S)
        taken = self.breaker.admit(now)
        return None if taken is None else Sent(self, taken, is_live=is_live)

    # -- what became of it

    def failed(self, taken: Pass, reason: str, now: float, *, is_lost: bool, had_succeeded: bool = False) -> None:
        """A request failed; `is_lost` where no whole answer came, `had_succeeded` where its head had."""
        self.failures += 1
        self._reason = reason
        was_closed = self.breaker.state is State.CLOSED
        self.breaker.failed(taken, now, had_succeeded=had_succeeded)
        if was_closed and self.breaker.state is State.OPEN:
            self._news.say(f"origin {self.authority} {'is unreachable' if is_lost else 'fails'}: {reason}")
            self._news.on_open(self)
            self._move_on()

    def succeeded(self, taken: Pass, now: float) -> None:
        """It answered a request as an origin that is well."""
        since, was_closed = self.breaker.since, self.breaker.state is State.CLOSED
        self.breaker.succeeded(taken, now)
        if not was_closed and self.breaker.state is State.CLOSED:
            self._news.say(f"origin {self.authority} answers again after {_spell(now - since)}")

    def heard(self, now: float) -> None:
        """Something came from it."""
        self._heard_at = now

    # -- health checks

    def eject(self, by: object, reason: str, now: float) -> bool:
        """A health check holds it to be away; whether it is ejected by that."""
        is_first = not self._ejected
        self._ejected.setdefault(by, now)
        if is_first:
            self.ejections += 1
            self._reason = reason
            self._news.say(f"origin {self.authority} is ejected by its health checks: {reason}")
            self._move_on()
        return is_first

    def readmit(self, by: object, now: float) -> None:
        """A health check finds it well again, or is no more."""
        since = self._ejected.pop(by, None)
        if since is not None and not self._ejected:
            self._news.say(f"origin {self.authority} is taken back by its health checks after {_spell(now - since)}")

    def _move_on(self) -> None:
        """Live requests held open to it are begun anew elsewhere, where there is an elsewhere."""
        for sent in tuple(self._sent):
            if sent.keeper is not None and sent.keeper.has_other(self):
                sent.end()

    def leave(self) -> None:
        """Live requests of routes that lead here no more are begun anew where those lead now."""
        for sent in tuple(self._sent):
            if sent.keeper is not None and not sent.keeper.leads_to(self):
                sent.end()


class Sent:
    """One request on its way to one origin, from its admission to the end of its answer."""

    __slots__ = (
        "_is_settled",
        "_is_waiting",
        "_taken",
        "has_ended",
        "is_live",
        "keeper",
        "on_close",
        "on_end",
        "origin",
    )

    def __init__(self, origin: Origin, taken: Pass, *, is_live: bool) -> None:
        self.origin = origin
        self.is_live = is_live
        self.has_ended = False
        """Whether it was ended here, so that its failure is nobody's."""
        self.keeper: ConnectionKeeper | None = None
        """Where it sticks, if it is live."""
        self.on_end: Callable[[], None] | None = None
        """Ends the request or its answer."""
        self.on_close: Callable[[], None] | None = None
        self._taken = taken
        self._is_reported = False
        self._is_waiting = not is_live
        origin.requests += 1
        origin.waiting += self._is_waiting
        origin._sent[self] = None

    def answered(self, status: int, now: float) -> None:
        """The head of its answer has come."""
        self._no_longer_waits()
        self._is_reported = True
        self.origin.heard(now)
        if status in FAILING:
            self.origin.failed(self._taken, reason_of_status(status), now, is_lost=False)
        else:
            self.origin.succeeded(self._taken, now)

    def failed(self, reason: str, now: float) -> None:
        """No answer came, or none that could be read."""
        self._no_longer_waits()
        if self.has_ended:
            self.abandoned()
        elif not self._is_reported:
            self._is_reported = True
            self.origin.failed(self._taken, reason, now, is_lost=True)

    def abandoned(self) -> None:
        """It came to no result by no fault of the origin."""
        self._no_longer_waits()
        if not self._is_reported:
            self._is_reported = True
            self.origin.breaker.abandoned(self._taken)

    def heard(self, now: float) -> None:
        """A part of its answer has come."""
        self.origin.heard(now)

    def broke(self, now: float) -> None:
        """Its answer ended early.  That a live one did says little: proxies cut those off after a while."""
        if not self.is_live and not self.has_ended:
            self.origin.failed(self._taken, "answer cut off", now, is_lost=True, had_succeeded=True)

    def end(self) -> None:
        """Have it fail now, so that it is asked for elsewhere."""
        self.has_ended = True
        if self.on_end is not None:
            self.on_end()

    def close(self) -> None:
        """It is over, answer and all; may be called twice."""
        self.abandoned()
        if self in self.origin._sent:
            del self.origin._sent[self]
            if self.on_close is not None:
                self.on_close()

    def _no_longer_waits(self) -> None:
        self.origin.waiting -= self._is_waiting
        self._is_waiting = False


def _spell(seconds: float) -> str:
    """A duration in whole seconds, at least one: `12 s`, `3 min`, `2 h`."""
    if seconds < 120:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 7_200 else f"{round(seconds / 3600)} h"

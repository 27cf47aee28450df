"""The circuit breaker of an origin that all workers of a gateway share.

Each worker has a `SharedBreaker` for each origin.  The `SharedBreaker`s of one origin act as one breaker: their state
and the recorded outcomes are in shared memory (`gateway.workers.shared_origins`).  The failures and answers of all
workers form one series and one window, so the breaker opens as early as the breaker of a single process.  While it is
half-open, all workers together send as many probes as a single process.

Before a worker admits a request, it reads the state if the state's version has changed.  To change the state, a worker
takes a lock, reads the state, applies an outcome or an admission as `Breaker` does, and writes the state.  While the
breaker is closed, an answer needs no lock, because each worker counts its own answers.  When the next failure is
counted, the sum of these counts is compared with the sum at the preceding failure.  If the sums differ, a new series of
failures begins.

If a worker is stopped while it has the lock, the other workers cannot change the state.  Each of the other workers then
changes only its own view of the breaker, and can still detect that the origin fails or recovers.  A worker drops its
own view when it gets the lock or reads another version.  The failures that were recorded only in this view are then
lost.

The gateway's own probes are sent one at a time.  While a worker waits for the result of its probe, the other workers
send no such probe.  They wait only for as long as a probe can take, because the worker may have died.  If a worker with
a client's probe has died, the probe is replaced like any client's probe without a result.

`on_change` is called when another worker has opened or closed the breaker.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Final, Protocol

from gateway.aio.clock import Clock
from gateway.config.origins import OriginsConfig
from gateway.upstream.breaker import LEAST_JITTER, Breaker, BreakerState, Event, Permit, Policy, Window
from gateway.upstream.failures import PLAIN_FAILURE, RequestFailure
from gateway.workers.shared_origins import OriginRow, SharedOrigins

PROBE_S: Final = 3.0
"""The timeout of the gateway's own probes, in seconds."""
_SAVED: Final = struct.Struct("=8Q7d")
_STATES: Final = tuple(BreakerState)


class _SharedWindow(Window):
    """The outcomes that all workers have recorded."""

    __slots__ = ("_row", "term")

    def __init__(self, length_s: float, row: OriginRow, term: int) -> None:
        super().__init__(length_s)
        self._row = row
        self.term = term

    def count(self, now: float, successes: float, failures: float) -> None:
        self._row.count(self.term, int(now // self._width_s), successes, failures)

    def take_back(self) -> None:
        self._row.take_back(self.term)

    def counts(self, now: float) -> tuple[float, float]:
        successes, failures = self._row.counts(self.term, int(now // self._width_s))
        return successes + failures, failures

    def clear(self) -> None:
        """Do nothing.  Each change of state begins a new term, and outcomes of earlier terms are ignored."""


class SharedBreaker(Breaker):
    """One worker's view of the breaker of one origin."""

    __slots__ = ("_answers_seen", "_has_own_view", "_on_change", "_own_from", "_row", "_version")

    def __init__(
        self, policy: Policy, rng: random.Random, now: float, row: OriginRow, on_change: Callable[[], None]
    ) -> None:
        self._row = row
        self._on_change = on_change
        self._version = 0
        self._has_own_view = False
        """Whether this worker has changed the state without the lock.  Other workers do not have this change."""
        self._own_from = -inf
        """The time from which any worker may send the gateway's next own probe."""
        self._answers_seen = 0
        """The number of answers at the time of the latest counted failure.  If the number has changed at the next
        failure, a new series of failures begins."""
        super().__init__(policy, rng, now)
        with row.locked() as is_locked:
            # The first worker writes the state.  The other workers read it at their first `refresh`.
            if is_locked and not row.version:
                self._version = row.write(self._saved())

    @classmethod
    def replacing(cls, breaker: Breaker, row: OriginRow, now: float, on_change: Callable[[], None]) -> SharedBreaker:
        """Return a shared breaker that replaces this worker's separate breaker."""
        made = cls(breaker._policy, breaker._rng, now, row, on_change)
        made.transitions = breaker.transitions
        return made

    def _new_window(self) -> Window:
        return _SharedWindow(self._policy.window_s, self._row, self._term)

    def leave(self, now: float) -> Breaker:
        """Stop sharing, because no route uses the origin any more.  Returns a separate breaker for requests that are
        still sent."""
        self._row.leave()
        return Breaker(self._policy, self._rng, now)

    # -- the shared state

    def refresh(self) -> None:
        """Read the state if other workers have changed it."""
        if self._row.version != self._version:
            was_closed = self.state is BreakerState.CLOSED
            self._load()
            self._report(was_closed, self.state)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """A context in which the caller may change the state and no other worker can.  If the lock is not free in time,
        the caller changes only this worker's own view."""
        was_closed = self.state is BreakerState.CLOSED
        with self._row.locked() as is_locked:
            if is_locked and self._has_own_view:
                self._version = 0
            self._load()
            before, saved = self.state, self._saved()
            yield
            changed = self._saved()
            if changed != saved:
                if is_locked:
                    self._version = self._row.write(changed)
                    self._has_own_view = False
                else:
                    self._has_own_view = True
        self._report(was_closed, before)

    def _report(self, was_closed: bool, state: BreakerState) -> None:
        """Call `on_change` if another worker has opened or closed the breaker.  `state` is the state that the other
        worker has set."""
        if was_closed is not (state is BreakerState.CLOSED):
            self._on_change()

    def _saved(self) -> bytes:
        return _SAVED.pack(
            self._term,
            _STATES.index(self.state),
            self._trips,
            self._probes,
            self._failures,
            self._losses,
            self._answers_seen,
            self._is_vouched | self._is_proved << 1,
            self.since,
            self._until,
            self._closed_at,
            self._clients_from,
            self._turn_ends,
            self._alone_from,
            self._own_from,
        )

    def _load(self) -> None:
        if self._row.version == self._version:
            return
        found = self._row.read()
        if found is None:
            return
        self._version, saved = found
        self._has_own_view = False
        term = self._term
        (
            self._term,
            state,
            self._trips,
            self._probes,
            self._failures,
            self._losses,
            self._answers_seen,
            flags,
            self.since,
            self._until,
            self._closed_at,
            self._clients_from,
            self._turn_ends,
            self._alone_from,
            self._own_from,
        ) = _SAVED.unpack(saved)
        self.state = _STATES[state]
        self._is_vouched, self._is_proved = bool(flags & 1), bool(flags & 2)
        if self._term != term:
            self.permit = Permit(self._term, is_probe=False)
            self._window = self._new_window()

    def _move(self, event: Event, now: float, *, is_short: bool = False) -> None:
        super()._move(event, now, is_short=is_short)
        if event is Event.TRIPPED:
            self._own_from = -inf
        self._window = self._new_window()

    # -- admissions

    def watched(self, now: float) -> None:
        with self._changing():
            if not self._is_watched and self.state is not BreakerState.CLOSED:
                super().watched(now)

    def admit(self, now: float, *, is_own: bool = False, is_live: bool = False) -> Permit | None:
        self.refresh()
        if self.state is BreakerState.CLOSED:
            return self.permit
        if now < self._own_from if is_own else not super().would_admit(now):
            return None
        with self._changing():
            if is_own and now < self._own_from:
                return None
            permit = super().admit(now, is_own=is_own, is_live=is_live)
            if permit is not None and permit.is_own:
                self._own_from = now + PROBE_S + self.first_pause_s
        return permit

    def would_admit(self, now: float) -> bool:
        self.refresh()
        return super().would_admit(now)

    def retry_in_s(self, now: float) -> float | None:
        self.refresh()
        return super().retry_in_s(now)

    # -- outcomes

    @property
    def answers(self) -> int:
        """The number of requests that the origin has answered while the breaker was closed."""
        return self._row.answers()

    def succeeded(self, permit: Permit, now: float) -> None:
        if not permit.is_probe and self.state is BreakerState.CLOSED and permit.term == self._term:
            self.count_success(now)
            return
        with self._changing():
            super().succeeded(permit, now)
            if permit.is_own:
                self._end_own_probe(now)

    def count_success(self, now: float) -> None:
        self._row.answered()
        self._window.count(now, 1.0, 0.0)
        if not self._is_proved:
            with self._changing():
                self._is_proved = True

    def record_failure(self, permit: Permit, now: float, failure: RequestFailure = PLAIN_FAILURE) -> None:
        with self._changing():
            if (answers := self._row.answers()) != self._answers_seen:
                self._answers_seen = answers
                self._failures = self._losses = 0
            if failure.in_progress is not None:
                failure = failure._replace(in_progress=failure.in_progress + self._row.waiting_elsewhere())
            super().record_failure(permit, now, failure)
            if permit.is_own:
                self._end_own_probe(now)

    def abandoned(self, permit: Permit) -> None:
        if permit.is_probe:
            with self._changing():
                super().abandoned(permit)
                if permit.is_own:
                    self._own_from = -inf

    def _end_own_probe(self, now: float) -> None:
        """Allow the gateway's next own probe after a pause.  If the breaker has opened again, no pause is needed here,
        because an open breaker pauses before its next probe."""
        is_open = self.state is BreakerState.OPEN and self._until > now
        self._own_from = now if is_open else now + self.first_pause_s * self._rng.uniform(LEAST_JITTER, 1.0)


def policy_of(config: OriginsConfig) -> Policy:
    """Return the breakers' policy from the configuration."""
    return Policy(
        failures=config.breaker_failures,
        ratio=config.breaker_ratio,
        window_s=config.breaker_window_s,
        least_requests=config.breaker_requests,
        open_s=config.breaker_open_s,
        longest_open_s=config.breaker_longest_open_s,
        probes=config.breaker_probes,
    )


def make_breaker(
    config: OriginsConfig, rng: random.Random, now: float, row: OriginRow | None, on_change: Callable[[], None]
) -> Breaker:
    """Return the breaker of an origin.  If `row` is given, all workers share the breaker through this row.  Otherwise
    the breaker belongs to this process alone."""
    policy = policy_of(config)
    return Breaker(policy, rng, now) if row is None else SharedBreaker(policy, rng, now, row, on_change)


_AGAIN_S: Final = 5.0
"""The pause after a failed try to share an origin, in seconds."""
_NEXT_S: Final = 0.02
"""The pause after a successful try."""


class SharableOrigin(Protocol):
    """The part of an `Origin` that `LateSharing` uses."""

    authority: str
    breaker: Breaker

    @property
    def is_alone(self) -> bool:
        """Whether this process shares the origin's breaker with no other."""

    def share(self, row: OriginRow) -> None:
        """Share the breaker with the other workers from now on.  The breaker must be closed."""


class LateSharing:
    """Shares the breakers of origins whose first try to share has failed.

    The workers' table may have had no room for the origin, or the lock was not free in time.  Until the origin is
    shared, this worker has a separate breaker for it.  A row of the table becomes free when no worker uses the row's
    origin any more.  After a new configuration, this is often a moment later, when all workers have applied it.

    The origins are tried one after the other, because a search of a full table takes a millisecond.
    """

    def __init__(self, shared: SharedOrigins, clock: Clock) -> None:
        self._shared = shared
        self._clock = clock
        self._alone: list[SharableOrigin] = []
        """The origins that are not shared, in the order of the next tries."""
        self._is_due = False
        """Whether a timer runs."""

    def __repr__(self) -> str:
        return f"<LateSharing of {len(self._alone)} origins>"

    def begin(self, origins: Iterable[SharableOrigin]) -> None:
        """Begin to share those of these origins that this worker does not share yet."""
        self._alone = [one for one in origins if one.is_alone]
        self._later(_AGAIN_S)

    def _later(self, after_s: float) -> None:
        if self._alone and not self._is_due:
            self._is_due = True
            self._clock.call_later(after_s, self._try_next)

    def _try_next(self) -> None:
        self._is_due = False
        if not self._alone:
            return
        origin, row = self._alone.pop(0), None
        if origin.breaker.state is BreakerState.CLOSED:
            row = self._shared.join(origin.authority)
        if row is None:
            self._alone.append(origin)
        else:
            origin.share(row)
        self._later(_AGAIN_S if row is None else _NEXT_S)

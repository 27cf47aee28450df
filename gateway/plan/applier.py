"""Applies a cache plan to a running engine, and undoes it when another plan replaces it.

A plan is applied in one synchronous step between two requests.  The tape store gets the lists of pinned streams and of
streams not to store.  A warming round starts if the plan's streams to warm have changed.  Streams with an idle lifetime
are swept periodically.  A plan changes only what is kept, never what is answered: each of its effects could also come
from an eviction or from an earlier reader.

The plan does no work on the request path.  A stream counts as idle while its counters do not change.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from gateway.aio.clock import Timer
from gateway.config.cache import CachePlanConfig
from gateway.config.cache_plan import CachePlan
from gateway.engine.core import Engine
from gateway.engine.route import Route
from gateway.plan.entries import PlanEntries, resolve_entries
from gateway.plan.warming import Warming
from gateway.tape.stream import End, Stream

_SWEEPS_PER_LIFETIME: Final = 4
"""The number of sweeps for idle streams within the shortest lifetime."""
_SHORTEST_INTERVAL_S: Final = 1.0
_LONGEST_INTERVAL_S: Final = 30.0
_SWEEP_BATCH: Final = 256
"""Lifetimes examined in one turn of the loop, in about a millisecond."""


class _Idle(NamedTuple):
    """A stream's counters, and since when they have not changed, in monotonic seconds."""

    counters: tuple[int, int, float]
    since: float


class PlanApplier:
    """The owner of the plan in effect, of its warming round and of its sweeps.  `stop` stops the round and the
    sweeps."""

    def __init__(self, engine: Engine, rng: random.Random) -> None:
        self._engine = engine
        self._rng = rng
        self.plan: CachePlan | None = None
        self.taken_at = 0.0
        """When the plan was applied, in Unix seconds."""
        self.entries = PlanEntries()
        self._resolved_for: tuple[CachePlanConfig, Sequence[Route]] | None = None
        self.warming: Warming | None = None
        """The latest warming round."""
        self._unstored_before = 0
        self.given_up = 0
        """Tapes dropped since the plan was applied, because they were idle for their lifetime."""
        self._idle: dict[Stream, _Idle] = {}
        self._timer: Timer | None = None

    def __repr__(self) -> str:
        return (
            f"<PlanApplier {len(self.entries.pinned)} pinned, {len(self.entries.warm)} warm, "
            f"{len(self.entries.not_stored)} not stored, {len(self.entries.lifetimes)} lifetimes>"
        )

    @property
    def unstored_bytes(self) -> int:
        """Bytes fetched and not stored since the plan was applied."""
        return self._engine.store.unstored_bytes - self._unstored_before

    def apply(
        self,
        plan: CachePlan | None,
        grants: CachePlanConfig,
        routes: Sequence[Route],
        budget_bytes: int | None = None,
    ) -> bool:
        """Apply `plan`, or no plan, and resize the budget if one is given.  Returns whether the plan has changed.

        Call it again with the same plan after a change of the configuration or of the routes.
        """
        engine, is_new = self._engine, plan != self.plan
        before = self.entries.warm
        if (
            is_new
            or self._resolved_for is None
            or self._resolved_for[0] != grants
            or self._resolved_for[1] is not routes
        ):
            # Resolving tens of thousands of names is too costly for a reload that changes neither plan nor routes.
            self.entries = resolve_entries(plan, grants, routes)
            self._resolved_for = grants, routes
        if is_new:
            self.plan = plan
            self.taken_at = engine.clock.wall()
            self._unstored_before = engine.store.unstored_bytes
            self.given_up = 0
        budget_bytes = engine.store.budget_bytes if budget_bytes is None else budget_bytes
        if budget_bytes > engine.store.budget_bytes:
            engine.store.resize(budget_bytes)
        engine.store.prefer(
            [keyed.key for keyed in self.entries.pinned],
            grants.pin_share if plan is not None else 0.0,
            [keyed.key for keyed in self.entries.not_stored],
        )
        # Shrink the budget last, so that the new plan's pinned streams are not evicted.
        engine.store.resize(budget_bytes)
        if [keyed.key for keyed in self.entries.warm] != [keyed.key for keyed in before]:
            self._warm(grants)
        self._schedule_sweep()
        return is_new

    def stop(self) -> None:
        """Stop warming and sweeping, because the gateway is draining."""
        if self.warming is not None:
            self.warming.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def resume(self) -> None:
        """Sweep again after `stop`.  Streams that are not warm yet are left to their readers."""
        self._schedule_sweep()

    def _warm(self, grants: CachePlanConfig) -> None:
        engine = self._engine
        if self.warming is not None:
            self.warming.stop()
        self.warming = Warming(
            engine.fetches,
            engine.store,
            engine.clock,
            engine.tasks,
            self._rng,
            self.entries.warm,
            most_bytes=min(grants.warm_bytes, engine.store.budget_bytes // 2),
            within_s=grants.warm_s,
            concurrent=grants.warm_fetches,
        )
        if not engine.drain.is_set:
            self.warming.start()

    # -- lifetimes

    def _schedule_sweep(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.entries.lifetimes and not self._engine.drain.is_set:
            shortest = min(keyed.entry.idle_s for keyed in self.entries.lifetimes)
            every_s = min(_LONGEST_INTERVAL_S, max(_SHORTEST_INTERVAL_S, shortest / _SWEEPS_PER_LIFETIME))
            self._timer = self._engine.clock.call_later(every_s, self._sweep)
        else:
            self._idle.clear()

    def _sweep(self) -> None:
        self._sweep_from({}, 0)

    def _sweep_from(self, idle: dict[Stream, _Idle], begin: int) -> None:
        """Examine one batch of lifetimes, and schedule the next batch."""
        self._timer = None
        store, now = self._engine.store, self._engine.clock.now()
        end = begin + _SWEEP_BATCH
        for keyed in self.entries.lifetimes[begin:end]:
            for stream in store.group(keyed.key.group):
                if (stream.key.query, stream.key.partition.public) != (keyed.key.query, keyed.key.partition):
                    continue
                seen = self._idle_since(stream, now)
                if not stream.holds and now - seen.since >= keyed.entry.idle_s:
                    self.given_up += store.drop_stream(stream, End.EVICTED)
                else:
                    idle[stream] = seen
        if end < len(self.entries.lifetimes):
            self._timer = self._engine.clock.call_later(0, partial(self._sweep_from, idle, end))
            return
        self._idle = idle
        self._schedule_sweep()

    def _idle_since(self, stream: Stream, now: float) -> _Idle:
        counters = (stream.reads, stream.sent_bytes, stream.used_at)
        seen = self._idle.get(stream)
        if seen is None:
            return _Idle(counters, stream.used_at)
        return _Idle(counters, now) if stream.holds or seen.counters != counters else seen

"""The plan in effect: what a running gateway makes of it, and undoes when another takes its place.

Taking a plan is one step between two requests: the tape store is told whom to keep and who is to hold no bytes, a round of
warming begins where the plan names other streams for it than the last one did, and those with a lifetime are looked at
from time to time.  A plan changes what is kept and never what is answered: everything that it does is what an eviction,
or a reader who came a little earlier, might have done.

Nothing of it is on the path of a request.  That a stream was idle is seen by its counters standing still.
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
from gateway.plan.entries import PlanEntries, granted
from gateway.plan.warming import Warming
from gateway.tape.stream import End, Stream

_LOOKS: Final = 4
"""Looks at idle streams in the shortest of their lifetimes."""
_MOST_OFTEN_S: Final = 1.0
_LEAST_OFTEN_S: Final = 30.0
_AT_ONCE: Final = 256
"""Lifetimes looked at in one turn of the loop: about a millisecond."""


class _Seen(NamedTuple):
    """A stream's counters, and since when they have stood like that (monotonic seconds)."""

    counters: tuple[int, int, float]
    since: float


class PlanApplier:
    """Owner of the plan in effect and of what goes on because of it; `leave` ends that."""

    def __init__(self, engine: Engine, rng: random.Random) -> None:
        self._engine = engine
        self._rng = rng
        self.plan: CachePlan | None = None
        self.taken_at = 0.0
        """When it was taken (Unix seconds)."""
        self.entries = PlanEntries()
        self._granted_by: tuple[CachePlanConfig, Sequence[Route]] | None = None
        self.warming: Warming | None = None
        """The latest round."""
        self._unlaid_before = 0
        self.given_up = 0
        """Tapes given up because their time without a reader was over, since the plan was taken."""
        self._idle: dict[Stream, _Seen] = {}
        self._timer: Timer | None = None

    @property
    def unlaid_bytes(self) -> int:
        """Bytes fetched and not kept, since the plan was taken."""
        return self._engine.store.unlaid_bytes - self._unlaid_before

    def take(
        self,
        plan: CachePlan | None,
        grants: CachePlanConfig,
        routes: Sequence[Route],
        budget_bytes: int | None = None,
    ) -> bool:
        """Have this plan in effect from here on, or none, and keep to this budget where one is named; whether it is
        another plan than before.

        To be called again with the same plan when the configuration or the routes have changed.
        """
        engine, is_new = self._engine, plan != self.plan
        before = self.entries.warm
        if is_new or self._granted_by is None or self._granted_by[0] != grants or self._granted_by[1] is not routes:
            # Tens of thousands of names to understand: not at each reload that has another reason.
            self.entries = granted(plan, grants, routes)
            self._granted_by = grants, routes
        if is_new:
            self.plan = plan
            self.taken_at = engine.clock.wall()
            self._unlaid_before = engine.store.unlaid_bytes
            self.given_up = 0
        budget_bytes = engine.store.budget_bytes if budget_bytes is None else budget_bytes
        if budget_bytes > engine.store.budget_bytes:
            engine.store.resize(budget_bytes)
        engine.store.keyed(
            [keyed.key for keyed in self.entries.pinned],
            grants.pin_share if plan is not None else 0.0,
            [keyed.key for keyed in self.entries.not_stored],
        )
        # Less room only now: those that are pinned from here on are not to be given up for it.
        engine.store.resize(budget_bytes)
        if [keyed.key for keyed in self.entries.warm] != [keyed.key for keyed in before]:
            self._warm(grants)
        self._watch_idle()
        return is_new

    def leave(self) -> None:
        """The gateway is leaving: nothing is fetched for nobody any more."""
        if self.warming is not None:
            self.warming.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

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
            fetches=grants.warm_fetches,
        )
        if not engine.drain.is_set:
            self.warming.start()

    # -- lifetimes

    def _watch_idle(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.entries.lifetimes and not self._engine.drain.is_set:
            shortest = min(keyed.entry.idle_s for keyed in self.entries.lifetimes)
            every_s = min(_LEAST_OFTEN_S, max(_MOST_OFTEN_S, shortest / _LOOKS))
            self._timer = self._engine.clock.call_later(every_s, self._look)
        else:
            self._idle.clear()

    def _look(self) -> None:
        self._look_on({}, 0)

    def _look_on(self, idle: dict[Stream, _Seen], begin: int) -> None:
        """Look at some of them, and have the others looked at in turns to come."""
        self._timer = None
        store, now = self._engine.store, self._engine.clock.now()
        end = begin + _AT_ONCE
        for keyed in self.entries.lifetimes[begin:end]:
            for stream in store.group(keyed.key.group):
                if (stream.key.query, stream.key.share) != (keyed.key.query, keyed.key.partition):
                    continue
                seen = self._seen(stream, now)
                if not stream.pins and now - seen.since >= keyed.entry.idle_s:
                    self.given_up += store.drop(stream, End.EVICTED)
                else:
                    idle[stream] = seen
        if end < len(self.entries.lifetimes):
            self._timer = self._engine.clock.call_later(0, partial(self._look_on, idle, end))
            return
        self._idle = idle
        self._watch_idle()

    def _seen(self, stream: Stream, now: float) -> _Seen:
        counters = (stream.reads, stream.sent_bytes, stream.used_at)
        seen = self._idle.get(stream)
        if seen is None:
            return _Seen(counters, stream.used_at)
        return _Seen(counters, now) if stream.pins or seen.counters != counters else seen

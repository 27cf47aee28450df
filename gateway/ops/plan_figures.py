"""Compares the cache plan's expectations with the counts since the plan took effect.

The expected and the counted figures are defined in the same way.  A catch-up read is a hit if the tape (the stream in
memory), or a fetch in progress, has all bytes that the read needs.  The read is a miss if a fetch starts for it.  The
byte ratio compares the bytes that the origin sent for catch-up reads with the bytes of the answers before compression.
"""

from __future__ import annotations

from typing import Final

from gateway.engine.core import Engine
from gateway.ops.metrics import Metrics
from gateway.ops.plan_state import PlanState
from gateway.plan.applier import PlanApplier
from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode

_HITS: Final = (
    Outcome.HIT,
    Outcome.REVALIDATED,
    Outcome.JOINED,
    Outcome.COLLAPSED,
    Outcome.FOLLOWED,
    Outcome.STALE_IF_ERROR,
)


class PlanFigures:
    """Reads the state of the plan in effect.  It owns the counts from the moment when the plan took effect."""

    def __init__(self, applier: PlanApplier, engine: Engine, metrics: Metrics) -> None:
        self._applier = applier
        self._engine = engine
        self._metrics = metrics
        self._baseline = (0, 0, 0, 0)

    def begin(self) -> None:
        """Start counting for a new plan."""
        self._metrics.before_collect()
        self._baseline = self._counted()

    def look(self) -> PlanState | None:
        """Return the plan's current state, or None without a plan.  Call `Metrics.before_collect` first."""
        applier, store = self._applier, self._engine.store
        if applier.plan is None:
            return None
        # The counts of a removed route disappear, so a difference may be negative.
        hits, misses, read, fetched = (
            max(0, now - before) for now, before in zip(self._counted(), self._baseline, strict=True)
        )
        warming = applier.warming
        return PlanState(
            plan=applier.plan,
            taken_at=applier.taken_at,
            hits=hits,
            misses=misses,
            read_bytes=read,
            fetched_bytes=fetched,
            pinned_streams=len(store.pinned),
            pinned_bytes=store.pinned.cost,
            pinned_limit_bytes=store.pinned.limit,
            warmed_streams=warming.streams if warming is not None else 0,
            warmed_bytes=warming.bytes if warming is not None else 0,
            is_warming=warming is not None and not warming.is_over,
            unstored_streams=len(applier.entries.not_stored),
            unstored_bytes=applier.unstored_bytes,
            given_up=applier.given_up,
            unmatched=applier.entries.unmatched,
        )

    def _counted(self) -> tuple[int, int, int, int]:
        routes = self._metrics.routes.values()
        ends = [figures.ended(Mode.CATCHUP, outcome) for figures in routes for outcome in (*_HITS, Outcome.MISS)]
        return (
            sum(figures.ended(Mode.CATCHUP, outcome).requests for figures in routes for outcome in _HITS),
            sum(figures.ended(Mode.CATCHUP, Outcome.MISS).requests for figures in routes),
            sum(end.sent_bytes + end.saved_bytes for end in ends),
            sum(figures.upstream_bytes[Mode.CATCHUP].value for figures in routes),
        )

"""The plan against what came of it: what was expected when it was made, and what was counted since it was taken.

Both sides mean the same.  A catch-up read hits where it found on the tape, or in a fetch that was already under way,
what there was before it; it misses where it had to be fetched for it.  Of bytes, those that the origin sent for
catch-up reads are held against those that clients were answered with, before they were coded.
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
    """Looks at the plan in effect.  Owner of what had been counted when it was taken."""

    def __init__(self, planned: PlanApplier, engine: Engine, metrics: Metrics) -> None:
        self._planned = planned
        self._engine = engine
        self._metrics = metrics
        self._before = (0, 0, 0, 0)

    def begin(self) -> None:
        """Another plan is in effect from here on."""
        self._metrics.before_collect()
        self._before = self._counted()

    def look(self) -> PlanState | None:
        """How things stand; None where there is no plan.  Whoever counts many at a time has been asked to."""
        planned, store = self._planned, self._engine.store
        if planned.plan is None:
            return None
        # A route that went has taken its counts with it.
        hits, misses, read, fetched = (
            max(0, now - before) for now, before in zip(self._counted(), self._before, strict=True)
        )
        warming = planned.warming
        return PlanState(
            plan=planned.plan,
            taken_at=planned.taken_at,
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
            unstored_streams=len(planned.entries.not_stored),
            unstored_bytes=planned.unstored_bytes,
            given_up=planned.given_up,
            unmatched=planned.entries.unmatched,
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

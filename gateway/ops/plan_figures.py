"""The plan against what came of it: what was expected when it was made, and what was counted since it was taken.

Both sides mean the same.  A catch-up read hits where it found on the tape, or in a fetch that was already under way,
what there was before it; it misses where it had to be fetched for it.  Of bytes, those that the origin sent for
catch-up reads are held against those that clients were answered with, before they were coded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gateway.cache_plan import CachePlan
from gateway.engine.core import Engine
from gateway.engine.planned import Planned
from gateway.ops.metrics import Metrics
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


@dataclass(frozen=True, slots=True)
class PlanState:
    """One look at the plan in effect and what came of it."""

    plan: CachePlan
    taken_at: float
    """Unix seconds."""
    hits: int
    """Catch-up reads since then that hit."""
    misses: int
    read_bytes: int
    """Body bytes of answers to catch-up reads since then, before they were coded."""
    fetched_bytes: int
    """Body bytes that the origin sent for such."""
    pinned_streams: int
    pinned_bytes: int
    pinned_limit_bytes: int
    warmed_streams: int
    warmed_bytes: int
    is_warming: bool
    unstored_streams: int
    """Streams that are not to be stored."""
    unstored_bytes: int
    """Bytes fetched, and not stored although there was room, since then."""
    given_up: int
    """Tapes given up by lifetime since then."""
    unmatched: int
    """Entries that no route leads to."""

    @property
    def hit_ratio(self) -> float | None:
        """None before the first read."""
        reads = self.hits + self.misses
        return self.hits / reads if reads else None

    @property
    def byte_hit_ratio(self) -> float | None:
        """None before the first byte."""
        if not self.read_bytes:
            return None
        return min(1.0, max(0.0, 1 - self.fetched_bytes / self.read_bytes))


class PlanFigures:
    """Looks at the plan in effect.  Owner of what had been counted when it was taken."""

    def __init__(self, planned: Planned, engine: Engine, metrics: Metrics) -> None:
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
        planned, library = self._planned, self._engine.library
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
            pinned_streams=len(library.reserve),
            pinned_bytes=library.reserve.cost,
            pinned_limit_bytes=library.reserve.limit,
            warmed_streams=warming.streams if warming is not None else 0,
            warmed_bytes=warming.bytes if warming is not None else 0,
            is_warming=warming is not None and not warming.is_over,
            unstored_streams=len(planned.wishes.shunned),
            unstored_bytes=planned.unlaid_bytes,
            given_up=planned.given_up,
            unmatched=planned.wishes.unmatched,
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

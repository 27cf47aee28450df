"""What there is to say of the plan in effect, in figures."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.config.cache_plan import CachePlan


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

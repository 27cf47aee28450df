"""The state of the cache plan in effect, in figures."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.config.cache_plan import CachePlan


@dataclass(frozen=True, slots=True)
class PlanState:
    """The plan in effect and its results at one moment."""

    plan: CachePlan
    taken_at: float
    """The time at which the plan took effect, in Unix seconds."""
    hits: int
    """Catch-up reads since the plan took effect that were hits."""
    misses: int
    read_bytes: int
    """Body bytes of answers to catch-up reads since the plan took effect, before compression."""
    fetched_bytes: int
    """Body bytes from the origin for catch-up reads since the plan took effect."""
    pinned_streams: int
    pinned_bytes: int
    pinned_limit_bytes: int
    warmed_streams: int
    warmed_bytes: int
    is_warming: bool
    unstored_streams: int
    """Streams that the plan excludes from storing."""
    unstored_bytes: int
    """Bytes fetched since the plan took effect that would have fitted, and were not stored because of the plan."""
    given_up: int
    """Tapes dropped since the plan took effect because their idle time had passed."""
    unmatched: int
    """Entries that match no route."""

    @property
    def hit_ratio(self) -> float | None:
        """The share of hits; None before the first read."""
        reads = self.hits + self.misses
        return self.hits / reads if reads else None

    @property
    def byte_hit_ratio(self) -> float | None:
        """The share of bytes that the origin did not send; None before the first byte."""
        if not self.read_bytes:
            return None
        return min(1.0, max(0.0, 1 - self.fetched_bytes / self.read_bytes))

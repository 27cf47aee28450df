"""The values that a report shows: plain, without Spark or markup, ready for JSON.

`Figures` holds everything.  Most of it are rows, as DuckDB returns them.  `began` is the Unix second of the beginning
of a step; a step has as many minutes as needed for at most `MOST_STEPS` steps.  Rolled-up figures are sums or merged
sketches: no figure is an average of percentiles.  A ratio without a denominator is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gateway.config.cache_plan import CachePlan

MOST_STEPS: Final = 300
"""Most points of one series; more could not be distinguished on a screen."""

Row = Mapping[str, Any]
"""The values of a row by column."""
Rows = tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """A part and the whole that it is of; None is not known."""

    part: int | None = None
    whole: int | None = None

    @property
    def ratio(self) -> float | None:
        """Part by whole."""
        return self.part / self.whole if self.part is not None and self.whole else None


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of `count` durations, and the longest; None if there are none."""

    count: int = 0
    p50_s: float | None = None
    p90_s: float | None = None
    p99_s: float | None = None
    max_s: float | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """The worst items of a kind, and their total number."""

    worst: Rows = ()
    total: int = 0


@dataclass(frozen=True, slots=True)
class Figures:
    """Everything that a report shows."""

    first: int | None = None
    """Beginning of the first minute with a figure; None if there is none."""
    last: int | None = None
    """Beginning of the last minute with a figure."""
    step_s: int = 60
    requests: int = 0
    """Requests of every mode."""
    route_count: int = 0
    """Configured routes with a request of any mode."""
    shares: Mapping[str, Share] = field(default_factory=dict)
    """The headline figures, by the names of `headlines.DEFINITIONS`."""
    total: Row = field(default_factory=dict)
    """Reads (catch-up, long-poll, SSE) and their cost to the origin: the columns of `gather.sums`."""
    moments: Rows = ()
    """The same of each step, by `began`; steps without traffic are among them."""
    routes: Rows = ()
    """The same by `route` and `protocol`, the busiest first."""
    first_byte: Rows = ()
    """`Percentiles` of the time to the first byte of catch-up reads, by `began`."""
    first_byte_all: Percentiles = Percentiles()
    latency: Rows = ()
    """`Percentiles` by `route` and `mode`, from end to end, and (`first_byte_…`) to the first byte."""
    delivery: Rows = ()
    delivery_all: Percentiles = Percentiles()
    by_bytes: Rows = ()
    """The busiest streams; their figures cover the hours in which they were among the busiest."""
    by_requests: Rows = ()
    fan_out: Rows = ()
    """Reads (`live`, `catchup`) that shared the origin's answer with `at_least` to less than twice as many."""
    curve: Rows = ()
    """Rows of `tables.CURVE`."""
    curves: tuple[str, ...] = ()
    """The policies whose curves are drawn; without any of them, the first one is."""
    plan: CachePlan | None = None
    found: Mapping[str, Found] = field(default_factory=dict)
    """Problems, by the names of `findings.FINDINGS`."""
    is_short: bool = False
    """Whether the log covers too little time to judge a day by."""
    outdated: tuple[str, ...] = ()
    """What is of other lines than the lake has, in sentences."""

    def share(self, name: str) -> Share:
        """The headline figure of that name."""
        return self.shares.get(name, Share())

    @property
    def reads(self) -> int:
        """Reads that ended."""
        return int(self.total.get("reads", 0))

    @property
    def span_s(self) -> int:
        """Seconds from the first minute with a figure to the end of the last."""
        return 0 if self.first is None or self.last is None else self.last + 60 - self.first

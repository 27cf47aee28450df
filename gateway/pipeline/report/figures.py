"""The values that a report shows, as plain data without Spark or markup.

`Figures` holds all values.  Most are rows, as DuckDB returns them.  Time is divided into steps of equal length.  A step
has as many minutes as needed for at most `MOST_STEPS` steps.  `began` is the beginning of a step (Unix seconds).
Figures of a step are sums or come from merged sketches, so no figure is an average of percentiles.  A ratio without a
denominator is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gateway.config.cache_plan import CachePlan

MOST_STEPS: Final = 300
"""Most points of one series.  More points could not be distinguished on a screen."""

Row = Mapping[str, Any]
"""The values of a row, by column."""
Rows = tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """A part and its whole; None for an unknown number."""

    part: int | None = None
    whole: int | None = None

    @property
    def ratio(self) -> float | None:
        """The part divided by the whole; None if that is unknown."""
        return self.part / self.whole if self.part is not None and self.whole else None


@dataclass(frozen=True, slots=True)
class Percentiles:
    """The percentiles and the maximum of `count` durations; None without durations."""

    count: int = 0
    p50_s: float | None = None
    p90_s: float | None = None
    p99_s: float | None = None
    max_s: float | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """The worst items of one kind of problem, and the total number of items."""

    worst: Rows = ()
    total: int = 0


@dataclass(frozen=True, slots=True)
class Figures:
    """All values that a report shows."""

    first: int | None = None
    """Beginning of the first minute with a figure (Unix seconds); None if there is none."""
    last: int | None = None
    """Beginning of the last minute with a figure (Unix seconds)."""
    step_s: int = 60
    requests: int = 0
    """Number of requests of all modes."""
    route_count: int = 0
    """Number of configured routes with a request."""
    shares: Mapping[str, Share] = field(default_factory=dict)
    """The headline figures, by the names of `headlines.DEFINITIONS`."""
    total: Row = field(default_factory=dict)
    """Reads (catch-up, long-poll, SSE) and their cost to the origin: the columns of `gather.sums`."""
    moments: Rows = ()
    """The columns of `total` for each step, by `began`.  Steps without traffic are included."""
    routes: Rows = ()
    """The columns of `total` by `route` and `protocol`, the busiest first."""
    first_byte: Rows = ()
    """`Percentiles` of the time to the first byte of catch-up reads, by `began`."""
    first_byte_all: Percentiles = Percentiles()
    latency: Rows = ()
    """`Percentiles` by `route` and `mode`: of the whole duration, and of the time to the first byte (`first_byte_…`).
    """
    delivery: Rows = ()
    delivery_all: Percentiles = Percentiles()
    by_bytes: Rows = ()
    """The busiest streams.  A stream's figures cover only the hours in which it was among the busiest."""
    by_requests: Rows = ()
    fan_out: Rows = ()
    """The number of reads (`live`, `catchup`) that shared a reply of the origin, by how many readers shared it.

    A row is for at least `at_least` readers, and fewer than twice that number.
    """
    curve: Rows = ()
    """Rows of `tables.CURVE`."""
    curves: tuple[str, ...] = ()
    """The policies whose curves are drawn.  If none of them has a curve, the first curve is drawn."""
    plan: CachePlan | None = None
    found: Mapping[str, Found] = field(default_factory=dict)
    """Problems, by the names of `findings.FINDINGS`."""
    is_short: bool = False
    """Whether the log covers too little time to represent a day."""
    outdated: tuple[str, ...] = ()
    """A sentence for each part of the report that is not up to date with the lake's lines."""

    def share(self, name: str) -> Share:
        """Return the headline figure of that name."""
        return self.shares.get(name, Share())

    @property
    def reads(self) -> int:
        """Number of reads that ended."""
        return int(self.total.get("reads", 0))

    @property
    def span_s(self) -> int:
        """Seconds from the beginning of the first minute with a figure to the end of the last."""
        return 0 if self.first is None or self.last is None else self.last + 60 - self.first

"""The numbers behind the metrics: counts, histograms, and all figures of one route.

Every request changes these numbers, so they are plain Python numbers, owned by the event loop's thread.  Counting needs
one look-up in a small dictionary, some arithmetic, and no lock.  All modes and outcomes that can occur exist from the
start at 0.  `families` decides which modes and outcomes are exported before they occur.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from gateway.errors import UpstreamBroken, UpstreamTimeout, UpstreamUnreachable
from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode
from gateway.protocol.sharing import Ground

DURATION_BOUNDS_S: Final = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
)
"""Upper bounds of the duration buckets, from a cached read to the longest lifetime of an SSE connection."""

FIRST_BYTE_BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0)
"""Upper bounds for the time to the first byte, up to the longest wait of a long-poll."""

DELAY_BOUNDS_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Upper bounds for delays of the event loop, from an idle loop to a stalled loop."""

READS: Final = (Mode.CATCHUP, Mode.LONGPOLL, Mode.SSE)
LIVE: Final = (Mode.LONGPOLL, Mode.SSE)
RELAYED: Final = (Outcome.HIT, Outcome.PASS, Outcome.REFUSED, Outcome.FAILED, Outcome.ABORTED)
"""The outcomes of requests that are not reads.  A preflight counts as a hit."""


FAILURES: Final = (UpstreamUnreachable, UpstreamTimeout, UpstreamBroken)
"""Errors of requests to origins whose counts exist from the start at 0.  The counts of other errors begin with their
first occurrence."""


class Exemplar(NamedTuple):
    """An observation with a trace: the trace id in 32 hex digits, the observed value, and the time in Unix seconds."""

    trace_id: str
    value: float
    at_s: float


class Count:
    """The value of one child (one set of labels) of a counter or a gauge."""

    __slots__ = ("value",)

    def __init__(self, value: int = 0) -> None:
        self.value = value

    def inc(self, n: int = 1) -> None:
        self.value += n


class Total:
    """A sum over routes, computed when it is read."""

    __slots__ = ("_now",)

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now

    @property
    def value(self) -> int:
        return self._now()


class Histogram:
    """Durations: the counts by bucket, the sum in seconds, and the latest exemplar of each bucket."""

    __slots__ = ("bounds", "counts", "exemplars", "sum_s")

    def __init__(self, bounds: Sequence[float] = DURATION_BOUNDS_S) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum_s = 0.0
        self.exemplars: dict[int, Exemplar] = {}

    def observe(self, duration_s: float, n: int = 1) -> None:
        """Count `n` observations of `duration_s` each."""
        self.counts[bisect_left(self.bounds, duration_s)] += n
        self.sum_s += duration_s * n

    def observe_traced(self, duration_s: float, trace_id: str, at_s: float) -> None:
        """Count one observation with a trace, at `at_s` Unix seconds."""
        bucket = bisect_left(self.bounds, duration_s)
        self.counts[bucket] += 1
        self.sum_s += duration_s
        self.exemplars[bucket] = Exemplar(trace_id, duration_s, at_s)

    @property
    def count(self) -> int:
        return sum(self.counts)

    def __bool__(self) -> bool:
        """Whether there are any observations."""
        return any(self.counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """Return the upper bounds as Prometheus writes them, each with the number of observations up to it."""
        bounds = [*(str(bound) for bound in self.bounds), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self.counts)), strict=True))


class EndFigures:
    """The requests of one route and mode with one outcome: their number, body bytes, and bytes saved by compression.
    All outcomes of the mode share the histograms of times.
    """

    __slots__ = ("durations", "first_bytes", "requests", "saved_bytes", "sent_bytes")

    def __init__(self, durations: Histogram, first_bytes: Histogram) -> None:
        self.requests = 0
        self.sent_bytes = 0
        self.saved_bytes = 0
        self.durations = durations
        self.first_bytes = first_bytes


class RouteFigures:
    """All figures of one route."""

    __slots__ = (
        "deliveries",
        "delivery_delays",
        "durations",
        "ends",
        "evictions",
        "first_bytes",
        "reconnects",
        "retries",
        "subscribers",
        "unshared",
        "upstream_bytes",
        "upstream_failures",
        "upstream_first_bytes",
        "upstream_replies",
        "upstream_requests",
    )

    def __init__(self) -> None:
        self.durations = {mode: Histogram() for mode in Mode}
        self.first_bytes = {mode: Histogram(FIRST_BYTE_BOUNDS_S) for mode in Mode}
        self.ends = {
            (mode, outcome): EndFigures(self.durations[mode], self.first_bytes[mode])
            for mode in Mode
            for outcome in (Outcome if mode in READS else RELAYED)
        }
        self.subscribers = {mode: Count() for mode in LIVE}
        self.deliveries = Count()
        self.delivery_delays = Histogram(DELAY_BOUNDS_S)
        self.upstream_requests = {mode: Count() for mode in Mode}
        self.upstream_first_bytes = {mode: Histogram(FIRST_BYTE_BOUNDS_S) for mode in Mode}
        self.upstream_replies = {f"{hundreds}xx": Count() for hundreds in range(2, 6)}
        self.upstream_failures = {error.__name__: Count() for error in FAILURES}
        """Failed requests to origins, by the name of the error's class.  There are few such classes."""
        self.upstream_bytes = {mode: Count() for mode in Mode}
        self.retries = Count()
        self.reconnects = {True: Count(), False: Count()}
        """Live requests that were sent again.  The key is whether the previous connection ended as planned."""
        self.evictions = Count()
        self.unshared: Counter[str] = Counter(dict.fromkeys(Ground, 0))
        """Reads relayed because their answers may not be shared, by the reason.  There are few reasons."""

    def ended(self, mode: Mode, outcome: Outcome) -> EndFigures:
        """Return the figures of requests with this mode and outcome."""
        end = self.ends.get((mode, outcome))
        if end is None:
            end = self.ends[mode, outcome] = EndFigures(self.durations[mode], self.first_bytes[mode])
        return end

"""The last ten minutes: samples of the counters, taken whether or not a console is open.

A newly opened page of the console begins with these samples, so all pages show the same past.  `History` owns the
samples, and `Sampling` owns the timer.  There are at most `MOST_SAMPLES` samples of some thirty numbers each, less than
a megabyte together.  Taking a sample reads the figures of every route once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from gateway.aio.clock import Clock, Timer
from gateway.ops.figures import DELAY_BOUNDS_S, LIVE
from gateway.ops.metrics import Metrics
from gateway.ops.spared import Tally
from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode

INTERVAL_S: Final = 2.0
KEPT_S: Final = 600.0
MOST_SAMPLES: Final = int(KEPT_S / INTERVAL_S) + 1
WINDOW_S: Final = 10.0
"""Seconds over which the current shares are counted."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The counters since the start at one moment, summed over all routes."""

    now: float
    """The time of the sample in monotonic seconds."""
    at: float
    """The time of the sample in Unix seconds."""
    tally: Tally
    requests: Mapping[Outcome, int]
    """Finished requests by outcome, without outcomes at 0."""
    upstream_requests: int
    upstream_bytes: int
    downstream_bytes: int
    subscribers: Mapping[Mode, int]
    """Live readers at this moment."""
    delivery_delays: tuple[int, ...]
    """Rounds of delivery in each bucket of the histogram, not cumulative."""


def sampled(metrics: Metrics, now: float, wall: float) -> Sample:
    """Read the counters at `now` (monotonic) and `wall` (Unix) seconds."""
    metrics.before_collect()
    routes = metrics.routes.values()
    downstream_bytes = metrics.downstream_count.value
    requests: dict[Outcome, int] = {}
    subscribers = dict.fromkeys(LIVE, 0)
    upstream_requests = upstream_bytes = 0
    delays = [0] * (len(DELAY_BOUNDS_S) + 1)
    for figures in routes:
        for (_, outcome), end in figures.ends.items():
            if end.requests:
                requests[outcome] = requests.get(outcome, 0) + end.requests
        for mode in LIVE:
            subscribers[mode] += figures.subscribers[mode].value
        upstream_requests += sum(count.value for count in figures.upstream_requests.values())
        upstream_bytes += sum(count.value for count in figures.upstream_bytes.values())
        for bucket, count in enumerate(figures.delivery_delays.counts):
            delays[bucket] += count
    return Sample(
        now=now,
        at=wall,
        tally=Tally.of(routes, downstream_bytes),
        requests=requests,
        upstream_requests=upstream_requests,
        upstream_bytes=upstream_bytes,
        downstream_bytes=downstream_bytes,
        subscribers=subscribers,
        delivery_delays=tuple(delays),
    )


@dataclass(frozen=True, slots=True)
class Recent:
    """The difference of two samples."""

    window_s: float
    tally: Tally


class History:
    """The newest `MOST_SAMPLES` samples, in order."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=MOST_SAMPLES)

    def __repr__(self) -> str:
        return f"<History: {len(self._samples)} samples>"

    def take(self, sample: Sample) -> None:
        """Add a sample that is newer than all others."""
        self._samples.append(sample)

    def recent(self, until: Sample) -> Recent:
        """Return the counts of the `WINDOW_S` seconds before a sample.  If the first sample is more recent than that,
        return the counts since the first sample.
        """
        first = until
        for sample in reversed(self._samples):
            if sample.now <= until.now:
                first = sample
                if until.now - sample.now >= WINDOW_S:
                    break
        return Recent(until.now - first.now, until.tally.since(first.tally))

    def samples(self) -> list[tuple[Sample, Recent]]:
        """Return every sample with the counts of the `WINDOW_S` seconds before it, oldest first."""
        return [(sample, self.recent(sample)) for sample in self._samples]


class Sampling:
    """Takes a sample at the start and then every `INTERVAL_S` seconds, until it is closed."""

    def __init__(self, clock: Clock, take: Callable[[], None]) -> None:
        self._clock = clock
        self._take = take
        self._timer: Timer | None = None

    def start(self) -> None:
        """Take a sample and set the timer.  Needs a running loop."""
        self._take()
        self._timer = self._clock.call_later(INTERVAL_S, self.start)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

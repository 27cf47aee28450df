"""The values that a report shows: plain, without Spark or markup, ready for JSON.

`Figures` holds everything.  Times are Unix seconds of the beginning of a step; a step has as many minutes as needed for
at most `MOST_STEPS` steps.  Rolled-up figures are sums or merged sketches: no figure is an average of percentiles.
Ratios are not stored but computed from the counts, so they cannot disagree with them; a ratio without a denominator is
None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

MOST_STEPS: Final = 300
"""Most points of one series; more could not be distinguished on a screen."""

T = TypeVar("T")


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


@dataclass(frozen=True, slots=True)
class Share:
    """A part and the whole that it is of; None is not known."""

    part: int | None = None
    whole: int | None = None

    @property
    def ratio(self) -> float | None:
        """Part by whole."""
        return None if self.part is None or self.whole is None else _ratio(self.part, self.whole)


@dataclass(frozen=True, slots=True)
class Saved:
    """Reads by how they were answered."""

    tape: int = 0
    collapse: int = 0
    follow: int = 0
    join: int = 0
    origin: int = 0
    unanswered: int = 0
    """Refused, failed or aborted."""

    @property
    def reads(self) -> int:
        """All reads."""
        return self.tape + self.collapse + self.follow + self.join + self.origin + self.unanswered


@dataclass(frozen=True, slots=True)
class Traffic:
    """Reads (catch-up, long-poll, SSE) and their cost to the origin."""

    by: Saved
    spared: int | None = 0
    """Reads that caused no request at the origin; None if that is not known."""
    origin_requests: int = 0
    sent_bytes: int = 0
    saved_bytes: int = 0
    fetched_bytes: int = 0

    @property
    def read_bytes(self) -> int:
        """Bytes to readers, before coding."""
        return self.sent_bytes + self.saved_bytes

    @property
    def reads(self) -> int:
        """Number of reads that ended."""
        return self.by.reads

    @property
    def spared_ratio(self) -> float | None:
        """Share of the reads that caused no request at the origin."""
        return Share(self.spared, self.reads).ratio

    @property
    def asked_ratio(self) -> float | None:
        """Requests to the origin for each read."""
        return _ratio(self.origin_requests, self.reads)

    @property
    def byte_offload(self) -> float | None:
        """Share of the readers' bytes that the origin did not send; negative if it sent more than readers received."""
        saved = _ratio(self.fetched_bytes, self.read_bytes)
        return None if saved is None else 1 - saved

    @property
    def hit_ratio(self) -> float | None:
        """Share of the reads answered from the tape alone."""
        return _ratio(self.by.tape, self.reads)


@dataclass(frozen=True, slots=True)
class Moment:
    """Traffic of one step of time."""

    at: int
    traffic: Traffic


@dataclass(frozen=True, slots=True)
class Route:
    """All traffic of one route."""

    route: str
    protocol: str
    traffic: Traffic


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of `count` durations; None if there are none."""

    count: int
    p50_s: float | None
    p90_s: float | None
    p99_s: float | None


@dataclass(frozen=True, slots=True)
class Wait:
    """Percentiles of one step of time."""

    at: int
    waited: Percentiles


@dataclass(frozen=True, slots=True)
class Latency:
    """Latency of one route and mode, from end to end and to the first byte."""

    route: str
    mode: str
    duration: Percentiles
    first_byte: Percentiles


@dataclass(frozen=True, slots=True)
class Stream:
    """A busy stream; its figures cover the hours in which it was among the busiest."""

    route: str
    protocol: str
    stream: str
    requests: int
    read_bytes: int
    """Bytes to readers, before coding."""
    fetched_bytes: int
    readers: int


@dataclass(frozen=True, slots=True)
class Shared:
    """Reads by the number of reads they shared the origin's answer with: from `at_least` to less than twice that."""

    at_least: int
    live: int
    """Live reads, by the stream's readers at the time."""
    catchup: int
    """Catch-up reads, by the reads that shared the fetch."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Misses of a policy with that much memory."""

    policy: str
    cache_bytes: int
    miss_ratio: float
    byte_miss_ratio: float
    error: float | None
    """Half width of the 95 % interval of `byte_miss_ratio`; None if it is exact."""
    references: int
    sampled_keys: int
    rate: float


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """A stream in one of the plan's lists."""

    wish: str
    route: str
    stream: str
    bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The point of the curve that a plan has chosen, and the first entries of its lists."""

    cache_bytes: int
    policy: str
    target_hit_ratio: float
    expected_hit_ratio: float
    expected_byte_hit_ratio: float
    error: float
    span_s: float = 0.0
    """Seconds of traffic that it was made from."""
    is_short: bool = False
    """Whether that is too little to set the memory by."""
    wishes: tuple[PlanEntry, ...] = ()
    wished: int = 0
    """Number of entries in all lists."""


@dataclass(frozen=True, slots=True)
class ErrorCount:
    """Requests that ended with one error."""

    route: str
    mode: str
    status: int
    outcome: str
    requests: int
    last: int
    """Minute of the last one."""


@dataclass(frozen=True, slots=True)
class Storm:
    """A minute with far more reconnects than usual."""

    at: int
    route: str
    reconnects: int
    readers: int
    usual: float | None


@dataclass(frozen=True, slots=True)
class SlowConsumer:
    """A reader that was cut off because it did not keep up."""

    route: str
    stream: str
    client: str
    user_agent: str
    cut_off: int
    sent_bytes: int


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """A reader that requests the end of a closed stream again and again."""

    route: str
    stream: str
    client: str
    user_agent: str
    requests: int
    minutes: int
    """Number of minutes in which it did."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """An hour unlike the same hour of the days before."""

    at: int
    route: str
    measure: str
    value: float
    before: float
    days: int
    score: float | None


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """The worst items of a kind, and their total number."""

    worst: tuple[T, ...] = ()
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
    shares: Mapping[str, Share] = field(default_factory=dict)
    """The headline figures, by the names of `headlines.DEFINITIONS`."""
    total: Traffic = field(default_factory=lambda: Traffic(Saved()))
    moments: tuple[Moment, ...] = ()
    routes: tuple[Route, ...] = ()
    first_byte: tuple[Wait, ...] = ()
    """Time to the first byte of catch-up reads."""
    first_byte_all: Percentiles | None = None
    latency: tuple[Latency, ...] = ()
    delivery: tuple[Wait, ...] = ()
    delivery_all: Percentiles | None = None
    delivery_max_s: float | None = None
    by_bytes: tuple[Stream, ...] = ()
    by_requests: tuple[Stream, ...] = ()
    fan_out: tuple[Shared, ...] = ()
    curve: tuple[CurvePoint, ...] = ()
    curves: tuple[str, ...] = ()
    """The policies whose curves are drawn; without any of them, the first one is."""
    plan: Plan | None = None
    refusals: Found[ErrorCount] = field(default_factory=Found)
    storms: Found[Storm] = field(default_factory=Found)
    slow_consumers: Found[SlowConsumer] = field(default_factory=Found)
    closed_loops: Found[ClosedLoop] = field(default_factory=Found)
    anomalies: Found[Anomaly] = field(default_factory=Found)
    is_short: bool = False
    """Whether the log covers too little time to judge a day by."""

    @property
    def span_s(self) -> int:
        """Seconds from the first minute with a figure to the end of the last."""
        return 0 if self.first is None or self.last is None else self.last + 60 - self.first

"""What a report shows, as plain values: no Spark, no markup, ready for JSON.

`Figures` is everything.  Times are Unix seconds of the beginning of a step; a step is as many minutes as it takes to
have at most `MOST_STEPS` of them.  What was rolled up was added, or merged by its sketches: no figure is an average of
percentiles.  Ratios are not kept but computed from what is, so that they cannot disagree with it; they are None where
there is nothing to divide by.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

MOST_STEPS: Final = 300
"""Points of one series: more than a screen tells apart."""

T = TypeVar("T")


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


@dataclass(frozen=True, slots=True)
class Saved:
    """Reads by who answered them."""

    tape: int = 0
    collapse: int = 0
    follow: int = 0
    join: int = 0
    origin: int = 0
    unanswered: int = 0
    """Refused, failed or aborted."""

    @property
    def reads(self) -> int:
        """All of them."""
        return self.tape + self.collapse + self.follow + self.join + self.origin + self.unanswered


@dataclass(frozen=True, slots=True)
class Traffic:
    """Reads (catch-up, long-poll, SSE), and what they cost the origin."""

    by: Saved
    origin_requests: int = 0
    sent_bytes: int = 0
    saved_bytes: int = 0
    fetched_bytes: int = 0

    @property
    def read_bytes(self) -> int:
        """What readers got, before it was coded."""
        return self.sent_bytes + self.saved_bytes

    @property
    def reads(self) -> int:
        """Reads that ended."""
        return self.by.reads

    @property
    def request_offload(self) -> float | None:
        """Share of the reads that the origin was not asked for; below 0 where it was asked more often than they are."""
        saved = _ratio(self.origin_requests, self.reads)
        return None if saved is None else 1 - saved

    @property
    def byte_offload(self) -> float | None:
        """Share of the readers' bytes that the origin did not send; below 0 where it sent more than they got."""
        saved = _ratio(self.fetched_bytes, self.read_bytes)
        return None if saved is None else 1 - saved

    @property
    def hit_ratio(self) -> float | None:
        """Share of the reads that were answered from the tape alone."""
        return _ratio(self.by.tape, self.reads)


@dataclass(frozen=True, slots=True)
class Moment:
    """One step of time."""

    at: int
    traffic: Traffic


@dataclass(frozen=True, slots=True)
class Route:
    """All traffic of one route."""

    route: str
    traffic: Traffic


@dataclass(frozen=True, slots=True)
class Percentiles:
    """How long something took, of `count` times it happened; None where nothing is known."""

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
    """How long requests of one route and mode took, from end to end and to the first byte."""

    route: str
    mode: str
    duration: Percentiles
    first_byte: Percentiles


@dataclass(frozen=True, slots=True)
class Stream:
    """A busy stream; its figures are those of the hours in which it was among the busiest."""

    route: str
    stream: str
    requests: int
    read_bytes: int
    """What readers got, before it was coded."""
    fetched_bytes: int
    readers: int


@dataclass(frozen=True, slots=True)
class Shared:
    """Reads that shared what the origin sent with so many others: `at_least`, and less than twice that."""

    at_least: int
    live: int
    """By readers of the stream at the time."""
    catchup: int
    """By reads that shared one fetch."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """What a policy would miss with so much memory."""

    policy: str
    cache_bytes: int
    miss_ratio: float
    byte_miss_ratio: float
    error: float | None
    """Half width of the 95 % interval of `byte_miss_ratio`; None where it is exact."""
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
    """Minute of the last of them."""


@dataclass(frozen=True, slots=True)
class Storm:
    """A minute in which far more readers came back than usual."""

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
    """A reader that asks again and again for the end of a stream that is closed."""

    route: str
    stream: str
    client: str
    user_agent: str
    requests: int
    minutes: int
    """In how many of them."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """An hour that was unlike the same hour of the days before."""

    at: int
    route: str
    measure: str
    value: float
    before: float
    days: int
    score: float | None


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """The worst of something, and how many there are."""

    worst: tuple[T, ...] = ()
    total: int = 0


@dataclass(frozen=True, slots=True)
class Figures:
    """All that a report shows."""

    first: int | None = None
    """Beginning of the first minute with a figure; None where there is none at all."""
    last: int | None = None
    """Beginning of the last."""
    step_s: int = 60
    requests: int = 0
    """Requests of every mode."""
    errors: int = 0
    """Those of them that ended in an error."""
    total: Traffic = field(default_factory=lambda: Traffic(Saved()))
    moments: tuple[Moment, ...] = ()
    routes: tuple[Route, ...] = ()
    first_byte: tuple[Wait, ...] = ()
    """Of catch-up reads."""
    first_byte_all: Percentiles | None = None
    latency: tuple[Latency, ...] = ()
    delivery: tuple[Wait, ...] = ()
    delivery_all: Percentiles | None = None
    delivery_max_s: float | None = None
    by_bytes: tuple[Stream, ...] = ()
    by_requests: tuple[Stream, ...] = ()
    fan_out: tuple[Shared, ...] = ()
    most_shared: int = 0
    """The largest number of live readers that one stream had."""
    curve: tuple[CurvePoint, ...] = ()
    plan: Plan | None = None
    refusals: Found[ErrorCount] = field(default_factory=Found)
    storms: Found[Storm] = field(default_factory=Found)
    slow_consumers: Found[SlowConsumer] = field(default_factory=Found)
    closed_loops: Found[ClosedLoop] = field(default_factory=Found)
    anomalies: Found[Anomaly] = field(default_factory=Found)

"""Samples, medians, and the targets for them.

A row is one figure of one benchmark, with one sample per round and peer.  A target applies to the gateway's median in
that row: as a multiple of another peer's median, as a difference to it, or by itself.  Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from statistics import median
from typing import Final, assert_never

GATEWAY: Final = "gateway"
LOAD_BOUND_BELOW: Final = 0.9
"""A server less busy than this was not the bottleneck of the measurement."""


class Relation(Enum):
    """What a target compares the gateway's median with."""

    AT_LEAST_TIMES = "at least so many times the reference"
    AT_MOST_TIMES = "at most so many times the reference"
    BELOW = "less than the reference"
    AT_MOST_ABOVE = "at most so much more than the reference"
    AT_MOST_CPU = "at most so many times the reference's processor time an operation"
    AT_MOST = "at most so much"


@dataclass(frozen=True, slots=True)
class Target:
    """A figure to reach."""

    relation: Relation
    value: float = 1.0
    reference: str = ""
    of: str = GATEWAY
    """The peer whose figure is judged, for a target of processor time: the gateway, or the gateway otherwise set."""

    @property
    def shown_at(self) -> str:
        """The peer next to which a table shows the target."""
        return self.of if self.of != GATEWAY else self.reference or GATEWAY

    def text(self) -> str:
        """The target as a table shows it."""
        match self.relation:
            case Relation.AT_LEAST_TIMES:
                return f"≥ {self.value:g} x {self.reference}"
            case Relation.AT_MOST_TIMES:
                return f"≤ {self.value:g} x {self.reference}"
            case Relation.BELOW:
                return f"< {self.reference}"
            case Relation.AT_MOST_ABOVE:
                return f"≤ {self.reference} + {self.value:g}"
            case Relation.AT_MOST_CPU:
                return f"cpu ≤ {self.value:g} x {self.reference}"
            case Relation.AT_MOST:
                return f"≤ {self.value:,g}"
            case _:
                assert_never(self.relation)

    def is_reached(self, row: Row) -> bool | None:
        """Whether the row's gateway reaches it; None if either was not measured."""
        if self.relation is Relation.AT_MOST_CPU:
            ratio = _ratio(row.cpu_us_of(self.of), row.cpu_us_of(self.reference))
            return None if ratio is None else ratio <= self.value
        gateway = row.median_of(GATEWAY)
        other = row.median_of(self.reference) if self.reference else 0.0
        if gateway is None or other is None:
            return None
        match self.relation:
            case Relation.AT_LEAST_TIMES:
                return gateway >= self.value * other
            case Relation.AT_MOST_TIMES:
                return gateway <= self.value * other
            case Relation.BELOW:
                return gateway < other
            case Relation.AT_MOST_ABOVE:
                return gateway <= other + self.value
            case Relation.AT_MOST:
                return gateway <= self.value
            case _:
                assert_never(self.relation)


@dataclass(frozen=True, slots=True)
class Sample:
    """One figure of one round."""

    value: float
    busy: float | None = None
    """Load of the server during the round: processor seconds per second."""
    foreign: float | None = None
    """Load of the server's core by other processes during the round: processor seconds per second."""
    cpu_us: float | None = None
    """Processor time of the server per operation, user and kernel, over all its processes: microseconds."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one benchmark, for every peer."""

    key: str
    title: str
    unit: str
    targets: Sequence[Target] = ()
    digits: int = 0
    """Number of decimal places shown."""
    is_rate: bool = True
    """Whether more is better and the server's processor is the limit."""
    samples: dict[str, list[Sample]] = field(default_factory=dict)

    def add(self, peer: str, sample: Sample) -> None:
        """Add a round's figure."""
        self.samples.setdefault(peer, []).append(sample)

    def median_of(self, peer: str) -> float | None:
        """The median of a peer's samples."""
        samples = self.samples.get(peer)
        return median(sample.value for sample in samples) if samples else None

    def busy_of(self, peer: str) -> float | None:
        """Median load of the peer's server."""
        known = [sample.busy for sample in self.samples.get(peer, ()) if sample.busy is not None]
        return median(known) if known else None

    def cpu_us_of(self, peer: str) -> float | None:
        """Median processor time of the server per operation; other load on the machine hardly affects it."""
        known = [sample.cpu_us for sample in self.samples.get(peer, ()) if sample.cpu_us is not None]
        return median(known) if known else None

    def is_load_bound(self, peer: str) -> bool:
        """Whether the load generator was the bottleneck: neither the server nor others on its core were."""
        shares = [
            sample.busy + (sample.foreign or 0.0) for sample in self.samples.get(peer, ()) if sample.busy is not None
        ]
        return self.is_rate and bool(shares) and median(shares) < LOAD_BOUND_BELOW

    @property
    def is_judged_by_cpu(self) -> bool:
        """Whether the row is about processor time, at a rate given by the load."""
        return any(target.relation is Relation.AT_MOST_CPU for target in self.targets)

    def ratio_to(self, peer: str) -> float | None:
        """The gateway's median divided by a peer's."""
        return _ratio(self.median_of(GATEWAY), self.median_of(peer))

    def cpu_ratio_to(self, peer: str) -> float | None:
        """The same ratio for processor time per operation."""
        return _ratio(self.cpu_us_of(GATEWAY), self.cpu_us_of(peer))


@dataclass(frozen=True, slots=True)
class GrowthPoint:
    """The gateway's figures at one count."""

    count: int
    requests_per_s: float
    busy: float
    pss_bytes: int


@dataclass(frozen=True, slots=True)
class Growth:
    """Growth of cost with one count."""

    of: str
    points: Sequence[GrowthPoint]


def _ratio(gateway: float | None, other: float | None) -> float | None:
    return gateway / other if gateway is not None and other else None

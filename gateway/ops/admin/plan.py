"""The cache plan in effect: its expectations, its results so far, and its entries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import with_config

from gateway.config.cache_plan import Entry, Lifetime
from gateway.ops.admin.endpoint import API_TYPE, ApiRequest, Endpoint, Nothing
from gateway.ops.admin.subject import Subject
from gateway.ops.plan_state import PlanState


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class Expected:
    """The plan's expectations for the budget that it recommends."""

    hit_ratio: float
    """The share of catch-up reads that need nothing from the origin."""
    byte_hit_ratio: float
    error: float
    """How far the actual ratios may differ from the expected ratios, up or down."""


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class Actual:
    """The counts since the plan took effect."""

    hit_ratio: float | None
    """The share of hits among catch-up reads; null before the first read."""
    byte_hit_ratio: float | None
    hits: int
    misses: int
    read_bytes: int
    """Body bytes of answers to catch-up reads, before compression."""
    fetched_bytes: int
    """Body bytes that the origin sent for catch-up reads."""


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class PlanMemory:
    """The budget for tapes (the bytes of streams in memory)."""

    recommended_bytes: int
    budget_bytes: int
    """The budget in effect."""
    is_taken: bool
    """Whether the budget in effect is the plan's budget.  False if limits.cache_bytes is set, if take_memory is false,
    or if the plan is short and take_short_memory is false."""
    policy: str
    """The eviction policy that the expectations assume."""


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class Pins:
    """Pinned streams, which are kept when other streams are evicted."""

    wished: int
    kept: int
    bytes: int
    limit_bytes: int


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class Warm:
    """Streams that the latest round of warming has fetched ahead of their first read."""

    wished: int
    streams: int
    """Streams for which bytes were fetched."""
    bytes: int
    is_under_way: bool


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class PlanEntry:
    """One stream of the plan."""

    route: str
    stream: str
    bytes: int
    reason: str
    idle_s: float | None = None
    """Seconds without a reader, after which the tape is dropped.  Only entries in `lifetimes` have it."""


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class PlanInEffect:
    """The plan in effect, and its results so far."""

    file: str
    made_at: str
    taken_at: float
    """When the plan took effect, in Unix seconds."""
    span_s: float
    """Seconds of traffic that the plan was made from."""
    is_short: bool
    """Whether the plan was made from too little traffic to determine the budget for tapes."""
    target_hit_ratio: float
    expected: Expected
    actual: Actual
    memory: PlanMemory
    pinned: Pins
    warmed: Warm
    unstored_bytes: int
    """Bytes fetched for streams not worth storing, which were not kept.  A shared fetch counts once."""
    given_up: int
    """Tapes dropped because their idle time had passed without a read."""
    unmatched: int
    """Entries that match no route, and entries to warm S2 streams."""
    pin: list[PlanEntry]
    warm: list[PlanEntry]
    do_not_store: list[PlanEntry]
    lifetimes: list[PlanEntry]


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class PlanShown:
    """The plan in effect; null if there is none."""

    plan: PlanInEffect | None


def plan_endpoints(subject: Subject) -> list[Endpoint]:
    """Make the endpoint `/api/plan`."""

    async def plan(_: ApiRequest[Nothing, Nothing]) -> PlanShown:
        subject.metrics.before_collect()
        state = subject.metrics.plan()
        return PlanShown(_shown(subject, state) if state is not None else None)

    return [Endpoint("GET", "/api/plan", "The cache plan in effect, and its results so far", plan, PlanShown)]


def _shown(subject: Subject, state: PlanState) -> PlanInEffect:
    plan, memory, budget = state.plan, state.plan.memory, subject.engine.store.budget_bytes
    return PlanInEffect(
        file=subject.config.cache.plan.file,
        made_at=plan.made_at.isoformat(),
        taken_at=state.taken_at,
        span_s=plan.made_from.span_s,
        is_short=plan.is_short,
        target_hit_ratio=plan.target_hit_ratio,
        expected=Expected(memory.expected_hit_ratio, memory.expected_byte_hit_ratio, memory.error),
        actual=Actual(
            state.hit_ratio, state.byte_hit_ratio, state.hits, state.misses, state.read_bytes, state.fetched_bytes
        ),
        memory=PlanMemory(memory.cache_bytes, budget, budget == memory.cache_bytes, memory.policy),
        pinned=Pins(len(plan.pin), state.pinned_streams, state.pinned_bytes, state.pinned_limit_bytes),
        warmed=Warm(len(plan.warm), state.warmed_streams, state.warmed_bytes, state.is_warming),
        unstored_bytes=state.unstored_bytes,
        given_up=state.given_up,
        unmatched=state.unmatched,
        pin=_entries(plan.pin),
        warm=_entries(plan.warm),
        do_not_store=_entries(plan.do_not_store),
        lifetimes=_entries(plan.lifetimes),
    )


def _entries(entries: Iterable[Entry]) -> list[PlanEntry]:
    return [
        PlanEntry(one.route, one.stream, one.bytes, one.reason, one.idle_s if isinstance(one, Lifetime) else None)
        for one in entries
    ]

"""Make the cache plan: a memory budget, and lists of streams that need other treatment than the cache's usual one.

The budget is the smallest memory that reaches the target hit ratio on the curve of the gateway's eviction policy.  If
no memory reaches the target, the budget is the smallest memory that comes within `_NEAR` of the best ratio.  No memory
reaches a ratio of 1, because first reads count as misses.

The lists are

- `pin`: streams to keep in memory (`worth_pinning`), up to `PIN_SHARE` of the budget
- `warm`: streams to fetch at start (`worth_warming`), up to `WARM_SHARE` of the budget
- `do_not_store`: streams to relay without storing them (`not_worth_storing`)
- `lifetimes`: streams to drop after an idle time (`lifetimes_of`)

Pinned and warmed streams are chosen by the most bytes sent per byte of memory.  Live and concurrent readers share one
fetch through the stored bytes, so a stream with such readers is never in `do_not_store`.

A plan contains no credentials, so streams that are mostly read with credentials are neither pinned nor warmed.  A plan
made from too short a log is marked: traffic of a few minutes does not show how much memory a day needs.

All decisions are functions of the figures in `curve.streams`.  Ties are broken by name, so the same lake always gives
the same plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow.compute as pc
from pydantic import TypeAdapter, ValidationError
from pyspark.sql import SparkSession

from gateway.aio.clock import Clock, SystemClock
from gateway.config.cache_plan import (
    SHORT_S,
    CachePlan,
    Entry,
    Lifetime,
    MadeFrom,
    Memory,
    StreamName,
    covers_too_little,
)
from gateway.config.sizes import GIB, MIB
from gateway.config.values import NodeName, RouteName
from gateway.pipeline import tables
from gateway.pipeline.curve.references import PlacedReads, placed_reads
from gateway.pipeline.curve.streams import WINDOWS, StreamFigures, Traffic, residence_s, traffic_of
from gateway.pipeline.derived import silver_of_curve
from gateway.pipeline.errors import NothingToPlan, PipelineFailed
from gateway.pipeline.lake import Lake
from gateway.pipeline.wording import size, span
from gateway.tape.eviction import POLICIES

PIN_SHARE: Final = 0.25
"""Largest share of the budget for pinned streams.  The rest is left for unforeseen traffic."""
WARM_SHARE: Final = 0.5
"""Largest share of the budget for warmed streams."""

_MOST: Final = 1_000
"""Most streams in a list.  Further streams would gain almost nothing."""
_NEAR: Final = 0.005
_STEP: Final = MIB // 16
"""Budgets are rounded up to a multiple of this many bytes."""
_LARGE: Final = 64 * 1024
_LARGE_SHARE: Final = 1 / 1_000
"""A stream smaller than `_LARGE` bytes or this share of the budget is always stored."""
_HOT_WINDOWS: Final = WINDOWS // 2
_WARM_WINDOWS: Final = WINDOWS - 1
_REFETCHED: Final = 0.5
"""If at least this share of a stream's bytes was fetched again, the cache had evicted the stream too early."""
_SURELY: Final = 2.0
"""Safety factor: observed times are multiplied by this number before another time is compared with them."""
_RETURNS: Final = 5
_MOST_BYTES: Final = 1024 * GIB
"""Largest size that an entry of the plan can have."""
_SHORTEST_S: Final = 60.0
_MOST_S: Final = 31_536_000.0
_LONGEST_STREAM: Final = 2_048
"""Characters after which the log truncates a stream's name."""
_NAME: Final[TypeAdapter[tuple[str, str]]] = TypeAdapter(tuple[RouteName, StreamName])
_NODE: Final[TypeAdapter[str]] = TypeAdapter(NodeName)


@dataclass(frozen=True, slots=True)
class Point:
    """A point on the curve of one policy."""

    cache_bytes: int
    hit_ratio: float
    byte_hit_ratio: float
    error: float


@dataclass(frozen=True, slots=True)
class Basis:
    """The input of a plan, apart from the curve."""

    version: int
    """Version of silver that the basis was computed from."""
    first_us: int
    last_us: int
    lines: int
    nodes: tuple[str, ...]
    """Names of the gateways that wrote the log."""
    not_warmed: frozenset[str]
    """Routes with another protocol than Durable Streams.  Gateways cannot warm their streams."""
    traffic: Traffic


def basis_of(spark: SparkSession, reads: PlacedReads) -> Basis:
    """Compute the basis of a plan from the reads in silver.  This needs no curve."""
    silver = reads.silver
    seen = silver.read(spark, columns=("node", "route", "protocol")).distinct().collect()
    return Basis(
        version=silver.version,
        first_us=reads.first_us,
        last_us=reads.last_us,
        lines=sum(file.rows for file in silver.files()),
        nodes=tuple(sorted({row.node for row in seen if row.node is not None})),
        not_warmed=frozenset(row.route for row in seen if row.protocol not in (None, tables.DURABLE_STREAMS)),
        traffic=traffic_of(reads.figures(), reads.gaps(), reads.first_us, reads.last_us),
    )


def make_plan(
    spark: SparkSession,
    lake: Lake,
    *,
    target_hit_ratio: float = 0.9,
    policy: str = "s3-fifo",
    min_span_s: float = SHORT_S,
    clock: Clock | None = None,
    progress: Callable[[str], None] = lambda line: None,
    basis: Basis | None = None,
) -> CachePlan:
    """Make a plan for gateways that run the eviction policy `policy`, from the lake's silver and curve.

    The plan uses the lines that the curve was computed from.  `basis` is their basis; without it, this function
    computes the basis.  A plan whose lines span less than `min_span_s` seconds is marked as short.

    Raises PipelineFailed for invalid arguments.  Raises NothingToPlan if there is no traffic or no curve, or if silver
    no longer has the lines of the curve.
    """
    if policy not in POLICIES:
        raise PipelineFailed(f"policy: {policy} is none of {', '.join(POLICIES)}")
    if not 0 <= target_hit_ratio <= 1:
        raise PipelineFailed(f"target: expected a ratio from 0 to 1, got {target_hit_ratio}")
    silver = silver_of_curve(lake)
    if not sum(file.rows for file in silver.files()):
        raise NothingToPlan(f"{lake.url}: no requests in it, so there is nothing to plan by")
    curve = lake.snapshot(tables.CURVE).arrow(tables.CURVE.names).read_all().sort_by("cache_bytes")
    rows = curve.filter(pc.equal(curve["policy"], policy)).to_pylist()
    points = [
        Point(one["cache_bytes"], 1 - one["miss_ratio"], 1 - one["byte_miss_ratio"], one["error"] or 0.0)
        for one in rows
    ]
    if not points:
        why = "compute the curve first, of a log with catch-up reads"
        raise NothingToPlan(f"{lake.url}: no curve of {policy} in it: {why}")
    memory = budget(points, target_hit_ratio, policy)
    if memory.expected_hit_ratio < target_hit_ratio:
        progress(f"plan: no memory reaches {target_hit_ratio:.1%}: {memory.expected_hit_ratio:.1%} is the best")
    if basis is None or basis.version != silver.version:
        progress("plan: figures of each stream")
        with placed_reads(spark, silver) as reads:
            basis = basis_of(spark, reads)
    span_s = (basis.last_us - basis.first_us) / 1e6
    return CachePlan(
        version=1,
        made_at=_moment(int((clock or SystemClock()).wall() * 1_000_000)),
        made_from=MadeFrom(
            first=_moment(basis.first_us),
            last=_moment(basis.last_us),
            lines=basis.lines,
            nodes=tuple(node for node in basis.nodes if _is(_NODE, node))[:1_000],
            is_short=covers_too_little(span_s, min_span_s),
        ),
        target_hit_ratio=float(target_hit_ratio),
        memory=memory,
        **decide(basis.traffic, memory.cache_bytes, max(1, len(basis.nodes)), basis.not_warmed),
    )


def _moment(micros: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


def budget(points: Sequence[Point], target: float, policy: str) -> Memory:
    """Return the smallest memory that reaches the target on this curve, or comes near the best ratio if none does.

    `points` are sorted by size and not empty.  Between two points, the hit ratio is linear in the logarithm of the
    size.
    """
    best = max(point.hit_ratio for point in points)
    wanted = target if best >= target else best - _NEAR
    at = next(number for number, point in enumerate(points) if point.hit_ratio >= wanted)
    found = points[at]
    if at and found.hit_ratio > wanted:
        below, above = points[at - 1], found
        part = (wanted - below.hit_ratio) / (above.hit_ratio - below.hit_ratio)
        found = Point(
            min(above.cache_bytes, int(below.cache_bytes * (above.cache_bytes / below.cache_bytes) ** part) + 1),
            wanted,
            below.byte_hit_ratio + part * (above.byte_hit_ratio - below.byte_hit_ratio),
            max(below.error, above.error),
        )
    return Memory(
        cache_bytes=min(-(-found.cache_bytes // _STEP) * _STEP, _MOST_BYTES),
        policy=policy,  # type: ignore[arg-type]
        expected_hit_ratio=_ratio(found.hit_ratio),
        expected_byte_hit_ratio=_ratio(found.byte_hit_ratio),
        error=_ratio(found.error),
    )


def _ratio(value: float) -> float:
    return round(min(1.0, max(0.0, value)), 4)


def decide(traffic: Traffic, cache_bytes: int, nodes: int, not_warmed: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return the four lists of a plan, for a budget of `cache_bytes` on each of `nodes` gateways.

    Streams of the routes `not_warmed` are not warmed.
    """
    kept_s = residence_s(traffic.gaps, traffic.span_s, cache_bytes * nodes)
    # The log truncates very long names, so one such name may stand for many streams.
    streams = [
        one for one in traffic.streams if len(one.stream) < _LONGEST_STREAM and _is(_NAME, (one.route, one.stream))
    ]
    shunned = not_worth_storing(streams, cache_bytes, kept_s)
    others = _without(streams, shunned)
    shared = [one for one in others if 2 * one.asked_apart <= one.asked]
    pinned = worth_pinning(shared, cache_bytes, kept_s)
    warmed = worth_warming([one for one in shared if one.route not in not_warmed], cache_bytes, traffic.span_s)
    idle = lifetimes_of(_without(others, [*pinned, *warmed]), kept_s)
    return {"pin": tuple(pinned), "warm": tuple(warmed), "do_not_store": tuple(shunned), "lifetimes": tuple(idle)}


def _without(streams: Iterable[StreamFigures], entries: Iterable[Entry]) -> list[StreamFigures]:
    places = {entry.key for entry in entries}
    return [one for one in streams if (one.route, one.stream) not in places]


def _is(kind: TypeAdapter[Any], value: object) -> bool:
    try:
        kind.validate_python(value)
    except ValidationError:
        return False
    return True


def _entry(one: StreamFigures, reason: str) -> Entry:
    return Entry(route=one.route, stream=one.stream, bytes=min(one.bytes, _MOST_BYTES), reason=reason)


def _fitting(streams: Iterable[StreamFigures], room: float) -> list[StreamFigures]:
    """Choose streams that fit into `room` bytes.

    Streams with the most bytes sent per byte of memory come first.  A stream that no longer fits is skipped.
    """
    out: list[StreamFigures] = []
    for one in sorted(streams, key=lambda one: (-one.asked_bytes / max(1, one.bytes), one.route, one.stream)):
        if one.bytes <= room and len(out) < _MOST:
            room -= one.bytes
            out.append(one)
    return out


def worth_pinning(streams: Iterable[StreamFigures], cache_bytes: int, kept_s: float | None) -> list[Entry]:
    """Return streams that were requested in at least half of the log's parts and nevertheless were evicted too early.

    If the cache has room for all streams, the list is empty.
    """
    if kept_s is None:
        return []
    hot = (one for one in streams if one.windows >= _HOT_WINDOWS)
    refetched = (one for one in hot if one.fetched_again >= max(1, _REFETCHED * one.bytes))
    return [
        _entry(
            one,
            f"{one.asked:,} catch-up reads in {one.windows} of {WINDOWS} parts of the log, and the origin sent "
            f"{size(one.fetched_again)} of it again; {size(one.bytes)} of memory would have saved that.",
        )
        for one in _fitting(refetched, PIN_SHARE * cache_bytes)
    ]


def worth_warming(streams: Iterable[StreamFigures], cache_bytes: int, span_s: float) -> list[Entry]:
    """Return streams that were requested in nearly every part of the log.

    Such streams will be requested soon after a gateway's start.
    """
    steady = [one for one in streams if one.windows >= _WARM_WINDOWS]
    return [
        _entry(
            one,
            f"Asked for in {one.windows} of {WINDOWS} parts of the log, so within {span(span_s / WINDOWS)} of "
            f"most starts; {one.asked:,} catch-up reads got {size(one.asked_bytes)} of its {size(one.bytes)}.",
        )
        for one in _fitting(steady, WARM_SHARE * cache_bytes)
    ]


def not_worth_storing(streams: Iterable[StreamFigures], cache_bytes: int, kept_s: float | None) -> list[Entry]:
    """Return large streams of which no byte is read again before a cache of this budget evicts it.

    If the cache has room for all streams, the list is empty.
    """
    if kept_s is None:
        return []
    least = max(_LARGE, _LARGE_SHARE * cache_bytes)
    found = []
    for one in sorted(streams, key=_largest_first):
        is_once = one.again_s is None or one.again_s > _SURELY * kept_s
        if is_once and one.bytes >= least and one.asked and not one.live and one.quiet_s > kept_s:
            never = "twice" if one.again_s is None else f"again within {span(one.again_s)}"
            reason = (
                f"No byte of it was read {never} ({one.asked:,} catch-up reads), and so much memory forgets after "
                f"about {span(kept_s)}: storing its {size(one.bytes)} saves nothing."
            )
            found.append(_entry(one, reason))
    return found[:_MOST]


def lifetimes_of(streams: Iterable[StreamFigures], kept_s: float | None) -> list[Lifetime]:
    """Return streams that were read many times and now have been idle for much longer than ever before."""
    ended = []
    for one in sorted(streams, key=_largest_first):
        lifetime_s = max(_SHORTEST_S, _SURELY * one.idle_s)
        is_over = one.returns >= _RETURNS and one.quiet_s > lifetime_s and one.bytes >= _LARGE
        if is_over and lifetime_s <= _MOST_S and (kept_s is None or lifetime_s < kept_s):
            reason = (
                f"Of {one.returns:,} times that readers came back none was after more than {span(one.idle_s)}; "
                f"it had been quiet for {span(one.quiet_s)} when the log ended."
            )
            ended.append(Lifetime(**dict(_entry(one, reason)), idle_s=float(round(lifetime_s))))
    return ended[:_MOST]


def _largest_first(one: StreamFigures) -> tuple[int, str, str]:
    return -one.bytes, one.route, one.stream

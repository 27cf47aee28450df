"""The plan: what the traffic says that a gateway should do with its memory.

The budget comes from the curve of the policy that the gateway runs: the least that reaches the target hit ratio, or,
where none does, the least that comes within `_NEAR` of the best.  (What is read for the first time in the log counts
as missing, so no memory reaches 1.)  What such a cache would do by itself is then left to it; the lists name what it
would do badly:

- `pin`: streams that are asked for most of the time and were nevertheless fetched again, the most reads for a byte of
  memory first, as far as `PIN_SHARE` of the budget goes.
- `warm`: streams that are asked for in nearly every part of the log, so that a gateway which begins with an empty
  memory is asked for them soon, by the same order, as far as `WARM_SHARE` goes.
- `do_not_store`: large streams of which no byte is read again before a cache of that budget has forgotten it.  Live
  readers, and readers together, share one fetch, so a stream that has any of them is stored.
- `lifetimes`: streams that were read again and again, and then no more, for far longer than they ever were idle.

A plan knows no credentials, so what a gateway pins and warms is the tape of those who show none: streams that are
mostly read by others are left out of these two.

Whatever depends on what came after is said only of streams that the log goes on long enough after.  All is decided by
plain functions of the figures in `curve.streams`, in an order that ends with the name: one lake, one plan.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter, ValidationError

from gateway.aio.clock import Clock, SystemClock
from gateway.config.cache_plan import CachePlan, Entry, Lifetime, MadeFrom, Memory, StreamName
from gateway.config.values import GIB, MIB, NodeName, RouteName
from gateway.pipeline import tables
from gateway.pipeline.curve import references
from gateway.pipeline.curve.streams import WINDOWS, StreamFigures, Traffic, residence_s, traffic_of
from gateway.pipeline.errors import NothingToPlan, PipelineFailed
from gateway.tape.eviction import POLICIES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gateway.pipeline.lake import Lake

PIN_SHARE: Final = 0.25
"""Of the budget, at most; the rest is for what nobody foresaw."""
WARM_SHARE: Final = 0.5

_MOST: Final = 1_000
"""Streams in a list: beyond that, each is worth next to nothing."""
_NEAR: Final = 0.005
_STEP: Final = MIB // 16
"""Budgets are rounded up to it."""
_LARGE: Final = 64 * 1024
_LARGE_SHARE: Final = 1 / 1_000
"""Of the budget: a stream smaller than either is not worth a line in a plan."""
_HOT_WINDOWS: Final = WINDOWS // 2
_WARM_WINDOWS: Final = WINDOWS - 1
_REFETCHED: Final = 0.5
"""Of a stream's bytes: so much must have been fetched again for it to have been given up too soon."""
_SURELY: Final = 2.0
"""How many times longer than what was seen a time must be to be relied on."""
_RETURNS: Final = 5
_MOST_BYTES: Final = 1024 * GIB
"""What an entry can say."""
_SHORTEST_S: Final = 60.0
_MOST_S: Final = 31_536_000.0
_LONGEST_STREAM: Final = 2_048
"""Where a log cuts a stream's name."""
_NAME: Final[TypeAdapter[tuple[str, str]]] = TypeAdapter(tuple[RouteName, StreamName])
_NODE: Final[TypeAdapter[str]] = TypeAdapter(NodeName)


@dataclass(frozen=True, slots=True)
class Point:
    """A place on the curve of one policy."""

    cache_bytes: int
    hit_ratio: float
    byte_hit_ratio: float
    error: float


def make_plan(
    spark: SparkSession,
    lake: Lake,
    *,
    target_hit_ratio: float = 0.9,
    policy: str = "s3-fifo",
    clock: Clock | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> CachePlan:
    """Make a plan of the lake's silver and curve, for gateways that run `policy`.

    PipelineFailed for arguments that make no sense, NothingToPlan where there is nothing to make it of.  `clock` says
    when it is made; all else comes from the lake.
    """
    from pyspark.sql import functions as f

    if policy not in POLICIES:
        raise PipelineFailed(f"policy: {policy} is none of {', '.join(POLICIES)}")
    if not 0 <= target_hit_ratio <= 1:
        raise PipelineFailed(f"target: expected a ratio from 0 to 1, got {target_hit_ratio}")
    requests = lake.read(spark, tables.REQUESTS)
    at = f.unix_micros("time")
    row = requests.agg(f.min(at), f.max(at), f.count("*"), f.sort_array(f.collect_set("node"))).collect()[0]
    first_us, last_us, lines, nodes = row
    if not lines:
        raise NothingToPlan(f"{lake.url}: no requests in it, so there is nothing to plan by")
    points = _points(spark, lake, policy)
    if not points:
        raise NothingToPlan(
            f"{lake.url}: no curve of {policy} in it: compute the curve first, of a log with catch-up reads"
        )
    memory = budget(points, target_hit_ratio, policy)
    if memory.expected_hit_ratio < target_hit_ratio:
        progress(f"plan: no memory reaches {target_hit_ratio:.1%}: {memory.expected_hit_ratio:.1%} is the best")
    progress("plan: figures of each stream")
    reads = references.placed(references.reads_of(requests)).persist()
    try:
        traffic = traffic_of(reads, first_us, last_us)
    finally:
        reads.unpersist()
    return CachePlan(
        version=1,
        made_at=_moment(int((clock or SystemClock()).wall() * 1_000_000)),
        made_from=MadeFrom(
            first=_moment(first_us),
            last=_moment(last_us),
            lines=lines,
            nodes=tuple(node for node in nodes if _is(_NODE, node))[:1_000],
        ),
        target_hit_ratio=float(target_hit_ratio),
        memory=memory,
        **decide(traffic, memory.cache_bytes, max(1, len(nodes))),
    )


def write_plan(plan: CachePlan, path: Path) -> None:
    """Put the plan in place in one step: a gateway that reloads sees the old one or the new.  PipelineFailed."""
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        made = Path(name)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(plan.text)
                file.flush()
                os.fsync(file.fileno())
            # The gateway that reads it may run as somebody else.
            made.chmod(0o644)
            made.replace(path)
        except BaseException:
            with suppress(OSError):
                made.unlink()
            raise
    except OSError as error:
        raise PipelineFailed(f"{path}: {error.strerror or error}") from None


def _moment(micros: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


def _points(spark: SparkSession, lake: Lake, policy: str) -> list[Point]:
    curve = lake.read(spark, tables.CURVE)
    rows = curve.where(curve.policy == policy).orderBy("cache_bytes").collect()
    return [
        Point(row.cache_bytes, 1 - row.miss_ratio, 1 - row.byte_miss_ratio, min(1.0, row.error or 0.0)) for row in rows
    ]


def budget(points: Sequence[Point], target: float, policy: str) -> Memory:
    """The least memory that reaches the target by this curve (`points` by size, one at least), or comes near the best
    where none does.  Between two points the curve is taken as straight over the logarithm of the size."""
    best = max(point.hit_ratio for point in points)
    wanted = target if best >= target else best - _NEAR
    at = next(number for number, point in enumerate(points) if point.hit_ratio >= wanted)
    found = points[at]
    if at and found.hit_ratio > wanted:
        found = _between(points[at - 1], found, wanted)
    size = min(-(-found.cache_bytes // _STEP) * _STEP, 1024 * GIB)
    return Memory(
        cache_bytes=size,
        policy=policy,  # type: ignore[arg-type]
        expected_hit_ratio=_ratio(found.hit_ratio),
        expected_byte_hit_ratio=_ratio(found.byte_hit_ratio),
        error=_ratio(found.error),
    )


def _between(below: Point, above: Point, hit_ratio: float) -> Point:
    share = (hit_ratio - below.hit_ratio) / (above.hit_ratio - below.hit_ratio)
    doublings = log(above.cache_bytes / below.cache_bytes)
    return Point(
        min(above.cache_bytes, int(below.cache_bytes * 2.718281828459045 ** (share * doublings)) + 1),
        hit_ratio,
        below.byte_hit_ratio + share * (above.byte_hit_ratio - below.byte_hit_ratio),
        max(below.error, above.error),
    )


def _ratio(value: float) -> float:
    return round(min(1.0, max(0.0, value)), 4)


def decide(traffic: Traffic, cache_bytes: int, nodes: int) -> dict[str, Any]:
    """The four lists, for a budget of so many bytes on each of `nodes` gateways."""
    kept_s = residence_s(traffic.gaps, traffic.span_s, cache_bytes * nodes)
    streams = [one for one in traffic.streams if _can_be_named(one)]
    shunned = not_worth_storing(streams, cache_bytes, kept_s)
    others = _without(streams, shunned)
    shared = [one for one in others if 2 * one.asked_apart <= one.asked]
    pinned = worth_pinning(shared, cache_bytes, kept_s)
    warmed = worth_warming(shared, cache_bytes, traffic.span_s)
    idle = lifetimes_of(_without(_without(others, pinned), warmed), kept_s)
    return {"pin": tuple(pinned), "warm": tuple(warmed), "do_not_store": tuple(shunned), "lifetimes": tuple(idle)}


def _without(streams: Iterable[StreamFigures], entries: Iterable[Entry]) -> list[StreamFigures]:
    places = {entry.key for entry in entries}
    return [one for one in streams if (one.route, one.stream) not in places]


def _can_be_named(one: StreamFigures) -> bool:
    """Whether a plan can name it.  A log cuts names that are very long, and those then stand for many streams."""
    return len(one.stream) < _LONGEST_STREAM and _is(_NAME, (one.route, one.stream))


def _is(kind: TypeAdapter[Any], value: object) -> bool:
    try:
        kind.validate_python(value)
    except ValidationError:
        return False
    return True


def _by_worth(streams: Iterable[StreamFigures]) -> list[StreamFigures]:
    """Those first that send readers the most for each byte of memory."""
    return sorted(streams, key=lambda one: (-one.asked_bytes / max(1, one.bytes), one.route, one.stream))


def _fitting(streams: Iterable[StreamFigures], room: float) -> list[StreamFigures]:
    """As many as fit into so many bytes together, in this order; who is too large is left out, not those behind."""
    out: list[StreamFigures] = []
    for one in streams:
        if one.bytes <= room and len(out) < _MOST:
            room -= one.bytes
            out.append(one)
    return out


def worth_pinning(streams: Iterable[StreamFigures], cache_bytes: int, kept_s: float | None) -> list[Entry]:
    """Streams that are asked for most of the time and were fetched again.  None where there is room for everything."""
    if kept_s is None:
        return []
    hot = [
        one for one in streams if one.windows >= _HOT_WINDOWS and one.fetched_again >= max(1, _REFETCHED * one.bytes)
    ]
    return [
        Entry(
            route=one.route,
            stream=one.stream,
            bytes=one.bytes,
            reason=f"{one.asked:,} catch-up reads in {one.windows} of {WINDOWS} parts of the log, and the origin sent "
            f"{_size(one.fetched_again)} of it again; {_size(one.bytes)} of memory would have saved that.",
        )
        for one in _fitting(_by_worth(hot), PIN_SHARE * cache_bytes)
    ]


def worth_warming(streams: Iterable[StreamFigures], cache_bytes: int, span_s: float) -> list[Entry]:
    """Streams that a gateway is asked for soon, whenever it starts."""
    steady = [one for one in streams if one.windows >= _WARM_WINDOWS]
    return [
        Entry(
            route=one.route,
            stream=one.stream,
            bytes=one.bytes,
            reason=f"Asked for in {one.windows} of {WINDOWS} parts of the log, so within {_time(span_s / WINDOWS)} of "
            f"most starts; {one.asked:,} catch-up reads got {_size(one.asked_bytes)} of its {_size(one.bytes)}.",
        )
        for one in _fitting(_by_worth(steady), WARM_SHARE * cache_bytes)
    ]


def not_worth_storing(streams: Iterable[StreamFigures], cache_bytes: int, kept_s: float | None) -> list[Entry]:
    """Large streams that nobody reads again before they are forgotten.  None where there is room for everything."""
    if kept_s is None:
        return []
    least = max(_LARGE, _LARGE_SHARE * cache_bytes)
    longer = _SURELY * kept_s
    once = [
        one
        for one in streams
        if one.bytes >= least
        and one.asked
        and not one.live
        and (one.again_s is None or one.again_s > longer)
        and one.quiet_s > kept_s
    ]
    once.sort(key=lambda one: (-one.bytes, one.route, one.stream))
    return [
        Entry(
            route=one.route,
            stream=one.stream,
            bytes=min(one.bytes, _MOST_BYTES),
            reason=(
                "No byte of it was read twice"
                if one.again_s is None
                else f"No byte of it was read again within {_time(one.again_s)}"
            )
            + f" ({one.asked:,} catch-up reads), and so much memory forgets after about {_time(kept_s)}: storing its "
            f"{_size(one.bytes)} saves nothing.",
        )
        for one in once[:_MOST]
    ]


def lifetimes_of(streams: Iterable[StreamFigures], kept_s: float | None) -> list[Lifetime]:
    """Streams whose readers came back again and again, and then for long no more."""
    ended = []
    for one in streams:
        lifetime_s = max(_SHORTEST_S, _SURELY * one.idle_s)
        is_over = one.returns >= _RETURNS and one.quiet_s > lifetime_s and one.bytes >= _LARGE
        if is_over and lifetime_s <= _MOST_S and (kept_s is None or lifetime_s < kept_s):
            ended.append((one, float(round(lifetime_s))))
    ended.sort(key=lambda pair: (-pair[0].bytes, pair[0].route, pair[0].stream))
    return [
        Lifetime(
            route=one.route,
            stream=one.stream,
            bytes=min(one.bytes, _MOST_BYTES),
            idle_s=lifetime_s,
            reason=f"Of {one.returns:,} times that readers came back none was after more than {_time(one.idle_s)}; "
            f"it had been quiet for {_time(one.quiet_s)} when the log ended.",
        )
        for one, lifetime_s in ended[:_MOST]
    ]


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def _time(seconds: float) -> str:
    for unit, longest in (("s", 120.0), ("min", 120.0), ("h", 48.0)):
        if seconds < longest:
            return f"{seconds:.1f} {unit}"
        seconds /= 60 if unit != "h" else 24
    return f"{seconds:,.1f} days"

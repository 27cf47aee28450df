"""Read the lake's gold tables and curve into `Figures`, in this process and without Spark.

Gold is much smaller than the log.  DuckDB adds up the counts in memory.  The sketches (KLL for percentiles, HyperLogLog
for readers) are read batch by batch and merged with the library of Apache DataSketches.
`gateway.pipeline.gold.sketches` describes the sketches and their error.

The length of a time step depends on the time that the tables cover: a minute for a few hours, hours for months.  Steps
without traffic are included.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import asdict
from operator import itemgetter
from typing import Any, Final

import duckdb
import pyarrow as pa
from datasketches import hll_sketch, hll_union, kll_doubles_sketch

from gateway.pipeline import tables
from gateway.pipeline.lake import Lake
from gateway.pipeline.report.figures import MOST_STEPS, Figures, Found, Percentiles, Rows
from gateway.pipeline.report.findings import FINDINGS
from gateway.pipeline.report.headlines import READS, SPARED, shares_of
from gateway.protocol.mode import Mode

Gold = Callable[[tables.Table, Sequence[str]], pa.RecordBatchReader]
"""Returns all rows of a table, with these columns in the types of `arrow_schema`; no rows if the table does not exist.

The report needs nothing else of a lake.
"""

MOST_STREAMS: Final = 12
MOST_FOUND: Final = 50
MOST_ROUTES: Final = 50

_COUNTED: Final = ({*tables.GOLD} - {tables.OFFLOAD, tables.LATENCY, tables.DELIVERY}) | {tables.CURVE}
"""The tables that SQL is run on, without the columns of sketches."""
_K: Final = 400
_LOG_REGISTERS: Final = 12
_RANKS: Final = (0.5, 0.9, 0.99)
_MINUTE_S: Final = 60
_DAY_MIN: Final = 1440
_STEPS_MIN: Final = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720),
    *(days * _DAY_MIN for days in (1, 2, 7, 14, 28, 56, 91, 182, 364)),
)
_FAN_OUT: Final = f"""
    WITH powers AS (SELECT unnest(range(0, (SELECT log2(max(at_least))::BIGINT + 1 FROM fan_out))) AS power),
    buckets AS (
        SELECT
            (1 << power)::BIGINT AS at_least,
            coalesce(sum(requests) FILTER (WHERE mode <> '{Mode.CATCHUP}'), 0)::BIGINT AS live,
            coalesce(sum(requests) FILTER (WHERE mode = '{Mode.CATCHUP}'), 0)::BIGINT AS catchup
        FROM powers LEFT JOIN fan_out ON at_least = (1 << power)
        GROUP BY power
    )
    SELECT
        *,
        coalesce(live / nullif(sum(live) OVER (), 0), 0) AS live_share,
        coalesce(catchup / nullif(sum(catchup) OVER (), 0), 0) AS catchup_share
    FROM buckets ORDER BY at_least
"""


def gather(gold: Gold, progress: Callable[[str], None]) -> Figures:
    """Compute all figures except the plan, which is not a table."""
    progress("report: reading counts")
    with duckdb.connect(":memory:") as counts:
        for table in _COUNTED:
            columns = [column.name for column in table.columns if column.type not in ("binary", "date")]
            counts.register(table.name, gold(table, columns).read_all())
        return _gathered(gold, counts, progress)


def gold_of(lake: Lake) -> Gold:
    """Return a reader of a lake's tables.

    Tables are read file by file, because sketches are large.  A file holds at most one day.
    """
    return lambda table, columns: lake.snapshot(table).arrow(columns)


def step_for(first: int, last: int, most: int) -> int:
    """Return the length of a time step in seconds: the smallest round length with at most `most` steps.

    The steps must cover the time from `first` to `last`.
    """
    reach_min = (max(last - first, 0) + 1) / _MINUTE_S
    # Steps begin at multiples of their length, so the range may touch one step more.
    fitting = (step for step in _STEPS_MIN if reach_min / step + 1 <= most)
    return _MINUTE_S * next(fitting, _DAY_MIN * math.ceil(reach_min / _DAY_MIN / max(most - 1, 1)))


def sums(key: str, source: str) -> str:
    """Return SQL that counts reads and their cost to the origin, with ratios.

    The rows of `source` are grouped by the columns `key`, or not at all if `key` is empty.
    """
    saved = (
        f"coalesce(sum(requests) FILTER (WHERE outcome IN ({', '.join(repr(str(one)) for one in outcomes)})), 0)"
        f"::BIGINT AS {name}"
        for name, outcomes in tables.ANSWERED_BY.items()
    )
    return f"""
        WITH counted AS (
            SELECT
                {"".join(f"{part}, " for part in (key, *saved) if part)}
                ({SPARED})::BIGINT AS spared,
                coalesce(sum(requests), 0)::BIGINT AS reads,
                coalesce(sum(origin_requests), 0)::BIGINT AS origin_requests,
                coalesce(sum(sent_bytes + saved_bytes), 0)::BIGINT AS read_bytes,
                coalesce(sum(fetched_bytes), 0)::BIGINT AS fetched_bytes
            FROM {source} {f"GROUP BY {key}" if key else ""}
        )
        SELECT
            *,
            spared / nullif(reads, 0) AS spared_ratio,
            origin_requests / nullif(reads, 0) AS asked_ratio,
            tape / nullif(reads, 0) AS hit_ratio,
            1 - fetched_bytes / nullif(read_bytes, 0) AS byte_offload
        FROM counted
    """


def _gathered(gold: Gold, counts: duckdb.DuckDBPyConnection, progress: Callable[[str], None]) -> Figures:
    curve = _rows(counts, "SELECT * FROM points ORDER BY policy, cache_bytes")
    (whole,) = _rows(
        counts,
        "SELECT epoch(min(minute))::BIGINT AS first, epoch(max(minute))::BIGINT AS last, "
        "sum(requests)::BIGINT AS requests, count(DISTINCT route) FILTER (WHERE route <> '-') AS routes FROM traffic",
    )
    first, last = whole["first"], whole["last"]
    if first is None:
        # Without requests, all other gold tables are empty too.
        return Figures(curve=curve)
    step_s = step_for(first, last, MOST_STEPS)
    steps = range(first // step_s * step_s, last + 1, step_s)
    counts.execute(
        f"CREATE VIEW of_reads AS SELECT *, epoch(minute)::BIGINT // {step_s} * {step_s} AS began FROM traffic "
        f"WHERE {READS}"
    )
    each_step = f"range({steps.start}, {steps.stop}, {step_s}) AS steps(began) LEFT JOIN of_reads USING (began)"
    busiest = f"WHERE reads > 0 ORDER BY reads DESC, route, protocol LIMIT {MOST_ROUTES}"
    (total,) = _rows(counts, sums("", "of_reads"))
    progress(f"report: latency, delivery and readers, in steps of {step_s // 60} min")
    durations, latency = _durations(gold, step_s)
    by_bytes, by_requests = _top(gold, counts)
    return Figures(
        first=first,
        last=last,
        step_s=step_s,
        requests=whole["requests"],
        route_count=whole["routes"],
        shares=shares_of(counts),
        total=total,
        moments=_rows(counts, f"{sums('began', each_step)} ORDER BY began"),
        routes=_rows(counts, f"{sums('route, protocol', 'of_reads')} {busiest}"),
        first_byte=_waits(durations, "first_byte", steps),
        first_byte_all=durations.of(("first_byte", None)),
        latency=latency,
        delivery=_waits(durations, "delivery", steps),
        delivery_all=durations.of(("delivery", None)),
        by_bytes=by_bytes,
        by_requests=by_requests,
        fan_out=_rows(counts, _FAN_OUT),
        curve=curve,
        found={one.name: _found(counts, one.sql, one.order) for one in FINDINGS},
    )


class Durations:
    """Merged KLL sketches of durations, one for each key."""

    def __init__(self) -> None:
        self._merged: defaultdict[Hashable, kll_doubles_sketch] = defaultdict(lambda: kll_doubles_sketch(_K))

    def add(self, sketch: bytes | None, *keys: Hashable) -> None:
        """Merge a serialised sketch into the sketches of these keys; None is an empty sketch."""
        if sketch is None:
            return
        values = kll_doubles_sketch.deserialize(sketch)
        for key in keys:
            self._merged[key].merge(values)

    def of(self, key: Hashable) -> Percentiles:
        """Return the percentiles of a key; empty `Percentiles` if nothing was added."""
        merged = self._merged.get(key)
        if merged is None or merged.is_empty():
            return Percentiles()
        # Inclusive, like Spark's function: the smallest value whose rank is at least the given rank.
        p50_s, p90_s, p99_s = (float(merged.get_quantile(rank, inclusive=True)) for rank in _RANKS)
        return Percentiles(merged.n, p50_s, p90_s, p99_s, float(merged.get_max_value()))


def _durations(gold: Gold, step_s: int) -> tuple[Durations, Rows]:
    """Merge the sketches of latency and delivery; return them, and the rows of latency by route and mode.

    The keys of the sketches are pairs of a name (`first_byte` of catch-up reads, or `delivery`) and the beginning of a
    step, or None for the whole time.
    """
    merged = Durations()
    requests: Counter[tuple[str, str]] = Counter()
    columns = ("minute", "route", "mode", "requests", "duration_sketch", "first_byte_sketch")
    for minute, route, mode, number, duration, answer in _values(gold, tables.LATENCY, columns):
        requests[route, mode] += number
        merged.add(duration, ("whole", route, mode))
        merged.add(answer, ("began", route, mode))
        if mode == Mode.CATCHUP:
            merged.add(answer, ("first_byte", None), ("first_byte", _step(minute, step_s)))
    for minute, delay in _values(gold, tables.DELIVERY, ("minute", "delay_sketch")):
        merged.add(delay, ("delivery", None), ("delivery", _step(minute, step_s)))
    rows = []
    for route, mode in sorted(requests, key=lambda key: (-requests[key], key))[:MOST_ROUTES]:
        began = {f"first_byte_{name}": value for name, value in asdict(merged.of(("began", route, mode))).items()}
        rows.append({"route": route, "mode": mode, **asdict(merged.of(("whole", route, mode))), **began})
    return merged, tuple(rows)


def _waits(merged: Durations, name: str, steps: range) -> Rows:
    if not merged.of((name, None)).count:
        return ()
    return tuple({"began": at, **asdict(merged.of((name, at)))} for at in steps)


def _top(gold: Gold, counts: duckdb.DuckDBPyConnection) -> tuple[Rows, Rows]:
    """Return the busiest streams by bytes and by requests, with their numbers of readers."""
    names = ("by", "route", "protocol", "stream")
    key = itemgetter(*names)
    found = [
        _rows(
            counts,
            'SELECT "by", route, protocol, stream, sum(requests)::BIGINT AS requests, '
            "sum(sent_bytes + saved_bytes)::BIGINT AS read_bytes, sum(fetched_bytes)::BIGINT AS fetched_bytes "
            f"FROM top_streams WHERE \"by\" = '{by}' GROUP BY ALL ORDER BY {column} DESC, route, stream "
            f"LIMIT {MOST_STREAMS}",
        )
        for by, column in (("bytes", "read_bytes"), ("requests", "requests"))
    ]
    readers = {key(row): hll_union(_LOG_REGISTERS) for rows in found for row in rows}
    for *its_key, sketch in _values(gold, tables.TOP_STREAMS, (*names, "readers_sketch")):
        if (one := tuple(its_key)) in readers and sketch is not None:
            readers[one].update(hll_sketch.deserialize(sketch))
    by_bytes, by_requests = (
        tuple({**row, "readers": round(readers[key(row)].get_estimate())} for row in rows) for rows in found
    )
    return by_bytes, by_requests


def _found(counts: duckdb.DuckDBPyConnection, sql: str, order: str) -> Found:
    rows = _rows(counts, f"SELECT *, count(*) OVER () AS total FROM ({sql}) ORDER BY {order} LIMIT {MOST_FOUND}")
    return Found(rows, rows[0]["total"] if rows else 0)


def _rows(counts: duckdb.DuckDBPyConnection, query: str) -> Rows:
    found = counts.execute(query)
    names = [column[0] for column in found.description or ()]
    return tuple(dict(zip(names, row, strict=True)) for row in found.fetchall())


def _values(gold: Gold, table: tables.Table, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table with these columns."""
    for batch in gold(table, columns):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _step(minute: Any, step_s: int) -> int:
    return int(minute.timestamp()) // step_s * step_s

"""Read the lake's gold tables and curve into `Figures`, in this process: DuckDB adds counts up, sketches are merged.

Gold is small beside the log that it was made from: counts are held in memory, sketches are read batch by batch (KLL for
percentiles, HyperLogLog for readers).  The step of time depends on the time that the tables cover: a minute for a few
hours, hours for months.  Steps without traffic are included, and empty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import duckdb

from gateway.pipeline import tables
from gateway.pipeline.report.figures import (
    MOST_STEPS,
    Anomaly,
    ClosedLoop,
    CurvePoint,
    ErrorCount,
    Figures,
    Found,
    Latency,
    Moment,
    Percentiles,
    Route,
    Saved,
    Shared,
    SlowConsumer,
    Storm,
    Stream,
    Traffic,
    Wait,
)
from gateway.pipeline.report.gold import Gold
from gateway.pipeline.report.headlines import READS, SPARED, measured
from gateway.pipeline.report.sketches import Durations, Readers
from gateway.pipeline.report.steps import step_for
from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode

MOST_STREAMS: Final = 12
MOST_FOUND: Final = 50
MOST_ROUTES: Final = 50
SAVED_BY: Final = {
    "tape": (Outcome.HIT, Outcome.STALE_IF_ERROR),
    "collapse": (Outcome.COLLAPSED,),
    "follow": (Outcome.FOLLOWED,),
    "join": (Outcome.JOINED, Outcome.REVALIDATED),
    "origin": (Outcome.MISS, Outcome.PASS),
    "unanswered": (Outcome.REFUSED, Outcome.FAILED, Outcome.ABORTED),
}
"""How a read was answered, by its outcome; the groups are those of `tables.OFFLOAD`."""

_COUNTED: Final = (
    tables.TRAFFIC,
    tables.TOP_STREAMS,
    tables.FAN_OUT,
    tables.RECONNECTS,
    tables.SLOW_CONSUMERS,
    tables.ERRORS,
    tables.CLOSED_LOOPS,
    tables.ANOMALIES,
    tables.CURVE,
)
"""The tables that SQL is run on, without their sketches."""
_BYTES: Final = ("sent_bytes", "saved_bytes", "fetched_bytes")


def gather(gold: Gold, progress: Callable[[str], None]) -> Figures:
    """All figures except the plan, which is not a table."""
    progress("report: reading counts")
    with duckdb.connect(":memory:") as counts:
        for table in _COUNTED:
            columns = [column.name for column in table.columns if column.type not in ("binary", "date")]
            counts.register(table.name, gold(table, columns).read_all())
        return _gathered(gold, counts, progress)


def _gathered(gold: Gold, counts: duckdb.DuckDBPyConnection, progress: Callable[[str], None]) -> Figures:
    curve = tuple(
        CurvePoint(**row)
        for row in _rows(
            counts,
            "SELECT * FROM points ORDER BY contains(policy, '-blocks'), policy, cache_bytes",
        )
    )
    (reach,) = _rows(counts, f"SELECT min({_s('minute')}) AS first, max({_s('minute')}) AS last FROM traffic")
    first, last = reach["first"], reach["last"]
    if first is None:
        # All other gold tables are about requests.
        return Figures(curve=curve)
    step_s = step_for(first, last, MOST_STEPS)
    steps = range(first // step_s * step_s, last + 1, step_s)
    progress(f"report: latency, delivery and readers, in steps of {step_s // 60} min")
    first_byte, latency = _latency(gold, step_s)
    delivery, delivery_max_s = _delivery(gold, step_s)
    by_bytes, by_requests = _top(gold, counts)
    at = f"{_s('minute')} // {step_s} * {step_s}"
    found = {row["at"]: _traffic(row) for row in _rows(counts, _sums(f"{at} AS at", "GROUP BY ALL"))}
    (total,) = _rows(counts, _sums("0 AS at", ""))
    (requests,) = _rows(counts, "SELECT sum(requests) AS requests FROM traffic")
    return Figures(
        first=first,
        last=last,
        step_s=step_s,
        requests=int(requests["requests"]),
        shares=measured(counts),
        total=_traffic(total),
        moments=tuple(Moment(at, found.get(at, Traffic(Saved()))) for at in steps),
        routes=_routes(counts),
        first_byte=_filled(first_byte, steps),
        first_byte_all=_known(first_byte.of(None)),
        latency=latency,
        delivery=_filled(delivery, steps),
        delivery_all=_known(delivery.of(None)),
        delivery_max_s=delivery_max_s,
        by_bytes=by_bytes,
        by_requests=by_requests,
        fan_out=_fan_out(counts),
        curve=curve,
        refusals=_found(
            counts,
            ErrorCount,
            f"SELECT route, mode, status, outcome, sum(requests)::BIGINT AS requests, max({_s('minute')}) AS last "
            "FROM errors GROUP BY ALL",
            "requests DESC, route, mode, status, outcome",
        ),
        storms=_found(
            counts,
            Storm,
            f"SELECT {_s('minute')} AS at, route, reconnects, readers, usual FROM reconnects WHERE is_storm",
            'reconnects DESC, "at", route',
        ),
        slow_consumers=_found(
            counts,
            SlowConsumer,
            "SELECT route, stream, client, user_agent, sum(cut_off)::BIGINT AS cut_off, "
            "sum(sent_bytes)::BIGINT AS sent_bytes FROM slow_consumers GROUP BY ALL",
            "cut_off DESC, stream, client, user_agent, route",
        ),
        closed_loops=_found(
            counts,
            ClosedLoop,
            "SELECT route, stream, client, user_agent, sum(requests)::BIGINT AS requests, "
            "count(DISTINCT minute) AS minutes FROM closed_loops GROUP BY ALL",
            "requests DESC, stream, client, user_agent, route",
        ),
        anomalies=_found(
            counts,
            Anomaly,
            f'SELECT {_s("hour")} AS at, route, measure, "value", "before", days, score FROM anomalies',
            'abs(score) DESC NULLS LAST, "at", route, measure',
        ),
    )


def _sums(key: str, group: str) -> str:
    """SQL of the traffic of reads, by `key`."""
    saved = (
        f"coalesce(sum(requests) FILTER (WHERE outcome IN ({', '.join(repr(str(one)) for one in outcomes)})), 0)"
        f"::BIGINT AS {name}"
        for name, outcomes in SAVED_BY.items()
    )
    sums = (f"coalesce(sum({name}), 0)::BIGINT AS {name}" for name in ("origin_requests", *_BYTES))
    parts = ", ".join([key, *saved, *sums, f"({SPARED})::BIGINT AS spared"])
    return f"SELECT {parts} FROM traffic WHERE {READS} {group}"


def _traffic(row: dict[str, Any]) -> Traffic:
    return Traffic(
        Saved(**{name: row[name] for name in SAVED_BY}),
        **{name: row[name] for name in ("spared", "origin_requests", *_BYTES)},
    )


def _routes(counts: duckdb.DuckDBPyConnection) -> tuple[Route, ...]:
    rows = _rows(counts, _sums("route, protocol", "GROUP BY ALL"))
    routes = [Route(row["route"], row["protocol"], _traffic(row)) for row in rows]
    routes = [route for route in routes if route.traffic.reads]
    routes.sort(key=lambda one: (-one.traffic.reads, one.route, one.protocol))
    return tuple(routes[:MOST_ROUTES])


def _latency(gold: Gold, step_s: int) -> tuple[Durations[int | None], tuple[Latency, ...]]:
    """First byte of catch-up reads by step and (None) over all; all percentiles by route and mode."""
    first_byte: Durations[int | None] = Durations()
    whole: Durations[tuple[str, str]] = Durations()
    began: Durations[tuple[str, str]] = Durations()
    requests: Counter[tuple[str, str]] = Counter()
    columns = ("minute", "route", "mode", "requests", "duration_sketch", "first_byte_sketch")
    for minute, route, mode, number, duration, answer in _values(gold, tables.LATENCY, columns):
        key = route, mode
        requests[key] += number
        whole.add(duration, key)
        began.add(answer, key)
        if mode == Mode.CATCHUP:
            first_byte.add(answer, None, _seconds(minute) // step_s * step_s)
    busiest = sorted(requests, key=lambda key: (-requests[key], key))[:MOST_ROUTES]
    return first_byte, tuple(Latency(*key, whole.of(key), began.of(key)) for key in busiest)


def _delivery(gold: Gold, step_s: int) -> tuple[Durations[int | None], float | None]:
    delays: Durations[int | None] = Durations()
    most: float | None = None
    for minute, delay, delay_max_s in _values(gold, tables.DELIVERY, ("minute", "delay_sketch", "delay_max_s")):
        delays.add(delay, None, _seconds(minute) // step_s * step_s)
        if delay_max_s is not None:
            most = delay_max_s if most is None else max(most, delay_max_s)
    return delays, most


def _filled(found: Durations[int | None], steps: range) -> tuple[Wait, ...]:
    return tuple(Wait(at, found.of(at)) for at in steps) if found.of(None).count else ()


def _known(waited: Percentiles) -> Percentiles | None:
    return waited if waited.count else None


def _top(gold: Gold, counts: duckdb.DuckDBPyConnection) -> tuple[tuple[Stream, ...], tuple[Stream, ...]]:
    def busiest(by: str, column: str) -> list[dict[str, Any]]:
        return _rows(
            counts,
            "SELECT route, protocol, stream, sum(requests)::BIGINT AS requests, "
            "sum(sent_bytes + saved_bytes)::BIGINT AS read_bytes, sum(fetched_bytes)::BIGINT AS fetched_bytes "
            f"FROM top_streams WHERE \"by\" = '{by}' GROUP BY ALL ORDER BY {column} DESC, route, stream "
            f"LIMIT {MOST_STREAMS}",
        )

    key = ("route", "protocol", "stream")
    found = {"bytes": busiest("bytes", "read_bytes"), "requests": busiest("requests", "requests")}
    wanted = {(by, *(row[name] for name in key)) for by, rows in found.items() for row in rows}
    readers: Readers[tuple[str, ...]] = Readers()
    for *names, sketch in _values(gold, tables.TOP_STREAMS, ("by", *key, "readers_sketch")):
        if (one := tuple(names)) in wanted:
            readers.add(sketch, one)

    def streams(by: str) -> tuple[Stream, ...]:
        return tuple(Stream(**row, readers=readers.of((by, *(row[name] for name in key)))) for row in found[by])

    return streams("bytes"), streams("requests")


def _fan_out(counts: duckdb.DuckDBPyConnection) -> tuple[Shared, ...]:
    is_catchup = f"mode = '{Mode.CATCHUP}'"
    rows = _rows(
        counts,
        f"SELECT at_least, coalesce(sum(requests) FILTER (WHERE NOT {is_catchup}), 0)::BIGINT AS live, "
        f"coalesce(sum(requests) FILTER (WHERE {is_catchup}), 0)::BIGINT AS catchup FROM fan_out GROUP BY at_least",
    )
    by = {row["at_least"]: row for row in rows}
    shared: list[Shared] = []
    at_least = 1
    while by and at_least <= max(by):
        shared.append(Shared(**by.get(at_least, {"at_least": at_least, "live": 0, "catchup": 0})))
        at_least *= 2
    return tuple(shared)


def _found(counts: duckdb.DuckDBPyConnection, kind: Callable[..., Any], query: str, order: str) -> Found[Any]:
    rows = _rows(
        counts, f"SELECT *, count(*) OVER () AS total FROM ({query}) AS every ORDER BY {order} LIMIT {MOST_FOUND}"
    )
    total = rows[0]["total"] if rows else 0
    return Found(tuple(kind(**{name: row[name] for name in row if name != "total"}) for row in rows), total)


def _rows(counts: duckdb.DuckDBPyConnection, query: str) -> list[dict[str, Any]]:
    found = counts.execute(query)
    names = [column[0] for column in found.description or ()]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def _values(gold: Gold, table: tables.Table, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """The rows of a table's columns."""
    for batch in gold(table, columns):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _s(column: str) -> str:
    """SQL: a time as Unix seconds."""
    return f"epoch({column})::BIGINT"


def _seconds(at: Any) -> int:
    return int(at.timestamp())

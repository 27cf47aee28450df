"""Read the lake's gold tables and curve into `Figures`.  Spark rolls everything up, so little is collected.

Counts are added and sketches are merged (KLL for percentiles, HyperLogLog for readers).  The step of time depends on
the time that the tables cover: a minute for a few hours, hours for months.  Steps without traffic are included, and
empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as f

from gateway.pipeline import tables
from gateway.pipeline.gold.sketches import PERCENTILES, merged, quantile, values_in
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
from gateway.pipeline.report.scales import step_for
from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

    from gateway.pipeline.lake import Lake

MOST_STREAMS: Final = 12
MOST_FOUND: Final = 50
MOST_ROUTES: Final = 50
READS: Final = (Mode.CATCHUP, Mode.LONGPOLL, Mode.SSE)
SAVED_BY: Final = {
    "tape": (Outcome.HIT, Outcome.STALE_IF_ERROR),
    "collapse": (Outcome.COLLAPSED,),
    "follow": (Outcome.FOLLOWED,),
    "join": (Outcome.JOINED, Outcome.REVALIDATED),
    "origin": (Outcome.MISS, Outcome.PASS),
    "unanswered": (Outcome.REFUSED, Outcome.FAILED, Outcome.ABORTED),
}
"""How a read was answered, by its outcome; the groups are those of `tables.OFFLOAD`."""


def gather(spark: SparkSession, lake: Lake, progress: Callable[[str], None]) -> Figures:
    """All figures except the plan, which is not a table."""

    def frame(table: tables.Table) -> DataFrame:
        return lake.read(spark, table)

    traffic = frame(tables.TRAFFIC)
    reach = _reach(traffic)
    if reach is None:
        # All other gold tables are about requests.
        return Figures(curve=_curve(frame(tables.CURVE)))
    first, last = reach
    step_s = step_for(first, last, MOST_STEPS)
    steps = range(first // step_s * step_s, last + 1, step_s)
    progress(f"report: traffic, in steps of {step_s // 60} min")
    moments, routes, requests = _traffic(traffic, steps)
    progress("report: latency and delivery")
    first_byte, latency = _latency(frame(tables.LATENCY), step_s)
    delivery, delivery_max_s = _delivery(frame(tables.DELIVERY), step_s)
    progress("report: streams and fan-out")
    by_bytes, by_requests = _top(frame(tables.TOP_STREAMS))
    fan_out, most_shared = _fan_out(frame(tables.FAN_OUT))
    progress("report: the curve")
    curve = _curve(frame(tables.CURVE))
    progress("report: what went wrong")
    refusals, errors = _refusals(frame(tables.ERRORS))
    return Figures(
        first=first,
        last=last,
        step_s=step_s,
        requests=requests,
        errors=errors,
        total=_sum(moment.traffic for moment in moments),
        moments=moments,
        routes=routes,
        first_byte=_filled(first_byte, steps),
        first_byte_all=first_byte.get(None),
        latency=latency,
        delivery=_filled(delivery, steps),
        delivery_all=delivery.get(None),
        delivery_max_s=delivery_max_s,
        by_bytes=by_bytes,
        by_requests=by_requests,
        fan_out=fan_out,
        most_shared=most_shared,
        curve=curve,
        refusals=refusals,
        storms=_storms(frame(tables.RECONNECTS)),
        slow_consumers=_slow_consumers(frame(tables.SLOW_CONSUMERS)),
        closed_loops=_closed_loops(frame(tables.CLOSED_LOOPS)),
        anomalies=_anomalies(frame(tables.ANOMALIES)),
    )


def _reach(traffic: DataFrame) -> tuple[int, int] | None:
    """First and last minute, as Unix seconds; None if there is none."""
    minute = _seconds("minute")
    (row,) = traffic.agg(f.min(minute).alias("first"), f.max(minute).alias("last")).collect()
    return None if row["first"] is None else (row["first"], row["last"])


def _traffic(traffic: DataFrame, steps: range) -> tuple[tuple[Moment, ...], tuple[Route, ...], int]:
    read = f.col("mode").isin(*map(str, READS))
    sums = [
        f.sum(f.when(read & f.col("outcome").isin(*map(str, outcomes)), f.col("requests"))).alias(name)
        for name, outcomes in SAVED_BY.items()
    ]
    sums += [
        f.sum(f.when(read, f.col(name))).alias(name)
        for name in ("origin_requests", "sent_bytes", "saved_bytes", "fetched_bytes")
    ]
    sums.append(f.sum("requests").alias("requests"))
    step = _step("minute", steps.step)
    # One pass for both: rows by step have no route, rows by route have no step.
    by_route = [f.col("route"), f.col("protocol")]
    rows = (
        traffic.select("*", step.alias("at"))
        .groupingSets([[f.col("at")], by_route], f.col("at"), *by_route)
        .agg(*sums)
        .collect()
    )
    found = {row["at"]: row for row in rows if row["at"] is not None}
    moments = tuple(Moment(at, _of(found[at]) if at in found else Traffic(Saved())) for at in steps)
    routes = [Route(row["route"], row["protocol"], _of(row)) for row in rows if row["at"] is None]
    routes = [route for route in routes if route.traffic.reads]
    routes.sort(key=lambda one: (-one.traffic.reads, one.route, one.protocol))
    return moments, tuple(routes[:MOST_ROUTES]), sum(row["requests"] or 0 for row in found.values())


def _of(row: Row) -> Traffic:
    return Traffic(
        Saved(**{name: row[name] or 0 for name in SAVED_BY}),
        origin_requests=row["origin_requests"] or 0,
        sent_bytes=row["sent_bytes"] or 0,
        saved_bytes=row["saved_bytes"] or 0,
        fetched_bytes=row["fetched_bytes"] or 0,
    )


def _sum(parts: Iterable[Traffic]) -> Traffic:
    every = list(parts)
    return Traffic(
        Saved(**{name: sum(getattr(one.by, name) for one in every) for name in SAVED_BY}),
        origin_requests=sum(one.origin_requests for one in every),
        sent_bytes=sum(one.sent_bytes for one in every),
        saved_bytes=sum(one.saved_bytes for one in every),
        fetched_bytes=sum(one.fetched_bytes for one in every),
    )


def _latency(latency: DataFrame, step_s: int) -> tuple[dict[int | None, Percentiles], tuple[Latency, ...]]:
    """First byte of catch-up reads by step and (None) over all; all percentiles by route and mode."""
    catchup = latency.where(f.col("mode") == str(Mode.CATCHUP))
    first_byte = _merged(catchup, "first_byte", step_s)
    by_mode = latency.groupBy("route", "mode").agg(
        *(merged(f.col(f"{name}_sketch")).alias(name) for name in ("duration", "first_byte")),
        f.sum("requests").alias("requests"),
    )
    rows = by_mode.select("route", "mode", "requests", *_quantiles("duration"), *_quantiles("first_byte")).collect()
    rows.sort(key=lambda row: (-row["requests"], row["route"], row["mode"]))
    return first_byte, tuple(
        Latency(row["route"], row["mode"], _percentiles(row, "duration"), _percentiles(row, "first_byte"))
        for row in rows[:MOST_ROUTES]
    )


def _delivery(delivery: DataFrame, step_s: int) -> tuple[dict[int | None, Percentiles], float | None]:
    (row,) = delivery.agg(f.max("delay_max_s").alias("most")).collect()
    return _merged(delivery, "delay", step_s), row["most"]


def _merged(frame: DataFrame, name: str, step_s: int) -> dict[int | None, Percentiles]:
    """Percentiles by step, and under None those of all steps."""
    by_step = (
        frame.where(f.col(f"{name}_sketch").isNotNull())
        .select(_step("minute", step_s).alias("at"), f"{name}_sketch")
        .groupingSets([[f.col("at")], []], f.col("at"))
        .agg(merged(f.col(f"{name}_sketch")).alias(name))
    )
    found = {row["at"]: _percentiles(row, name) for row in by_step.select("at", *_quantiles(name)).collect()}
    return {at: one for at, one in found.items() if one.count}


def _quantiles(name: str) -> list[Column]:
    """The count and percentiles of a merged sketch."""
    sketch = f.col(name)
    return [
        values_in(sketch).alias(f"{name}_n"),
        *(quantile(sketch, rank).alias(f"{name}_{rank}") for rank in PERCENTILES.values()),
    ]


def _percentiles(row: Row, name: str) -> Percentiles:
    return Percentiles(row[f"{name}_n"], *(row[f"{name}_{rank}"] for rank in PERCENTILES.values()))


def _filled(found: dict[int | None, Percentiles], steps: range) -> tuple[Wait, ...]:
    nothing = Percentiles(0, None, None, None)
    return tuple(Wait(at, found.get(at, nothing)) for at in steps) if any(at is not None for at in found) else ()


def _top(top: DataFrame) -> tuple[tuple[Stream, ...], tuple[Stream, ...]]:
    grouped = top.groupBy("by", "route", "protocol", "stream").agg(
        *(f.sum(name).alias(name) for name in ("requests", "fetched_bytes")),
        f.sum(f.col("sent_bytes") + f.col("saved_bytes")).alias("read_bytes"),
        f.hll_sketch_estimate(f.hll_union_agg("readers_sketch", f.lit(True))).alias("readers"),
    )

    def busiest(by: str, column: str) -> tuple[Stream, ...]:
        rows = grouped.where(f.col("by") == by).orderBy(f.desc(column), "route", "stream").limit(MOST_STREAMS).collect()
        return tuple(Stream(**{name: row[name] for name in Stream.__slots__}) for row in rows)

    return busiest("bytes", "read_bytes"), busiest("requests", "requests")


def _fan_out(fan_out: DataFrame) -> tuple[tuple[Shared, ...], int]:
    catchup = f.col("mode") == str(Mode.CATCHUP)
    rows = (
        fan_out.groupBy("at_least")
        .agg(
            f.sum(f.when(~catchup, f.col("requests"))).alias("live"),
            f.sum(f.when(catchup, f.col("requests"))).alias("catchup"),
            f.max(f.when(~catchup, f.col("most"))).alias("most"),
        )
        .collect()
    )
    by = {row["at_least"]: row for row in rows}
    shared: list[Shared] = []
    at_least = 1
    while by and at_least <= max(by):
        row = by.get(at_least)
        shared.append(Shared(at_least, (row and row["live"]) or 0, (row and row["catchup"]) or 0))
        at_least *= 2
    return tuple(shared), max((row["most"] or 0 for row in rows), default=0)


def _curve(curve: DataFrame) -> tuple[CurvePoint, ...]:
    rows = (
        curve.select(*CurvePoint.__slots__)
        .orderBy(f.col("policy").contains("-blocks"), "policy", "cache_bytes")
        .collect()
    )
    return tuple(CurvePoint(**row.asDict()) for row in rows)


def _refusals(errors: DataFrame) -> tuple[Found[ErrorCount], int]:
    rows = (
        errors.groupBy("route", "mode", "status", "outcome")
        .agg(f.sum("requests").alias("requests"), f.max(_seconds("minute")).alias("last"))
        .collect()
    )
    every = [ErrorCount(**row.asDict()) for row in rows]
    every.sort(key=lambda one: (-one.requests, one.route, one.mode, one.status, one.outcome))
    return Found(tuple(every[:MOST_FOUND]), len(every)), sum(one.requests for one in every)


def _storms(reconnects: DataFrame) -> Found[Storm]:
    storms = reconnects.where("is_storm").select(
        _seconds("minute").alias("at"), "route", "reconnects", "readers", "usual"
    )
    return _found(storms, Storm, f.desc("reconnects"), f.asc("at"), f.asc("route"))


def _slow_consumers(slow: DataFrame) -> Found[SlowConsumer]:
    readers = slow.groupBy("route", "stream", "client", "user_agent").agg(
        f.sum("cut_off").alias("cut_off"), f.sum("sent_bytes").alias("sent_bytes")
    )
    return _found(readers, SlowConsumer, f.desc("cut_off"), f.asc("stream"), f.asc("client"), f.asc("user_agent"))


def _closed_loops(loops: DataFrame) -> Found[ClosedLoop]:
    readers = loops.groupBy("route", "stream", "client", "user_agent").agg(
        f.sum("requests").alias("requests"), f.count_distinct("minute").alias("minutes")
    )
    return _found(readers, ClosedLoop, f.desc("requests"), f.asc("stream"), f.asc("client"), f.asc("user_agent"))


def _anomalies(anomalies: DataFrame) -> Found[Anomaly]:
    hours = anomalies.select(_seconds("hour").alias("at"), "route", "measure", "value", "before", "days", "score")
    return _found(hours, Anomaly, f.desc(f.abs("score")), f.asc("at"), f.asc("route"), f.asc("measure"))


def _found(frame: DataFrame, kind: Callable[..., Any], *order: Column) -> Found[Any]:
    rows = frame.select("*", f.count("*").over(_everything()).alias("total")).orderBy(*order).limit(MOST_FOUND)
    found = [row.asDict() for row in rows.collect()]
    total = found[0]["total"] if found else 0
    return Found(tuple(kind(**{key: row[key] for key in row if key != "total"}) for row in found), total)


def _everything() -> Any:
    from pyspark.sql import Window

    return Window.partitionBy(f.lit(0))


def _seconds(column: str) -> Column:
    return f.unix_seconds(column)


def _step(column: str, step_s: int) -> Column:
    """Beginning of the step that contains a time; steps count from the epoch."""
    return (f.floor(_seconds(column) / step_s) * step_s).cast("bigint")

"""Figures of the lake: each equals the sum of its tables' rows, computed independently."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gateway.pipeline.gold.sketches import RANK_ERROR, READERS_ERROR
from gateway.pipeline.lake import Lake
from gateway.pipeline.report.figures import MOST_STEPS, Figures, Percentiles, Traffic
from gateway.pipeline.report.gather import MOST_FOUND, MOST_STREAMS, READS, gather
from tests.pipeline.report import made_lake
from tests.pipeline.report.made_lake import Row

SAVER_OF = {
    "hit": "tape",
    "stale_if_error": "tape",
    "collapsed": "collapse",
    "followed": "follow",
    "joined": "join",
    "revalidated": "join",
    "miss": "origin",
    "pass": "origin",
    "failed": "unanswered",
    "aborted": "unanswered",
    "refused": "unanswered",
}
MIDDLES = {"p50_s": 0.5, "p90_s": 0.9, "p99_s": 0.99}


def seconds(at: datetime) -> int:
    return int(at.timestamp())


def summed(rows: Sequence[Row]) -> Counter[str]:
    """The totals of reads among rows of `tables.TRAFFIC`."""
    sums: Counter[str] = Counter()
    for _, _, _, _, mode, outcome, requests, sent, saved, fetched, asked in rows:
        if mode in set(map(str, READS)):
            sums[SAVER_OF[outcome]] += requests
            sums["sent_bytes"] += sent
            sums["saved_bytes"] += saved
            sums["fetched_bytes"] += fetched
            sums["origin_requests"] += asked
    return +sums


def told(traffic: Traffic) -> Counter[str]:
    names = ("sent_bytes", "saved_bytes", "fetched_bytes", "origin_requests")
    sums = Counter({name: getattr(traffic, name) for name in names})
    sums.update(asdict(traffic.by))
    return +sums


def check_ranks(waited: Percentiles, values: list[float]) -> None:
    """Each percentile has about its rank among the values."""
    values.sort()
    assert waited.count == len(values)
    for name, rank in MIDDLES.items():
        value = getattr(waited, name)
        least, most = bisect_left(values, value) / len(values), bisect_right(values, value) / len(values)
        assert least - 2 * RANK_ERROR <= rank <= most + 2 * RANK_ERROR, (name, least, most)


def test_traffic_of_each_step_and_route_and_of_all(figures: Figures) -> None:
    rows = made_lake.traffic()
    assert figures.step_s == 120
    assert (figures.first, figures.last) == (
        seconds(made_lake.BEGAN),
        seconds(made_lake.BEGAN) + (made_lake.MINUTES - 1) * 60,
    )
    steps = defaultdict(list)
    for row in rows:
        steps[seconds(row[1]) // 120 * 120].append(row)
    assert [moment.at for moment in figures.moments] == list(range(min(steps), max(steps) + 1, 120))
    assert len(figures.moments) <= MOST_STEPS
    for moment in figures.moments:
        assert told(moment.traffic) == summed(steps.get(moment.at, []))
    assert [route.route for route in figures.routes] == list(made_lake.ROUTES)
    for route in figures.routes:
        assert route.protocol == made_lake.PROTOCOLS[route.route]
        assert told(route.traffic) == summed([row for row in rows if row[2] == route.route])
    assert told(figures.total) == summed(rows)
    assert figures.requests == sum(row[6] for row in rows)


def test_percentiles_are_merged_from_sketches(figures: Figures) -> None:
    catchup = [row for row in made_lake.samples("duration") if row[2] == "catchup"]
    assert figures.first_byte_all is not None
    check_ranks(figures.first_byte_all, [row[3] / 2 for row in catchup])
    steps = defaultdict(list)
    for at, _, _, value in catchup:
        steps[seconds(at) // 120 * 120].append(value / 2)
    assert [wait.at for wait in figures.first_byte] == [moment.at for moment in figures.moments]
    for wait in figures.first_byte:
        if wait.at in steps:
            check_ranks(wait.waited, steps[wait.at])
        else:
            assert wait.waited == Percentiles(0, None, None, None)
    assert len(figures.latency) == 2 * len(made_lake.ROUTES)
    for one in figures.latency:
        taken = [row[3] for row in made_lake.samples("duration") if row[1:3] == (one.route, one.mode)]
        check_ranks(one.duration, taken)
        check_ranks(one.first_byte, [value / 2 for value in taken])


def test_delivery(figures: Figures) -> None:
    delays = [row[3] for row in made_lake.samples("delay") if row[2] == "catchup"]
    assert figures.delivery_all is not None
    check_ranks(figures.delivery_all, delays)
    assert figures.delivery_max_s == max(delays)


@pytest.mark.parametrize(("by", "column"), [("by_bytes", 4), ("by_requests", 3)])
def test_the_busiest_streams_over_all_hours(figures: Figures, by: str, column: int) -> None:
    sums: dict[tuple[str, str], list[int]] = {}
    for _, route, stream, *counts, readers in made_lake.streams():
        whole = sums.setdefault((route, stream), [0, 0, 0, readers])
        whole[:3] = [one + more for one, more in zip(whole[:3], counts, strict=True)]
    wanted = sorted(sums.items(), key=lambda item: -item[1][column - 3])[:MOST_STREAMS]
    found = getattr(figures, by)
    assert [(one.route, one.stream) for one in found] == [key for key, _ in wanted]
    for one, (_, (requests, read, fetched, readers)) in zip(found, wanted, strict=True):
        assert (one.requests, one.read_bytes, one.fetched_bytes) == (requests, read, fetched)
        assert one.protocol == made_lake.PROTOCOLS[one.route]
        # Ten new readers in each of the six hours after the first.
        assert one.readers == pytest.approx(readers + 60, rel=4 * READERS_ERROR)


def test_fan_out_has_every_bucket(figures: Figures) -> None:
    live: Counter[int] = Counter()
    catchup: Counter[int] = Counter()
    for _, _, _, mode, at_least, requests, _ in made_lake.fan_out():
        (catchup if mode == "catchup" else live)[at_least] += requests
    assert [one.at_least for one in figures.fan_out] == [2**power for power in range(13)]
    assert {one.at_least: one.live for one in figures.fan_out if one.live} == live
    assert {one.at_least: one.catchup for one in figures.fan_out if one.catchup} == catchup
    assert figures.most_shared == 4096 + 2048


def test_the_curve_is_the_measured_one(figures: Figures) -> None:
    measured = sorted(tuple(asdict(point).values()) for point in figures.curve)
    assert measured == sorted(made_lake.curve(), key=lambda row: (row[0], row[1]))
    # The gateway's policies come before the curve to compare with.
    assert list(dict.fromkeys(point.policy for point in figures.curve)) == ["lru", "s3-fifo", "sieve", "lru-blocks"]


def test_problems_are_counted_and_the_worst_come_first(figures: Figures) -> None:
    errors: Counter[tuple[str, str, int, str]] = Counter()
    last: dict[tuple[str, str, int, str], int] = {}
    for _, at, route, mode, status, outcome, requests in made_lake.errors():
        errors[route, mode, status, outcome] += requests
        last[route, mode, status, outcome] = max(seconds(at), last.get((route, mode, status, outcome), 0))
    assert figures.errors == errors.total()
    assert figures.refusals.total == len(errors)
    found = {(one.route, one.mode, one.status, one.outcome): one for one in figures.refusals.worst}
    assert {key: one.requests for key, one in found.items()} == errors
    assert {key: one.last for key, one in found.items()} == last
    counts = [one.requests for one in figures.refusals.worst]
    assert counts == sorted(counts, reverse=True)

    (storm,) = figures.storms.worst
    assert (storm.at, storm.reconnects, storm.readers, storm.usual) == (seconds(made_lake.minute(312)), 900, 850, 4.0)
    assert figures.slow_consumers.total == 14 == len(figures.slow_consumers.worst)
    assert [one.cut_off for one in figures.slow_consumers.worst] == list(range(20, 6, -1))
    (loop,) = figures.closed_loops.worst
    assert (loop.requests, loop.minutes, loop.user_agent) == (40 * 118, 40, made_lake.EVIL_AGENT)
    assert [one.measure for one in figures.anomalies.worst] == ["fetched_bytes", "hit_ratio", "requests"]
    assert figures.anomalies.worst[0].at == seconds(made_lake.BEGAN.replace(minute=0) + timedelta(hours=4))
    assert MOST_FOUND >= 14


def test_figures_are_ready_for_json(figures: Figures) -> None:
    assert json.loads(json.dumps(asdict(figures), allow_nan=False))["requests"] == figures.requests


def test_a_lake_without_tables_has_no_figures(spark: SparkSession, tmp_path: Path) -> None:
    assert gather(spark, Lake(str(tmp_path / "lake")), lambda _: None) == Figures()

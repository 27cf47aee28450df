"""Figures of the gold tables: each equals the sum of their rows, computed independently."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta

import pyarrow as pa
import pytest

from gateway.pipeline import tables
from gateway.pipeline.gold.sketches import RANK_ERROR, READERS_ERROR
from gateway.pipeline.report.figures import MOST_STEPS, Figures, Percentiles, Share
from gateway.pipeline.report.figures import Row as Values
from gateway.pipeline.report.gather import MOST_FOUND, MOST_STREAMS, gather
from gateway.pipeline.report.headlines import DEFINITIONS
from tests.pipeline.report import made_gold
from tests.pipeline.report.made_gold import Row

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
READS = ("catchup", "longpoll", "sse")
MIDDLES = {"p50_s": 0.5, "p90_s": 0.9, "p99_s": 0.99}


def seconds(at: datetime) -> int:
    return int(at.timestamp())


def summed(rows: Sequence[Row]) -> Counter[str]:
    """The totals of reads among rows of `tables.TRAFFIC`."""
    sums: Counter[str] = Counter()
    for _, _, _, _, mode, outcome, requests, sent, saved, fetched, asked, spared in rows:
        if mode in READS:
            sums["spared"] += spared
            sums[SAVER_OF[outcome]] += requests
            sums["reads"] += requests
            sums["read_bytes"] += sent + saved
            sums["fetched_bytes"] += fetched
            sums["origin_requests"] += asked
    return +sums


def told(traffic: Values) -> Counter[str]:
    names = ("spared", "reads", "read_bytes", "fetched_bytes", "origin_requests", *SAVER_OF.values())
    sums = Counter({name: traffic[name] or 0 for name in names})
    return +sums


def check_ratios(traffic: Values) -> None:
    """Each ratio is that of the counts, and None if there is nothing to divide by."""
    reads, read_bytes = traffic["reads"], traffic["read_bytes"]
    assert traffic["spared_ratio"] == (traffic["spared"] / reads if reads else None)
    assert traffic["asked_ratio"] == (traffic["origin_requests"] / reads if reads else None)
    assert traffic["hit_ratio"] == (traffic["tape"] / reads if reads else None)
    assert traffic["byte_offload"] == (1 - traffic["fetched_bytes"] / read_bytes if read_bytes else None)


def check_ranks(waited: Values, values: list[float], prefix: str = "") -> None:
    """Each percentile has about its rank among the values."""
    values.sort()
    assert waited[f"{prefix}count"] == len(values)
    for name, rank in MIDDLES.items():
        value = waited[prefix + name]
        least, most = bisect_left(values, value) / len(values), bisect_right(values, value) / len(values)
        assert least - 2 * RANK_ERROR <= rank <= most + 2 * RANK_ERROR, (name, least, most)


def test_traffic_of_each_step_and_route_and_of_all(figures: Figures) -> None:
    rows = made_gold.traffic()
    assert figures.step_s == 120
    assert (figures.first, figures.last) == (
        seconds(made_gold.BEGAN),
        seconds(made_gold.BEGAN) + (made_gold.MINUTES - 1) * 60,
    )
    steps = defaultdict(list)
    for row in rows:
        steps[seconds(row[1]) // 120 * 120].append(row)
    assert [moment["began"] for moment in figures.moments] == list(range(min(steps), max(steps) + 1, 120))
    assert len(figures.moments) <= MOST_STEPS
    for moment in figures.moments:
        assert told(moment) == summed(steps.get(moment["began"], []))
        check_ratios(moment)
    assert [route["route"] for route in figures.routes] == list(made_gold.ROUTES)
    for route in figures.routes:
        assert route["protocol"] == made_gold.PROTOCOLS[route["route"]]
        assert told(route) == summed([row for row in rows if row[2] == route["route"]])
        check_ratios(route)
    assert told(figures.total) == summed(rows)
    assert figures.requests == sum(row[6] for row in rows)


def test_percentiles_are_merged_from_sketches(figures: Figures) -> None:
    catchup = [row for row in made_gold.samples("duration") if row[2] == "catchup"]
    check_ranks(asdict(figures.first_byte_all), [row[3] / 2 for row in catchup])
    steps = defaultdict(list)
    for at, _, _, value in catchup:
        steps[seconds(at) // 120 * 120].append(value / 2)
    assert [wait["began"] for wait in figures.first_byte] == [moment["began"] for moment in figures.moments]
    for wait in figures.first_byte:
        if wait["began"] in steps:
            check_ranks(wait, steps[wait["began"]])
        else:
            assert wait == {"began": wait["began"], **asdict(Percentiles(0, None, None, None))}
    assert len(figures.latency) == 2 * len(made_gold.ROUTES)
    for one in figures.latency:
        taken = [row[3] for row in made_gold.samples("duration") if row[1:3] == (one["route"], one["mode"])]
        check_ranks(one, taken)
        check_ranks(one, [value / 2 for value in taken], "first_byte_")


def test_delivery(figures: Figures) -> None:
    delays = [row[3] for row in made_gold.samples("delay") if row[2] == "catchup"]
    check_ranks(asdict(figures.delivery_all), delays)
    assert figures.delivery_all.max_s == max(delays)


@pytest.mark.parametrize(("by", "column"), [("by_bytes", 4), ("by_requests", 3)])
def test_the_busiest_streams_over_all_hours(figures: Figures, by: str, column: int) -> None:
    sums: dict[tuple[str, str], list[int]] = {}
    for _, route, stream, *counts, readers in made_gold.streams():
        whole = sums.setdefault((route, stream), [0, 0, 0, readers])
        whole[:3] = [one + more for one, more in zip(whole[:3], counts, strict=True)]
    wanted = sorted(sums.items(), key=lambda item: -item[1][column - 3])[:MOST_STREAMS]
    found = getattr(figures, by)
    assert [(one["route"], one["stream"]) for one in found] == [key for key, _ in wanted]
    for one, (_, (requests, read, fetched, readers)) in zip(found, wanted, strict=True):
        assert (one["requests"], one["read_bytes"], one["fetched_bytes"]) == (requests, read, fetched)
        assert one["protocol"] == made_gold.PROTOCOLS[one["route"]]
        # Ten new readers in each of the six hours after the first.
        assert one["readers"] == pytest.approx(readers + 60, rel=4 * READERS_ERROR)


def test_fan_out_has_every_bucket(figures: Figures) -> None:
    live: Counter[int] = Counter()
    catchup: Counter[int] = Counter()
    for _, _, _, mode, at_least, requests, _ in made_gold.fan_out():
        (catchup if mode == "catchup" else live)[at_least] += requests
    assert [one["at_least"] for one in figures.fan_out] == [2**power for power in range(13)]
    for name, counted in (("live", live), ("catchup", catchup)):
        assert {one["at_least"]: one[name] for one in figures.fan_out if one[name]} == counted
        assert [one[f"{name}_share"] for one in figures.fan_out] == [
            counted[one["at_least"]] / counted.total() for one in figures.fan_out
        ]
    assert figures.shares["followed"] == Share(4096 + 2048)


def test_the_curve_is_the_measured_one(figures: Figures) -> None:
    measured = sorted(tuple(point.values()) for point in figures.curve)
    assert measured == sorted(made_gold.curve(), key=lambda row: (row[0], row[1]))


def test_problems_are_counted_and_the_worst_come_first(figures: Figures) -> None:
    errors: Counter[tuple[str, str, int, str]] = Counter()
    last: dict[tuple[str, str, int, str], int] = {}
    for _, at, route, mode, status, outcome, requests in made_gold.errors():
        errors[route, mode, status, outcome] += requests
        last[route, mode, status, outcome] = max(seconds(at), last.get((route, mode, status, outcome), 0))
    assert figures.shares["errors"] == Share(errors.total(), figures.requests)
    refusals = figures.found["errors"]
    assert refusals.total == len(errors)
    found = {tuple(one[name] for name in ("route", "mode", "status", "outcome")): one for one in refusals.worst}
    assert {key: one["requests"] for key, one in found.items()} == errors
    assert {key: one["last"] for key, one in found.items()} == last
    counts = [one["requests"] for one in refusals.worst]
    assert counts == sorted(counts, reverse=True)

    (storm,) = figures.found["storms"].worst
    began = seconds(made_gold.minute(312))
    assert [storm[name] for name in ("began", "reconnects", "readers", "usual")] == [began, 900, 850, 4.0]
    slow = figures.found["slow-consumers"]
    assert slow.total == 14 == len(slow.worst)
    assert [one["cut_off"] for one in slow.worst] == list(range(20, 6, -1))
    (loop,) = figures.found["closed-loops"].worst
    assert (loop["requests"], loop["minutes"], loop["user_agent"]) == (40 * 118, 40, made_gold.EVIL_AGENT)
    anomalies = figures.found["anomalies"].worst
    assert [one["measure"] for one in anomalies] == ["fetched_bytes", "hit_ratio", "requests"]
    assert anomalies[0]["began"] == seconds(made_gold.BEGAN.replace(minute=0) + timedelta(hours=4))
    assert MOST_FOUND >= 14


def test_figures_are_ready_for_json(figures: Figures) -> None:
    assert json.loads(json.dumps(asdict(figures), allow_nan=False))["requests"] == figures.requests


def test_headline_figures_are_sums_of_rows(figures: Figures) -> None:
    rows = made_gold.traffic()
    of_reads = [row for row in rows if row[4] in READS]
    of_catchups = [row for row in rows if row[4] == "catchup"]
    reads = sum(row[6] for row in of_reads)
    assert figures.shares == {
        "spared": Share(sum(row[11] for row in of_reads), reads),
        "asked": Share(sum(row[10] for row in of_reads), reads),
        "looked": Share(
            sum(row[6] for row in of_catchups if row[5] in ("joined", "revalidated")),
            sum(row[6] for row in of_catchups),
        ),
        "delivered": Share(sum(row[7] + row[8] for row in of_reads), sum(row[9] for row in of_reads)),
        "sent": Share(sum(row[7] for row in of_reads)),
        "errors": Share(sum(row[6] for row in made_gold.errors()), sum(row[6] for row in rows)),
        "followed": Share(max(row[6] for row in made_gold.fan_out() if row[3] != "catchup")),
    }
    assert {one.name for one in DEFINITIONS} == set(figures.shares)
    # More than one request was charged to some reads, so this is not 1 - requests / reads.
    spared, asked = figures.shares["spared"].ratio, figures.shares["asked"].ratio
    assert spared is not None
    assert asked is not None
    assert abs(spared - (1 - asked)) > 0.005


def test_rows_older_than_a_column_make_its_figures_unknown() -> None:
    gold = made_gold.tables_of()
    traffic = gold[tables.TRAFFIC.place]
    old = traffic.slice(0, 40).set_column(
        traffic.schema.get_field_index("spared_requests"), "spared_requests", [[None] * 40]
    )
    mixed = gather(
        made_gold.gold({tables.TRAFFIC.place: pa.concat_tables([old.cast(traffic.schema), traffic.slice(40)])}),
        lambda _: None,
    )
    assert mixed.shares["spared"].part is None
    assert mixed.total["spared_ratio"] is None
    assert mixed.moments[0]["spared"] is None
    assert mixed.moments[-1]["spared"] is not None
    assert mixed.total["reads"] == sum(row[6] for row in made_gold.traffic() if row[4] in READS)


def test_a_route_counts_once_and_without_reads_too() -> None:
    gold = made_gold.tables_of(tables.TRAFFIC)
    traffic = gold[tables.TRAFFIC.place].to_pylist()
    appends = [row | {"route": route} for row in traffic if row["mode"] == "append" for route in ("one", "two", "-")]
    moved = [row | {"route": "one", "protocol": "s2"} for row in traffic if row["mode"] == "catchup"]
    for rows, number in ((appends, 2), ([*traffic, *moved], len(made_gold.ROUTES) + 1)):
        of = {tables.TRAFFIC.place: pa.Table.from_pylist(rows, gold[tables.TRAFFIC.place].schema)}
        assert gather(made_gold.gold(of), lambda _: None).route_count == number


def test_no_tables_give_no_figures() -> None:
    assert gather(made_gold.gold({}), lambda _: None) == Figures()

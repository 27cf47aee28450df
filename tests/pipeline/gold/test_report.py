"""The report of a lake that Spark has made: its headline figures are those of the log, counted line by line."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import pytest

from gateway.pipeline import tables
from gateway.pipeline.gold.sketches import RANK_ERROR, READERS_ERROR
from gateway.pipeline.report.figures import Figures, Share
from gateway.pipeline.report.gather import gather, gold_of
from tests.pipeline.gold.conftest import LOG, GoldLake

READS = ("catchup", "longpoll", "sse")
LIVE = ("longpoll", "sse")


@pytest.fixture(scope="module")
def figures(whole: GoldLake) -> Figures:
    return gather(gold_of(whole.lake), lambda _: None)


def test_headline_figures_are_the_logs(figures: Figures) -> None:
    ended = [one for one in LOG if one["is_final"]]
    reads = [one for one in ended if one["mode"] in READS]
    of_reads = [one for one in LOG if one["mode"] in READS]
    catchups = [one for one in reads if one["mode"] == "catchup"]
    sent = sum(one["sent_bytes"] for one in of_reads)
    failed = [one for one in ended if one["status"] >= 400 or one["outcome"] in ("refused", "failed", "aborted")]
    assert figures.requests == len(ended)
    assert figures.shares == {
        "spared": Share(sum(one["origin_requests"] == 0 for one in reads), len(reads)),
        "asked": Share(sum(one["origin_requests"] for one in of_reads), len(reads)),
        "looked": Share(sum(one["outcome"] in ("joined", "revalidated") for one in catchups), len(catchups)),
        "delivered": Share(
            sent + sum(one["saved_bytes"] for one in of_reads), sum(one["fetched_bytes"] for one in of_reads)
        ),
        "sent": Share(sent),
        "errors": Share(len(failed), len(ended)),
        "followed": Share(max(one["subscribers"] or 0 for one in reads if one["mode"] in LIVE)),
    }
    spared, asked = figures.shares["spared"].ratio, figures.shares["asked"].ratio
    assert spared is not None
    assert asked is not None
    # 1 - requests / reads is another figure.
    assert abs(spared - (1 - asked)) > 0.001


def test_percentiles_are_those_of_the_log(figures: Figures) -> None:
    waits = sorted(
        one["first_byte_s"]
        for one in LOG
        if one["is_final"] and one["mode"] == "catchup" and one["first_byte_s"] is not None
    )
    found = figures.first_byte_all
    assert found.count == len(waits)
    for value, rank in ((found.p50_s, 0.5), (found.p90_s, 0.9), (found.p99_s, 0.99)):
        assert value is not None
        least, most = bisect_left(waits, value) / len(waits), bisect_right(waits, value) / len(waits)
        assert least - 2 * RANK_ERROR <= rank <= most + 2 * RANK_ERROR


def test_readers_of_the_busiest_stream_are_counted_over_hours(figures: Figures, whole: GoldLake) -> None:
    busiest = figures.by_requests[0]
    rows = whole.lake.read(whole.spark, tables.TOP_STREAMS)
    hours = {
        row["hour"]
        for row in rows.where((rows.by == "requests") & (rows.stream == busiest["stream"])).select("hour").collect()
    }
    readers = {
        (one["client"] or "-", one["user_agent"] or "-")
        for one in LOG
        if one["stream"] == busiest["stream"]
        and one["route"] == busiest["route"]
        and one["mode"] in READS
        and one["time"].replace(minute=0, second=0, microsecond=0) in hours
    }
    assert busiest["readers"] == pytest.approx(len(readers), rel=4 * READERS_ERROR)

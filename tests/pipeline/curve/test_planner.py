"""The plan: it contains the streams planted in a log, and says nothing that its figures do not."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.aio.clock import ManualClock
from gateway.config.cache_plan import CachePlan, MadeFrom, Memory, parse_plan
from gateway.pipeline.curve.measure import measure_curve
from gateway.pipeline.curve.streams import WINDOWS, Gaps, StreamFigures, Traffic, residence_s
from gateway.pipeline.errors import PipelineFailed
from gateway.pipeline.lake import Lake
from gateway.pipeline.planner import PIN_SHARE, WARM_SHARE, Point, budget, decide, make_plan
from gateway.pipeline.whole_file import write_whole
from tests.pipeline.curve.silver import EPOCH, Asked, add_to, lake_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR = 3_600.0
HOT, ROOMS, ARCHIVES, CHATS = 3, 120, 40, 4
ARCHIVE_BYTES = 400_000


def log() -> list[Asked]:
    """Two hours: rooms read at random, and, planted among them, streams that a plan has to find.

    Hot streams are read every few minutes and were fetched again each time; a crawler reads each archive once, and one
    of them again half an hour later; chats are read for ten minutes and then never again.
    """
    rng = np.random.default_rng(1)
    out = []
    for number in range(4_000):
        room = int(rng.zipf(1.3) - 1) % ROOMS
        out.append(Asked(2 * HOUR * number / 4_000, f"/rooms/{room}", 0, 20_000 + 100 * room))
    for hot in range(HOT):
        # One is fetched for nearly every read of it: it was evicted to make room for the archives.
        out += [Asked(60.0 * n + hot, f"/hot/{hot}", 0, 50_000, fetched=50_000, outcome="miss") for n in range(120)]
    for archive in range(ARCHIVES):
        # Read once, in pages.
        at = 170.0 * archive + 1
        pages = range(0, ARCHIVE_BYTES, 100_000)
        out += [Asked(at + n, f"/archives/{archive}", low, low + 100_000) for n, low in enumerate(pages)]
    # As large, and read by two together: they share a fetch.
    out += [Asked(300, "/shared", 0, ARCHIVE_BYTES), Asked(300, "/shared", 0, ARCHIVE_BYTES)]
    # As large, and read live.
    out += [Asked(400, "/live", 0, ARCHIVE_BYTES), Asked(401, "/live", ARCHIVE_BYTES, ARCHIVE_BYTES + 10, "longpoll")]
    # As large, and read too recently to know whether it will be read again.
    out += [Asked(2 * HOUR - 1, "/late", 0, ARCHIVE_BYTES)]
    for chat in range(CHATS):
        out += [Asked(100 + 20.0 * n, f"/chats/{chat}", 0, 100_000) for n in range(30)]
    # As hot, but every reader shows credentials, and has a tape that no plan can name.
    for user in "ab":
        out += [
            Asked(60.0 * n + 5, "/private", 0, 50_000, fetched=50_000, outcome="miss", partition=user)
            for n in range(120)
        ]
    # Streams that no plan can name.
    out += [Asked(60.0 * n, "/" + "x" * 2_047, 0, 50_000, fetched=50_000, outcome="miss") for n in range(120)]
    out += [Asked(60.0 * n, "/none", 0, 50_000, fetched=50_000, outcome="miss", route="-") for n in range(120)]
    return sorted(out, key=lambda one: one.at)


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = lake_of(spark, str(tmp_path_factory.mktemp("lake")), log())
    measure_curve(spark, lake, policies=["s3-fifo"], sizes=[250_000 << step for step in range(8)])
    return lake


def plan(spark: SparkSession, lake: Lake, target: float = 0.85, **more: Any) -> CachePlan:
    return make_plan(spark, lake, target_hit_ratio=target, clock=ManualClock(wall=1_800_000_000.0), **more)


def names(entries: tuple[Any, ...]) -> set[str]:
    return {entry.stream for entry in entries}


def test_exactly_the_planted_streams_are_planned(spark: SparkSession, lake: Lake) -> None:
    made = plan(spark, lake)
    assert names(made.pin) == {f"/hot/{number}" for number in range(HOT)}
    assert names(made.do_not_store) <= {f"/archives/{number}" for number in range(ARCHIVES)}
    # The last few were read too shortly before the end of the log to tell.
    assert len(made.do_not_store) >= ARCHIVES - 6
    assert names(made.lifetimes) <= {f"/chats/{number}" for number in range(CHATS)}
    warmed = names(made.warm)
    assert names(made.pin) <= warmed
    assert "/rooms/0" in warmed
    assert all(name.startswith(("/rooms/", "/hot/")) for name in warmed)
    assert made.memory.policy == "s3-fifo"
    assert made.memory.expected_hit_ratio >= 0.85
    assert made.made_from.lines == len(log())
    assert made.made_from.nodes == ("edge-a",)
    assert (made.made_from.first, made.made_from.last) == (EPOCH, EPOCH + timedelta(seconds=log()[-1].at))
    assert made.made_at == datetime(2027, 1, 15, 8, tzinfo=UTC)
    # Two hours of traffic are less than a day, and as much as two hours.
    assert made.is_short
    assert made.made_from.is_short
    for entry in (*made.pin, *made.warm, *made.do_not_store, *made.lifetimes):
        assert any(letter.isdigit() for letter in entry.reason)


@pytest.fixture(scope="module")
def twice(spark: SparkSession, lake: Lake) -> tuple[CachePlan, CachePlan, list[str]]:
    """Two plans for all of it, and what the first told."""
    told: list[str] = []
    made = plan(spark, lake, 1.0, min_span_s=3_600, progress=told.append)
    return made, plan(spark, lake, 1.0, min_span_s=3_600), told


def test_nothing_is_pinned_or_left_out_if_everything_fits(twice: tuple[CachePlan, CachePlan, list[str]]) -> None:
    made, _, _ = twice
    # Two hours of traffic are enough where one is asked for.
    assert not made.is_short
    assert made.memory.expected_hit_ratio < 1
    assert not made.pin
    assert not made.do_not_store
    assert names(made.lifetimes) == {f"/chats/{number}" for number in range(CHATS)}
    assert {entry.idle_s for entry in made.lifetimes} == {60.0}


def test_a_lake_always_gives_the_same_document_and_it_is_written_atomically(
    twice: tuple[CachePlan, CachePlan, list[str]], tmp_path: Path
) -> None:
    made, again, told = twice
    assert made.text == again.text
    assert told[0].startswith("plan: no memory reaches 100.0%")
    path = tmp_path / "plan.json"
    path.write_text("the one before")
    write_whole(path, made.text)
    assert parse_plan(path) == made
    assert json.loads(path.read_text())["version"] == 1
    assert [file.name for file in tmp_path.iterdir()] == ["plan.json"]
    with pytest.raises(PipelineFailed, match="No such file"):
        write_whole(tmp_path / "none" / "plan.json", made.text)


def test_a_lake_without_a_basis_for_a_plan_is_one_line(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    empty = Lake(str(tmp_path / "empty"))
    bare = lake_of(spark, str(tmp_path / "bare"), [Asked(1, "/a", 0, 10)])
    for where, arguments, text in (
        (empty, {}, "no requests in it"),
        (bare, {}, "compute the curve first"),
        (lake, {"policy": "sieve"}, "no curve of sieve"),
        (lake, {"policy": "lfu"}, "policy: lfu is none of"),
        (lake, {"target_hit_ratio": 1.5}, "target: expected a ratio"),
    ):
        with pytest.raises(PipelineFailed, match=text):
            make_plan(spark, where, **arguments)


# -- decisions ---------------------------------------------------------------------------------------------------------

POINTS = [Point(1 << 20, 0.2, 0.1, 0.01), Point(4 << 20, 0.6, 0.5, 0.02), Point(16 << 20, 0.61, 0.52, 0.0)]


def test_a_plan_is_of_the_lines_of_its_curve(spark: SparkSession, tmp_path: Path) -> None:
    """Lines that came since would make a short log look long, and its memory enough."""
    lake = lake_of(spark, str(tmp_path / "lake"), [Asked(at, "/a", 0, 10) for at in range(3)])

    def measured() -> None:
        measure_curve(spark, lake, policies=["s3-fifo"], sizes=[1 << 20])

    def of() -> tuple[int, bool]:
        made = plan(spark, lake, 0)
        return made.made_from.lines, made.is_short

    measured()
    assert of() == (3, True)
    add_to(lake, spark, [Asked(90_000, "/a", 0, 10)])
    assert of() == (3, True)
    measured()
    assert of() == (4, False)
    add_to(lake, spark, [Asked(0, "/a", 0, 10)], replaces_all=True)
    with pytest.raises(
        PipelineFailed,
        match=r"^[^\n]*: the lines that its curve was made from are not all there: run `pipeline curve`$",
    ):
        of()


def test_the_budget_is_the_least_that_reaches_the_target() -> None:
    found = budget(POINTS, 0.4, "lru")
    # Half way up, and so half way between the sizes' logarithms.
    assert found == Memory(
        cache_bytes=(2 << 20) + (1 << 16),
        policy="lru",
        expected_hit_ratio=0.4,
        expected_byte_hit_ratio=0.3,
        error=0.02,
    )
    assert budget(POINTS, 0.1, "lru").cache_bytes == 1 << 20
    assert budget(POINTS, 0.1, "lru").expected_hit_ratio == 0.2


def test_an_unreachable_target_gives_the_least_size_that_is_nearly_the_best() -> None:
    found = budget(POINTS, 0.9, "sieve")
    assert 4 << 20 < found.cache_bytes < 16 << 20
    assert found.expected_hit_ratio == 0.605


HOT_ONE = StreamFigures("default", "/hot", 1_000, 10, 10_000, 0, 9_000, WINDOWS, 5.0, 9, 5.0, 0.0)
CROWDED = (Gaps(10.0, 1e6, 5e6), Gaps(1_000.0, 1e6, 5e8))
"""Gaps that need more memory than there is."""


def decided(*streams: StreamFigures, cache_bytes: int = 100_000) -> dict[str, list[str]]:
    lists = decide(Traffic(1_000.0, streams, CROWDED), cache_bytes, 1)
    return {name: [entry.stream for entry in entries] for name, entries in lists.items()}


def test_pins_and_warmed_streams_are_the_most_read_for_their_size_and_fit() -> None:
    streams = [
        replace(HOT_ONE, stream=f"/{number:02d}", asked_bytes=10_000 * number, bytes=1_000 + number)
        for number in range(90)
    ]
    found = decided(*streams)
    best = [one.stream for one in reversed(streams)]
    sizes = {one.stream: one.bytes for one in streams}
    for name, share in (("pin", PIN_SHARE), ("warm", WARM_SHARE)):
        taken = found[name]
        room = share * 100_000 - sum(sizes[stream] for stream in taken)
        assert 0 <= room < 1_000
        # In order of worth, except for one that was too large at the end.
        assert taken[:-1] == best[: len(taken) - 1]


def test_no_stream_of_a_route_that_gateways_do_not_warm_is_to_be_warmed() -> None:
    streams = HOT_ONE, replace(HOT_ONE, route="records", stream="/v1/streams/a?s2-basin=b")
    lists = decide(Traffic(1_000.0, streams, CROWDED), 100_000, 1, frozenset({"records"}))
    assert {entry.route for entry in lists["pin"]} == {"default", "records"}
    assert {entry.route for entry in lists["warm"]} == {"default"}


def test_a_stream_too_large_to_fit_leaves_its_room_to_others() -> None:
    found = decided(replace(HOT_ONE, stream="/huge", bytes=60_000, asked_bytes=10**9, fetched_again=10**6), HOT_ONE)
    assert found["pin"] == found["warm"] == ["/hot"]


def test_only_streams_evicted_too_soon_are_pinned() -> None:
    assert decided(replace(HOT_ONE, fetched_again=400))["pin"] == []
    assert decided(replace(HOT_ONE, windows=WINDOWS // 2 - 1))["pin"] == []
    assert decided(HOT_ONE, cache_bytes=10**9)["pin"] == []


def test_only_large_streams_read_once_by_one_reader_are_not_stored() -> None:
    once = StreamFigures("default", "/once", 100_000, 1, 100_000, 0, 0, 1, None, 0, 0.0, 900.0)
    assert decided(once)["do_not_store"] == ["/once"]
    assert decided(replace(once, again_s=800.0))["do_not_store"] == ["/once"]
    for other in (
        replace(once, again_s=0.0),
        replace(once, again_s=20.0),
        replace(once, live=1),
        replace(once, quiet_s=10.0),
        replace(once, bytes=60_000),
        replace(once, asked=0),
        replace(once, stream="/with space"),
        replace(once, route="-"),
    ):
        assert decided(other)["do_not_store"] == []
    assert decided(once, cache_bytes=10**9)["do_not_store"] == []


def test_a_stream_beyond_a_plans_bounds_does_not_prevent_a_plan() -> None:
    archive = StreamFigures("default", "/archive", 2**45, 1, 2**45, 0, 0, 1, None, 0, 0.0, 900.0)
    chat = replace(archive, stream="/chat", asked=30, again_s=20.0, returns=29, idle_s=40.0)
    lists = decide(Traffic(1_000.0, (archive, chat), CROWDED), 100_000, 1)
    assert [entry.stream for name in ("do_not_store", "lifetimes") for entry in lists[name]] == ["/archive", "/chat"]


def test_streams_read_mostly_with_credentials_are_neither_pinned_nor_warmed() -> None:
    assert (found := decided(replace(HOT_ONE, asked_apart=5)))["pin"] == found["warm"] == ["/hot"]
    assert (found := decided(replace(HOT_ONE, asked_apart=6)))["pin"] == found["warm"] == []


def test_streams_without_readers_left_get_a_lifetime() -> None:
    chat = StreamFigures("default", "/chat", 100_000, 30, 3_000_000, 0, 0, 1, 20.0, 29, 40.0, 900.0)
    given_up = decide(Traffic(1_000.0, (chat,), CROWDED), 10**9, 1)["lifetimes"]
    assert [(entry.stream, entry.idle_s) for entry in given_up] == [("/chat", 80.0)]
    for other in (replace(chat, quiet_s=79.0), replace(chat, returns=4), replace(chat, bytes=1_000)):
        assert decided(other, cache_bytes=10**9)["lifetimes"] == []
    # A cache that keeps nothing for that long needs no lifetimes.
    assert decided(chat, cache_bytes=20_000)["lifetimes"] == []


COUNTS = st.integers(0, 1_000)
SECONDS = st.floats(0, 10_000)
FIGURES = st.builds(
    StreamFigures,
    route=st.sampled_from(["default", "-", "a"]),
    stream=st.sampled_from([f"/{letter}" for letter in "abcdefghij"] + ["/with space", "/#"]),
    bytes=st.integers(1, 400_000),
    asked=COUNTS,
    asked_bytes=st.integers(0, 10**9),
    live=st.integers(0, 2),
    fetched_again=st.integers(0, 10**6),
    windows=st.integers(0, WINDOWS),
    again_s=st.none() | SECONDS,
    returns=st.integers(0, 20),
    idle_s=SECONDS,
    quiet_s=SECONDS,
)
TRAFFIC = st.builds(
    Traffic,
    span_s=st.floats(1, 10_000),
    streams=st.lists(FIGURES, max_size=12, unique_by=lambda one: (one.route, one.stream)).map(tuple),
    gaps=st.lists(st.floats(0.01, 5_000), max_size=6, unique=True).map(
        lambda times: tuple(Gaps(time, 10_000.0, 9_000.0 * time) for time in sorted(times))
    ),
)


@given(TRAFFIC, st.integers(0, 1 << 20), st.integers(1, 3))
def test_every_plan_keeps_its_promises(traffic: Traffic, cache_bytes: int, nodes: int) -> None:
    lists = decide(traffic, cache_bytes, nodes)
    # The document refuses contradictions.
    made = CachePlan(
        version=1,
        made_at=EPOCH,
        made_from=MadeFrom(first=EPOCH, last=EPOCH, lines=1, nodes=()),
        target_hit_ratio=0.9,
        memory=budget(POINTS, 0.9, "lru"),
        **lists,
    )
    assert parse_plan(made.text.encode()) == made
    assert sum(entry.bytes for entry in made.pin) <= PIN_SHARE * cache_bytes
    assert sum(entry.bytes for entry in made.warm) <= WARM_SHARE * cache_bytes
    assert not names(made.lifetimes) & names(made.pin) or len({one.route for one in traffic.streams}) > 1
    figures = {(one.route, one.stream): one for one in traffic.streams}
    for entry in made.do_not_store:
        assert figures[entry.key].live == 0


@given(TRAFFIC, st.integers(1, 1 << 20))
def test_a_larger_cache_keeps_longer(traffic: Traffic, cache_bytes: int) -> None:
    less, more = (residence_s(traffic.gaps, traffic.span_s, size) for size in (cache_bytes, 2 * cache_bytes))
    assert more is None or (less is not None and less <= more)


def test_a_cache_keeps_what_is_used_within_its_fill_time() -> None:
    # 100 tapes of 1,000 bytes, each used every 50 s in turn, over 500 s: 2,000 bytes more are used with each second.
    gaps = (Gaps(50.0, 900 * 1_000.0, 900 * 1_000.0 * 50.0), Gaps(50.1, 100 * 1_000.0, 100 * 1_000.0 * 50.0))
    kept = residence_s(gaps, 500.0, 40_000)
    assert kept == pytest.approx(20.0, rel=0.01)
    assert residence_s(gaps, 500.0, 150_000) is None
    assert residence_s((), 500.0, 1) is None

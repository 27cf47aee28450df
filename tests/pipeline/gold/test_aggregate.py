"""Gold is a function of silver, whether it is computed day by day, with late lines, twice, or after a run that died."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

import pytest

from gateway.pipeline import tables
from gateway.pipeline.aggregate import Aggregated
from gateway.pipeline.lake import Conflict
from gateway.pipeline.tables import LATE_DAYS
from tests.pipeline.gold import exact
from tests.pipeline.gold.conftest import LOG, GoldLake
from tests.pipeline.gold.silver_log import Line, arrow, at, line, log

if TYPE_CHECKING:
    from tests.spark import SharedJava

DAYS: Final = tuple(sorted({one["day"] for one in LOG}))
CHILD_S: Final = 240


def files(gold: GoldLake) -> dict[str, list[str]]:
    """Names of gold's files, by table and day; each file that is written has a name of its own."""
    found: dict[str, list[str]] = {}
    for table in tables.GOLD:
        for file in gold.lake.snapshot(table).files():
            day, _, name = file.path.partition("/")
            found.setdefault(f"{table.name}/{day}", []).append(name)
    return found


def assert_is_whole(gold: GoldLake, lines: Sequence[Line]) -> None:
    """Assert that gold has what DuckDB computes from these lines."""
    for table in tables.GOLD:
        expected, found = exact.rows(arrow(lines), table), gold.rows(table)
        assert len(found) == len(expected), table.name
        assert all(exact.is_same(one, other) for one, other in zip(found, expected, strict=True)), table.name


def test_a_second_run_changes_nothing(whole: GoldLake) -> None:
    written = files(whole)
    again = whole.run()
    assert (again.days, again.followed) == ((), ())
    assert files(whole) == written
    assert all(len(names) == 1 for names in written.values()), "more than one file for a day"


def test_lines_in_any_order_give_the_same_gold_as_all_at_once(gold: GoldLake) -> None:
    lines = log(seed=2, days=4)
    days = tuple(sorted({one["day"] for one in lines}))
    Random(1).shuffle(lines)
    third = [one for one in lines if one["day"] == days[2]]
    others = [one for one in lines if one["day"] != days[2]]
    gold.take_in(third[:-500])
    assert gold.run().days == (days[2],)
    gold.take_in(others + third[-500:])
    assert gold.run().days == days
    assert_is_whole(gold, lines)


def test_two_runs_do_not_write_at_the_same_time(whole: GoldLake, tmp_path: Path) -> None:
    gold = whole.copied(tmp_path / "twice")
    gold.take_in([line(at(len(DAYS) - 1, 2.5), id="late")])
    runs: list[Aggregated] = []

    def second(_: str) -> None:
        if not runs:
            runs.append(gold.run())

    with pytest.raises(Conflict, match=r"^.*/gold/traffic: another run has written to it meanwhile"):
        gold.run(second)
    assert runs[0].days == DAYS[-1:]


def test_late_lines_change_their_own_windows_and_no_others(whole: GoldLake, tmp_path: Path) -> None:
    gold = whole.copied(tmp_path / "late")
    written = files(gold)
    late = at(1, 2.5)
    gold.take_in([line(late, id="late", outcome="failed", status=502, mode="catchup", duration_s=9.0)])
    assert gold.run().days == (DAYS[1],)
    changed = {place.split("/")[0] for place, names in files(gold).items() if names != written.get(place)}
    others = {
        place.split("/")[0]
        for place, names in files(gold).items()
        if names != written.get(place) and not place.endswith(f"day={DAYS[1]}")
    }
    assert changed >= {"traffic", "offload", "errors", "latency", "top_streams"}
    # These look back: an hour, or days.
    assert others <= {"delivery", "closed_loops", "reconnects", "anomalies"}
    minute, hour = f"{late:%Y-%m-%d %H:%M}:00", f"{late:%Y-%m-%d %H}:00:00"
    for table in tables.GOLD:
        old, new = set(whole.rows(table)), set(gold.rows(table))
        # The usual value at that hour has changed for the days after.
        told = [row[1][11:] if table is tables.ANOMALIES and row[1] > hour else row[1] for row in old ^ new]
        assert set(told) <= {minute, hour, hour[11:]}, table.name
    row = ("chat", "catchup", 502, "failed", 1)
    assert [found[2:] for found in gold.rows(tables.ERRORS) if found[1] == minute and found[4] == 502] == [row]


def test_a_run_that_was_killed_is_done_again(gold: GoldLake, shared_java: SharedJava, tmp_path: Path) -> None:
    lines = log(seed=3, days=2)
    gold.take_in(lines)
    died = subprocess.run(
        [sys.executable, "-m", "tests.pipeline.gold.dying", str(gold.folder), str(tmp_path), "gold/top_streams"],
        env={**os.environ, **shared_java.environ},
        timeout=CHILD_S,
        capture_output=True,
        check=False,
    )
    shared_java.end_spark()
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    assert gold.rows(tables.LATENCY)
    assert not gold.rows(tables.TOP_STREAMS)
    assert gold.run().days[:2] == DAYS[:2]
    assert_is_whole(gold, lines)


def _breaking_at(place: str) -> Callable[[str], None]:
    def progress(text: str) -> None:
        if text.startswith(place):
            raise KeyboardInterrupt

    return progress


@pytest.fixture(scope="module")
def interrupted(whole: GoldLake, tmp_path_factory: pytest.TempPathFactory) -> GoldLake:
    """The whole log, with a run for its last two days that was interrupted."""
    gold = whole.copied(tmp_path_factory.mktemp("interrupted") / "lake")
    silver = gold.lake.snapshot(tables.REQUESTS)
    same = gold.lake.write(silver.read(gold.spark, days=DAYS[-2:]), tables.REQUESTS)
    silver.commit(same, replaces=DAYS[-2:])
    with pytest.raises(KeyboardInterrupt):
        gold.run(_breaking_at("gold/offload"))
    return gold


@pytest.fixture(scope="module")
def completed(interrupted: GoldLake) -> tuple[GoldLake, Aggregated]:
    """The same lake after the next run, with a local time zone far from UTC."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        try:
            done = interrupted.run()
        finally:
            patch.undo()
            time.tzset()
    return interrupted, done


def test_days_of_an_unfinished_run_are_computed_again(whole: GoldLake, completed: tuple[GoldLake, Aggregated]) -> None:
    gold, done = completed
    assert done.days == DAYS[-2:]
    assert {place: names for place, names in files(gold).items() if place[-10:] < str(DAYS[-3])} == {
        place: names for place, names in files(whole).items() if place[-10:] < str(DAYS[-3])
    }
    for table in tables.GOLD:
        assert gold.rows(table) == whole.rows(table), table.name


def test_the_machines_time_zone_has_no_influence(whole: GoldLake, completed: tuple[GoldLake, Aggregated]) -> None:
    gold, _ = completed
    assert gold.rows(tables.ANOMALIES) == whole.rows(tables.ANOMALIES)


def test_an_empty_lake_has_empty_tables(gold: GoldLake) -> None:
    done = gold.run()
    assert (done.days, done.newest, str(done)) == ((), None, "gold: no lines yet")
    for table in tables.GOLD:
        frame = gold.lake.read(gold.spark, table)
        assert frame.schema == gold.spark.createDataFrame([], table.ddl).schema
        assert frame.isEmpty()


def test_one_line_is_enough_and_says_what_is_final(gold: GoldLake) -> None:
    gold.take_in([line(at(0, 12.5), mode="sse", first_byte_s=None, close_reason="left", is_final=False)])
    done = gold.run()
    assert done.newest == at(0, 12.5)
    assert done.final_before == at(-LATE_DAYS)
    assert [row[-4:] for row in gold.rows(tables.TRAFFIC)] == [(0, 0, 0, 0)]
    assert [row[-5:] for row in gold.rows(tables.OFFLOAD)] == [(None,) * 5]
    filled = {table.name for table in tables.GOLD if gold.rows(table)}
    assert filled == {"traffic", "offload"}

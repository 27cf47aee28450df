"""Gold is a function of silver, whether it is computed day by day, with late lines, twice, or after a run that died."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

import pytest

from gateway.pipeline import tables
from gateway.pipeline.aggregate import Aggregated
from gateway.pipeline.lake import Conflict
from gateway.pipeline.tables import LATE_DAYS
from tests.pipeline.gold import exact
from tests.pipeline.gold.conftest import LOG, GoldLake, OneLine
from tests.pipeline.gold.silver_log import Line, arrow, at, line
from tests.spark import way_to

DAYS: Final = tuple(sorted({one["day"] for one in LOG}))
LATE: Final = line(at(1, 2.5), id="late", outcome="failed", status=502, mode="catchup", duration_s=9.0)
CHANGED: Final = (DAYS[1], *DAYS[-2:])
"""The days that change after the first run: the first gets a late line, the next is written again, the last is gone."""
LEFT: Final = [one for one in [*LOG, LATE] if one["day"] != DAYS[-1]]
"""The lines of silver after these changes."""
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
    silver = arrow(lines)
    for table in tables.GOLD:
        expected, found = exact.rows(silver, table), gold.rows(table)
        assert len(found) == len(expected), table.name
        assert all(exact.is_same(one, other) for one, other in zip(found, expected, strict=True)), table.name


def test_a_second_run_changes_nothing(whole: GoldLake) -> None:
    written = files(whole)
    again = whole.run()
    assert (again.days, again.followed) == ((), ())
    assert files(whole) == written
    assert all(len(names) == 1 for names in written.values()), "more than one file for a day"


def test_one_line_is_enough_and_says_what_is_final(one_line: OneLine) -> None:
    gold, done = one_line
    assert done.days == (at(2).date(),)
    assert done.newest == at(2, 12.5)
    assert done.final_before == at(2 - LATE_DAYS)
    assert [row[-4:] for row in gold.rows(tables.TRAFFIC)] == [(0, 0, 0, 0)]
    assert [row[-5:] for row in gold.rows(tables.OFFLOAD)] == [(None,) * 5]
    assert {table.name for table in tables.GOLD if gold.rows(table)} == {"traffic", "offload"}


@pytest.fixture(scope="module")
def killed(whole: GoldLake, tmp_path_factory: pytest.TempPathFactory) -> GoldLake:
    """The whole log with the changes of `CHANGED`, and a run for these that was killed."""
    gold = whole.copied(tmp_path_factory.mktemp("killed") / "lake")
    gold.take_in([LATE])
    silver = gold.lake.snapshot(tables.REQUESTS)
    same = gold.lake.write(silver.read(gold.spark, days=DAYS[-2:-1]), tables.REQUESTS)
    silver.commit(same, replaces=DAYS[-2:])
    before = files(gold)
    died = subprocess.run(
        [sys.executable, "-m", "tests.pipeline.gold.dying", str(gold.folder), "gold/errors"],
        env={**os.environ, **way_to(gold.spark)},
        timeout=CHILD_S,
        capture_output=True,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    # It came that far; other threads have come to other tables.
    written = {place.split("/")[0] for place, names in files(gold).items() if names != before.get(place)}
    assert written >= {"traffic", "offload"}
    assert not written & {"errors", "anomalies"}
    return gold


class Completed(NamedTuple):
    """The same lake after two runs at once."""

    gold: GoldLake
    done: Aggregated
    """By the run that came first, with a local time zone far from UTC."""
    told: Sequence[str]
    """By the other."""
    refused: Conflict


@pytest.fixture(scope="module")
def completed(killed: GoldLake) -> Completed:
    told: list[str] = []
    done: list[Aggregated] = []

    def first(text: str) -> None:
        told.append(text)
        if not done:
            done.append(killed.run())

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        try:
            with pytest.raises(Conflict) as refused:
                killed.run(first)
        finally:
            patch.undo()
            time.tzset()
    return Completed(killed, done[0], told, refused.value)


def test_two_runs_do_not_write_at_the_same_time(completed: Completed) -> None:
    begun, *tables_begun = completed.told
    assert begun.startswith(f"gold: {len(CHANGED) - 1} of {len(DAYS) - 1} days have changed ({CHANGED[0]}")
    assert all(line.startswith("gold/") for line in tables_begun)
    place, _, said = str(completed.refused).removeprefix(f"{completed.gold.folder}/").partition(": ")
    assert place in {table.place for table in tables.GOLD}
    assert said.startswith("another run has written to it meanwhile")


def test_days_of_a_killed_run_are_computed_again_wherever_the_machine_is(completed: Completed) -> None:
    assert completed.done.days == CHANGED
    assert_is_whole(completed.gold, LEFT)


def test_late_lines_change_their_own_windows_and_no_others(whole: GoldLake, completed: Completed) -> None:
    gold, written = completed.gold, files(whole)
    rewritten = {place for place, names in files(gold).items() if names != written.get(place)}
    of_its_day = {place.split("/")[0] for place in rewritten if place.endswith(f"day={CHANGED[0]}")}
    others = {place.split("/")[0] for place in rewritten if not place.endswith(tuple(map(str, CHANGED)))}
    assert of_its_day >= {"traffic", "offload", "errors", "latency", "top_streams"}
    # These look back: an hour, or days.
    assert others <= {"delivery", "closed_loops", "reconnects", "anomalies"}
    late: datetime = LATE["time"]
    minute, hour = f"{late:%Y-%m-%d %H:%M}:00", f"{late:%Y-%m-%d %H}:00:00"
    for table in tables.GOLD:
        # The day that is gone is seen in the day before it, too.
        old, new = ({row for row in one.rows(table) if row[0] < str(DAYS[-2])} for one in (whole, gold))
        # The usual value at that hour has changed for the days after.
        told = [row[1][11:] if table is tables.ANOMALIES and row[1] > hour else row[1] for row in old ^ new]
        assert set(told) <= {minute, hour, hour[11:]}, table.name
    row = ("chat", "catchup", 502, "failed", 1)
    assert [found[2:] for found in gold.rows(tables.ERRORS) if found[1] == minute and found[4] == 502] == [row]


def test_a_day_that_left_silver_leaves_gold(whole: GoldLake, completed: Completed) -> None:
    day = str(DAYS[-1])
    assert all(any(row[0] == day for row in whole.rows(table)) for table in tables.GOLD)
    assert not any(row[0] == day for table in tables.GOLD for row in completed.gold.rows(table))


def test_an_empty_lake_has_empty_tables(gold: GoldLake) -> None:
    done = gold.run()
    assert (done.days, done.newest, str(done)) == ((), None, "gold: no lines yet")
    for table in tables.GOLD:
        frame = gold.lake.read(gold.spark, table)
        assert frame.dtypes == gold.spark.createDataFrame([], table.ddl).dtypes
        assert frame.isEmpty()

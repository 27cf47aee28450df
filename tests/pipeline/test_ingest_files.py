"""Ingest of files: each line once, however files grow, move and come again, and however often a run is killed."""

from __future__ import annotations

import gzip
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zstandard
from deltalake import DeltaTable
from pyspark.sql import functions as f

from gateway.pipeline.bronze import classified
from gateway.pipeline.errors import PipelineFailed
from gateway.pipeline.events import Files, LogStream, source_of
from gateway.pipeline.ingest import Ingested, ingest
from gateway.pipeline.lake import Conflict, File, Lake
from gateway.pipeline.silver import update_silver
from gateway.pipeline.tables import BRONZE, LINES, REJECTS, REQUESTS, SESSIONS, TRAFFIC, Table
from gateway.pipeline.upkeep import optimize, undo
from tests.pipeline.access_lines import DAY_S, NOON, column, contents, ids, line, lines, rows, take, take_late
from tests.spark import way_to

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).parents[2]
CHILD_S = 240.0


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    folder = tmp_path / "log"
    folder.mkdir()
    return folder / "access.log"


def test_a_log_that_grows_is_set_aside_compressed_and_copied_gives_each_line_once(
    spark: SparkSession, lake: Lake, log: Path
) -> None:
    # Lines without an id could not be told apart any more.
    log.write_bytes(lines(1, 2, id=None) + line(3)[:20])
    told: list[str] = []
    first = take(spark, lake, log.parent, progress=told.append)
    assert (first.lines, first.added, first.rejects.total()) == (2, 2, 0)
    assert told

    assert str(take(spark, lake, log.parent)) == "ingest: nothing new"

    with log.open("ab") as file:
        file.write(line(3)[20:] + lines(4, id=None))
    assert take(spark, lake, log.parent).added == 2

    aside = log.rename(log.with_name("access.log.20260924T120005Z"))
    log.write_bytes(lines(5, id=None))
    with aside.open("ab") as file:
        file.write(lines(6, id=None))
    assert take(spark, lake, log.parent).added == 2

    packed = aside.with_name(f"{aside.name}.gz")
    packed.write_bytes(gzip.compress(aside.read_bytes() + lines(7, id=None)))
    aside.unlink()
    (log.parent / "more.zst").write_bytes(zstandard.compress(lines(8, 9, id=None)))
    assert take(spark, lake, log.parent).added == 3

    assert str(take(spark, lake, log.parent, log)) == "ingest: nothing new"
    assert column(lake, REQUESTS, "sent_bytes") == [*range(101, 110)]
    assert set(column(lake, LINES, "source")) == {
        "access.log",
        "access.log.20260924T120005Z",
        f"{packed.name}",
        "more.zst",
    }


def test_a_last_line_waits_for_its_end_unless_it_is_whole_or_nothing_can_follow(
    spark: SparkSession, lake: Lake, log: Path
) -> None:
    log.write_bytes(line(1) + line(2).rstrip(b"\n"))
    (log.parent / "access.log.20260924T000000Z").write_bytes(line(3) + line(4)[:30])
    (log.parent / "live").write_bytes(line(5)[:30])
    found = take(spark, lake, log.parent)
    assert ids(lake) == [1, 2, 3]
    assert found.rejects == {"not JSON": 1}
    with log.open("ab") as file:
        file.write(b"\n" + line(6))
    with (log.parent / "live").open("ab") as file:
        file.write(line(5)[30:])
    take(spark, lake, log.parent)
    assert ids(lake) == [1, 2, 3, 5, 6]
    assert len(rows(lake, REJECTS)) == 1


def test_blank_lines_are_passed_over_however_lines_end(spark: SparkSession, lake: Lake, log: Path) -> None:
    log.write_bytes(line(1).replace(b"\n", b"\r\n") + b"\r\n\n" + lines(2))
    found = take(spark, lake, log)
    assert (found.added, dict(found.rejects)) == (2, {})


def test_lines_that_come_twice_and_late_lines_count_once_in_their_own_day(
    spark: SparkSession, lake: Lake, log: Path
) -> None:
    log.write_bytes(lines(1, 2, 2, 3, 1) + lines(4, 4, id=None))
    found = take(spark, lake, log)
    assert (found.lines, found.added, found.twice) == (7, 5, 2)
    late = log.with_name("late")
    late.write_bytes(lines(3, 9) + line(10, at=NOON - 30 * DAY_S) + line(11, at=NOON + DAY_S))
    found = take(spark, lake, late)
    assert (found.lines, found.added) == (4, 3)
    # The same lines once more in another file, which begins with another.
    again = log.with_name("again")
    again.write_bytes(line(12) + log.read_bytes().replace(b'"id"', b'"ID"') + late.read_bytes())
    assert take(spark, lake, again).added == 1 + 7
    counted = Counter(map(str, column(lake, REQUESTS, "day")))
    assert counted == {"2026-08-25": 1, "2026-09-24": 14, "2026-09-25": 1}
    assert [str(day) for day in lake.snapshot(SESSIONS).days()] == sorted(counted)


def test_bytes_that_are_no_text_are_replaced_in_their_lines_only(spark: SparkSession, lake: Lake, log: Path) -> None:
    log.write_bytes(line(1) + line(2).replace(b'"edge', b'"\xff\xfe\xc3edge') + b"\xe2\x82\n" + line(3))
    found = take(spark, lake, log)
    assert (found.lines, dict(found.rejects)) == (3, {"not JSON": 1})
    assert ids(lake) == [1, 2, 3]
    assert sum("\ufffd" in text for text in column(lake, LINES, "line")) == 1
    assert column(lake, REJECTS, "line") == ["\ufffd"]


def test_an_id_of_two_days_is_two_lines_in_one_batch_as_in_two(spark: SparkSession, lake: Lake, log: Path) -> None:
    for text in (line(1), line(1, at=NOON + DAY_S) + line(7), line(1) + line(1, at=NOON + DAY_S) + line(8)):
        log.with_name(f"log{len(text)}").write_bytes(text)
        take(spark, lake, log.parent)
    assert ids(lake) == [1, 1, 7, 8]


def test_files_that_came_too_late_can_be_taken_later(spark: SparkSession, lake: Lake, log: Path) -> None:
    """The rejects begin with the same bytes as the files that they came from."""
    log.write_bytes(lines(1))
    take(spark, lake, log)
    for name, numbers in (("old.log", (2, 3, 4)), ("older.log", (5, 6))):
        log.with_name(name).write_bytes(b"".join(line(number, at=NOON - 20 * DAY_S) for number in numbers))
    found = ingest(spark, source_of([str(log.parent)]), lake, progress=lambda _: None, late_days=3)
    assert found.rejects == {"too late": 5}
    again = take_late(spark, lake)
    assert (again.added, again.rejects) == (5, {})


def test_late_lines_are_those_of_the_lake_as_it_is(spark: SparkSession, lake: Lake, log: Path) -> None:
    log.write_bytes(lines(1))
    take(spark, lake, log)
    before = lake.snapshot(BRONZE).version
    late = log.with_name("late")
    for number in (2, 3):
        late.write_bytes(line(number, at=NOON - 20 * DAY_S, id=None) + b"no line\n")
        ingest(spark, source_of([str(late)]), lake, progress=lambda _: None, late_days=3)
        if number == 2:
            undo(lake, before)
    optimize(lake, lambda _: None)
    assert take_late(spark, lake).added == 1
    assert column(lake, REQUESTS, "sent_bytes") == [101, 103]


def test_sessions_are_brought_up_by_the_next_run_although_a_file_cannot_be_read(
    spark: SparkSession, lake: Lake, log: Path
) -> None:
    log.write_bytes(lines(1, 2))
    log.with_name("bad.gz").write_bytes(gzip.compress(lines(3))[:-9])
    for _ in range(2):
        with pytest.raises(PipelineFailed, match=r"bad\.gz"):
            take(spark, lake, log.parent)
    assert lake.snapshot(SESSIONS).days()


def test_no_lines_make_no_tables_and_no_harm(spark: SparkSession, lake: Lake, log: Path) -> None:
    log.write_bytes(b"")
    assert str(take(spark, lake, log)) == "ingest: nothing new"
    log.write_bytes(b"\n\n")
    take(spark, lake, log)
    log.with_name("torn").write_bytes(b"nothing\n")
    take(spark, lake, log.parent)
    assert [len(rows(lake, table)) for table in (LINES, REJECTS, REQUESTS, SESSIONS)] == [0, 1, 0, 0]
    # Spark reads tables that are not there, or have no rows, as well.
    assert [lake.read(spark, table).count() for table in (LINES, REJECTS, SESSIONS)] == [0, 1, 0]


def test_a_file_without_a_line_is_unpacked_once(spark: SparkSession, lake: Lake, log: Path) -> None:
    empty = log.with_name("empty.gz")
    empty.write_bytes(gzip.compress(b""))
    log.write_bytes(lines(1))
    take(spark, lake, log.parent)
    spoil(empty)
    assert str(take(spark, lake, log.parent)) == "ingest: nothing new"


def spoil(path: Path) -> None:
    """Make it a file that cannot be opened, and the same by all that a folder tells of it."""
    state = path.stat()
    path.write_bytes(b"x" * state.st_size)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def test_a_follow_without_a_new_line_unpacks_a_file_once(
    spark: SparkSession, lake: Lake, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.write_bytes(lines(1))
    take(spark, lake, log)
    packed = log.with_name("access.log.1.gz")
    packed.write_bytes(gzip.compress(log.read_bytes()))
    version = lake.snapshot(BRONZE).version
    told: list[str] = []

    class Stop(threading.Event):
        turns = 0

        def wait(self, timeout: float | None = None) -> bool:
            self.turns += 1
            spoil(packed)
            return self.turns == 2

    monkeypatch.setattr("gateway.pipeline.ingest.aggregate", lambda *_, **__: None)
    ingest(spark, source_of([str(packed)]), lake, follow=True, progress=told.append, stop=Stop())
    assert [line for line in told if "again" in line] == []
    assert lake.snapshot(BRONZE).version == version


def test_a_lake_in_the_folder_of_the_logs_is_no_log(spark: SparkSession, log: Path) -> None:
    lake = Lake(str(log.parent / "lake"))
    log.write_bytes(lines(1, 2, id=None))
    take(spark, lake, log.parent)
    # Another lake, and what a killed run has left.
    shutil.copytree(lake.url, log.parent / "deep" / "copy")
    lake.store.write("spool/left.log", lines(3))
    for folder in (log.parent, log.parent / "deep" / ".."):
        assert str(take(spark, lake, folder)) == "ingest: nothing new"
    (log.parent / "deep" / "more.log").write_bytes(lines(4))
    assert take(spark, lake, log.parent).added == 1
    # Its own lake alone is a folder without new logs; that of others is a mistake.
    shutil.rmtree(log.parent / "deep")
    log.unlink()
    lake.store.remove("spool/left.log")
    assert str(take(spark, lake, log.parent)) == "ingest: nothing new"
    with pytest.raises(PipelineFailed, match=r"lake: has only Delta tables: name the folder of one, such as bronze/k"):
        take(spark, Lake(str(log.parent / "other")), Path(lake.url))
    # An ingest of that lake may be at work.
    lake.store.write("spool/left.log", lines(3))
    with pytest.raises(PipelineFailed, match="has only Delta tables"):
        take(spark, Lake(str(log.parent.parent)), log.parent)
    assert str(take(spark, lake, Path(lake.url))) == "ingest: nothing new"
    assert take(spark, Lake(str(log.parent / "other")), Path(lake.url, "bronze", "kind=lines")).lines == 3


def test_only_a_lake_has_a_spool(log: Path) -> None:
    for place in ("orders/_delta_log", "spool", "lake/bronze/_delta_log", "lake/spool"):
        (log.parent / place).mkdir(parents=True)
    for name in ("spool", "lake/spool"):
        (log.parent / name / "a.log").write_bytes(lines(1))
    assert Files((str(log.parent),)).found() == [log.parent / "spool" / "a.log"]


def test_a_lake_that_was_not_copied_whole_says_so_and_reads_files_again(
    spark: SparkSession, lake: Lake, log: Path
) -> None:
    log.write_bytes(lines(1, 2))
    take(spark, lake, log)
    (lost,) = Path(lake.path(BRONZE), "_progress").iterdir()
    lost.unlink()
    log.write_bytes(lines(1, 2, 3))
    with pytest.raises(PipelineFailed, match=rf"^{lost}: is missing[^\n]* --again[^\n]*$"):
        take(spark, lake, log)
    assert take(spark, lake, log, again=True).added == 1
    assert str(take(spark, lake, log)) == "ingest: nothing new"


def test_what_cannot_be_read_is_one_line(spark: SparkSession, lake: Lake, log: Path) -> None:
    with pytest.raises(PipelineFailed, match=r"^.*/nowhere: no such file$"):
        take(spark, lake, log.with_name("nowhere"))
    bad = log.with_name("bad.gz")
    bad.write_bytes(gzip.compress(lines(1, 2, 3))[:-9])
    with pytest.raises(PipelineFailed, match=r"^.*/bad.gz: cannot be read: .*$"):
        take(spark, lake, bad)
    for texts in ([], ["ftp://host/x"], ["http://host/"], ["http://host/a", "b"]):
        with pytest.raises(PipelineFailed):
            source_of(texts)
    assert source_of(["a", "b"]) == Files(("a", "b"))
    assert source_of(["http://host/logs/a"]) == LogStream("http://host/logs/a")


@pytest.mark.parametrize("name", ["lake[1]", "a{b,c}", "s3a://b/*", "what?"])
def test_a_lake_is_no_pattern(name: str) -> None:
    with pytest.raises(PipelineFailed, match=r": a lake has none of "):
        Lake(name)


def test_two_ingests_at_once_take_each_line_once(spark: SparkSession, lake: Lake, log: Path) -> None:
    # Lines without an id could not be told apart.
    log.write_bytes(lines(1, 2, id=None))
    other = log.with_name("other")
    seen: list[Ingested] = []
    told: list[str] = []
    collect = lake.collect

    class Lake2(Lake):
        __slots__ = ()

        def collect(self, written: DataFrame, *tables: Table) -> dict[Table, list[File]]:
            files = collect(written, *tables)
            if not seen:
                other.write_bytes(lines(3, id=None))
                seen.append(take(spark, lake, log.parent))
            return files

    found = take(spark, Lake2(lake.url), log.parent, progress=told.append)
    assert (seen[0].added, found.added) == (3, 0)
    assert sum("another run has written to it meanwhile" in line for line in told) == 1
    assert column(lake, REQUESTS, "sent_bytes") == [101, 102, 103]


def test_of_two_ingests_at_once_each_tells_what_it_took(spark: SparkSession, lake: Lake, log: Path) -> None:
    log.write_bytes(lines(1, 2))
    other = log.with_name("other")
    other.write_bytes(lines(2, 3, 4, 5))
    told: list[str] = []

    def meanwhile(line: str) -> None:
        # The lines are in bronze, and not in silver yet.
        if line.startswith("bronze") and not told:
            told.append(str(take(spark, lake, other)))

    told.append(str(take(spark, lake, log, progress=meanwhile)))
    assert [text.partition(" of ")[0] + text.partition(";")[2] for text in told] == [
        "ingest: 3 lines 1 had come before",
        "ingest: 2 lines 0 had come before",
    ]
    assert ids(lake) == [1, 2, 3, 4, 5]


def test_an_ingest_tells_what_it_took_if_bronze_is_compacted_meanwhile(
    spark: SparkSession, lake: Lake, log: Path
) -> None:
    log.write_bytes(lines(1, 2))
    take(spark, lake, log)
    log.write_bytes(lines(1, 2, 3, 4))

    def meanwhile(line: str) -> None:
        if line.startswith("bronze"):
            assert optimize(lake, lambda _: None, (BRONZE,)) == (2, 1)

    said = str(take(spark, lake, log, progress=meanwhile))
    assert said.partition(" of ")[0] + said.partition(";")[2] == "ingest: 2 lines 0 had come before"
    assert ids(lake) == [1, 2, 3, 4]


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_run_that_loses_the_race_for_silver_at_any_time_tells_what_it_took(
    spark: SparkSession, lake: Lake, log: Path, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    log.write_bytes(lines(1, 2))
    calls = count(1)

    def losing(*args: Any) -> int:
        if next(calls) == lost:
            raise Conflict("another run has written to it meanwhile")
        return update_silver(*args)

    monkeypatch.setattr("gateway.pipeline.ingest.update_silver", losing)
    assert str(take(spark, lake, log)) == "ingest: 2 lines of 1 day, 2026-09-24 to 2026-09-24; 0 had come before"
    assert ids(lake) == [1, 2]


def test_files_are_followed_until_told_to_stop_whatever_happens_meanwhile(
    spark: SparkSession, lake: Lake, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.write_bytes(lines(1))
    told: list[str] = []

    class Stop(threading.Event):
        turns = 0

        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            self.turns += 1
            if self.turns == 1:
                # It is away for a moment, as when it is set aside.
                log.rename(log.with_name("aside"))
            else:
                with log.open("ab") as file:
                    file.write(lines(self.turns))
            return self.turns == 4

    def aggregate(*_: object, **__: object) -> None:
        # Another run is at gold.
        raise lake.snapshot(TRAFFIC).conflict()

    monkeypatch.setattr("gateway.pipeline.ingest.aggregate", aggregate)
    found = ingest(spark, source_of([str(log)]), lake, follow=True, progress=told.append, stop=Stop())
    assert (found.batches, found.added) == (3, 3)
    assert sum("no such file" in line for line in told) == 1
    assert sum("another run has written" in line for line in told) == 1
    assert ids(lake) == [1, 2, 3]
    assert take(spark, lake, log).added == 1


def test_a_follow_counts_its_lines_however_short_the_log_of_silver_is_kept(
    spark: SparkSession, lake: Lake, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.write_bytes(lines(1))

    class Stop(threading.Event):
        turns = 1

        def wait(self, timeout: float | None = None) -> bool:
            silver = DeltaTable(lake.path(REQUESTS))
            silver.create_checkpoint()
            for commit in Path(lake.path(REQUESTS), "_delta_log").glob("*.json"):
                if int(commit.stem) < silver.version():
                    commit.unlink()
            self.turns += 1
            with log.open("ab") as file:
                file.write(lines(self.turns))
            return self.turns == 4

    monkeypatch.setattr("gateway.pipeline.ingest.aggregate", lambda *_, **__: None)
    found = ingest(spark, source_of([str(log)]), lake, follow=True, progress=lambda _: None, stop=Stop())
    assert (found.batches, found.added) == (3, 3)


def test_a_batch_counts_no_more_than_its_own_lines(
    spark: SparkSession, lake: Lake, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bronze is compacted with the lines of another run before silver has them, so one commit makes the day anew."""
    log.write_bytes(lines(1, 2, 3))
    take(spark, lake, log)
    calls = count(1)

    def disturbed(*args: Any) -> int:
        if next(calls) == 4:
            others = spark.createDataFrame([(line(number).decode().strip(),) for number in (7, 8, 9)], "line string")
            came = others.withColumns({"source": f.lit("other"), "taken": f.current_timestamp()})
            lake.snapshot(BRONZE).commit_progress(lake.write(classified(came), BRONZE), "other", {})
            optimize(lake, lambda _: None, (BRONZE,))
        return update_silver(*args)

    class Stop(threading.Event):
        turns = 0

        def wait(self, timeout: float | None = None) -> bool:
            self.turns += 1
            with log.open("ab") as file:
                file.write(lines(5))
            return self.turns == 2

    monkeypatch.setattr("gateway.pipeline.ingest.update_silver", disturbed)
    monkeypatch.setattr("gateway.pipeline.ingest.aggregate", lambda *_, **__: None)
    log.write_bytes(lines(4, 3, 2, 1))
    found = ingest(spark, source_of([str(log)]), lake, follow=True, progress=lambda _: None, stop=Stop())
    assert ids(lake) == [1, 2, 3, 4, 5, 7, 8, 9]
    assert (found.batches, found.added, found.twice) == (2, 2, 3)


def test_an_ingest_that_is_killed_in_any_step_and_run_again_makes_the_tables_of_an_undisturbed_one(
    spark: SparkSession, tmp_path: Path, log: Path
) -> None:
    log.write_bytes(lines(1, 2, 2) + line(3, at=NOON + DAY_S) + lines(4, 4, id=None) + b"torn\n")
    more = log.with_name("more")
    calm, hurt = Lake(str(tmp_path / "calm")), Lake(str(tmp_path / "hurt"))
    for step in ("bronze before", "requests before"):
        killed = subprocess.run(
            [sys.executable, "-m", "tests.pipeline.dying_ingest", hurt.url, step, str(log)],
            cwd=ROOT,
            env={**os.environ, **way_to(spark)},
            capture_output=True,
            timeout=CHILD_S,
            check=False,
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    # What had been taken stays taken, though the file grows and is set aside meanwhile.
    with log.open("ab") as file:
        file.write(lines(5))
    log.rename(log.with_name("access.log.20260924T120005Z"))
    more.write_bytes(lines(6, 1))
    take(spark, hurt, log.parent)
    take(spark, calm, log.parent)
    wanted, found = contents(calm), contents(hurt)
    assert found[REQUESTS.name] == wanted[REQUESTS.name]
    assert found[SESSIONS.name] == wanted[SESSIONS.name]
    assert len(wanted[REQUESTS.name]) == 7

    def texts(table: str) -> list[str]:
        return sorted(row[3 if table == LINES.name else 2] for row in found[table])

    assert texts(LINES.name) == sorted(row[3] for row in wanted[LINES.name])
    assert texts(REJECTS.name) == ["torn"]


def test_a_source_that_comes_again_whole_adds_its_new_lines_and_leaves_no_other_files(
    spark: SparkSession, lake: Lake, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.pipeline.silver._MOST_KEYS", 1)
    log.write_bytes(lines(1, 2, 3))
    take(spark, lake, log)
    log.with_name("copy").write_bytes(lines(1, 2, 3, 4, 4, 5))
    assert take(spark, lake, log.with_name("copy")).added == 2
    assert ids(lake) == [1, 2, 3, 4, 5]
    there = {path for path, _ in lake.store.listed(REQUESTS.place) if path.endswith(".parquet")}
    assert there == {f"{REQUESTS.place}/{file.path}" for file in lake.snapshot(REQUESTS).files()}

"""Compaction, removal of old files, a way back and a second reading: none of them loses or doubles a line."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import deltalake
import duckdb
import pyarrow as pa
import pytest
import zstandard

from gateway.pipeline import upkeep
from gateway.pipeline.aggregate import aggregate
from gateway.pipeline.curve.measure import measure_curve
from gateway.pipeline.derived import outdated, silver_of_curve
from gateway.pipeline.errors import NothingToPlan, PipelineFailed
from gateway.pipeline.ingest import bring_up
from gateway.pipeline.lake import LEAST_KEEP_S, File, Lake
from gateway.pipeline.silver import update_silver
from gateway.pipeline.tables import BRONZE, LINES, REJECTS, REQUESTS
from tests.pipeline.access_lines import DAY_S, NOON, contents, ids, line, lines, rows, take
from tests.pipeline.test_object_store import Dead, dying

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAR = NOON + 10 * 365 * DAY_S


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "log").mkdir()
    return tmp_path / "log" / "access.log"


def quiet(_: str) -> None:
    """Tell nothing."""


def test_many_small_files_become_one_and_nothing_is_computed_again(spark: SparkSession, lake: Lake, log: Path) -> None:
    for number in range(1, 3):
        with log.open("ab") as file:
            file.write(line(number) + b"torn %d\n" % number)
        take(spark, lake, log)
    before = contents(lake)
    files = len(lake.snapshot(BRONZE).files())
    assert upkeep.optimize(lake, quiet) == (6, 3)
    assert len(lake.snapshot(BRONZE).files()) == files - 2
    assert contents(lake) == before
    assert upkeep.optimize(lake, quiet) == (0, 0)
    # Compaction is no change that silver and the sessions have to follow.
    told: list[str] = []
    bring_up(spark, lake, told.append)
    assert not told
    with log.open("ab") as file:
        file.write(line(3))
    assert take(spark, lake, log).added == 1
    assert ids(lake) == [1, 2, 3]

    # Nor are lines counted again that it puts beside others before silver has them.
    with log.open("ab") as file:
        file.write(line(4))
    with dying("requests", "before"), pytest.raises(Dead):
        take(spark, lake, log)
    upkeep.optimize(lake, quiet)
    there = {file.path for file in lake.snapshot(BRONZE).files()}
    for path in Path(lake.path(BRONZE)).rglob("*.parquet"):
        if str(path.relative_to(lake.path(BRONZE))) not in there:
            path.unlink()  # as a vacuum does later
    assert update_silver(spark, lake) == 1
    assert ids(lake) == [1, 2, 3, 4]

    # Any program that reads Delta Lake reads the tables.
    requests = deltalake.DeltaTable(lake.path(REQUESTS)).to_pyarrow_dataset()
    with duckdb.connect() as db:
        db.register("requests", requests)
        assert db.execute("select count(*), sum(sent_bytes) from requests").fetchone() == (4, 410)

    removed = upkeep.vacuum(lake, keep_s=LEAST_KEEP_S, now=FAR)
    assert removed == 0  # the files are younger than that, by the machine's clock
    with pytest.raises(PipelineFailed, match=r"^keep: at least 1 h"):
        upkeep.vacuum(lake, keep_s=60, now=FAR)


def test_what_killed_runs_have_left_is_removed(lake: Lake) -> None:
    lake.snapshot(BRONZE).commit_progress([], "files", {"at": 1})
    lake.store.write("spool/dead/000000.parquet", b"left")
    lake.store.write("bronze/_progress/0123.json", b'{"of":"files","state":null}')
    lake.store.write("bronze/kind=lines/day=2026-09-24/dead.parquet", b"left")
    assert upkeep.vacuum(lake, keep_s=LEAST_KEEP_S, now=0) == 0
    for path in Path(lake.url).rglob("*"):
        os.utime(path, (NOON - DAY_S, NOON - DAY_S))
    assert upkeep.vacuum(lake, keep_s=LEAST_KEEP_S, now=NOON) == 3
    assert lake.snapshot(BRONZE).progress("files") == {"at": 1}


def test_each_hundredth_commit_looks_for_expired_ones(lake: Lake) -> None:
    snapshot = lake.snapshot(BRONZE)
    for _ in range(101):
        snapshot = snapshot.commit()
    log = Path(lake.url) / "bronze" / "_delta_log"
    for path in log.iterdir():
        os.utime(path, (NOON - 365 * DAY_S, NOON - 365 * DAY_S))
    first = log / f"{0:020d}.json"
    while snapshot.version < 199:
        snapshot = snapshot.commit()
        assert first.exists()
    snapshot = snapshot.commit()
    assert not first.exists()
    assert lake.snapshot(BRONZE).version == snapshot.version == 200


def test_files_that_are_gone_before_their_commit_are_in_no_table(lake: Lake) -> None:
    first = lake.snapshot(BRONZE).commit()
    gone = File("kind=lines/day=2026-09-24/gone.parquet", size=1, written_at=0, rows=1)
    with pytest.raises(PipelineFailed, match=r"^[^\n]*/bronze: vacuum has removed files of this run, .* --keep"):
        first.commit([gone])
    assert lake.snapshot(BRONZE).files() == []


def test_undo_leads_all_tables_back_and_again_reads_a_file_again(spark: SparkSession, lake: Lake, log: Path) -> None:
    log.write_bytes(lines(1, 2) + lines(3, id=None))
    take(spark, lake, log)
    before = contents(lake)
    bad = log.with_name("bad")
    bad.write_bytes(lines(7, 2) + line(8, at=NOON + DAY_S) + b"torn\n")
    take(spark, lake, bad)
    assert len(rows(lake, REQUESTS)) == 5
    assert [text.split("Z  ")[1] for text in upkeep.history(lake)] == ["4 lines of bad", "3 lines of access.log"]

    upkeep.undo(lake, 0)
    bring_up(spark, lake, quiet)
    assert contents(lake) == before
    assert "undone to version 0" in next(upkeep.history(lake))
    assert str(take(spark, lake, log, bad)) == "ingest: nothing new"
    assert take(spark, lake, log, bad, again=True).lines == 6
    assert next(upkeep.history(lake)).endswith("  7 lines of access.log and 1 more file")
    upkeep.undo(lake, 0)
    bring_up(spark, lake, quiet)
    found = take(spark, lake, bad, again=True)
    assert (found.lines, found.added) == (3, 2)
    assert len(rows(lake, REQUESTS)) == 5
    for version in (-1, 99):
        with pytest.raises(PipelineFailed, match=r"has versions 0 to 7"):
            upkeep.undo(lake, version)


def test_lines_of_days_that_are_done_are_kept_apart_and_taken_when_their_file_is_read_again(
    spark: SparkSession, lake: Lake, log: Path
) -> None:
    log.write_bytes(lines(1) + line(2, at=NOON - 9 * DAY_S))
    take(spark, lake, log, late_days=None)
    late = log.with_name("late")
    late.write_bytes(line(3, at=NOON - 9 * DAY_S) + line(4, at=NOON - DAY_S) + line(5, at=NOON - 2 * DAY_S))
    found = take(spark, lake, late, late_days=1)
    assert (found.added, found.rejects) == (1, {"too late": 2})
    assert ids(lake) == [1, 2, 4]
    assert take(spark, lake, late, again=True).added == 2
    assert ids(lake) == [1, 2, 3, 4, 5]


def test_every_file_is_read_or_told_of(spark: SparkSession, lake: Lake, log: Path) -> None:
    nested = log.parent / "2026" / "09"
    nested.mkdir(parents=True)
    (nested / "a.log.bz2").write_bytes(bz2.compress(lines(1)))
    (nested / "b.log.xz").write_bytes(lzma.compress(lines(2)))
    (log.parent / "c.log.GZ").write_bytes(gzip.compress(lines(3)))
    (log.parent / "bad.gz").write_bytes(gzip.compress(lines(4, 5, 6))[:-9])
    cut = zstandard.compress(lines(*range(100, 2_000)))
    (log.parent / "cut.zst").write_bytes(cut[: len(cut) // 2])
    (log.parent / ".hidden").write_bytes(lines(7))
    log.write_bytes(lines(8))
    with pytest.raises(PipelineFailed, match=r"^[^\n]*/bad.gz: cannot be read: [^\n]*/cut.zst: cannot be"):
        take(spark, lake, log.parent)
    assert ids(lake) == [1, 2, 3, 8]


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_lake_of_an_earlier_release_is_refused_and_its_lines_can_be_taken_over(
    spark: SparkSession, lake: Lake, log: Path, tmp_path: Path, scheme: str
) -> None:
    old = tmp_path / "old"
    frame = spark.createDataFrame([(text.decode().rstrip("\n"),) for text in (line(1), line(2))], "line string")
    frame.write.parquet(str(old / "bronze" / "kind=lines" / "day=2026-09-24" / "batch=a-1"))
    log.write_bytes(lines(3))
    refused = Lake(f"{scheme}{old}")
    for work in (partial(take, spark, refused, log), partial(upkeep.vacuum, refused, keep_s=FAR, now=FAR)):
        with pytest.raises(PipelineFailed, match=r"pipeline ingest /.*/old/bronze/kind=lines --lake NEW`$"):
            work()
    take(spark, lake, old / "bronze" / "kind=lines")
    assert ids(lake) == [1, 2]


def test_a_batch_ends_when_it_is_full_and_a_compressed_file_of_several_is_unpacked_once(
    spark: SparkSession, lake: Lake, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[object] = []
    unpacking = pa.input_stream

    def counted(raw: IO[bytes], codec: str) -> Any:
        opened.append(raw)
        return unpacking(raw, codec)

    size = len(line(1))
    monkeypatch.setattr("gateway.pipeline.log_files.BATCH_BYTES", size)
    monkeypatch.setattr("gateway.pipeline.log_files._CHUNK", size)
    monkeypatch.setattr(pa, "input_stream", counted)
    log.with_name("access.log.gz").write_bytes(gzip.compress(lines(1, 2)))
    log.with_name("more").write_bytes(lines(3))
    found = take(spark, lake, log.parent)
    assert (found.batches, found.added) == (3, 3)
    assert [len(rows(lake, table)) for table in (LINES, REJECTS)] == [3, 0]
    assert len(opened) == 1


def test_what_is_computed_of_other_lines_than_the_lake_has_is_told(
    spark: SparkSession, lake: Lake, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def computed() -> None:
        aggregate(spark, lake, progress=quiet)
        measure_curve(spark, lake, policies=["s3-fifo"], sizes=[1 << 20])

    def told() -> list[str]:
        return [text.partition("`")[2].partition("`")[0] for text in outdated(lake)]

    assert told() == []
    log.write_bytes(lines(1, 2))
    take(spark, lake, log)
    assert told() == []
    computed()
    assert told() == []
    with log.open("ab") as file:
        file.write(line(3))
    take(spark, lake, log)
    assert told() == ["pipeline aggregate", "pipeline curve"]
    aggregate(spark, lake, progress=quiet)
    assert told() == ["pipeline curve"]
    computed()
    upkeep.optimize(lake, quiet)
    assert told() == []
    # A report does not look through a long log, and does not say more than it knows.
    with monkeypatch.context() as patch:
        patch.setattr("gateway.pipeline.derived._MOST_READ", 0)
        assert outdated(lake)[0].startswith("The figures of traffic may not be of the lines that the lake has now: ")
    upkeep.undo(lake, 0)
    bring_up(spark, lake, quiet)
    aggregate(spark, lake, progress=quiet)
    assert told() == ["pipeline curve"]
    monkeypatch.setattr("gateway.pipeline.derived.CURVE_MARK", "silver, by a later computation")
    assert told() == ["pipeline curve"]
    with pytest.raises(NothingToPlan, match=r"its curve is of an earlier release: run `pipeline curve`$"):
        silver_of_curve(lake)

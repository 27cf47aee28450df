"""A lake on an object store: the same tables as in a folder, wherever a run is killed and with several writers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from gateway.aio.clock import ManualClock
from gateway.pipeline import upkeep
from gateway.pipeline.aggregate import aggregate
from gateway.pipeline.curve.measure import measure_curve
from gateway.pipeline.errors import PipelineFailed
from gateway.pipeline.events import LogStream, source_of
from gateway.pipeline.ingest import ingest
from gateway.pipeline.lake import LEAST_KEEP_S, Conflict, Lake, Snapshot
from gateway.pipeline.planner import make_plan
from gateway.pipeline.report.gather import gather, gold_of
from gateway.pipeline.stream_table import take_table
from gateway.pipeline.tables import BRONZE, CURVE, GOLD, REQUESTS, SESSIONS, Table
from tests.pipeline.access_lines import DAY_S, contents, line, lines, rows, take
from tests.pipeline.access_lines import NOON as NOON_OF_LINES
from tests.pipeline.access_log import NOON, access_log
from tests.pipeline.gold import exact
from tests.pipeline.object_store import bucket
from tests.pipeline.test_ingest_stream import ask
from tests.served import forked_gateway, served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Dead(BaseException):
    """The end of a run, which nothing in it handles."""


def quiet(_: str) -> None:
    """Tell nothing."""


@pytest.fixture(scope="module")
def store() -> Iterator[dict[str, str]]:
    with bucket("lakes") as environ, pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        yield environ


@pytest.fixture
def lake(store: dict[str, str], request: pytest.FixtureRequest) -> Lake:
    return Lake(f"s3://lakes/{request.node.name}")


@contextmanager
def dying(table: str, when: str) -> Iterator[None]:
    """In the block, a run ends before or after its next commit to the table."""
    commit = Snapshot.commit
    left = [1]

    def last(self: Snapshot, *args: Any, **more: Any) -> Snapshot:
        is_last = self.table.name == table and bool(left)
        if is_last and when == "before":
            left.clear()
            raise Dead
        after = commit(self, *args, **more)
        if is_last:
            left.clear()
            raise Dead
        return after

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Snapshot, "commit", last)
        yield


def test_an_ingest_that_ends_at_any_commit_takes_each_line_once(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    log = tmp_path / "access.log"
    parts = [
        lines(1, 2, 2, id=None) + b"torn\n",
        line(3, at=NOON_OF_LINES + DAY_S) + lines(4),
        lines(5, 4, id=None),
    ]
    steps = [("bronze", "before"), ("bronze", "after"), ("requests", "before")]
    written = b""
    for part, (table, when) in zip(parts, steps, strict=True):
        written += part
        log.write_bytes(written)
        with dying(table, when), pytest.raises(Dead):
            take(spark, lake, log)
    take(spark, lake, log)
    assert take(spark, lake, log).lines == 0
    calm = Lake(str(tmp_path / "calm"))
    take(spark, calm, log)
    wanted, found = contents(calm), contents(lake)
    assert found == wanted
    assert len(found[REQUESTS.name]) == 7
    assert not lake.store.listed("spool")


def test_a_table_of_a_stream_has_each_message_once_whoever_ends_or_overtakes_a_run(
    spark: SparkSession, lake: Lake, store: dict[str, str], tmp_path: Path
) -> None:
    into = f"{lake.url}/orders"
    told: list[str] = []
    commit = Snapshot.commit
    overtaken = [True]

    def late(self: Snapshot, *args: Any, **more: Any) -> Snapshot:
        if overtaken:
            overtaken.clear()
            take_table(spark, LogStream(url), into, progress=told.append)
        return commit(self, *args, **more)

    with served(forked_gateway("origin", "--listen", "127.0.0.1:0"), "origin") as urls:
        url = f"{urls['origin']}/orders"
        ask("PUT", url, b'[{"id": 0}, {"id": 1}]')
        for when in ("before", "after"):
            with dying("orders", when), pytest.raises(Dead):
                take_table(spark, LogStream(url), into, progress=told.append)
        ask("POST", url, b'{"id": 2}')
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Snapshot, "commit", late)
            assert take_table(spark, LogStream(url), into, progress=told.append) == 0
    assert sum("once more" in text for text in told) == 1
    tables, chosen = upkeep.table_at(into)
    assert upkeep.optimize(tables, told.append, chosen) == (2, 1)
    assert upkeep.vacuum(tables, chosen, keep_s=LEAST_KEEP_S, now=0) == 0
    found = deltalake.DeltaTable(into, storage_options=store).to_pyarrow_dataset().to_table(["value"])
    assert sorted(found["value"].to_pylist()) == ['{"id": 0}', '{"id": 1}', '{"id": 2}']
    with pytest.raises(PipelineFailed, match=r"/nothing: is no table$"):
        upkeep.table_at(str(tmp_path / "nothing"))


def test_of_two_commits_to_one_version_one_is_refused(lake: Lake) -> None:
    first, second = lake.snapshot(BRONZE), lake.snapshot(BRONZE)
    first.commit()
    with pytest.raises(Conflict):
        second.commit()
    lake.snapshot(BRONZE).commit()
    first, second = lake.snapshot(BRONZE), lake.snapshot(BRONZE)
    first.commit_progress([], "files", {"at": 1})
    with pytest.raises(Conflict):
        second.commit_progress([], "files", {"at": 2})
    with pytest.raises(Conflict):
        second.commit(marks={"files": 1})
    with pytest.raises(Conflict):
        # Two additions, which delta-rs would put in a row.
        second.commit()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lake, "snapshot", lambda *_: second)
        with pytest.raises(Conflict):
            upkeep.undo(lake, 0)
    assert lake.snapshot(BRONZE).progress("files") == {"at": 1}


def test_a_lake_of_an_earlier_release_is_refused_and_keeps_its_lines(lake: Lake) -> None:
    assert lake.store.is_empty()
    lake.store.write("bronze/kind=lines/day=2026-09-24/batch=a-1/part.parquet", b"lines")
    with pytest.raises(PipelineFailed, match=r"`pipeline ingest LOCAL_COPY/bronze/kind=lines --lake NEW`$"):
        upkeep.vacuum(lake, keep_s=LEAST_KEEP_S, now=NOON * 2)
    assert len(lake.store.listed("bronze")) == 1
    assert not lake.store.is_empty()


def test_a_store_that_cannot_be_asked_is_one_short_line(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}
    for name, value in keys.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(PipelineFailed, match=r"^s3://none/lake/bronze: [\x20-\x7e]*: Connection refused[\x20-\x7e]*$"):
        list(upkeep.history(Lake("s3://none/lake")))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "")
    with pytest.raises(PipelineFailed, match=r"^AWS_ENDPOINT_URL is empty: "):
        Lake("s3://none/lake")


def test_a_commit_gives_the_snapshot_it_made_and_not_that_of_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(str(tmp_path / "lake"))
    first = lake.snapshot(BRONZE).commit_progress([], "files", {"at": 1})
    load = Lake.snapshot
    others = [2]

    def late(self: Lake, *args: Any, **more: Any) -> Snapshot:
        if others:
            others.pop()
            load(self, BRONZE).commit_progress([], "files", {"at": 3})
        return load(self, *args, **more)

    monkeypatch.setattr(Lake, "snapshot", late)
    second = first.commit_progress([], "files", {"at": 2})
    with pytest.raises(Conflict):
        second.commit_progress([], "files", {"at": 3})
    assert lake.snapshot(BRONZE).progress("files") == {"at": 3}


def test_every_step_works_on_an_object_store(
    spark: SparkSession, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "access.log"
    log.write_text(access_log(400))
    clock = ManualClock(wall=NOON + DAY_S)
    ingest(spark, source_of([str(log)]), lake, clock=clock, progress=quiet)
    read: list[int] = []
    read_files = Lake.read_files

    def spied(self: Lake, spark: SparkSession, table: Table, *args: Any) -> Any:
        if table.place == REQUESTS.place:
            read.append(len(table.columns))
        return read_files(self, spark, table, *args)

    monkeypatch.setattr(Lake, "read_files", spied)
    # What is not committed is not read again, so an early table stands for the others.
    with dying("offload", "before"), pytest.raises(Dead):
        aggregate(spark, lake, progress=quiet)
    aggregate(spark, lake, progress=quiet)
    measure_curve(spark, lake, rate=1.0)
    plan = make_plan(spark, lake, target_hit_ratio=0.9, policy="s3-fifo", min_span_s=0, clock=clock, progress=quiet)
    assert plan.made_from.lines == 400
    # Columns that a step does not need stay where they are.
    assert max(read) < len(REQUESTS.columns) / 2 + 2
    # Of the report, what reads the lake.
    figures = gather(gold_of(lake), quiet)
    assert (figures.requests, len(figures.curve)) == (400, sum(file.rows for file in lake.snapshot(CURVE).files()))

    calm = Lake(str(tmp_path / "calm"))
    ingest(spark, source_of([str(log)]), calm, clock=clock, progress=quiet)
    for table in (REQUESTS, SESSIONS):
        assert rows(lake, table) == rows(calm, table), table.name
    silver = calm.snapshot(REQUESTS).arrow([column.name for column in REQUESTS.columns]).read_all()
    at = silver.schema.get_field_index("time")
    silver = silver.set_column(at, "time", silver["time"].cast(pa.timestamp("us")))
    for table in GOLD:
        expected, found = exact.rows(silver, table), exact.stored(lake, table)
        assert len(found) == len(expected), table.name
        assert all(exact.is_same(one, other) for one, other in zip(found, expected, strict=True)), table.name

    upkeep.optimize(lake, quiet)
    upkeep.vacuum(lake, keep_s=LEAST_KEEP_S, now=NOON)
    assert rows(lake, REQUESTS) == rows(calm, REQUESTS)

"""A table of any stream: each message once, with the columns that its user names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pytest

from gateway.pipeline import upkeep
from gateway.pipeline.errors import PipelineFailed
from gateway.pipeline.events import LogStream
from gateway.pipeline.lake import LEAST_KEEP_S, Snapshot
from gateway.pipeline.stream_table import take_table
from tests.pipeline.test_ingest_stream import ask
from tests.served import durable_gateway, served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Dead(BaseException):
    """The end of a run, which nothing in it handles."""


@pytest.fixture
def orders() -> Iterator[str]:
    """A stream with three orders, of which one is none."""
    with served(durable_gateway("origin", "--listen", "127.0.0.1:0"), "origin") as urls:
        url = f"{urls['origin']}/orders"
        ask("PUT", url)
        ask("POST", url, b'[{"id": 1, "amount": 9.5}, {"id": "two", "amount": 1.5}, {"id": 3}]')
        yield url


def test_a_stream_of_json_becomes_a_table_of_its_columns(spark: SparkSession, orders: str, tmp_path: Path) -> None:
    into = str(tmp_path / "shop" / "orders")

    def take() -> int:
        source = LogStream(orders, format="typed")
        return take_table(spark, source, into, ddl="id bigint, amount double", progress=lambda _: None)

    assert take() == 3
    assert take() == 0
    ask("POST", orders, b'[{"id": 4, "amount": 4}]')
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Dead):  # noqa: PT012
        patch.setattr(Snapshot, "commit", _dead)
        take()
    assert take() == 1
    rows = deltalake.DeltaTable(into).to_pyarrow_dataset().to_table().to_pylist()
    assert sorted((row["id"] or 0, row["amount"], row["_corrupt"]) for row in rows) == [
        (0, 1.5, '{"id": "two", "amount": 1.5}'),
        (1, 9.5, None),
        (3, None, None),
        (4, 4.0, None),
    ]


def test_without_columns_messages_are_as_they_came(spark: SparkSession, orders: str, tmp_path: Path) -> None:
    into = str(tmp_path / "orders")
    assert take_table(spark, LogStream(orders), into, progress=lambda _: None) == 3
    rows = deltalake.DeltaTable(into).to_pyarrow_dataset().to_table().to_pylist()
    assert {row["stream"] for row in rows} == {"orders"}
    assert {row["value"] for row in rows} >= {'{"id": 3}'}


def test_what_cannot_be_is_one_line(spark: SparkSession, orders: str, tmp_path: Path) -> None:
    def take(url: str, ddl: str | None) -> None:
        source = LogStream(url, format="messages" if ddl is None else "typed")
        take_table(spark, source, str(tmp_path / "t"), ddl=ddl, progress=lambda _: None)

    with pytest.raises(PipelineFailed, match=r"^schema: [^\n]+$"):
        take(orders, "id what")
    with pytest.raises(PipelineFailed, match=r"^http://[^\n]*/nothing: [^\n]*404[^\n]*$"):
        take(f"{orders}/nothing", None)
    assert not (tmp_path / "t").exists()
    with pytest.raises(PipelineFailed, match=r"^s3://shop: expected the name of a table"):
        take_table(spark, LogStream(orders), "s3://shop", progress=lambda _: None)


def test_a_type_that_no_table_can_have_is_one_line(spark: SparkSession, orders: str, tmp_path: Path) -> None:
    source = LogStream(orders, format="typed")
    for kind in ("interval day to second", "interval year to month", "variant", "void"):
        with pytest.raises(PipelineFailed, match=r"^[^\n]+$"):
            take_table(spark, source, str(tmp_path / "t"), ddl=f"x {kind}", progress=lambda _: None)
    assert not (tmp_path / "t").exists()


def test_a_table_is_kept_up_and_a_run_that_is_overtaken_begins_again(
    spark: SparkSession, orders: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    into = str(tmp_path / "shop" / "orders")
    told: list[str] = []
    commit = Snapshot.commit
    overtaken: list[bool] = []

    def late(self: Snapshot, *args: Any, **more: Any) -> Snapshot:
        if overtaken:
            overtaken.clear()
            raise self.conflict()
        return commit(self, *args, **more)

    monkeypatch.setattr(Snapshot, "commit", late)
    for number in range(3):
        ask("POST", orders, b'[{"id": %d}]' % number)
        overtaken.append(True)
        assert take_table(spark, LogStream(orders), into, progress=told.append) == (4 if number == 0 else 1)
    assert sum("once more" in text for text in told) == 3
    lake, tables = upkeep.table_at(into)
    assert upkeep.optimize(lake, told.append, tables) == (3, 1)
    assert upkeep.vacuum(lake, tables, keep_s=LEAST_KEEP_S, now=0) == 0
    assert deltalake.DeltaTable(into).to_pyarrow_dataset().count_rows() == 6
    with pytest.raises(PipelineFailed, match=r"/nothing: is no table$"):
        upkeep.table_at(str(tmp_path / "nothing"))


def test_columns_called_like_those_of_the_lake_are_columns_like_others(
    spark: SparkSession, orders: str, tmp_path: Path
) -> None:
    ask("POST", orders, b'[{"kind": "../a/b", "day": "x=y"}, {"day": null}]')
    into = str(tmp_path / "orders")
    take_table(spark, LogStream(orders, format="typed"), into, ddl="kind string, day string", progress=lambda _: None)
    rows = deltalake.DeltaTable(into).to_pyarrow_dataset().to_table().to_pylist()
    assert len(rows) == 5
    assert {(row["kind"], row["day"]) for row in rows} == {(None, None), ("../a/b", "x=y")}


def _dead(*_: object, **__: object) -> Snapshot:
    raise Dead

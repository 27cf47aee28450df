"""A table of any stream: each message once, with the columns that its user names."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import deltalake
import pytest

from gateway.pipeline.errors import PipelineFailed
from gateway.pipeline.events import LogStream
from gateway.pipeline.stream_table import take_table
from gateway.pipeline.upkeep import MANY
from tests.pipeline.test_ingest_stream import ask
from tests.pipeline.test_object_store import Dead, dying
from tests.served import forked_gateway, served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def orders() -> Iterator[str]:
    """A stream with three orders, of which one is none."""
    with served(forked_gateway("origin", "--listen", "127.0.0.1:0"), "origin") as urls:
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
    with dying("orders", "before"), pytest.raises(Dead):
        take()
    assert take() == 1
    rows = deltalake.DeltaTable(into).to_pyarrow_dataset().to_table().to_pylist()
    assert sorted((row["id"] or 0, row["amount"], row["_corrupt"]) for row in rows) == [
        (0, 1.5, '{"id": "two", "amount": 1.5}'),
        (1, 9.5, None),
        (3, None, None),
        (4, 4.0, None),
    ]


def test_the_line_of_the_first_page_makes_the_table_that_it_shows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "start" / "spark.md").read_text()
    (put,) = (shlex.split(line) for line in page.splitlines() if line.startswith("curl -X PUT "))
    (command,) = (shlex.split(line) for line in page.splitlines() if line.startswith("durable-gateway pipeline table "))
    program, shown = (page.split(f"```{kind}\n")[1].partition("```")[0] for kind in ("python", "text"))
    stream, into, ddl = command[3], command[5], command[7]
    assert (put[3], command[4], command[6]) == (stream, "--into", "--schema")
    monkeypatch.chdir(tmp_path)
    with served(forked_gateway("origin", "--listen", "127.0.0.1:0"), "origin") as urls:
        url = stream.replace("http://127.0.0.1:4437", urls["origin"])
        ask("PUT", url, put[-1].encode())
        source = LogStream(url, format="typed")
        assert take_table(spark, source, str(tmp_path / into), ddl=ddl, progress=lambda _: None) == 2
    exec(compile(program, "start/spark.md", "exec"), {})
    assert capsys.readouterr().out.strip() == shown.strip()


def taken(spark: SparkSession, url: str, into: Path, ddl: str | None = "id bigint", **options: str) -> int:
    return take_table(
        spark, LogStream(url, options, "typed" if ddl else "messages"), str(into), ddl=ddl, progress=print
    )


def rows_of(into: Path) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", deltalake.DeltaTable(into).to_pyarrow_dataset().to_table().to_pylist())


def test_urls_by_which_the_source_reads_one_stream_have_one_mark() -> None:
    assert LogStream("http://h/a%20b/c").mark == "stream http://h/a%20b/c"
    for url in ("HTTP://H/a%20b/c", "http://h:80//a b/%63", "http://h:/a b/c%20"):
        assert LogStream(url).mark == "stream http://h/a%20b/c"
    others = ("https://h/a", "http://h:8080/a", "http://[::1]:80/a", "http://h/A", "http://h/a/", "http://h/%2561")
    assert len({LogStream(url).mark for url in ("http://h/a", *others)}) == 1 + len(others)


def test_another_spelling_of_the_url_adds_nothing_twice(spark: SparkSession, orders: str, tmp_path: Path) -> None:
    assert taken(spark, orders, tmp_path / "t") == 3
    for spelling in (orders.replace("/orders", "//orders"), orders.replace("/orders", "/%6Frders")):
        assert taken(spark, spelling, tmp_path / "t") == 0


def test_a_table_of_an_earlier_release_goes_on(
    spark: SparkSession, orders: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    into, spelled = tmp_path / "t", orders.replace("/orders", "/%6Frders")
    with monkeypatch.context() as patched:
        patched.setattr(LogStream, "mark", property(lambda source: f"stream {source.url}"))
        assert taken(spark, spelled, into) == 3
    ask("POST", orders, b'[{"id": 4}]')
    assert taken(spark, orders, into) == 1
    assert taken(spark, spelled, into) == 0
    assert len(list((into / "_progress").iterdir())) == 1


def test_a_table_of_another_url_goes_on_only_if_its_stream_has_moved(
    spark: SparkSession, orders: str, tmp_path: Path
) -> None:
    into = tmp_path / "t"

    def take(url: str) -> int:
        return take_table(spark, LogStream(url), str(into), moved=True, progress=print)

    assert taken(spark, orders, into, None) == 3
    config = tmp_path / "gateway.toml"
    config.write_text(
        f'[[route]]\nprefix = "/shop"\nstrip_prefix = true\norigin = "{orders.removesuffix("/orders")}"\n'
    )
    with served(forked_gateway("serve", "--config", str(config), "--listen", "127.0.0.1:0"), "gateway") as urls:
        there = f"{urls['gateway']}/shop/orders"
        with pytest.raises(
            PipelineFailed, match=rf"^[^\n]*/t: follows {orders}: --moved goes on at {there} if [^\n]*$"
        ):
            taken(spark, there, into, None)
        ask("POST", orders, b'[{"id": 4}]')
        assert take(there) == 1
        assert taken(spark, there, into, None) == 0
        with pytest.raises(PipelineFailed, match=f"follows {there}"):
            taken(spark, orders, into, None)
    ask("POST", orders, b'[{"id": 5}]')
    assert take(orders) == 1
    assert len(rows_of(into)) == 5


def test_without_columns_messages_are_as_they_came(spark: SparkSession, orders: str, tmp_path: Path) -> None:
    into = str(tmp_path / "orders")
    assert take_table(spark, LogStream(orders), into, progress=lambda _: None) == 3
    rows = deltalake.DeltaTable(into).to_pyarrow_dataset().to_table().to_pylist()
    assert {row["stream"] for row in rows} == {"orders"}
    assert {row["value"] for row in rows} >= {'{"id": 3}'}


def test_an_option_that_cannot_be_is_one_line(spark: SparkSession, tmp_path: Path) -> None:
    url = "http://127.0.0.1:9/s"
    for options, said in (
        ({"stream": "other"}, "option stream: the URL names the stream"),
        ({"path": "other"}, "option path: the URL names the stream"),
        ({"format": "typed"}, "option format: messages or chunks without --schema"),
        ({"format": "lines"}, "option format: "),
        ({"chunkbytes": "9"}, "option chunkBytes requires format=chunks"),
        ({"catalog": "x"}, "option catalog is unknown"),
    ):
        with pytest.raises(PipelineFailed, match=rf"^{said}[^\n]*$"):
            taken(spark, url, tmp_path / "t", None, **options)
    with pytest.raises(
        PipelineFailed, match=r"^option format: messages or chunks without --schema, and typed with it$"
    ):
        taken(spark, url, tmp_path / "t", "id int", format="chunks")


def test_misfits_go_to_the_column_that_is_named_for_them(spark: SparkSession, orders: str, tmp_path: Path) -> None:
    taken(spark, orders, tmp_path / "t", columnnameofcorruptrecord="bad")
    assert {(row["id"], row["bad"]) for row in rows_of(tmp_path / "t")} == {
        (1, None),
        (None, '{"id": "two", "amount": 1.5}'),
        (3, None),
    }
    assert taken(spark, orders, tmp_path / "dropped", mode="DROPMALFORMED") == 2


def test_a_stream_of_bytes_becomes_a_table_of_chunks(spark: SparkSession, orders: str, tmp_path: Path) -> None:
    url = f"{orders}/video"
    ask("PUT", url, b"12345", "application/octet-stream")
    with pytest.raises(PipelineFailed, match=r"^[^\n]*no messages: read it with format=chunks$"):
        taken(spark, url, tmp_path / "t", None)
    assert taken(spark, url, tmp_path / "t", None, format="chunks", chunkbytes="2") == 3
    assert sorted(row["value"] for row in rows_of(tmp_path / "t")) == [b"12", b"34", b"5"]


def test_a_table_may_begin_at_a_time(spark: SparkSession, orders: str, tmp_path: Path) -> None:
    url = f"{orders}/timed"
    ask("PUT", url, b'[{"id": 0, "time": 1790251200}, {"id": 1, "time": 1790258400}]')
    assert taken(spark, url, tmp_path / "t", startingtimestamp="2026-09-24T13:00:00Z") == 1
    ask("POST", url, b'{"id": 2, "time": 1790258401}')
    assert taken(spark, url, tmp_path / "t", startingtimestamp="2026-09-24T13:00:00Z") == 1
    assert sorted(row["id"] for row in rows_of(tmp_path / "t")) == [1, 2]


def test_a_schema_that_lacks_columns_of_the_table_is_refused(spark: SparkSession, orders: str, tmp_path: Path) -> None:
    into = tmp_path / "t"
    assert taken(spark, orders, into) == 3
    ask("POST", orders, b'[{"id": 4, "amount": 4}]')
    for ddl, said in (
        (None, "/t: the schema lacks id, _corrupt: "),
        ("amount double", "/t: the schema lacks id: "),
        ("id string", "/t: its column id has another type"),
    ):
        with pytest.raises(PipelineFailed, match=rf"^[^\n]*{said}[^\n]*$"):
            taken(spark, orders, into, ddl)
    assert taken(spark, orders, into, "amount double, id bigint") == 1
    assert (4, 4.0) in {(row["id"], row["amount"]) for row in rows_of(into)}


def test_a_table_of_many_small_batches_is_compacted(spark: SparkSession, orders: str, tmp_path: Path) -> None:
    into = tmp_path / "t"
    for number in range(MANY):
        ask("POST", orders, b'[{"id": %d, "a.b": 1}]' % number)
        taken(spark, orders, into, "id bigint, `a.b` int")
    assert len(deltalake.DeltaTable(into).file_uris()) < MANY
    assert len(rows_of(into)) == MANY + 3


def test_any_key_of_json_may_be_a_column(spark: SparkSession, orders: str, tmp_path: Path) -> None:
    ask("POST", orders, b'[{"a.b": 1, "a`b": 2, "x y": 3, "n": {"x-y": 4, "z": ["q"]}}]')
    ddl = "`a.b` int, `a``b` int not null, `x y` int, n struct<`x-y`: int not null comment 'no', z: array<string>>"
    assert taken(spark, orders, tmp_path / "t", ddl) == 4
    (row,) = (row for row in rows_of(tmp_path / "t") if row["n"] is not None)
    assert row == {"a.b": 1, "a`b": 2, "x y": 3, "n": {"x-y": 4, "z": ["q"]}, "_corrupt": None}
    with pytest.raises(PipelineFailed, match=r"^schema: column n\.t: format=typed has no varchar\(3\)[^\n]*$"):
        taken(spark, orders, tmp_path / "t", "n struct<t: varchar(3)>")


def test_a_relative_folder_is_that_of_the_driver(
    spark: SparkSession, orders: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert take_table(spark, LogStream(orders), "shop/orders", progress=lambda _: None) == 3
    assert deltalake.DeltaTable(tmp_path / "shop" / "orders").to_pyarrow_dataset().to_table().num_rows == 3


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


def test_columns_called_like_those_of_the_lake_are_columns_like_others(
    spark: SparkSession, orders: str, tmp_path: Path
) -> None:
    ask("POST", orders, b'[{"kind": "../a/b", "day": "x=y"}, {"day": null}]')
    into = str(tmp_path / "orders")
    take_table(spark, LogStream(orders, format="typed"), into, ddl="kind string, day string", progress=lambda _: None)
    rows = deltalake.DeltaTable(into).to_pyarrow_dataset().to_table().to_pylist()
    assert len(rows) == 5
    assert {(row["kind"], row["day"]) for row in rows} == {(None, None), ("../a/b", "x=y")}

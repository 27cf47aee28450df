"""Rows of messages without a Spark: what becomes of those that do not fit, and of lines that end in CRLF."""

from __future__ import annotations

import json
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, DataType, LongType, StringType, StructType

from pyspark_durable_streams.errors import BadOption, BadReply
from pyspark_durable_streams.formats import Format, Rows, check_schema
from pyspark_durable_streams.framing import Piece, Unit
from pyspark_durable_streams.options import read_options
from pyspark_durable_streams.reading import Fragment

_LINES: Final = [b'{"id":1,"name":"a"}', b'{"id":"two","name":"b"}', b"null", b'{"id":4,"name":"d"}']


def rows_of(schema: StructType, *fragments: Fragment, **options: str) -> list[Any]:
    given = {"url": "http://h", "stream": "s", "format": "typed", **options}
    parsed = read_options(given, is_streaming=False)
    check_schema(Format.TYPED, schema, parsed.corrupt)
    arrow = to_arrow_schema(schema, timezone="UTC")
    rows = Rows(Format.TYPED, schema, arrow, parsed.mode, corrupt=parsed.corrupt)
    return [row for batch in rows.of(iter(fragments)) for row in batch.to_pylist()]


def fragment(*lines: bytes, unit: Unit = Unit.ELEMENT, pos: int = 10) -> Fragment:
    return Fragment("s", unit, "-1", pos, Piece(b"".join(line + b"\n" for line in lines), len(lines)), True)


def schema(**more: DataType) -> StructType:
    found = StructType().add("id", LongType()).add("name", StringType())
    for name, kind in more.items():
        found = found.add(name, kind)
    return found


@pytest.mark.parametrize("column", ["_corrupt", "_corrupt_record", "broken"])
def test_what_fits_stays_and_the_message_is_in_the_column_for_it(column: str) -> None:
    options = {"columnNameOfCorruptRecord": column} if column == "broken" else {}
    rows = rows_of(schema(**{column: StringType(), "_pos": LongType()}), fragment(*_LINES), **options)
    assert [(row["_pos"], row["id"], row["name"], row[column]) for row in rows] == [
        (10, 1, "a", None),
        (11, None, "b", '{"id":"two","name":"b"}'),
        (12, None, None, "null"),
        (13, 4, "d", None),
    ]


def test_without_the_column_the_rows_are_the_same() -> None:
    assert [row["name"] for row in rows_of(schema(), fragment(*_LINES))] == ["a", "b", None, "d"]


def test_malformed_messages_are_dropped() -> None:
    rows = rows_of(schema(_pos=LongType(), _corrupt=StringType()), fragment(*_LINES), mode="DROPMALFORMED")
    assert [(row["_pos"], row["id"], row["_corrupt"]) for row in rows] == [(10, 1, None), (13, 4, None)]
    assert rows_of(schema(), fragment(*_LINES[1:3]), mode="DROPMALFORMED") == []


def test_a_malformed_message_is_an_error_that_names_it() -> None:
    with pytest.raises(BadReply, match=r"stream s: the message at pos 11 does not fit the schema; mode=PERMISSIVE"):
        rows_of(schema(), fragment(*_LINES), mode="FAILFAST")


def test_the_option_gives_another_name_and_not_one_more() -> None:
    with pytest.raises(BadOption, match="column broken: string is expected"):
        rows_of(schema(broken=LongType()), fragment(*_LINES), columnNameOfCorruptRecord="broken")
    rows = rows_of(schema(_corrupt=StringType()), fragment(b'{"_corrupt":"x"}'), columnNameOfCorruptRecord="broken")
    assert rows[0]["_corrupt"] == "x"
    with pytest.raises(BadOption, match="option columnNameOfCorruptRecord requires format=typed"):
        read_options({"url": "http://h", "stream": "s", "columnNameOfCorruptRecord": "x"}, is_streaming=False)


@pytest.mark.parametrize("kind", [StringType(), BinaryType()])
def test_lines_that_end_in_crlf_have_no_carriage_return(kind: DataType) -> None:
    lines = fragment(b"one\r", b"two", b"th\rree\r", b"\r", b"four\r\r", unit=Unit.LINE)
    shown = StructType().add("pos", LongType()).add("value", kind)
    rows = Rows(Format.MESSAGES, shown, to_arrow_schema(shown, timezone="UTC"))
    [batch] = rows.of(iter([lines]))
    values = pa.array(batch.column("value")).cast(pa.string()).to_pylist()
    assert values == ["one", "two", "th\rree", "", "four\r"]
    assert batch.column("pos").to_pylist() == [10, 11, 12, 13, 14]


def test_the_text_of_a_line_that_does_not_fit_has_no_carriage_return() -> None:
    lines = fragment(b'{"id":1}\r', b'{"id":"x"}\r', unit=Unit.LINE)
    rows = rows_of(schema(_corrupt=StringType()), lines)
    assert [(row["id"], row["_corrupt"]) for row in rows] == [
        (1, None),
        (None, json.dumps({"id": "x"}).replace(" ", "")),
    ]

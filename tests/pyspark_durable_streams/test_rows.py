from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, StringType, StructField, StructType

from pyspark_durable_streams.errors import BadOption, BadRow
from pyspark_durable_streams.layout import ONLY_TASK, STREAM_TASK
from pyspark_durable_streams.rows import Shape, streams_of

TYPES = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "long": LongType(),
    "array<int>": ArrayType(IntegerType()),
}


def schema(columns: str) -> StructType:
    pairs = [column.split() for column in columns.split(", ")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in pairs])


def shape(columns: str, stream: str | None = None, *order: str) -> Shape:
    return Shape.of(schema(columns), stream, order)


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def listed(found: pa.RecordBatch | list[pa.RecordBatch]) -> dict[str, list[bytes]]:
    batches = found if isinstance(found, list) else [found]
    return {stream: values.to_pylist() for stream, values in streams_of(pa.Table.from_batches(batches))}


@pytest.mark.parametrize(
    ("columns", "stream", "order", "text"),
    [
        ("value string", None, (), "no stream"),
        ("stream int, value string", None, (), "no stream"),
        ("stream string, value int", None, (), "of text or bytes"),
        ("stream string", None, (), "no column is left to make messages of"),
        ("stream string, value string", None, ("pos",), "no column pos"),
        ("stream string, value string, a array<int>", None, ("a",), "no order"),
        ("stream string, value string, stream string", None, (), "same name"),
        (f"value string, {STREAM_TASK} int", "one", (), r"by_stream\(df, None\)"),
        (f"stream string, value string, {ONLY_TASK} int", None, (), "option stream"),
    ],
)
def test_a_frame_that_cannot_be_written_is_refused_by_its_schema(
    columns: str, stream: str | None, order: tuple[str, ...], text: str
) -> None:
    with pytest.raises(BadOption, match=text):
        Shape.of(schema(columns), stream, order)


def test_the_option_goes_before_the_column() -> None:
    rows = batch(stream=["a", "b"], value=["1", "2"])

    assert listed(shape("stream string, value string", "c").messages(rows, 0)) == {"c": [b"1", b"2"]}
    assert listed(shape("stream string, value string").messages(rows, 0)) == {"a": [b"1"], "b": [b"2"]}


def test_without_a_value_column_a_row_is_one_object_of_the_others() -> None:
    rows = batch(stream=["a"], n=[1], text=["x"], none=pa.array([None], pa.int32()))
    found = shape("stream string, n long, text string, none int").messages(rows, 0)

    assert listed(found) == {"a": [b'{"n":1,"text":"x"}']}


def test_with_the_option_the_stream_column_is_data_as_any_other() -> None:
    found = shape("stream string, n long", "out").messages(batch(stream=["a"], n=[1]), 0)

    assert listed(found) == {"out": [b'{"stream":"a","n":1}']}


def test_every_type_has_its_json() -> None:
    counts = pa.map_(pa.string(), pa.int64())
    deep = pa.struct([("m", pa.map_(pa.string(), pa.list_(counts))), ("z", pa.int64())])
    at = dt.datetime(2026, 11, 21, 12, 0, 0, 250_000, tzinfo=dt.UTC)
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array([at], pa.timestamp("us", "Europe/Berlin")),
            pa.array([at.replace(tzinfo=None)], pa.timestamp("us")),
            pa.array([dt.date(2026, 11, 21)]),
            pa.array([Decimal("1.10")], pa.decimal128(10, 2)),
            pa.array([b"\x00\xff"]),
            pa.array([[("k", 1), ("l", None)]], counts),
            pa.array([{"m": [("x", [[("y", 2)]])], "z": None}], deep),
            pa.array([float("nan")]),
            pa.array([True]),
        ],
        names=["t", "ntz", "d", "dec", "b", "m", "s", "nan", "yes"],
    )
    whole = Shape.of(from_arrow_schema(rows.schema), "out", ())
    [message] = listed(whole.messages(rows, 0))["out"]

    assert b'"dec":1.10' in message
    assert json.loads(message) == {
        "t": "2026-11-21T12:00:00.250000Z",
        "ntz": "2026-11-21T12:00:00.250000",
        "d": "2026-11-21",
        "dec": 1.1,
        "b": "AP8=",
        "m": {"k": 1, "l": None},
        "s": {"m": {"x": [{"y": 2}]}, "z": None},
        "nan": None,
        "yes": True,
    }


ZONES = ("UTC", "America/Los_Angeles", "Asia/Kolkata", "Asia/Tokyo")
INSTANTS = st.datetimes(timezones=st.just(dt.UTC))
KEYS = st.sampled_from([pa.timestamp("us", "UTC"), pa.string(), pa.date32(), pa.bool_()])
TYPES_OF_ARROW = st.recursive(
    st.sampled_from([pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32(), pa.int64(), pa.string()]),
    lambda kinds: st.one_of(
        kinds.map(pa.list_),
        kinds.map(pa.large_list),
        st.builds(pa.map_, KEYS, kinds),
        st.lists(kinds, min_size=1, max_size=3).map(lambda each: pa.struct([(f"f{i}", t) for i, t in enumerate(each)])),
    ),
    max_leaves=6,
)


def values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_timestamp(kind):
        return INSTANTS if kind.tz else INSTANTS.map(lambda at: at.replace(tzinfo=None))
    if pa.types.is_date(kind):
        return st.dates()
    if pa.types.is_map(kind):
        return st.dictionaries(values_of(kind.key_type), st.none() | values_of(kind.item_type), max_size=2).map(
            lambda pairs: list(pairs.items())
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return st.lists(st.none() | values_of(kind.value_type), max_size=2)
    if pa.types.is_struct(kind):
        return st.fixed_dictionaries({field.name: st.none() | values_of(field.type) for field in kind})
    return {pa.int64(): st.integers(-9, 9), pa.bool_(): st.booleans()}.get(kind, st.text(max_size=3))


def in_zone(kind: pa.DataType, zone: str) -> pa.DataType:
    """The type as a session in this time zone hands it over."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp(kind.unit, zone) if kind.tz else kind
    if pa.types.is_map(kind):
        return pa.map_(in_zone(kind.key_type, zone), in_zone(kind.item_type, zone))
    if pa.types.is_list(kind):
        return pa.list_(in_zone(kind.value_type, zone))
    if pa.types.is_large_list(kind):
        return pa.large_list(in_zone(kind.value_type, zone))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, in_zone(field.type, zone)) for field in kind])
    return kind


@given(TYPES_OF_ARROW.flatmap(lambda kind: st.tuples(st.just(kind), st.lists(values_of(kind), min_size=1, max_size=3))))
def test_a_message_has_the_same_bytes_in_every_time_zone(drawn: tuple[pa.DataType, list[Any]]) -> None:
    kind, values = drawn
    column = pa.array(values, kind)
    messages = []
    for zone in ZONES:
        rows = pa.RecordBatch.from_arrays([column.cast(in_zone(kind, zone))], names=["x"])
        whole = Shape("out", None, ("x",), (), None)
        messages.append(listed(whole.messages(rows, 0))["out"])

    assert all(found == messages[0] for found in messages)


@pytest.mark.parametrize(
    ("kind", "key", "text"),
    [
        (pa.timestamp("us", "Asia/Tokyo"), dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC), "2026-11-21T12:00:00Z"),
        (pa.date32(), dt.date(2026, 11, 21), "2026-11-21"),
        (pa.bool_(), True, "true"),
        (pa.decimal128(10, 2), Decimal("100.00"), "100.00"),
        (pa.binary(), b"\x00\xff", "AP8="),
        (pa.int64(), 7, "7"),
        (pa.float64(), 1.5, "1.5"),
        (pa.float64(), float("nan"), "NaN"),
        (pa.float64(), float("inf"), "Infinity"),
        (pa.float64(), float("-inf"), "-Infinity"),
        (pa.string(), "seven", "seven"),
    ],
)
def test_a_key_of_a_map_is_the_text_of_its_json_value(kind: pa.DataType, key: Any, text: str) -> None:
    rows = pa.RecordBatch.from_arrays([pa.array([[(key, 1)]], pa.map_(kind, pa.int64()))], names=["m"])

    [message] = listed(Shape("out", None, ("m",), (), None).messages(rows, 0))["out"]
    assert message == f'{{"m":{{"{text}":1}}}}'.encode()


def test_a_time_beyond_the_year_9999_is_refused_in_one_line() -> None:
    beyond = pa.array([[300_000_000_000_000_000]], pa.list_(pa.int64())).cast(pa.list_(pa.timestamp("us", "UTC")))
    rows = pa.RecordBatch.from_arrays([beyond], names=["at"])

    with pytest.raises(BadRow, match="years 1 to 9999"):
        Shape("out", None, ("at",), (), None).messages(rows, 0)


@pytest.mark.parametrize("column", ["stream", "value"])
def test_a_null_where_something_must_be_is_told(column: str) -> None:
    rows = batch(**{"stream": ["a"], "value": ["1"], column: pa.array([None], pa.string())})

    with pytest.raises(BadRow, match=f"the column {column} is null"):
        shape("stream string, value string").messages(rows, 0)


def batch_of(rows: list[tuple[str, int | None, bytes]]) -> pa.RecordBatch:
    return batch(
        stream=pa.array([row[0] for row in rows], pa.string()),
        n=pa.array([row[1] for row in rows], pa.int64()),
        value=pa.array([row[2] for row in rows], pa.binary()),
    )


rows_of_few_kinds = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.none() | st.integers(0, 5), st.sampled_from([b"1", b"2"])),
    max_size=30,
)


@given(rows_of_few_kinds, st.randoms(use_true_random=False), st.integers(1, 5))
def test_a_set_of_rows_has_one_order_however_it_came(
    rows: list[tuple[str, int | None, bytes]], random: Any, pieces: int
) -> None:
    ordered = shape("stream string, n long, value binary", None, "n")

    def sent(these: list[tuple[str, int | None, bytes]]) -> dict[str, list[bytes]]:
        size = -(-len(these) // pieces) or 1
        parts = [these[at : at + size] for at in range(0, len(these), size)] or [[]]
        return listed([ordered.messages(batch_of(part), 0) for part in parts])

    shuffled = list(rows)
    random.shuffle(shuffled)

    assert sent(shuffled) == sent(rows)
    assert sum(map(len, sent(rows).values())) == len(rows)


@given(rows_of_few_kinds)
def test_without_an_order_a_streams_rows_stay_as_they_came(rows: list[tuple[str, int | None, bytes]]) -> None:
    found = shape("stream string, n long, value binary").messages(batch_of(rows), 0)

    assert listed(found) == {name: [row[2] for row in rows if row[0] == name] for name in sorted({r[0] for r in rows})}


@pytest.mark.parametrize("marks", [["1/a", "1/a", "0/a"], ["0/a"] * 3, ["1/a", None, "1/a"], ["1/a", "1/b", "1/a"]])
def test_a_row_that_is_not_in_the_task_its_stream_belongs_to_is_found(marks: list[str | None]) -> None:
    rows = batch(stream=["a"] * 3, value=["1"] * 3, **{STREAM_TASK: marks})
    marked = shape(f"stream string, value string, {STREAM_TASK} string")

    with pytest.raises(BadRow, match="moved since by_stream"):
        marked.messages(rows, 1)


@pytest.mark.parametrize("marks", [[1, 1, 0], [0, 0, 0], [1, None, 1]])
def test_a_row_that_is_not_in_the_only_task_is_found(marks: list[int | None]) -> None:
    rows = batch(value=["1"] * 3, **{ONLY_TASK: pa.array(marks, pa.int32())})
    marked = shape(f"value string, {ONLY_TASK} int", "one")

    with pytest.raises(BadRow, match="moved since by_stream"):
        marked.messages(rows, 1)


def test_the_mark_is_no_part_of_the_message() -> None:
    rows = batch(stream=["a"], n=[1], **{STREAM_TASK: ["3/a"]})

    assert listed(shape(f"stream string, n long, {STREAM_TASK} string").messages(rows, 3)) == {"a": [b'{"n":1}']}

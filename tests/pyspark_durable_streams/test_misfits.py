"""Typed columns of messages of which some do not fit: what fits stays, whatever is beside it."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.json
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_durable_streams.fitting import fit_of
from pyspark_durable_streams.framing import Piece
from pyspark_durable_streams.misfits import Parser
from tests.effort import examples

_INNER: Final = pa.struct([("a", pa.int32()), ("b", pa.string()), ("deep", pa.struct([("a", pa.int64())]))])
_SCHEMA: Final = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("ok", pa.bool_()),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("price", pa.decimal128(6, 2)),
        ("ratio", pa.float64()),
        ("tags", pa.list_(pa.string())),
        ("counts", pa.list_(pa.int32())),
        ("inner", _INNER),
        ("rows", pa.list_(pa.struct([("a", pa.int64())]))),
    ]
)
_GOOD: Final[dict[str, Any]] = {
    "id": 1, "name": 'a"b\\{', "ok": True, "at": "2026-01-02T03:04:05.5Z", "day": "2026-01-02", "price": 1.25,
    "ratio": 2, "tags": ["x", "y"], "counts": [1, None], "inner": {"a": 1, "b": "}", "deep": {"a": 7}},
    "rows": [{"a": 1}], "unknown": {"id": "not ours", "inner": {"a": "x"}},
}  # fmt: skip
_EXPECTED: Final[dict[str, Any]] = {
    "id": 1, "name": 'a"b\\{', "ok": True, "at": dt.datetime(2026, 1, 2, 3, 4, 5, 500_000, dt.UTC),
    "day": dt.date(2026, 1, 2), "price": Decimal("1.25"), "ratio": 2.0, "tags": ["x", "y"], "counts": [1, None],
    "inner": {"a": 1, "b": "}", "deep": {"a": 7}}, "rows": [{"a": 1}],
}  # fmt: skip


def piece(*lines: bytes) -> Piece:
    return Piece(b"".join(line + b"\n" for line in lines), len(lines))


def dumped(value: object) -> bytes:
    return json.dumps(value).encode()


def parsed(*lines: bytes, parser: Parser | None = None) -> tuple[list[dict[str, Any]], list[bool]]:
    found = (parser or Parser(_SCHEMA)).parse(piece(*lines))
    misfits = [False] * len(lines) if found.misfits is None else found.misfits.tolist()
    return found.table.to_pylist(), misfits


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("id", "1"), ("id", 1.5), ("id", 1.0), ("id", 1 << 63), ("id", [1]), ("id", {"id": 1}), ("id", True),
        ("name", 5), ("name", {"name": "x"}), ("ok", 1), ("ok", "true"), ("at", 1_700_000_000), ("at", "21.11.2026"),
        ("at", "2026-02-30"), ("at", "2026-01-02T03:04:05.1234567890Z"), ("at", "2026-01-02T24:00"), ("day", "today"),
        ("at", "2026-13-02T03:04:05.123456789Z"), ("day", "2026-01-02T03:04:05.123456789Z"),
        ("day", 7), ("price", 1.255), ("price", "x"), ("price", 1e9),
        ("price", 12345), ("ratio", "2"), ("tags", "x"), ("tags", ["x", 1]),
        ("counts", [1, "x"]), ("counts", [1.5]), ("inner", "x"), ("inner", []), ("rows", [{"a": "x"}]), ("rows", [1]),
    ],
)  # fmt: skip
def test_a_field_of_another_type_is_null_and_the_others_stay(name: str, value: object) -> None:
    bad = {**_GOOD, name: value}
    rows, misfits = parsed(dumped(_GOOD), dumped(bad), dumped(_GOOD), dumped(bad))
    assert rows == [_EXPECTED, {**_EXPECTED, name: None}] * 2
    assert misfits == [False, True] * 2


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("id", -(1 << 63), -(1 << 63)), ("at", "2026-01-31", dt.datetime(2026, 1, 31, tzinfo=dt.UTC)),
        ("at", "2024-02-29 23:59+01:30", dt.datetime(2024, 2, 29, 22, 29, tzinfo=dt.UTC)),
        ("price", "1.5", Decimal("1.50")), ("price", 1.250, Decimal("1.25")),
        ("tags", ["\\\"", "]"], ["\\\"", "]"]), ("tags", [], []), ("tags", None, None),
        ("counts", [-2147483648], [-2147483648]), ("inner", {}, {"a": None, "b": None, "deep": None}),
    ],
)  # fmt: skip
def test_an_unusual_value_that_fits_stays_beside_one_that_does_not(name: str, value: object, read: object) -> None:
    other = "name" if name != "name" else "id"
    rows, misfits = parsed(dumped({**_GOOD, name: value}), dumped({**_GOOD, name: value, other: [0]}))
    assert rows == [{**_EXPECTED, name: read}, {**_EXPECTED, name: read, other: None}]
    assert misfits == [False, True]


def test_a_field_of_a_struct_that_does_not_fit_leaves_its_neighbours() -> None:
    bad = {**_GOOD, "inner": {"b": "y", "a": "x", "deep": {"a": "x"}, "q": {"a": "z"}}, "id": "x"}
    rows, misfits = parsed(dumped(bad), dumped(_GOOD))
    assert rows == [{**_EXPECTED, "inner": {"a": None, "b": "y", "deep": {"a": None}}, "id": None}, _EXPECTED]
    assert misfits == [True, False]


@pytest.mark.parametrize("space", ["", " ", "  ", "\t \r"])
def test_white_space_and_keys_that_end_alike_are_no_matter(space: str) -> None:
    fields = ['"inner" :{"x\\"a": "x", "a" : 5, "x\\"id": 7}', '"x\\"id" : "x"', '"x\\"inner" :{"a": "x"}', '"id":7']
    good = f"{{{','.join(fields)}}}".replace(" ", space).encode()
    bad = good.replace(b"5", b'"5"')
    read, misfits = parsed(good, bad, dumped({"id": "x"}))
    assert [(row["id"], row["inner"]) for row in read] == [
        (7, {"a": 5, "b": None, "deep": None}),
        (7, {"a": None, "b": None, "deep": None}),
        (None, None),
    ]
    assert misfits == [False, True, True]


def test_a_block_shorter_than_a_key() -> None:
    parser = Parser(pa.schema([("a" * 20, pa.struct([("b", pa.int64())]))]))
    found = parser.parse(piece(b'{"b":"x"}', b"5"))
    assert found.table.to_pylist() == [{"a" * 20: None}] * 2
    assert found.misfits is not None
    assert found.misfits.tolist() == [False, True]


def test_keys_within_texts_and_other_objects_are_none() -> None:
    text = '{"id":"x","inner":{"a":"x"}} "id" : [ "id":"x'
    line = dumped({**_GOOD, "name": text, "unknown": {"id": "x", "at": 5, "inner": "x"}})
    rows, misfits = parsed(line, dumped({**_GOOD, "ok": "no"}))
    assert rows == [{**_EXPECTED, "name": text}, {**_EXPECTED, "ok": None}]
    assert misfits == [False, True]


@pytest.mark.parametrize(
    "line",
    [
        b"", b" ", b"5", b"null", b"[1]", b'"x"', b"INFO started", b'{"id":1', b'{"id":1}}', b'{"id":1}{"id":2}',
        b'{"id":1,}', b'{"name":"x', b'{"id":01}', b'{"id":1}x', b'{"id":1} {"id":2}', b"{]", b'{"id":1,"id":2}',
        b'{"id":nul}', b"\xff", b'{"ratio":1e999}',
    ],
)  # fmt: skip
@pytest.mark.parametrize("neighbour", [{}, {"id": "x"}])
def test_what_is_no_object_is_a_row_of_nulls(line: bytes, neighbour: dict[str, Any]) -> None:
    rows, misfits = parsed(dumped({**_GOOD, **neighbour}), line, dumped(_GOOD), line, line)
    nulls = dict.fromkeys(_EXPECTED)
    first = {**_EXPECTED, "id": None} if neighbour else _EXPECTED
    assert rows == [first, nulls, _EXPECTED, nulls, nulls]
    assert misfits == [bool(neighbour), True, False, True, True]


def test_blocks_after_one_another_are_each_read_by_themselves() -> None:
    parser = Parser(_SCHEMA)
    for name in ("id", "id", "at", None, "inner", "id", None, None):
        line = dumped({**_GOOD, name: 1.5} if name else _GOOD)
        rows, misfits = parsed(line, dumped(_GOOD), parser=parser)
        assert rows == [{**_EXPECTED, name: None} if name else _EXPECTED, _EXPECTED]
        assert misfits == [name is not None, False]


@pytest.mark.parametrize("zone", ["Z", "+00:00", "-0000", "+00"])
@pytest.mark.parametrize("digits", ["1234567", "12345678", "123456789"])
@pytest.mark.parametrize("other", [{}, {"id": "x"}])
def test_a_timestamp_is_cut_to_microseconds(zone: str, digits: str, other: dict[str, Any]) -> None:
    text = f"2026-01-02T03:04:05.{digits}{zone}"
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 123_456, dt.UTC)
    rows, misfits = parsed(dumped({**_GOOD, "at": text, "name": text, **other}), dumped(_GOOD))
    assert rows == [{**_EXPECTED, "at": at, "name": text, **dict.fromkeys(other)}, _EXPECTED]
    assert misfits == [bool(other), False]


def test_timestamps_in_arrays_and_structs_are_cut_to_microseconds() -> None:
    at = pa.timestamp("us", "UTC")
    parser = Parser(pa.schema([("each", pa.list_(pa.list_(at))), ("inner", pa.struct([("at", at)]))]))
    text, read = "2026-01-02T03:04:05.123456789Z", dt.datetime(2026, 1, 2, 3, 4, 5, 123_456, dt.UTC)
    for _ in range(2):
        rows, misfits = parsed(
            dumped({"each": [[text, None], []], "inner": {"at": text}}), dumped({"each": [[text, "x"]]}), parser=parser
        )
        assert rows == [{"each": [[read, None], []], "inner": {"at": read}}, {"each": None, "inner": None}]
        assert misfits == [False, True]


_EXTREME: Final = [b"1e400", b"-1.5E+310", b"0e1000000", rb'"\ud83d"', rb'"x\uDC00 \ud83d\ude00"']


@pytest.mark.parametrize("other", [{}, {"id": "x"}])
@pytest.mark.parametrize("value", _EXTREME)
def test_what_no_parser_can_represent_leaves_its_neighbours(value: bytes, other: dict[str, Any]) -> None:
    whole = dumped({**_GOOD, "unknown": "?", "deep": ["?", {"?": "?"}], **other}).replace(
        b'{"?": "?"}', b'{"\\udc00": "?"}'
    )
    rows, misfits = parsed(dumped(_GOOD), whole.replace(b'"?"', value), dumped(_GOOD))
    assert rows == [_EXPECTED, {**_EXPECTED, **dict.fromkeys(other)}, _EXPECTED]
    assert misfits == [False, bool(other), False]


@pytest.mark.parametrize("value", _EXTREME)
@pytest.mark.parametrize("name", sorted(_EXPECTED))
def test_a_column_has_null_for_what_no_parser_can_represent(name: str, value: bytes) -> None:
    for text, read in ((value, None), (b'["x", %b]' % value, None)):
        rows, misfits = parsed(dumped(_GOOD), dumped({**_GOOD, name: "?"}).replace(b'"?"', text))
        assert rows == [_EXPECTED, {**_EXPECTED, name: read}]
        assert misfits == [False, True]


def test_an_unknown_field_in_an_array_may_be_what_no_parser_can_represent() -> None:
    rows, misfits = parsed(dumped({**_GOOD, "rows": [{"a": 1, "b": "?"}]}).replace(b'"?"', b"1e400"))
    assert (rows, misfits) == ([_EXPECTED], [False])


_KINDS: Final = [
    pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(),
    pa.decimal128(5, 2), pa.decimal128(2, 2), pa.decimal128(38, 30), pa.timestamp("us", "UTC"), pa.timestamp("us"),
]  # fmt: skip
_MOMENTS: Final = st.builds(
    "{:04}-{:02}-{:02}{}{}".format,
    st.integers(0, 9999),
    st.integers(0, 13),
    st.integers(0, 32),
    st.sampled_from(
        ["", "T00", " 23:59", "T12:00:00", "T12:60", "T12:00:00.5", "T12:00:61", "T1:00", "T12:00:00.1234567"]
    ),
    st.sampled_from(["", "Z", "+01", "-0130", "+24:00", "+23:59", "+01:60", "z", "\\u005a"]),
).map(lambda text: f'"{text}"')
_TOKENS: Final = (
    st.integers(-(1 << 70), 1 << 70).map(str)
    | st.integers(-300, 300).map(str)
    | st.from_regex(r"-?(0|[1-9]\d{0,6})(\.\d{1,4})?([eE][+-]?\d{1,2})?", fullmatch=True)
    | st.from_regex(r"\"[+-]?\d{0,4}\.?\d{0,4}(e\d)?\"", fullmatch=True)
    | _MOMENTS
    | st.sampled_from(["1e400", "-2E+308", '"\\ud83d"', '"\\ud83d\\ude00"', '"\\\\ud83d"', "9" * 400, "0.1e309"])
    | st.sampled_from(["null", "true", "false", "NaN", "-Infinity", "[]", "{}", '"x"', "[null]", '"null"'])
)


@pytest.mark.parametrize("kind", _KINDS, ids=str)
@settings(max_examples=examples(40, 200))
@given(token=_TOKENS)
def test_the_rules_are_those_of_arrow(kind: pa.DataType, token: str) -> None:
    # The parser cuts a timestamp to microseconds, and Arrow refuses more digits.
    is_cut = pa.types.is_timestamp(kind) and "\\" not in token
    line = f'{{"a":{token.replace(".1234567", ".123456") if is_cut else token}}}\n'.encode()
    try:
        read = pyarrow.json.read_json(
            pa.BufferReader(line), parse_options=pyarrow.json.ParseOptions(explicit_schema=pa.schema([("a", kind)]))
        )
        fits = True
    except pa.ArrowInvalid:
        fits = False
    if fits and isinstance(kind, pa.Decimal128Type) and token != "null":
        # Arrow does not see that a number is too large if it is written with few digits.
        [value] = read.column("a").to_pylist()
        fits = value == Decimal(token.strip('"')) and abs(value) < Decimal(10) ** (kind.precision - kind.scale)
    found = Parser(pa.schema([("a", kind), ("other", pa.int64())])).parse(
        piece(f'{{"a":{token}}}'.encode(), b'{"other":"x"}')
    )
    assert found.misfits is not None
    assert found.misfits.tolist() == [not fits, True]
    assert fit_of(kind).first


@settings(max_examples=examples(25, 200))
@given(
    st.lists(
        st.fixed_dictionaries(
            {"unknown": st.just({"id": 1})},
            optional={
                name: st.sampled_from(
                    [value, "text", 5, 2.5, None, [], {}, [1], ["x"], {"a": "x"}, {"a": 1}, "2026-01-31"]
                )
                for name, value in _GOOD.items()
                if name != "unknown"
            },
        ),
        min_size=1,
        max_size=12,
    )
)
def test_a_message_is_read_the_same_whatever_is_beside_it(messages: list[dict[str, Any]]) -> None:
    lines = [dumped(message) for message in messages]
    together = parsed(*lines)
    alone = [parsed(line) for line in lines]
    assert together == ([row for rows, _ in alone for row in rows], [bad for _, found in alone for bad in found])

from __future__ import annotations

import json
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_durable_streams.errors import BadRow
from pyspark_durable_streams.posts import Framing, bodies, cut

JSON = Framing.of("application/json")
BYTES = Framing.of("application/octet-stream")
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=5,
)


def column(messages: list[bytes]) -> pa.Array:
    return pa.array(messages, pa.large_binary())


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 100))
def test_a_cut_takes_what_fits_and_no_less(lengths: list[int], limit: int) -> None:
    ends = cut(lengths, limit)

    assert ends == sorted(set(ends))
    assert (ends[-1] if ends else 0) == len(lengths)
    for start, end in pairwise([0, *ends]):
        assert sum(lengths[start:end]) <= limit or end == start + 1
        assert end == len(lengths) or sum(lengths[start : end + 1]) > limit


@given(st.lists(json_values, max_size=40), st.integers(2, 200))
def test_json_bodies_are_arrays_within_the_bound_that_bring_each_message_once_and_in_order(
    values: list[object], max_bytes: int
) -> None:
    made = bodies(column([json.dumps(value).encode() for value in values]), JSON, max_bytes)

    assert [message for body in made for message in json.loads(body)] == values
    assert all(len(body) <= max_bytes or len(json.loads(body)) == 1 for body in made)


@given(st.lists(st.binary(max_size=30), max_size=40), st.binary(max_size=2), st.integers(1, 100))
def test_bodies_of_bytes_are_the_messages_with_the_separator_behind_each(
    messages: list[bytes], separator: bytes, max_bytes: int
) -> None:
    made = bodies(column(messages), Framing.of("text/plain", separator), max_bytes)

    assert b"".join(made) == b"".join(message + separator for message in messages)
    assert all(made)


@given(st.lists(st.integers(0, 10**6).map(lambda n: str(n).encode()), min_size=1, max_size=60), st.data())
def test_bodies_do_not_depend_on_where_the_column_came_from(messages: list[bytes], data: st.DataObject) -> None:
    before = data.draw(st.lists(st.binary(max_size=5), max_size=5))
    behind = data.draw(st.lists(st.binary(max_size=5), max_size=5))
    slice_of_more = column([*before, *messages, *behind])[len(before) : len(before) + len(messages)]

    assert bodies(slice_of_more, JSON, 40) == bodies(column(messages), JSON, 40)


@pytest.mark.parametrize("value", [b"1,2", b"{", b"", b"nope", b'{"a":1}{"b":2}', b"[1],[2]", b"NaN"])
def test_a_value_that_is_not_one_json_value_is_named_and_nothing_is_made(value: bytes) -> None:
    with pytest.raises(BadRow, match="not one JSON value") as raised:
        bodies(column([b"1", b"[2, 3]", value, b'"4"']), JSON, 1000)

    assert repr(value.decode()) in str(raised.value)


def test_a_value_that_only_the_grammar_allows_is_sent_as_it_is() -> None:
    values = [b"1e400", rb'"\ud83d"', b'{"a":-1E999}', b"9" * 5_000]

    assert bodies(column([b"1", *values]), JSON, 10_000) == [b"[1," + b",".join(values) + b"]"]


@pytest.mark.parametrize("value", [b"1e400,2", rb'"\ud83d" "\ud83d"', b"[1e400", b"NaN,1e400"])
def test_a_value_with_an_extreme_number_is_still_one_value(value: bytes) -> None:
    with pytest.raises(BadRow, match="not one JSON value"):
        bodies(column([b"1e400", value]), JSON, 1000)


def test_values_that_are_json_only_together_are_refused() -> None:
    with pytest.raises(BadRow):
        bodies(column([b"[1", b"2]"]), JSON, 1000)


def test_messages_of_nothing_make_no_body() -> None:
    assert bodies(column([b"", b""]), BYTES, 10) == []
    assert bodies(column([]), JSON, 10) == []


@pytest.mark.parametrize(
    ("content_type", "separator", "framing"),
    [
        ("application/json", None, Framing(is_json=True)),
        ("Application/JSON; charset=utf-8", b"\n", Framing(is_json=True)),
        ("application/ndjson", None, Framing(is_json=False, separator=b"\n")),
        ("application/jsonl; charset=utf-8", None, Framing(is_json=False, separator=b"\n")),
        ("application/x-ndjson", None, Framing(is_json=False, separator=b"\n")),
        ("application/ndjson", b"", Framing(is_json=False)),
        ("text/plain", None, Framing(is_json=False)),
        ("text/plain", b"\r\n", Framing(is_json=False, separator=b"\r\n")),
    ],
)
def test_the_content_type_says_how_messages_are_put_together(
    content_type: str, separator: bytes | None, framing: Framing
) -> None:
    assert Framing.of(content_type, separator) == framing

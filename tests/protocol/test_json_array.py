"""Removal of arrays' outer brackets."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.json_body import ArrayUnwrapper, NotAnArray, unwrap

json_values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False),
        st.text(alphabet="]}[{,: \t\n\"\\aé", max_size=8),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text("]a,", max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)  # fmt: skip
spaces = st.text(" \t\r\n", max_size=3)


def in_pieces(body: bytes, cuts: list[int]) -> tuple[bytes, bool]:
    unwrapper = ArrayUnwrapper()
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    text = b"".join(unwrapper.feed(body[a:b]) for a, b in pairwise(edges))
    return text + unwrapper.finish(), unwrapper.is_empty


@given(
    st.lists(json_values, max_size=5),
    spaces,
    spaces,
    spaces,
    st.sampled_from([None, 2]),
    st.lists(st.integers(0, 200), max_size=8),
)
def test_any_array_cut_anywhere_loads_equal_when_wrapped_again(
    values: list[object], before: str, inside: str, after: str, indent: int | None, cuts: list[int]
) -> None:
    text = json.dumps(values, indent=indent, ensure_ascii=False)
    body = (before + "[" + inside + text[1:-1] + inside + "]" + after).encode()
    inner, is_empty = in_pieces(body, cuts)
    assert json.loads(b"[" + inner + b"]") == values
    assert is_empty == (not values)
    assert inner == inner.strip(b" \t\r\n")
    assert in_pieces(body, list(range(len(body)))) == (inner, is_empty)
    assert unwrap(body) == inner


@given(st.lists(json_values, min_size=1, max_size=4), st.lists(json_values, min_size=1, max_size=4))
def test_two_arrays_join_into_one(left: list[object], right: list[object]) -> None:
    joined = b"[" + unwrap(json.dumps(left).encode()) + b"," + unwrap(json.dumps(right).encode()) + b"]"
    assert json.loads(joined) == left + right


@given(st.lists(json_values, min_size=1, max_size=4), spaces, spaces, st.lists(st.integers(0, 200), max_size=4))
def test_a_comma_before_the_last_bracket_is_dropped(values: list[object], one: str, two: str, cuts: list[int]) -> None:
    body = (json.dumps(values)[:-1] + one + "," + two + "]").encode()
    assert json.loads(b"[" + in_pieces(body, cuts)[0] + b"]") == values


def test_the_elements_text_is_unchanged() -> None:
    assert unwrap(b' [ 1.0e+02 ,  {"a" : "\\u00e9"}\n] ') == b'1.0e+02 ,  {"a" : "\\u00e9"}'


@pytest.mark.parametrize("body", [b"[]", b" [ ] ", b"[\n\t]\r\n"])
def test_an_empty_array_has_no_text(body: bytes) -> None:
    for cuts in ([], list(range(len(body)))):
        assert in_pieces(body, cuts) == (b"", True)


def test_trailing_brackets_are_held_back_until_the_end() -> None:
    unwrapper = ArrayUnwrapper()
    assert unwrapper.is_empty
    assert unwrapper.feed(b"[[1") == b"[1"
    assert unwrapper.feed(b"] ") == b""
    assert unwrapper.feed(b",[2]") == b"] ,[2"
    assert unwrapper.feed(b" ]") == b""
    assert unwrapper.finish() == b"]"
    assert not unwrapper.is_empty


@pytest.mark.parametrize(
    "body",
    [
        b"", b"  ", b"{}", b"1", b'"[]"', b"]", b"[", b"[1", b'["a', b"[1,", b"[1}", b"[,]", b"[,1]", b"[1,,]",
        b"[] []",
        b"[]x", b"[]]", b"[],", b"\xef\xbb\xbf[]", b"[1] x", b"[1, 2] {}", b"null",
    ],
)  # fmt: skip
def test_a_body_that_is_not_an_array_is_refused_in_any_pieces(body: bytes) -> None:
    for cuts in ([], list(range(len(body)))):
        with pytest.raises(NotAnArray):
            in_pieces(body, cuts)


def test_a_wrong_beginning_is_refused_at_once() -> None:
    with pytest.raises(NotAnArray):
        ArrayUnwrapper().feed(b"<html>")


@given(st.binary(max_size=40), st.lists(st.integers(0, 40), max_size=4))
def test_any_input_raises_at_most_not_an_array(body: bytes, cuts: list[int]) -> None:
    try:
        in_pieces(b"[" + body, cuts)
    except NotAnArray:
        pass


def test_a_long_run_of_brackets_in_small_pieces_is_not_quadratic() -> None:
    depth = 400_000
    unwrapper = ArrayUnwrapper()
    body = b"[" * depth + b"]" * depth
    text = b"".join(unwrapper.feed(body[i : i + 16]) for i in range(0, len(body), 16)) + unwrapper.finish()
    assert text == body[1:-1]

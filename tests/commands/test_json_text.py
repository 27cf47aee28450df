"""JSON text that is cut and indented without a change to its tokens."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.commands.json_text import NotJson, ValueCutter, elements, indented, one_line

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63), st.floats(allow_nan=False, allow_infinity=False), st.text()
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12
)
spellings = st.builds(
    lambda value, indent, ascii_only: json.dumps(value, indent=indent, ensure_ascii=ascii_only),
    values,
    st.sampled_from([None, 0, 2]),
    st.booleans(),
).filter(lambda text: text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text))
spaces = st.sampled_from([" ", "\n", "\t", "\r\n", "  \n "])


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    cutter, at = ValueCutter(), 0
    values: list[bytes] = []
    for size in [*sizes, len(data)]:
        values += cutter.feed(data[at : at + size])
        at += size
    return [*values, *cutter.finish()]


def is_known_to_orjson(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


@given(
    st.lists(st.tuples(spellings.filter(is_known_to_orjson), spaces), max_size=6),
    st.lists(st.integers(1, 7), max_size=60),
)
def test_values_are_found_at_any_boundary_of_pieces(written: list[tuple[str, str]], sizes: list[int]) -> None:
    data = "".join(text + space for text, space in written).encode()
    assert cut(data, sizes) == [text.encode() for text, _ in written]


@given(st.lists(spellings, max_size=6), spaces)
def test_elements_of_an_array_keep_their_text(texts: list[str], space: str) -> None:
    array = f"{space}[{space}{f'{space},{space}'.join(texts)}{space}]{space}"
    assert list(elements(array)) == texts
    for text in texts:
        assert "\n" not in one_line(text)
        assert json.loads(one_line(text)) == json.loads(text)


@given(spellings)
def test_indenting_changes_white_space_only(text: str) -> None:
    assert json.loads(indented(text)) == json.loads(text)
    assert indented(indented(text)) == indented(text)


def test_a_value_needs_no_representation() -> None:
    texts = [rb'"\ud83d"', b"1e400", rb'{"\udc00":-1e999}']

    assert cut(b"\n".join(texts), []) == texts


def test_values_need_no_space_between_them() -> None:
    assert cut(b'{"a":1}[2]"three"4"five"', []) == [b'{"a":1}', b"[2]", b'"three"', b"4", b'"five"']


@pytest.mark.parametrize(
    ("text", "line", "good"),
    [
        (b"nope", 1, 0),
        (b"1\n2\n]", 3, 2),
        (b'1\n\n {"a":\n\n}', 3, 1),
        (b'"open', 1, 0),
        (b"[1\n,2", 1, 0),
        (b"1,2", 1, 0),
        (b"NaN", 1, 0),
        (b'"\xff"', 1, 0),
    ],
)
def test_invalid_json_is_named_by_its_line(text: bytes, line: int, good: int) -> None:
    cutter, found, said = ValueCutter(), 0, 0
    try:
        for values in (cutter.feed(text), cutter.finish()):
            for _ in values:
                found += 1
    except NotJson as error:
        said = error.line
    assert (said, found) == (line, good)


@pytest.mark.parametrize("text", ["[1", "[nope]", '["a'])
def test_a_broken_array_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        list(elements(text))


def test_a_number_of_many_digits_is_only_text() -> None:
    assert list(elements(f"[{'9' * 10_000}]")) == ["9" * 10_000]


def test_a_comma_before_the_closing_bracket_is_accepted() -> None:
    assert list(elements('[{"a":1},]')) == ['{"a":1}']

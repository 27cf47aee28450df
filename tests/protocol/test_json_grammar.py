from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.json_body import is_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_a_written_value_is_json(value: object) -> None:
    assert is_json(json.dumps(value).encode())


@pytest.mark.parametrize(
    "text",
    [
        rb'"\ud83d"', rb'{"\udc00":[1e400]}', b"-1e999999", b"9" * 5_000, b"-0", b'{"a":1,"a":2}', b" [] ", b"1E+2",
        b"[" * 900 + b"]" * 900,
    ],
)  # fmt: skip
def test_what_no_parser_can_represent_is_json(text: bytes) -> None:
    assert is_json(text)


@pytest.mark.parametrize(
    "text",
    [
        b"", b" ", b"NaN", b"-Infinity", b"[1,]", b"01", b"1.", b".5", b"+1", b"1 2", b'"\x01"', b'"\\x"', rb'"\ud83"',
        b"'a'", b'{"a"}', b'"\xff"', b'"\xed\xa0\xbd"', "\ufeff1".encode(), "1".encode("utf-16"), b"[1e400", b"nul",
        b"[" * 100_000,
    ],
)  # fmt: skip
def test_other_texts_are_no_json(text: bytes) -> None:
    assert not is_json(text)

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.origin.messages import InvalidJson, split_messages

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(VALUES, max_size=6), st.sampled_from([None, 0, 3]), st.booleans())
def test_an_array_is_flattened_by_one_level(values: list[object], indent: int | None, ascii_only: bool) -> None:
    body = json.dumps(values, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    assert [json.loads(message) for message in split_messages(body)] == values


@given(VALUES.filter(lambda value: not isinstance(value, list)))
def test_any_other_value_is_one_message(value: object) -> None:
    assert [json.loads(message) for message in split_messages(json.dumps(value).encode())] == [value]


def test_messages_are_the_bytes_that_were_sent() -> None:
    sent = [b"1.0", b"1e400", b"-0", b"1" * 5000, b'{"b" :1, "a":[ 1,2 ]}', '"\\u00e9 é ]},["'.encode(), b'"\\ud800"']
    assert split_messages(b" [\r\n" + b" ,\t".join(sent) + b" ] ") == sent


@pytest.mark.parametrize("nothing", [b"[]", b" [ \n] "])
def test_an_empty_array_holds_no_message(nothing: bytes) -> None:
    assert split_messages(nothing) == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1,]",
        b"1 2",
        b"NaN",
        b"[Infinity]",
        b"'a'",
        b"\xff",
        b"\xef\xbb\xbf1",
        '["a"]'.encode("utf-16"),
        b"[" * 100_000,
        b'"\x01"',
    ],
)
def test_anything_but_one_json_text_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidJson):
        split_messages(body)

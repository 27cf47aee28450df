"""Comparing held bytes with the origin's: agreement, and every kind of difference."""

from __future__ import annotations

import pytest

from gateway.engine.comparison import MOST_COMPARED, Comparison
from gateway.tape.tape import Tape


def agrees(held: list[bytes], body: bytes, *, is_json: bool = False, is_whole: bool = True, step: int = 7) -> bool:
    tape = Tape("a", is_json=is_json)
    for number, piece in enumerate(held):
        tape.store(f"{number:04d}", f"{number + 1:04d}", [piece], 0.0)
    comparison = Comparison(tape, "0000")
    for at in range(0, len(body), step):
        comparison.feed(body[at : at + step])
    if is_whole:
        comparison.finish()
    return comparison.agrees


@pytest.mark.parametrize(
    ("held", "body", "is_same"),
    [
        ([b"abc", b"def"], b"abcdef", True),
        ([b"abc", b"def"], b"abcdefghi", True),
        ([b"abc", b"def"], b"abc", True),
        ([b"abc", b"def"], b"abx", False),
        ([b"abc", b"def"], b"def", False),
        ([b"abc", b"def"], b"", False),
        ([], b"abc", True),
    ],
)
def test_bytes_agree_as_far_as_both_are_known(held: list[bytes], body: bytes, is_same: bool) -> None:
    assert agrees(held, body) is is_same


@pytest.mark.parametrize(
    ("held", "body", "is_same"),
    [
        ([b"1", b"2"], b"[1,2]", True),
        ([b"1", b"2"], b"[1, 2]", True),
        ([b"1", b"2"], b" [ 1 ,\n2 , 3 ] ", True),
        ([b"1", b"2"], b"[1,2,3]", True),
        ([b"1", b"2"], b"[1]", True),
        ([b"1"], b"[12]", False),
        ([b"12", b"3"], b"[1]", False),
        ([b"1", b"2"], b"[2]", False),
        ([b"1", b"2"], b"[]", False),
        ([b'{"a":"x y"}', b"2"], b'[{"a": "x y"}, 2]', True),
        ([b'{"a":"x y"}', b"2"], b'[{"a": "xy"}, 2]', False),
        ([b'"\xc3\xa9,"', b"2"], b'["\xc3\xa9,", 2]', True),
        ([b"[" * 5_000 + b"]" * 5_000], b"[ " + b"[" * 5_000 + b"]" * 5_000 + b"]", True),
    ],
)
@pytest.mark.parametrize("step", [1, 100_000])
def test_messages_agree_whatever_the_space_between_them(
    held: list[bytes], body: bytes, is_same: bool, step: int
) -> None:
    assert agrees(held, body, is_json=True, step=step) is is_same


def test_only_the_beginning_is_compared() -> None:
    body = b"x" * (2 * MOST_COMPARED)
    assert agrees([body], body[:-1] + b"y", is_whole=False, step=1 << 15)
    assert not agrees([body], b"y" + body[1:], is_whole=False, step=1 << 15)

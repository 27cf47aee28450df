"""Comparing held bytes with the origin's: agreement, and every kind of difference."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType

import pytest

from gateway.engine.flight_bodies import MOST_COMPARED, Comparison
from gateway.tape.tape import Tape


def agrees(
    held: list[bytes],
    body: bytes,
    *,
    is_json: bool = False,
    is_whole: bool = True,
    step: int = 7,
    end: int | None = None,
    length: int | None = None,
) -> bool:
    """Whether a reply that leads from the first to the `end`th offset, or to the last one, agrees with these pieces."""
    tape = Tape(is_json=is_json)
    for number, piece in enumerate(held):
        tape.store(f"{number:04d}", f"{number + 1:04d}", [piece], 0.0)
    comparison = Comparison(tape, "0000", f"{len(held) if end is None else end:04d}", length)
    for at in range(0, len(body), step):
        comparison.feed(body[at : at + step])
    if is_whole:
        comparison.finish()
    return comparison.agrees


@pytest.mark.parametrize(
    ("held", "body", "end", "is_same"),
    [
        ([b"abc", b"def"], b"abcdef", 2, True),
        ([b"abc", b"def"], b"abcdefghi", 3, True),
        ([b"abc", b"def"], b"abc", 1, True),
        ([b"abc", b"def"], b"abx", 1, False),
        ([b"abc", b"def"], b"def", 2, False),
        ([b"abc", b"def"], b"", 2, False),
        ([b"ok", b"ok"], b"ok", 2, False),
        ([b"ok", b"ok"], b"okok", 1, False),
        ([b"ok", b"ok"], b"ok", 3, False),
        ([b"ok", b"ok"], b"okok", 3, True),
        ([], b"abc", 1, True),
    ],
)
def test_bytes_agree_if_they_lead_to_the_same_offset(held: list[bytes], body: bytes, end: int, is_same: bool) -> None:
    assert agrees(held, body, end=end) is is_same


@pytest.mark.parametrize(
    ("held", "body", "end", "is_same"),
    [
        ([b"1", b"2"], b"[1,2]", 2, True),
        ([b"1", b"2"], b"[1, 2]", 2, True),
        ([b"1", b"2"], b" [ 1 ,\n2 , 3 ] ", 3, True),
        ([b"1", b"2"], b"[1,2,3]", 3, True),
        ([b"1", b"2"], b"[1]", 1, True),
        ([b"1"], b"[12]", 1, False),
        ([b"1"], b"[12]", 2, False),
        ([b"12", b"3"], b"[1]", 1, False),
        ([b"1", b"2"], b"[2]", 2, False),
        ([b"1", b"2"], b"[]", 2, False),
        ([b"1", b"1"], b"[1]", 2, False),
        ([b"1", b"1"], b"[ 1 , 1 ]", 1, False),
        ([b"1", b"1"], b"[1]", 3, False),
        ([b'{"a": "x y"}', b"2"], b'[{"a": "x y"}, 2]', 2, True),
        ([b'{"a": "x , y", "b": [1, 2]}', b"2"], b'[{"a": "x , y", "b": [1, 2]} , 2]', 2, True),
        ([b'{"a":"x y"}', b"2"], b'[{"a": "x y"}, 2]', 2, False),
        ([b'"x,y"', b"2"], b'["x, y", 2]', 2, False),
        ([b'"\\" , ["', b"2"], b'["\\" , [", 2]', 2, True),
        ([b'"\xc3\xa9,"', b"2"], b'["\xc3\xa9,", 2]', 2, True),
        ([b"[" * 5_000 + b"]" * 5_000], b"[ " + b"[" * 5_000 + b"]" * 5_000 + b" ]", 1, True),
        ([b"1", b"2"], b"[1" + b" " * 200_000 + b",2]", 2, False),
        # Values that are equal once they are decoded.
        ([b"true"], b"[1]", 1, False),
        ([b"1.0", b"2"], b"[1, 2]", 2, False),
        ([b'{"a":2,"a":1}', b"2"], b'[{"a":1}, 2]', 2, False),
        ([b'"\xff"', b"2"], b'["\xfe", 2]', 2, False),
        ([b"12"], b"[1 2]", 1, False),
        ([b"1", b'"' + b"x" * 100_000 + b' y"'], b'[1 , "' + b"x" * 100_000 + b' z"]', 2, False),
        ([b"1", b'"' + b"x" * 100_000 + b' y"'], b'[1 , "' + b"x" * 100_000 + b' y"]', 2, True),
    ],
)
@pytest.mark.parametrize("step", [1, 300_000])
def test_messages_agree_if_only_the_space_between_them_differs(
    held: list[bytes], body: bytes, end: int, is_same: bool, step: int
) -> None:
    assert agrees(held, body, is_json=True, step=step, end=end) is is_same


@pytest.mark.parametrize("is_json", [False, True])
@pytest.mark.parametrize("count", [30_000, 60_000])
@pytest.mark.parametrize("has_length", [False, True])
def test_a_trim_of_equal_messages_shows_in_the_length_of_a_long_body(
    is_json: bool, count: int, has_length: bool
) -> None:
    def body(count: int) -> bytes:
        return b",".join([b'"ok"'] * count)

    def wire(count: int) -> bytes:
        return b"[" + body(count) + b"]" if is_json else body(count)

    held = [body(10), (b"" if is_json else b",") + body(count - 10)]
    for found, is_same in ((count, True), (count - 4, False), (count + 4, False)):
        text = wire(found)
        length = len(text) if has_length else None
        assert agrees(held, text, is_json=is_json, step=1 << 15, length=length) is is_same


def test_only_the_beginning_is_compared() -> None:
    body = b"x" * (2 * MOST_COMPARED)
    size = len(body)
    assert agrees([body], body[:-1] + b"y", is_whole=False, step=1 << 15, length=size)
    assert not agrees([body], b"y" + body[1:], is_whole=False, step=1 << 15, length=size)


def calls(work: Callable[[], object]) -> int:
    """How many functions `work` calls: a measure of how long it keeps the event loop, whatever the machine is doing."""
    count = 0

    def called(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("is_same", [True, False])
def test_a_long_body_with_other_white_space_is_compared_in_few_steps(is_same: bool) -> None:
    messages = [b"[[[]]]"] * 20_000
    tape = Tape(is_json=True)
    tape.store("0", "1", [b",".join(messages)], 0.0)
    comparison = Comparison(tape, "0", "1", None)
    comparison.feed(b"[" + b" , ".join(messages if is_same else [b"1", *messages[1:]]) + b"]")
    comparison.finish()
    found: list[bool] = []
    assert calls(lambda: found.append(comparison.agrees)) < 250_000
    assert found == [is_same]


def test_a_body_that_is_as_held_is_not_kept() -> None:
    body = b",".join([b'"ok"'] * 200_000)
    tape = Tape(is_json=True)
    tape.store("0", "1", [body], 0.0)
    comparison = Comparison(tape, "0", "1", None)
    text = memoryview(b"[" + body + b"]")
    tracemalloc.start()
    try:
        for at in range(0, len(text), 1 << 14):
            comparison.feed(bytes(text[at : at + (1 << 14)]))
        comparison.finish()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 17
    assert comparison.agrees


@pytest.mark.parametrize(("held", "has_held", "compared"), [(b"", False, 0), (b"abcdef", True, 4), (b"abc", True, 3)])
def test_only_bytes_in_memory_are_compared(held: bytes, has_held: bool, compared: int) -> None:
    tape = Tape(is_json=False)
    tape.store("0", "1", [held], 0.0)
    comparison = Comparison(tape, "0", "9", None)
    comparison.feed(b"abcd")
    assert (comparison.has_held, comparison.compared) == (has_held, compared)

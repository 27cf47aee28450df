"""The lines that replies share."""

from __future__ import annotations

import pytest

from gateway.http.reply_lines import ReplyShape, read_lines

_MOST = 256


def shape_of(*lines: bytes) -> ReplyShape:
    found = read_lines(list(lines))
    assert found is not None
    return found[0]


def test_shapes_are_forgotten_beyond_a_number() -> None:
    first = shape_of(b"Vary: first")
    assert shape_of(b"Vary: first") is first
    for number in range(_MOST):
        shape_of(b"Vary: %d" % number)
    assert shape_of(b"Vary: first") is not first


def test_values_derived_from_a_shape_are_forgotten_beyond_a_number() -> None:
    shape = shape_of(b"Vary: derived")
    for number in range(16):
        shape.derived(number, number)
    assert shape.facts.get(0) == 0
    shape.derived(16, 16)
    assert (shape.facts.get(0), shape.facts.get(16)) == (None, 16)


def test_lines_of_one_name_stay_in_their_order() -> None:
    for value in (b"1", b"2", b"3"):
        # The line that was seen before would come first, as one that replies share.
        assert read_lines([b"X-Ordered: " + value, b"X-Ordered: 0"]) is None or value == b"1"


def test_a_line_that_differs_each_time_belongs_to_no_shape() -> None:
    shapes = [shape_of(b"Vary: accept", b"X-Ray: %d" % number) for number in range(3)]
    assert shapes[0] is shapes[1] is shapes[2]


@pytest.mark.parametrize("name", [b"Content-length", b"CONTENT-LENGTH", b"content-length"])
def test_a_length_in_any_spelling_is_read_each_time_it_comes(name: bytes) -> None:
    line = name + b": 5"
    for _ in range(3):
        found = read_lines([b"Vary: length", line])
        assert found is not None
        *_, length = found
        assert length == 5
        assert read_lines([line, line]) is None
        assert read_lines([b"Transfer-Encoding: chunked", line]) is None


def test_a_line_of_framing_belongs_to_the_shape_while_later_lines_displace_it() -> None:
    for number in range(5_000):
        found = read_lines([b"Transfer-Encoding: chunked", b"Connection: close", b"Content-Type: x/%d" % number])
        assert found is not None
        shape, own, *_ = found
        assert shape.is_chunked
        assert not shape.keeps_alive
        assert own == []

"""The lines that replies share."""

from __future__ import annotations

from gateway.http.reply_lines import ReplyShape, read_lines

_MOST = 256


def shape_of(*lines: bytes) -> ReplyShape:
    found = read_lines(list(lines))
    assert found is not None
    return found.shape


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
    assert shape.fact(0) == 0
    shape.derived(16, 16)
    assert (shape.fact(0), shape.fact(16)) == (None, 16)


def test_lines_of_one_name_stay_in_their_order() -> None:
    for value in (b"1", b"2", b"3"):
        # The line that was seen before would come first, as one that replies share.
        assert read_lines([b"X-Ordered: " + value, b"X-Ordered: 0"]) is None or value == b"1"


def test_a_line_that_differs_each_time_belongs_to_no_shape() -> None:
    shapes = [shape_of(b"Vary: accept", b"X-Ray: %d" % number) for number in range(3)]
    assert shapes[0] is shapes[1] is shapes[2]

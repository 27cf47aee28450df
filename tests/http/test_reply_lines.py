"""The lines that replies share."""

from __future__ import annotations

import pytest

from gateway.http.reply_lines import ReplyShape, read_lines, read_with_own

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


def test_replies_of_another_worker_share_their_shape_whatever_their_record_is() -> None:
    shapes = set()
    for number in range(4):
        record = b"Gateway-Hop-Record: 0.1.9 %d" % number
        found = read_with_own([b"Vary: hop", record, b"Content-Length: 5"], (b"Gateway-Hop-Record: ",))
        assert found is not None
        shape, own, length = found
        assert {line.name: line.value for line in own} == {
            "Content-Length": "5",
            "Gateway-Hop-Record": f"0.1.9 {number}",
        }
        assert length == 5
        shapes.add(shape)
    assert len(shapes) == 1


def test_the_record_of_a_worker_in_an_origins_reply_is_no_line_that_is_passed_on() -> None:
    found = read_lines([b"Vary: hop", b"Gateway-Hop-Record: 0.1.9 1"])
    assert found is not None
    assert not found[1]

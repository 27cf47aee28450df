"""The runs of a stream: what of a block is still to be written, and where a read finds its bytes."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.disk.index import Facts, StoredKey
from gateway.disk.runs import CHECK_BYTES, MOST_MARKS, RUN_BYTES, Run, StoredStream, check_of
from gateway.disk.writer_thread import Place
from gateway.tape.block import Block

FACTS = Facts("text/plain", None, None, False, frozenset())


def stored() -> StoredStream:
    return StoredStream(1, StoredKey("http://o", "/s", "", "r", "x"), FACTS)


def block_of(sizes: list[int], *, is_json: bool = False, first: int = 0) -> Block:
    rng = Random(len(sizes))
    block = Block(f"{first:06}", f"{first + 1:06}", [rng.randbytes(sizes[0])], is_json, 0.0)
    for number, size in enumerate(sizes[1:], first + 2):
        block.extend(f"{number:06}", [rng.randbytes(size)])
    return block


def write(stream: StoredStream, block: Block, least: int = 1) -> list[Block]:
    parts = list(stream.missing(block, least, 4 * RUN_BYTES))
    for part in parts:
        run = Run.of(part)
        assert stream.add(run)
        run.place = Place(1, 0, part.size)
    return parts


@pytest.mark.parametrize("is_json", [False, True])
@given(sizes=st.lists(st.integers(1, RUN_BYTES // 2), min_size=1, max_size=20), cut=st.integers(1, 20))
def test_a_block_that_grows_is_written_once(is_json: bool, sizes: list[int], cut: int) -> None:
    """The parts that are written join to the block, with all its tokens."""
    whole, beginning = block_of(sizes, is_json=is_json), block_of(sizes, is_json=is_json)
    position, token = next(((at, token) for at, token in whole.marks if token == f"{cut:06}"), (whole.size, whole.end))
    stream = stored()
    parts = write(stream, beginning.part(0, beginning.start, position, token)) + write(stream, whole)
    comma = b"," if is_json else b""
    assert comma.join(b"".join(part.pieces) for part in parts) == b"".join(whole.pieces)
    assert [token for part in parts for _, token in part.marks] == [token for _, token in whole.marks]
    assert all(part.size <= RUN_BYTES or len(part.marks) == 1 for part in parts)
    assert not write(stream, whole)


def test_a_run_has_no_more_tokens_than_the_bound() -> None:
    parts = write(stored(), block_of([2] * (2 * MOST_MARKS + 5)))
    assert [len(part.marks) for part in parts] == [MOST_MARKS, MOST_MARKS, 5]


def test_a_small_rest_is_left_out() -> None:
    block = block_of([RUN_BYTES, 100])
    assert [part.size for part in write(stored(), block, least=101)] == [RUN_BYTES]


def test_a_run_that_is_too_large_is_left_out() -> None:
    stream = stored()
    parts = write(stream, block_of([10, 5 * RUN_BYTES, 20]))
    assert [(part.start, part.end) for part in parts] == [("000000", "000001"), ("000002", "000003")]


def test_bytes_that_do_not_fit_what_is_on_disk_are_not_written() -> None:
    stream = stored()
    write(stream, block_of([10, 10, 10], first=10))
    # The block begins before the run and has no token at its start or end.
    odd = Block("000005", "000011x", [bytes(20)], False, 0.0)
    assert not any(stream.add(Run.of(part)) for part in stream.missing(odd, 1, RUN_BYTES))
    inside = Block("000011", "000099", [bytes(20)], False, 0.0)
    assert not write(stream, inside)


def test_a_run_is_found_by_each_of_its_tokens_but_its_end() -> None:
    stream = stored()
    first, second = (Run(start, end, start, 5, Place(1, 0, 5)) for start, end in (("-1", "05"), ("09", "12")))
    assert stream.add(second)
    assert stream.add(first)
    assert [stream.at(token) for token in ("-1", "03", "05", "07", "09", "11", "12")] == [
        first, first, None, None, second, second, None
    ]  # fmt: skip
    enough = (("-1", 10), ("10", 5))
    assert all(stream.has_from(token, least) for token, least in enough)
    assert not any(stream.has_from(token, least + 1) for token, least in enough)
    assert not stream.has_from("07", 1)
    assert stream.remove(first)
    assert not stream.remove(first)
    assert stream.at("-1") is None


def test_the_runs_of_a_segment_are_removed_at_once() -> None:
    stream, places = stored(), [Place(number % 2, number, 5) if number < 9 else None for number in range(10)]
    for number, place in enumerate(places):
        assert stream.add(Run(f"{number:02}", f"{number + 1:02}", "", 5, place))
    gone = [run for run in stream if run.place is not None and run.place.segment == 1]
    assert stream.remove_segment(1) == len(gone) == 4
    assert all(run.place is None for run in gone)
    assert [run.start for run in stream] == ["00", "02", "04", "06", "08", "09"]
    assert stream.body == 30
    assert [(run.start if run else None) for run in map(stream.at, ("01", "02", "09"))] == [None, "02", "09"]


def test_the_check_has_enough_bytes_after_it() -> None:
    block = block_of([CHECK_BYTES, CHECK_BYTES, CHECK_BYTES // 2, CHECK_BYTES // 2, 10])
    assert check_of(block) == "000002"
    assert check_of(block_of([10, 10])) == "000000"


@pytest.mark.parametrize(
    ("bodies", "check"),
    [
        ([], None),
        ([10], 0),
        ([CHECK_BYTES, 10], 0),
        ([CHECK_BYTES, 10, CHECK_BYTES], 2),
        ([10, CHECK_BYTES - 10, 10, 20], 1),
        ([10, CHECK_BYTES - 20, 10, None, 5], 4),
        ([CHECK_BYTES, 10, None], 0),
    ],
)
def test_the_check_of_a_stream_has_enough_bytes_after_it(bodies: list[int | None], check: int | None) -> None:
    """A run of None bytes is not written yet."""
    stream = stored()
    for number, body in enumerate(bodies):
        place = None if body is None else Place(1, 0, body)
        assert stream.add(Run(f"{number:02}", f"{number + 1:02}", f"{number:02}", body or 9_999, place))
    assert stream.check == (None if check is None else f"{check:02}")

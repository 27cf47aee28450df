"""Whether the bytes that the origin has just sent are those of a run on disk."""

from __future__ import annotations

import pytest

from gateway.disk.runs import Run
from gateway.engine.from_disk import is_same
from gateway.tape.block import Block
from gateway.tape.tape import Tape
from gateway.upstream.flight import StreamHead

LAST = StreamHead("09", True, False)


def on_disk(*messages: bytes, is_json: bool = False) -> tuple[Block, Run]:
    """A run of messages that end at 02, 03, ..., and whose check is 02."""
    block = Block("01", "02", messages[:1], is_json, 0.0)
    for number, message in enumerate(messages[1:], 3):
        block.extend(f"{number:02}", [message])
    return block, Run("01", block.end, "02", block.size)


def sent(start: str, end: str, *pieces: bytes, is_json: bool = False) -> Tape:
    tape = Tape(is_json)
    tape.store(start, end, pieces, 1.0)
    return tape


@pytest.mark.parametrize(
    ("found", "end", "is_same_run"),
    [
        (b"bbcc", "04", True),
        (b"bbccdd", "09", True),
        (b"bbcC", "04", False),
        (b"bbcCdd", "09", False),
        (b"bbccd", "04", False),
        (b"bbc", "04", False),
        (b"xxbbcc", "04", False),
    ],
)
def test_a_run_is_the_same_if_the_origin_sends_its_end_again(found: bytes, end: str, is_same_run: bool) -> None:
    block, run = on_disk(b"aa", b"bb", b"cc")
    assert is_same(sent("02", end, found), block, run, StreamHead(end, True, False)) is is_same_run


@pytest.mark.parametrize(
    ("found", "end", "is_same_run"),
    [
        (b'{"b":1},2', "04", True),
        (b'{"b":1} , 2', "04", True),
        (b'{"b":1},2,3', "09", True),
        (b'{"b":1},23', "09", False),
        (b'{"b":1}', "04", False),
        (b'{"b": 1},2', "04", False),
    ],
)
def test_messages_of_json_are_compared_one_by_one(found: bytes, end: str, is_same_run: bool) -> None:
    block, run = on_disk(b"0", b'{"b":1}', b"2", is_json=True)
    assert is_same(sent("02", end, found, is_json=True), block, run, StreamHead(end, True, False)) is is_same_run


def test_a_reply_that_ends_earlier_is_compared_up_to_its_end() -> None:
    block, run = on_disk(b"aa", b"bb", b"cc")
    assert is_same(sent("02", "03", b"bb"), block, run, StreamHead("03", False, False))
    assert not is_same(sent("02", "03", b"bB"), block, run, StreamHead("03", False, False))
    assert not is_same(sent("02", "025", b"b"), block, run, StreamHead("025", False, False))


@pytest.mark.parametrize("head", [StreamHead("03", True, False), StreamHead("03", True, True)])
def test_a_stream_that_is_shorter_now_is_another(head: StreamHead) -> None:
    block, run = on_disk(b"aa", b"bb", b"cc")
    assert not is_same(sent("02", "03", b"bb"), block, run, head)


def test_a_run_is_not_the_same_without_bytes_of_the_origin() -> None:
    block, run = on_disk(b"aa", b"bb", b"cc")
    assert not is_same(Tape(), block, run, LAST)
    assert not is_same(sent("02", "04", b"bbcc"), Block("01", "04", [b"aabbcc"], False, 0.0), run, LAST)

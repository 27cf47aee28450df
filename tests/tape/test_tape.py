"""Single behaviours of the tape; `test_tape_model` covers the whole."""

import json
from itertools import pairwise

import pytest

from gateway.errors import TailMovedBack, UpstreamBroken
from gateway.tape.block import SEAL_BYTES, Block
from gateway.tape.costs import TAPE_COST
from gateway.tape.tape import Tape, token_cost


def read(tape: Tape, start: str, limit: int = 1 << 20) -> tuple[bytes, str]:
    reading = tape.read(start, limit)
    return b"".join(reading.pieces), reading.end


def test_two_adjacent_fetches_are_read_as_one() -> None:
    tape = Tape()
    tape.store("3", "5", [b"de"], 2.0)
    tape.store("-1", "3", [b"abc"], 1.0)
    assert read(tape, "-1") == (b"abcde", "5")


def test_an_unknown_offset_reads_nothing() -> None:
    tape = Tape()
    tape.store("-1", "5", [b"abcde"], 1.0)
    assert read(tape, "3") == (b"", "3")
    assert not tape.knows_after("3")


def test_an_unknown_start_is_located_by_a_shared_end() -> None:
    tape = Tape()
    tape.store("-1", "5", [b"abcde"], 1.0)
    cost = tape.cost
    tape.store("3", "5", [b"de"], 2.0)
    assert tape.block_count == 1
    assert tape.cost == cost + token_cost("3")
    assert read(tape, "3") == (b"de", "5")


def test_an_end_inside_a_block_is_located_by_a_shared_start() -> None:
    tape = Tape(is_json=True)
    tape.store("-1", "5", [b'"a,b",[1,2],3'], 1.0)
    tape.store("-1", "2", [b'"a,b",[1,2]'], 2.0)
    assert read(tape, "-1", 11) == (b'"a,b",[1,2]', "2")
    assert read(tape, "2") == (b"3", "5")


@pytest.mark.parametrize(
    ("whole", "other"), [(b'"x,1"', b"12"), (b"[0,1]", b"12"), (b'{"a":0,"b":1}', b"123456"), (b'"x,1"', b"1")]
)
def test_an_offset_is_never_located_at_a_comma_inside_a_message(whole: bytes, other: bytes) -> None:
    """The bytes after such a comma may equal another message and must not be taken for its end."""
    tape = Tape(is_json=True)
    tape.store("-1", "5", [whole], 1.0)
    tape.store("3", "5", [other], 2.0)
    assert read(tape, "3") == (other, "5")
    assert read(tape, "-1", 1) == (whole, "5")


def test_an_array_with_two_spellings_is_read_whole_in_either() -> None:
    tape = Tape(is_json=True)
    tape.store("-1", "5", [b"1 , 2,\n3"], 1.0)
    tape.store("2", "5", [b"2,3"], 2.0)
    tape.store("-1", "2", [b"1"], 3.0)
    for start, messages in (("-1", [1, 2, 3]), ("2", [2, 3])):
        text, end = read(tape, start)
        assert json.loads(b"[" + text + b"]") == messages
        assert end == "5"


def test_a_read_continues_over_an_empty_step() -> None:
    tape = Tape()
    tape.store("-1", "0", [], 1.0)
    tape.store("0", "3", [b"abc"], 2.0)
    assert read(tape, "-1") == (b"abc", "3")
    assert tape.has_seen("-1")


def test_a_reading_stops_at_the_last_known_offset_within_the_limit_after_at_least_one_step() -> None:
    tape = Tape()
    for start, end in (("-1", "2"), ("2", "4"), ("4", "9")):
        tape.store(start, end, [b"x" * (int(end) - max(0, int(start)))], 1.0)
    assert [read(tape, "-1", limit)[1] for limit in (1, 2, 3, 4, 8, 9)] == ["2", "2", "2", "4", "4", "9"]


def test_a_reading_ends_where_its_bytes_do() -> None:
    tape = Tape()
    tape.store("-1", "2", [b"ab"], 1.0)
    tape.reached("9")
    assert read(tape, "-1") == (b"ab", "2")


def test_a_sealed_block_takes_no_more_and_the_oldest_is_dropped_first() -> None:
    tape = Tape()
    tape.store("-1", "1", [b"a" * SEAL_BYTES], 1.0)
    tape.store("1", "2", [b"b"], 2.0)
    assert tape.block_count == 2
    assert tape.drop_oldest() >= SEAL_BYTES
    assert read(tape, "-1") == (b"", "-1")
    assert read(tape, "1") == (b"b", "2")
    assert tape.drop_oldest()
    assert tape.cost == TAPE_COST


def test_a_tape_of_only_empty_steps_can_be_emptied() -> None:
    tape = Tape()
    tape.store("-1", "0", [], 1.0)
    assert tape.drop_oldest() == token_cost("-1")
    assert tape.cost == TAPE_COST


def test_many_small_messages_make_few_pieces() -> None:
    block = Block("-1", "0", [], False, 1.0)
    for number in range(10_000):
        block.extend(str(number), [b"12345678"])
    assert len(block.pieces) < 10
    assert b"".join(block.cut(0, block.size).pieces) == b"12345678" * 10_000


def test_a_cut_does_not_change_when_its_block_grows() -> None:
    block = Block("-1", "1", [b"abc"], False, 1.0)
    pieces = block.cut(0, 3).pieces
    block.extend("2", [b"def"])
    assert pieces == [b"abc"]


def test_a_cut_counts_the_bytes_it_does_not_share_with_the_block() -> None:
    block = Block("-1", "1", [b"a" * 20_000, b"b" * 20_000, b"c" * 100], False, 1.0)
    assert block.cut(0, 40_000).copied == 0
    assert block.cut(5_000, 40_000).copied == 15_000
    assert block.cut(5_000, 30_000).copied == 25_000
    # The block replaces its last piece as soon as it grows.
    assert block.cut(20_000, 40_100).copied == 100


def test_a_tail_before_the_requested_offset_means_another_stream() -> None:
    tape = Tape()
    with pytest.raises(TailMovedBack):
        tape.check("5", "3", has_bytes=False)


def test_bytes_without_a_new_offset_are_refused() -> None:
    with pytest.raises(UpstreamBroken):
        Tape().check("5", "5", has_bytes=True)


def test_an_offset_after_the_end_of_a_closed_stream_means_another_stream() -> None:
    tape = Tape()
    tape.reached("5", is_closed=True)
    with pytest.raises(TailMovedBack):
        tape.check("5", "6", has_bytes=True)
    tape.forget_facts()
    tape.check("5", "6", has_bytes=True)


def test_a_late_answer_does_not_move_the_tail_back() -> None:
    tape = Tape()
    tape.reached("5")
    tape.reached("3", is_short=True)
    assert tape.tail == "5"
    assert tape.is_short("3")
    assert not tape.is_short("5")


@pytest.mark.parametrize("asked", ["bb", "a9"])
def test_an_offset_that_a_client_made_up_is_no_place_to_stop_at(asked: str) -> None:
    """An origin that begins at the last position before an offset answers to any; it has named none of these."""
    tape = Tape()
    tape.store("-1", "b", [b"one"], 0.0)
    tape.store("b", "c", [b"two"], 0.0)
    tape.store(asked, "c", [b"two"], 0.0)
    assert tape.read("-1", 3).end == "b"
    reading = tape.read(asked, 3)
    assert (b"".join(reading.pieces), reading.end) == (b"two", "c")
    cost = tape.cost
    assert tape.drop_oldest() == cost - TAPE_COST
    assert not tape.knows_after(asked)


class Counted(str):
    """An offset that counts how often offsets are compared."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_a_trim_looks_at_each_offset_that_clients_made_up_once() -> None:
    tape, size = Tape(), 400
    for at in range(size):
        tape.store(Counted(f"{at:04d}"), Counted(f"{at + 1:04d}"), [b"x"], 1.0)
    for at in range(size):
        # Clients ask after positions in between, and the origin serves them from the preceding position.
        tape.store(Counted(f"{at:04d}z"), Counted(f"{size:04d}"), [b"x" * (size - at)], 1.0)
    Counted.comparisons = 0
    tape.drop_before(Counted("0001"))
    assert Counted.comparisons < 20 * size
    assert read(tape, Counted("0007z")) == (b"x" * (size - 7), f"{size:04d}")


@pytest.mark.parametrize("is_json", [False, True])
def test_a_restored_block_is_read_and_charged_like_a_stored_one(is_json: bool) -> None:
    whole, tape, alone = Tape(is_json), Tape(is_json), Tape(is_json)
    for start, end in pairwise(["-1", "a", "b", "c", "d"]):
        whole.store(start, end, [end.encode()], 1.0)
    (block,) = whole.blocks()
    tape.restore(block.part(0, "-1", next(at for at, token in block.marks if token == "c"), "c"))
    tape.store("x", "y", [b"y"], 2.0)
    alone.store("x", "y", [b"y"], 2.0)
    joint = b"," if is_json else b""
    assert [read(tape, token) for token in ("-1", "a", "b", "c")] == [
        (joint.join([b"a", b"b", b"c"]), "c"), (joint.join([b"b", b"c"]), "c"), (b"c", "c"), (b"", "c")
    ]  # fmt: skip
    tape.store("c", "d", [b"d"], 3.0)
    assert read(tape, "-1") == read(whole, "-1")
    tape.drop_oldest()
    assert tape.cost == alone.cost

"""Confirmations: which bytes the origin has shown to have, and when."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tape.costs import TAPE_COST
from gateway.tape.origin_statements import LEAST_GAP_S, MOST_CONFIRMED, Confirmations
from gateway.tape.tape import Tape

OFFSETS = st.integers(0, 9).map(lambda number: f"{number:04d}")


@given(st.lists(st.tuples(OFFSETS, st.floats(0, 100))), OFFSETS)
def test_an_offset_is_confirmed_no_later_than_the_latest_confirmation_at_or_before_it(
    events: list[tuple[str, float]], asked: str
) -> None:
    confirmed = Confirmations()
    for offset, at in events:
        confirmed.confirm(offset, at)
        assert len(confirmed) <= MOST_CONFIRMED
    assert confirmed.since(asked) <= max((at for offset, at in events if offset <= asked), default=-math.inf)


@given(st.lists(st.tuples(OFFSETS, st.floats(0, 100))), OFFSETS)
def test_a_confirmation_counts_at_once_unless_a_recent_one_does(events: list[tuple[str, float]], last: str) -> None:
    confirmed = Confirmations()
    for offset, at in events:
        confirmed.confirm(offset, at)
    confirmed.confirm(last, 101.0)
    assert confirmed.since(last) > 101.0 - LEAST_GAP_S
    assert confirmed.since("9999") > 101.0 - LEAST_GAP_S


def test_the_start_sentinel_confirms_only_offsets_after_its_position() -> None:
    confirmed = Confirmations()
    confirmed.start_at = 5.0
    assert confirmed.since("-1") == 5.0
    assert confirmed.since("0000") == -math.inf
    confirmed.confirm("0000", 9.0)
    assert confirmed.since("-1") == 5.0


def test_nothing_is_confirmed_after_the_bytes_were_forgotten() -> None:
    confirmed = Confirmations()
    confirmed.start_at = 5.0
    confirmed.confirm("0000", 5.0)
    confirmed.clear()
    assert {confirmed.since(offset) for offset in ("-1", "0000", "0009")} == {-math.inf}


@pytest.mark.parametrize(
    ("token", "left", "tail"),
    [("-1", [], "0009"), ("0003", ["0006"], "0009"), ("0006", [], "0009"), ("0009", [], None)],
)
def test_a_trimmed_offset_takes_everything_before_it_and_what_follows_it(
    token: str, left: list[str], tail: str | None
) -> None:
    tape = Tape()
    tape.store("-1", "0003", [b"abc"], 0.0)
    tape.store("0006", "0009", [b"ghi"], 0.0)
    tape.reached("0009")
    before = tape.cost
    freed = tape.drop_through(token)
    assert tape.cost == before - freed
    assert (tape.tail, [at for at in ("-1", "0003", "0006") if tape.knows_after(at) and token != "-1"]) == (tail, left)


@pytest.mark.parametrize("is_json", [False, True])
def test_a_trimmed_offset_within_a_block_leaves_what_follows_the_next_one(is_json: bool) -> None:
    tape = Tape(is_json=is_json)
    for start, end in pairwise(["-1", "0002", "0004", "0006", "0008"]):
        tape.store(start, end, [end[3:].encode()], 0.0)
    before = tape.cost
    freed = tape.drop_through("0002")
    assert tape.cost == before - freed
    assert freed > 0
    assert [at for at in ("-1", "0002", "0004", "0006") if tape.knows_after(at)] == ["0004", "0006"]
    assert b"".join(tape.read("0004", 100).pieces) == (b"6,8" if is_json else b"68")
    assert b"".join(tape.read("0006", 100).pieces) == b"8"
    tape.store("0008", "0009", [b"9"], 0.0)
    assert tape.read("0004", 100).end == "0009"
    tape.drop_all()
    assert tape.cost == TAPE_COST

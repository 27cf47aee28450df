"""Positions of offsets, derived from the bytes sent to readers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from gateway.pipeline.curve.scale import UNKNOWN, places
from gateway.protocol.names import NOW, START


class Step(NamedTuple):
    start: str
    end: str
    length: int | None


@dataclass(frozen=True)
class Scale:
    positions: dict[str, int]
    loose: set[str]
    extent: int


def place(steps: Iterable[Step]) -> Scale:
    """The places of one tape's offsets, among steps of other tapes with the same offsets."""
    given = list(steps)
    rows = [(tape, *step) for step in given for tape in (3, 1, 2)]
    lengths = [UNKNOWN if length is None else length if tape == 1 else 7 * tape * length for tape, _, _, length in rows]
    starts, ends = (pa.array([row[at] for row in rows], pa.string()) for at in (1, 2))
    found = places(np.array([row[0] for row in rows], np.int64), starts, ends, np.array(lengths, np.int64))
    positions, loose = {START: 0}, set()
    for at, row in enumerate(rows):
        if row[0] == 1:
            both = ((found.start, found.is_start_loose), (found.end, found.is_end_loose))
            for token, (places_of, is_loose) in zip(row[1:3], both, strict=True):
                if places_of[at] != UNKNOWN:
                    positions[str(token)] = int(places_of[at])
                    loose |= {str(token)} if is_loose[at] else set()
            assert found.tokens[at] >= len(positions)
    return Scale(positions, loose, int(found.extent[1]) if rows else 0)


def test_consecutive_reads_place_offsets_from_the_beginning() -> None:
    scale = place([Step(START, "b", 100), Step("b", "d", 40), Step("d", "e", 7)])
    assert scale.positions == {START: 0, "b": 100, "d": 140, "e": 147}
    assert not scale.loose
    assert scale.extent == 147


def test_the_path_of_fewest_steps_counts_because_each_step_adds_brackets() -> None:
    # Three JSON messages of 10 bytes: each read adds two brackets, and commas between messages.
    steps = [Step(START, "a", 12), Step("a", "b", 12), Step("b", "c", 12), Step(START, "c", 34)]
    assert place(steps).positions == {START: 0, "a": 12, "b": 24, "c": 34}


def test_an_offset_is_placed_backwards_from_the_ends_of_its_reads() -> None:
    scale = place([Step(START, "z", 1_000), Step("m", "z", 300)])
    assert scale.positions["m"] == 700
    assert not scale.loose


def test_a_coded_answer_names_offsets_but_no_length() -> None:
    scale = place([Step(START, "c", None), Step(START, "c", 500), Step("b", "c", None)])
    assert scale.positions["c"] == 500
    assert scale.loose == {"b"}
    assert scale.positions["b"] == 0


def test_a_group_without_a_chain_to_the_beginning_is_loose_and_keeps_its_distances() -> None:
    scale = place([Step(START, "b", 100), Step("m", "p", 30), Step("p", "q", 5)])
    assert scale.loose == {"m", "p", "q"}
    assert [scale.positions[token] for token in "mpq"] == [100, 130, 135]


def test_now_has_no_position() -> None:
    assert place([Step(NOW, "d", 0), Step("c", NOW, 3)]).positions == {START: 0}


TOKENS = st.lists(st.text("abcxyz019", min_size=1, max_size=4), min_size=1, max_size=12, unique=True).map(sorted)


@given(TOKENS, st.data())
def test_raw_bytes_get_their_exact_positions(tokens: list[str], data: st.DataObject) -> None:
    ends = [START, *tokens]
    at = {START: 0}
    for before, after in pairwise(ends):
        at[after] = at[before] + data.draw(st.integers(1, 50))
    pairs = st.tuples(st.integers(0, len(ends) - 1), st.integers(0, len(ends) - 1)).filter(
        lambda pair: pair[0] < pair[1]
    )
    read = data.draw(st.lists(pairs, max_size=15))
    scale = place(Step(ends[low], ends[high], at[ends[high]] - at[ends[low]]) for low, high in read)
    for token, position in scale.positions.items():
        if token not in scale.loose:
            assert position == at[token]


@given(
    st.lists(
        st.tuples(st.text("ab", max_size=3), st.text("ab", min_size=1, max_size=3), st.none() | st.integers(0, 99))
    )
)
def test_a_later_offset_never_has_an_earlier_position(steps: list[tuple[str, str, int | None]]) -> None:
    scale = place(Step(start or START, end, length) for start, end, length in steps)
    in_order = [START, *sorted(set(scale.positions) - {START})]
    assert all(scale.positions[left] <= scale.positions[right] for left, right in pairwise(in_order))

"""Recognising a stream that was deleted and created again, whatever was known and in whatever order replies come."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from gateway.bridge.streams import MOST_SIGHTINGS, KnownSighting, S2Sighting, S2Sightings
from gateway.s2.records import Record, StreamPosition
from tests.effort import examples


class SightingOfAStream(RuleBasedStateMachine):
    """One stream that is appended to and created again; requests see it as it was at some moment while they ran.

    What has to hold: an incarnation is never given another name, and two whose replies were compared never share one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sighting = S2Sighting()
        self.life = 0
        self.timestamps: list[int] = []
        self.clock = 0
        self.asked: list[tuple[KnownSighting, int, int]] = []
        """Requests under way: what was known, and the stream's life and tail when the origin answered."""

    @rule(count=st.integers(1, 3))
    def append(self, count: int) -> None:
        self.clock += 1
        self.timestamps += [self.clock] * count

    @rule()
    def create_again(self) -> None:
        self.life += 1
        self.clock += 1
        self.timestamps = []
        # Replies of the life before are not looked at below: the engine ends its requests by itself.
        self.asked = []

    @rule()
    def ask(self) -> None:
        self.asked.append((self.sighting.known(), self.life, len(self.timestamps)))

    @rule(data=st.data(), kind=st.sampled_from(["tail", "records"]))
    def reply(self, data: st.DataObject, kind: str) -> None:
        if not self.asked:
            return
        known, _, tail = self.asked.pop(data.draw(st.integers(0, len(self.asked) - 1)))
        before = self.sighting.identity
        is_new_life = known.position is not None and not self._is_of_this_life(known)
        if kind == "tail" or not tail:
            self.sighting.saw_tail(known, self._position(tail))
            can_tell = is_new_life and known.position is not None and tail <= known.position.seq_num
        else:
            first = data.draw(st.integers(0, tail - 1))
            records = [Record(at, self.timestamps[at]) for at in range(first, tail)]
            self.sighting.saw_records(known, records)
            can_tell = is_new_life and known.position is not None and first < known.position.seq_num
        if not is_new_life:
            assert self.sighting.identity == before
        elif can_tell and known.incarnation == int(before.removeprefix("s2-")):
            assert self.sighting.identity != before

    def _is_of_this_life(self, known: KnownSighting) -> bool:
        position = known.position
        assert position is not None
        if not position.seq_num:
            return True
        return position.seq_num <= len(self.timestamps) and (
            self.timestamps[position.seq_num - 1] == position.timestamp
        )

    def _position(self, tail: int) -> StreamPosition:
        return StreamPosition(tail, self.timestamps[tail - 1] if tail else 0)


TestSighting = SightingOfAStream.TestCase
TestSighting.settings = settings(max_examples=examples(60, 400), stateful_step_count=30)


def test_records_that_prove_nothing_move_no_position() -> None:
    sighting = S2Sighting()
    sighting.saw_records(sighting.known(), [Record(0, 5)])
    sighting.saw_tail(sighting.known(), StreamPosition(9, 9))
    sighting.saw_records(sighting.known(), [Record(1, 9)])
    assert sighting.known().position == StreamPosition(1, 5)
    sighting.saw_records(sighting.known(), [Record(0, 5), Record(1, 9)])
    assert sighting.known().position == StreamPosition(2, 9)
    sighting.saw_records(sighting.known(), [Record(2, 9)], is_proof=True)
    assert sighting.known().position == StreamPosition(3, 9)


def test_another_body_with_the_same_timestamp_is_another_stream() -> None:
    sighting = S2Sighting()
    sighting.saw_records(sighting.known(), [Record(0, 5, (), b"old")])
    before = sighting.identity
    sighting.saw_records(sighting.known(), [Record(0, 5, (), b"old"), Record(1, 5)])
    assert sighting.identity == before
    sighting.saw_records(sighting.known(), [Record(1, 5, (), b"new")])
    assert sighting.identity != before


def test_a_stream_that_is_gone_comes_back_as_another() -> None:
    sighting = S2Sighting()
    sighting.saw_records(sighting.known(), [Record(0, 5)])
    before = sighting.identity
    sighting.gone(sighting.known())
    sighting.saw_records(sighting.known(), [Record(0, 5)])
    assert sighting.identity != before


def test_two_replies_of_one_new_stream_make_one() -> None:
    sighting = S2Sighting()
    sighting.saw_records(sighting.known(), [Record(0, 5), Record(1, 5)])
    first, second, third = sighting.known(), sighting.known(), sighting.known()
    sighting.saw_tail(first, StreamPosition(1, 9))
    now = sighting.identity
    sighting.saw_tail(second, StreamPosition(1, 9))
    sighting.saw_records(third, [Record(0, 9)])
    assert sighting.identity == now
    assert sighting.known().position == StreamPosition(1, 9)


def test_the_table_is_bounded_and_what_falls_out_is_taken_for_the_same() -> None:
    sightings = S2Sightings(most=2)
    first = sightings.stream_of("a")
    sightings.stream_of("b")
    assert sightings.stream_of("a") is first
    sightings.stream_of("c")
    assert repr(sightings) == "<S2Sightings of 2 streams>"
    assert sightings.stream_of("a") is first
    assert sightings.stream_of("b").identity == first.identity
    assert MOST_SIGHTINGS >= 2

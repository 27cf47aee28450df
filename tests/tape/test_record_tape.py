"""The tape of records against a model: what is covered, number by number."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from gateway.s2.records import Header, Record, StreamPosition, Trim, command_record, metered_bytes
from gateway.tape import record_tape
from gateway.tape.costs import RECORD_BLOCK_COST, RECORD_COST, RECORD_HEADER_COST
from gateway.tape.record_tape import Limits, RecordsReplaced, RecordTape, cut

NO_LIMITS = Limits()


def record(seq_num: int, timestamp: int, size: int = 1) -> Record:
    return Record(seq_num, timestamp, (), b"x" * size)


def stream(*timestamps: int) -> list[Record]:
    return [record(seq_num, timestamp) for seq_num, timestamp in enumerate(timestamps)]


LIMITS = st.builds(
    Limits,
    st.none() | st.integers(0, 12),
    st.none() | st.integers(0, 150),
    st.none() | st.integers(0, 60),
)


class TapeAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tape = RecordTape()
        self.stream: list[Record] = []
        self.trimmed = 0
        self.covered: dict[int, Record | None] = {}
        """Every covered number, with its record if the stream had one there."""

    @rule(sizes=st.lists(st.integers(0, 30), min_size=1, max_size=6), step=st.integers(0, 3))
    def append(self, sizes: list[int], step: int) -> None:
        for size in sizes:
            timestamp = self.stream[-1].timestamp + step if self.stream else 5
            self.stream.append(record(len(self.stream), timestamp, size))

    @precondition(lambda self: self.stream)
    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        command = command_record(Trim(data.draw(st.integers(0, len(self.stream)))))
        last = self.stream[-1].timestamp
        self.stream.append(Record(len(self.stream), last, command.headers, command.body))
        self.trimmed = max(self.trimmed, int.from_bytes(command.body))

    @precondition(lambda self: self.stream)
    @rule(data=st.data(), count=st.integers(1, 8))
    def fetch(self, data: st.DataObject, count: int) -> None:
        start = data.draw(st.integers(0, len(self.stream) - 1))
        found = [one for one in self.stream if one.seq_num >= max(start, self.trimmed)][:count]
        self.tape.store(start, found)
        if found[0].seq_num > start:
            # It shows that nothing earlier is left.
            self.covered = {key: value for key, value in self.covered.items() if key >= found[0].seq_num}
        for seq_num in range(start, found[-1].seq_num + 1):
            self.covered.setdefault(seq_num, self.stream[seq_num] if seq_num >= self.trimmed else None)
        for one in found:
            if one.headers:
                dropped = min(int.from_bytes(one.body), one.seq_num)
                self.covered = {key: value for key, value in self.covered.items() if key >= dropped}
        self.forget_what_is_not_covered(below=self.trimmed)

    @rule()
    def evict(self) -> None:
        before = self.tape.cost
        assert self.tape.drop_oldest() == before - self.tape.cost
        self.forget_what_is_not_covered(below=len(self.stream))

    def forget_what_is_not_covered(self, below: int) -> None:
        """A tape may forget more than the model; it must not make anything up."""
        self.covered = {key: value for key, value in self.covered.items() if key >= below or self.tape.covers(key)}

    @precondition(lambda self: self.stream)
    @rule(data=st.data(), limits=LIMITS)
    def read(self, data: st.DataObject, limits: Limits) -> None:
        start = data.draw(st.integers(0, len(self.stream)))
        end = start
        while end in self.covered:
            end += 1
        held = [one for number in range(start, end) if (one := self.covered[number]) is not None]
        part = self.tape.read(start, limits)
        expected = cut(held, start, end, limits)
        assert part.records == expected.records
        assert part.is_closed == expected.is_closed
        assert part.end == expected.end
        assert part.size == sum(map(metered_bytes, part.records))

    @precondition(lambda self: self.stream)
    @rule(timestamp=st.integers(0, 60))
    def find_timestamp(self, timestamp: int) -> None:
        found = self.tape.at_timestamp(timestamp)
        if found is not None:
            assert self.stream[found].timestamp >= timestamp
            # Whatever the stream had between the record before and this one has been trimmed.
            for earlier in self.stream[:found]:
                assert earlier.timestamp < timestamp or earlier.seq_num < self.trimmed

    @invariant()
    def covers_what_the_model_covers(self) -> None:
        for number in range(len(self.stream) + 2):
            assert self.tape.covers(number) == (number in self.covered), number
            assert self.tape.record(number) == self.covered.get(number)

    @invariant()
    def costs_what_it_holds(self) -> None:
        held = [one for one in self.covered.values() if one is not None]
        size = sum(metered_bytes(one) + RECORD_COST + RECORD_HEADER_COST * len(one.headers) for one in held)
        assert self.tape.cost == size + RECORD_BLOCK_COST * self.tape.block_count
        assert self.tape.record_count == len(held)


def test_a_tape_holds_what_was_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_tape, "BLOCK_BYTES", 60)
    run_state_machine_as_test(TapeAgainstModel)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 2)), max_size=10), LIMITS, LIMITS)
def test_a_read_in_two_parts_is_the_read_in_one(sizes: list[tuple[int, int]], limits: Limits, first: Limits) -> None:
    held: list[Record] = []
    timestamp = 0
    for size, step in sizes:
        timestamp += step
        held.append(record(len(held), timestamp, size))
    whole = cut(held, 0, len(held), limits)
    narrow = limits.within(first.count or 1, first.bytes or 1)
    one = cut(held, 0, len(held), narrow)
    two = cut(held, one.end, len(held), limits.after(len(one.records), one.size))
    assert one.records + two.records == whole.records
    assert two.is_closed == whole.is_closed


def test_a_read_is_closed_by_the_record_that_a_limit_denies() -> None:
    held = stream(1, 2, 3)
    assert not cut(held, 0, 3, Limits(bytes=28)).is_closed
    assert cut(held, 0, 3, Limits(bytes=27)).is_closed
    assert cut(held, 0, 3, Limits(count=3)).is_closed
    assert not cut(held, 0, 3, Limits(until=4)).is_closed
    assert cut(held, 0, 3, Limits(until=3)) == cut(held[:2], 0, 2, Limits(count=2))


def test_a_read_below_the_trim_point_begins_with_the_first_record_left() -> None:
    tape = RecordTape()
    tape.store(0, [record(7, 70), record(8, 80)])
    assert [one.seq_num for one in tape.read(3, NO_LIMITS).records] == [7, 8]
    assert tape.covers(0)


def test_a_read_that_begins_later_than_asked_drops_what_comes_before_it() -> None:
    tape = RecordTape()
    tape.store(0, stream(1, 2, 3))
    assert tape.store(3, [record(5, 6)])
    assert tape.record_count == 1
    assert [one.seq_num for one in tape.read(3, NO_LIMITS).records] == [5]
    assert not tape.covers(2)


def test_a_trim_seen_in_the_stream_drops_what_it_removes() -> None:
    tape = RecordTape()
    tape.store(0, stream(1, 2, 3))
    command = command_record(Trim(2))
    tape.store(3, [Record(3, 4, command.headers, command.body)])
    assert not tape.covers(1)
    assert [one.seq_num for one in tape.read(2, NO_LIMITS).records] == [2, 3]


def test_a_trim_beyond_the_stream_drops_no_record_that_follows_it() -> None:
    tape = RecordTape()
    command = command_record(Trim(1_000))
    tape.store(0, [record(0, 1), Record(1, 2, command.headers, command.body), record(2, 3)])
    assert [one.seq_num for one in tape.read(1, NO_LIMITS).records] == [1, 2]


@pytest.mark.parametrize(
    ("held", "start", "records"),
    [
        pytest.param(stream(1, 2, 3), 1, [record(1, 9), record(2, 9)], id="another timestamp at a held number"),
        pytest.param(stream(1, 2, 3), 3, [record(3, 2)], id="earlier than the record before"),
        pytest.param([record(5, 50)], 2, [record(2, 60)], id="later than the record after"),
        pytest.param([], 5, [record(4, 1)], id="before the start that was asked for"),
        pytest.param([], 0, [record(1, 1), record(1, 1)], id="a number twice"),
    ],
)
def test_records_of_another_incarnation_are_not_stored(held: list[Record], start: int, records: list[Record]) -> None:
    tape = RecordTape()
    if held:
        tape.store(held[0].seq_num, held)
    before = tape.record_count
    with pytest.raises(RecordsReplaced):
        tape.store(start, records)
    assert tape.record_count == before


def test_a_tail_that_moved_back_or_has_another_timestamp_is_another_stream() -> None:
    tape = RecordTape()
    tape.store(0, stream(1, 2, 3))
    assert not tape.contradicts(StreamPosition(3, 3), tape.end_seq_num)
    assert not tape.contradicts(StreamPosition(9, 3), tape.end_seq_num)
    assert tape.contradicts(StreamPosition(2, 2), tape.end_seq_num)
    assert tape.contradicts(StreamPosition(3, 4), tape.end_seq_num)


def test_a_tail_that_was_asked_for_before_more_records_came_is_no_other_stream() -> None:
    tape = RecordTape()
    tape.store(0, stream(1, 2, 3))
    end = tape.end_seq_num
    tape.store(3, [record(3, 4)])
    assert not tape.contradicts(StreamPosition(3, 3), end)


def test_a_timestamp_is_found_only_between_records_that_are_both_held() -> None:
    tape = RecordTape()
    tape.store(2, [record(2, 20), record(3, 30)])
    assert tape.at_timestamp(21) == 3
    assert tape.at_timestamp(30) == 3
    assert tape.at_timestamp(20) is None
    assert tape.at_timestamp(31) is None
    tape.store(0, [record(0, 5), record(1, 5)])
    assert tape.at_timestamp(20) == 2
    assert tape.at_timestamp(3) == 0


def test_a_header_is_charged() -> None:
    tape = RecordTape()
    tape.store(0, [Record(0, 0, (Header(b"a", b"b"),), b"c")])
    assert tape.cost == RECORD_BLOCK_COST + RECORD_COST + RECORD_HEADER_COST + 13

"""What decides a read of an S2 stream, by plain values: the rows of the table of `decide_records`."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gateway.protocol.sharing import Group, Partition, StreamKey
from gateway.s2.records import Record, StreamPosition
from gateway.tape.decide import Awaited, Question
from gateway.tape.decide_records import RecordAnswer, RecordProgress, decide_records
from gateway.tape.record_stream import RecordStream
from gateway.tape.record_tape import Limits
from gateway.tape.stream import End
from gateway.tape.tape import Tape

RECORDS, UNWRITTEN = RecordAnswer.RECORDS, RecordAnswer.UNWRITTEN


@dataclass
class Topic:
    position: int


@pytest.fixture
def stream() -> RecordStream:
    stream = RecordStream(StreamKey(Group("http://o", "/v1/streams/s"), "", Partition("r")), Tape())
    stream.records.store(0, [Record(number, number, (), b"x") for number in range(4)])
    return stream


def tail(seq_num: int) -> StreamPosition:
    return StreamPosition(seq_num, seq_num)


def reading(at: int = 4, **more: object) -> RecordProgress:
    read = RecordProgress(at, Limits())
    for name, value in more.items():
        setattr(read, name, value)
    return read


@pytest.mark.parametrize("end", End)
def test_nothing_of_a_stream_that_has_ended_is_joined_with_what_comes(stream: RecordStream, end: End) -> None:
    stream.ended = end
    reads = reading(), reading(is_complete=True), reading(topic=Topic(4)), reading(tail=tail(4), has_records=True)
    assert {decide_records(stream, read) for read in reads} == {RecordAnswer.GONE}


@pytest.mark.parametrize("write", ["doubts the records", "may have ended the stream"])
def test_records_in_doubt_are_confirmed_before_they_are_read(stream: RecordStream, write: str) -> None:
    read = reading(2, is_complete=True, is_confirmed=False)
    assert decide_records(stream, read) == RECORDS
    if write == "doubts the records":
        stream.doubts += 1
    else:
        stream.mark_stale()
    assert decide_records(stream, read) == Question.CONFIRMATION
    read.is_confirmed = True
    assert decide_records(stream, read) == RECORDS


def test_a_read_that_its_limits_have_stopped_ends_without_the_origin(stream: RecordStream) -> None:
    assert decide_records(stream, reading(2, is_complete=True)) == RECORDS


@pytest.mark.parametrize("may_wait", [False, True])
@pytest.mark.parametrize("has_records", [False, True])
def test_missing_records_are_asked_for(stream: RecordStream, has_records: bool, may_wait: bool) -> None:
    expected = Question.TAIL if may_wait and not has_records else Question.BYTES
    for known in (None, tail(5)):
        read = reading(tail=known, has_records=has_records, may_wait=may_wait)
        assert decide_records(stream, read) == expected


@pytest.mark.parametrize(
    ("may_wait", "may_be_empty", "step"),
    [(True, True, Awaited.CHANGE), (True, False, Awaited.CHANGE), (False, True, RECORDS), (False, False, UNWRITTEN)],
)
def test_a_read_without_records_at_the_tail_waits_if_it_may(
    stream: RecordStream, may_wait: bool, may_be_empty: bool, step: object
) -> None:
    read = reading(tail=tail(4), may_wait=may_wait, may_be_empty=may_be_empty)
    assert decide_records(stream, read) == step
    read.has_records = True
    assert decide_records(stream, read) == RECORDS


def test_a_read_beyond_the_tail_is_refused_unless_it_is_clamped(stream: RecordStream) -> None:
    read = reading(9, may_wait=True)
    read.found_tail(tail(4))
    assert (read.at, decide_records(stream, read)) == (9, UNWRITTEN)
    read.found_tail(tail(4), is_clamped=True)
    assert (read.at, decide_records(stream, read)) == (4, Awaited.CHANGE)


def test_a_read_goes_on_at_the_tail_where_the_records_before_it_were_removed(stream: RecordStream) -> None:
    read = reading(may_wait=True)
    read.found_tail(tail(7))
    assert (read.at, decide_records(stream, read)) == (7, Awaited.CHANGE)
    read = reading(has_records=True)
    read.found_tail(tail(7))
    assert (read.at, decide_records(stream, read)) == (4, RECORDS)


def test_a_tail_that_the_read_has_passed_says_nothing(stream: RecordStream) -> None:
    read = reading(2, tail=tail(3))
    read.came_to(3)
    assert decide_records(stream, read) == UNWRITTEN
    read.came_to(4)
    assert (read.tail, decide_records(stream, read)) == (None, Question.BYTES)
    read.trust(tail(3))
    assert read.tail is None
    read.trust(tail(4))
    assert decide_records(stream, read) == UNWRITTEN


def test_a_read_that_has_joined_the_topic_waits_once_it_has_what_the_topic_has(stream: RecordStream) -> None:
    read = reading(topic=Topic(6), may_wait=True, tail=tail(4))
    assert decide_records(stream, read) == Question.BYTES
    read.came_to(6)
    assert decide_records(stream, read) == Awaited.CHANGE
    read.has_records = True
    assert decide_records(stream, read) == RECORDS

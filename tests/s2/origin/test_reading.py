import json

import pytest

from gateway.origin.s2.config import StreamConfig
from gateway.origin.s2.reading import Pause, Reading
from gateway.origin.s2.refusals import Refusal, Unwritten
from gateway.origin.s2.stream import Stream
from gateway.s2.read_query import FromSeqNum, FromTailOffset, FromTimestamp, ReadQuery, Start
from gateway.s2.records import AppendInput, AppendRecord, ReadBatch, StreamPosition
from tests.s2.origin.appends import NOW, a_stream, bodies, fence, read, stamped, texts, trim


@pytest.fixture
def abc() -> Stream:
    """Three records with timestamps 10, 20 and 20."""
    stream = a_stream(StreamConfig(is_uncapped=True))
    records = zip("abc", (10, 20, 20), strict=True)
    stream.append(AppendInput(tuple(AppendRecord(text.encode(), (), at) for text, at in records)), NOW)
    return stream


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (ReadQuery(FromSeqNum(1), wait_s=0), "bc"),
        (ReadQuery(FromSeqNum(3), wait_s=0), ""),
        (ReadQuery(FromSeqNum(9), wait_s=0, is_clamped=True), ""),
        (ReadQuery(FromTailOffset(2)), "bc"),
        (ReadQuery(FromTailOffset(9)), "abc"),
        (ReadQuery(FromTimestamp(0)), "abc"),
        (ReadQuery(FromTimestamp(11)), "bc"),
        (ReadQuery(FromTimestamp(20)), "bc"),
        (ReadQuery(FromSeqNum(0), count=2), "ab"),
        (ReadQuery(FromSeqNum(0), count=0), ""),
        (ReadQuery(FromSeqNum(0), bytes=18), "ab"),
        (ReadQuery(FromSeqNum(0), bytes=8), ""),
        (ReadQuery(FromSeqNum(0), until=20), "a"),
        (ReadQuery(FromSeqNum(0), until=10), ""),
        (ReadQuery(FromSeqNum(0), count=9, until=99), "abc"),
    ],
)
def test_a_read_starts_and_ends_where_its_query_says(abc: Stream, query: ReadQuery, found: str) -> None:
    assert "".join(texts(read(abc, query))) == found


@pytest.mark.parametrize("start", [FromSeqNum(4), FromTimestamp(21)])
def test_a_start_beyond_the_tail_is_refused_or_clamped(abc: Stream, start: Start) -> None:
    with pytest.raises(Unwritten) as refused:
        Reading(abc, ReadQuery(start))
    assert refused.value.status == 416
    assert json.loads(refused.value.body) == {"tail": {"seq_num": 3, "timestamp": 20}}

    assert Reading(abc, ReadQuery(start, is_clamped=True)).advance() == ReadBatch((), abc.tail)


@pytest.mark.parametrize(
    "query",
    [
        ReadQuery(FromTailOffset(0), count=10),
        ReadQuery(FromTailOffset(0), count=0),
        ReadQuery(FromSeqNum(3), count=10, wait_s=0),
        ReadQuery(FromSeqNum(3), until=2**64 - 1),
        ReadQuery(FromTimestamp(21), count=10, is_clamped=True),
    ],
)
def test_a_start_at_the_tail_is_refused_if_the_read_may_not_wait(abc: Stream, query: ReadQuery) -> None:
    with pytest.raises(Unwritten):
        Reading(abc, query)


def test_a_read_that_may_wait_says_at_the_tail_that_it_has_sent_everything(abc: Stream) -> None:
    reading = Reading(abc, ReadQuery(FromSeqNum(2)))

    caught_up = reading.advance()
    assert isinstance(caught_up, ReadBatch)
    assert (texts(list(caught_up.records)), caught_up.tail) == (["c"], abc.tail)
    assert reading.advance() == ReadBatch((), StreamPosition(3, 20))
    assert reading.advance() is Pause.WAITING

    abc.append(bodies("d"), NOW)
    live = reading.advance()
    assert isinstance(live, ReadBatch)
    assert (texts(list(live.records)), live.tail) == (["d"], abc.tail)
    assert reading.advance() is Pause.WAITING


def test_a_live_read_is_over_when_its_limit_is_reached(abc: Stream) -> None:
    reading = Reading(abc, ReadQuery(FromTailOffset(0), count=2, wait_s=60))
    assert reading.advance() == ReadBatch((), abc.tail)

    abc.append(bodies("d", "e", "f"), NOW)
    live = reading.advance()

    assert isinstance(live, ReadBatch)
    # The tail would be ahead of what this read was sent.
    assert (texts(list(live.records)), live.tail) == (["d", "e"], None)
    assert reading.advance() is Pause.OVER


def test_a_live_read_is_over_at_the_first_record_it_does_not_want(abc: Stream) -> None:
    reading = Reading(abc, ReadQuery(FromTailOffset(0), until=30, wait_s=60))
    reading.advance()

    abc.append(stamped(29, 30), NOW)
    batch = reading.advance()
    assert isinstance(batch, ReadBatch)
    assert [record.timestamp for record in batch.records] == [29]
    assert reading.advance() is Pause.OVER


def test_a_batch_holds_a_thousand_records_or_a_mebibyte() -> None:
    stream = a_stream()
    for _ in range(2):
        stream.append(bodies(*["x"] * 600), NOW)
    batch = Reading(stream, ReadQuery(FromSeqNum(0))).advance()
    assert isinstance(batch, ReadBatch)
    assert len(batch.records) == 1_000

    large = a_stream()
    for size in (1024 * 1024 - 8, 1):
        large.append(AppendInput((AppendRecord(bytes(size)),)), NOW)
    reading = Reading(large, ReadQuery(FromSeqNum(0)))
    sizes = [[len(record.body) for record in batch.records] for batch in _batches(reading)]
    assert sizes == [[1024 * 1024 - 8], [1], []]


def _batches(reading: Reading) -> list[ReadBatch]:
    found = []
    while not isinstance(batch := reading.advance(), Pause):
        found.append(batch)
    return found


def test_a_read_goes_on_at_the_first_record_that_a_trim_has_left(abc: Stream) -> None:
    reading = Reading(abc, ReadQuery(FromSeqNum(0), count=9))
    abc.append(trim(2), NOW)

    assert [record.seq_num for record in read(abc, ReadQuery(FromSeqNum(0), count=9))] == [2, 3]
    (batch,) = _batches(reading)
    assert [record.seq_num for record in batch.records] == [2, 3]


@pytest.mark.parametrize("start", [FromSeqNum(0), FromTailOffset(4)])
def test_a_start_before_the_tail_gives_nothing_if_nothing_is_left(abc: Stream, start: Start) -> None:
    abc.append(trim(99), NOW)
    assert Reading(abc, ReadQuery(start, count=9)).advance() is Pause.OVER
    assert Reading(abc, ReadQuery(start)).advance() == ReadBatch((), abc.tail)


def test_a_timestamp_is_at_the_tail_if_nothing_is_left(abc: Stream) -> None:
    abc.append(trim(99), NOW)
    with pytest.raises(Unwritten):
        Reading(abc, ReadQuery(FromTimestamp(0), count=9))


def test_a_batch_that_does_not_reach_the_tail_comes_without_it(abc: Stream) -> None:
    part = Reading(abc, ReadQuery(FromSeqNum(0), count=2)).advance()
    assert isinstance(part, ReadBatch)
    assert (texts(list(part.records)), part.tail) == (["a", "b"], None)


def test_a_read_of_a_stream_that_is_deleted_ends_with_an_error(abc: Stream) -> None:
    reading = Reading(abc, ReadQuery(FromTailOffset(0)))
    reading.advance()
    abc.delete()

    with pytest.raises(Refusal) as refused:
        reading.advance()
    assert (refused.value.status, json.loads(refused.value.body)["code"]) == (503, "unavailable")


def _fenced_trim(seq_num: int) -> AppendInput:
    """A record, a trim and a fence in one append."""
    return AppendInput((*bodies("x").records, *trim(seq_num).records, *fence("token").records))


@pytest.mark.parametrize("limit", [None, 9])
def test_a_follower_at_the_tail_is_given_a_whole_append_whatever_it_trims(abc: Stream, limit: int | None) -> None:
    query = ReadQuery(FromSeqNum(3), count=limit, wait_s=9 if limit else None)
    at_tail, behind = Reading(abc, query), Reading(abc, ReadQuery(FromSeqNum(0)))
    assert at_tail.advance() == ReadBatch((), abc.tail)
    abc.append(_fenced_trim(99), NOW)
    batch = at_tail.advance()
    assert isinstance(batch, ReadBatch)
    assert ([record.seq_num for record in batch.records], batch.tail) == ([3, 4, 5], abc.tail)
    # A read that comes from behind finds the remaining records.
    late = behind.advance()
    assert isinstance(late, ReadBatch)
    assert [record.seq_num for record in late.records] == [record.seq_num for record in read(abc)] == [5]


def test_a_follower_misses_nothing_of_several_appends_of_which_one_trims(abc: Stream) -> None:
    reading = Reading(abc, ReadQuery(FromTailOffset(0)))
    assert reading.advance() == ReadBatch((), abc.tail)
    abc.append(bodies("d"), NOW)
    abc.append(_fenced_trim(99), NOW)
    abc.append(bodies("e"), NOW)
    found = [record.seq_num for batch in _batches(reading) for record in batch.records]
    assert found == [3, 4, 5, 6, 7]


def test_what_a_follower_is_kept_obeys_its_limits(abc: Stream) -> None:
    reading = Reading(abc, ReadQuery(FromTailOffset(0), count=2, wait_s=9))
    assert reading.advance() == ReadBatch((), abc.tail)
    abc.append(_fenced_trim(99), NOW)
    assert [record.seq_num for batch in _batches(reading) for record in batch.records] == [3, 4]
    assert reading.advance() is Pause.OVER

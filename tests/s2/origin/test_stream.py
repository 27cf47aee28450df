import json

import pytest

from gateway.origin.s2.config import StreamConfig, TimestampingMode
from gateway.origin.s2.refusals import FencingTokenMismatch, SeqNumMismatch
from gateway.s2.records import MAX_BATCH_RECORDS, AppendInput, AppendRecord, Header, InvalidAppend, StreamPosition
from tests.s2.origin.appends import NOW, NOW_MS, a_stream, bodies, fence, read, stamped, texts, trim


def test_records_are_numbered_from_zero() -> None:
    stream = a_stream()
    first = stream.append(bodies("a", "b"), NOW)
    second = stream.append(bodies("c"), NOW)

    assert (first.start.seq_num, first.end.seq_num, first.tail.seq_num) == (0, 2, 2)
    assert (second.start.seq_num, second.end.seq_num, second.tail.seq_num) == (2, 3, 3)
    assert texts(read(stream)) == ["a", "b", "c"]


def test_an_append_that_expects_another_number_is_refused_with_the_number() -> None:
    stream = a_stream()
    stream.append(bodies("a", match_seq_num=0), NOW)

    with pytest.raises(SeqNumMismatch) as refused:
        stream.append(bodies("b", match_seq_num=0), NOW)

    assert (refused.value.status, json.loads(refused.value.body)) == (412, {"seq_num_mismatch": 1})
    assert texts(read(stream)) == ["a"]


def test_a_fence_keeps_out_appends_with_another_token_but_not_those_without() -> None:
    stream = a_stream()
    stream.append(fence("mine"), NOW)

    with pytest.raises(FencingTokenMismatch) as refused:
        stream.append(bodies("a", fencing_token="theirs"), NOW)
    stream.append(bodies("b", fencing_token="mine"), NOW)
    stream.append(bodies("c"), NOW)

    assert (refused.value.status, json.loads(refused.value.body)) == (412, {"fencing_token_mismatch": "mine"})
    assert texts(read(stream)) == ["mine", "b", "c"]


def test_a_batch_is_held_to_the_token_from_before_its_own_fence() -> None:
    stream = a_stream()
    stream.append(fence("old"), NOW)
    takeover = AppendInput(fence("new").records, fencing_token="old")
    stream.append(takeover, NOW)

    assert stream.fencing_token == "new"
    with pytest.raises(FencingTokenMismatch):
        stream.append(takeover, NOW)


def test_the_fence_is_judged_before_the_number() -> None:
    stream = a_stream()
    stream.append(fence("mine"), NOW)

    with pytest.raises(FencingTokenMismatch):
        stream.append(bodies("a", fencing_token="theirs", match_seq_num=9), NOW)


def test_an_empty_fence_clears_the_token() -> None:
    stream = a_stream()
    stream.append(fence("mine"), NOW)
    stream.append(fence(""), NOW)

    stream.append(bodies("a", fencing_token=""), NOW)
    assert stream.fencing_token == ""


def test_a_trim_removes_what_comes_before_its_number_and_leaves_the_tail() -> None:
    stream = a_stream()
    stream.append(bodies("a", "b", "c"), NOW)
    stream.append(trim(2), NOW)

    assert [record.seq_num for record in read(stream)] == [2, 3]
    assert stream.tail.seq_num == 4


def test_a_trim_removes_nothing_behind_itself_and_never_goes_back() -> None:
    stream = a_stream()
    stream.append(bodies("a", "b"), NOW)
    stream.append(trim(1_000), NOW)
    assert read(stream) == []

    stream.append(bodies("c"), NOW)
    stream.append(trim(1), NOW)
    assert stream.first_seq_num == 3


def test_a_trim_leaves_what_comes_after_it_in_its_own_batch() -> None:
    stream = a_stream()
    stream.append(AppendInput((*trim(1_000).records, *bodies("c").records)), NOW)
    assert texts(read(stream)) == ["c"]


@pytest.mark.parametrize(
    ("mode", "is_uncapped", "given", "stored"),
    [
        (TimestampingMode.CLIENT_PREFER, False, [5, None], [5, NOW_MS]),
        (TimestampingMode.CLIENT_PREFER, False, [NOW_MS + 9], [NOW_MS]),
        (TimestampingMode.CLIENT_PREFER, True, [NOW_MS + 9, None], [NOW_MS + 9, NOW_MS + 9]),
        (TimestampingMode.CLIENT_REQUIRE, False, [7, 3, 8], [7, 7, 8]),
        (TimestampingMode.ARRIVAL, False, [5, None], [NOW_MS, NOW_MS]),
        (TimestampingMode.ARRIVAL, True, [NOW_MS + 9], [NOW_MS]),
    ],
)
def test_timestamps_follow_the_mode_and_never_decrease(
    mode: TimestampingMode, is_uncapped: bool, given: list[int | None], stored: list[int]
) -> None:
    stream = a_stream(StreamConfig(mode=mode, is_uncapped=is_uncapped))
    ack = stream.append(stamped(*given), NOW)

    assert [record.timestamp for record in read(stream)] == stored
    assert (ack.start.timestamp, ack.end.timestamp) == (stored[0], stored[-1])
    assert stream.tail == StreamPosition(len(stored), stored[-1])


def test_a_record_without_the_required_timestamp_refuses_the_whole_batch() -> None:
    stream = a_stream(StreamConfig(mode=TimestampingMode.CLIENT_REQUIRE))

    with pytest.raises(InvalidAppend):
        stream.append(stamped(5, None), NOW)

    assert stream.tail == StreamPosition(0, 0)


@pytest.mark.parametrize(
    "append",
    [
        AppendInput(()),
        AppendInput((AppendRecord(b""),) * (MAX_BATCH_RECORDS + 1)),
        AppendInput((AppendRecord(bytes(1024 * 1024)),)),
        AppendInput((AppendRecord(b"", (Header(b"", b"shout"),)),)),
        AppendInput((AppendRecord(b"", (Header(b"", b"fence"), Header(b"n", b"v"))),)),
        AppendInput((AppendRecord(bytes(7), (Header(b"", b"trim"),)),)),
        AppendInput((AppendRecord(b"t" * 37, (Header(b"", b"fence"),)),)),
        AppendInput((AppendRecord(b"x"),), fencing_token="t" * 37),
    ],
)
def test_what_breaks_a_limit_is_refused_whole(append: AppendInput) -> None:
    stream = a_stream()
    with pytest.raises(InvalidAppend):
        stream.append(append, NOW)
    assert stream.tail.seq_num == 0


def test_retention_removes_records_by_their_age_and_leaves_the_tail() -> None:
    stream = a_stream(StreamConfig(retention_s=10))
    stream.append(bodies("a"), NOW)
    stream.append(bodies("b"), NOW + 5)

    stream.expire(NOW + 9.9)
    assert texts(read(stream)) == ["a", "b"]
    stream.expire(NOW + 10)
    assert texts(read(stream)) == ["b"]
    stream.expire(NOW + 15)
    assert (texts(read(stream)), stream.tail.seq_num) == ([], 2)


def test_a_stream_is_due_for_deletion_when_it_was_empty_for_long_enough() -> None:
    stream = a_stream(StreamConfig(retention_s=10, delete_on_empty_s=100))
    stream.append(bodies("a"), NOW + 50)
    stream.expire(NOW + 150)

    assert not stream.is_due_for_deletion(NOW + 159.9)
    assert stream.is_due_for_deletion(NOW + 160)


def test_each_append_and_the_deletion_wake_watchers() -> None:
    stream, woken = a_stream(), []
    stream.watchers.add(lambda: woken.append(stream.tail.seq_num))

    stream.append(bodies("a"), NOW)
    stream.delete()

    assert woken == [1, 1]

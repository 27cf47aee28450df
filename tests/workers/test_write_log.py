"""How workers learn of each other's writes."""

from __future__ import annotations

from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.workers.shared_memory import RECORDS, SharedMemory
from gateway.workers.write_log import MOST_TEXT, WriteLog


def logs(workers: int = 3) -> list[WriteLog]:
    shared, clock = SharedMemory.create(workers), count(1)
    return [WriteLog(shared, slot, lambda: float(next(clock))) for slot in range(workers)]


def test_a_worker_reads_what_the_others_have_recorded_since_it_looked_in_the_order_of_time() -> None:
    one, two, three = logs()
    one.begin(5, b"a")
    seen = three.read(5, three.blank).row
    two.begin(5, b"b")
    one.end(5, b"c")
    three.begin(5, b"own")
    news = three.read(5, seen)
    assert [record.text for record in news.records] == [b"b", b"c"]
    assert news.lost == ()
    assert three.read(5, news.row).records == []
    assert three.under_way_elsewhere(news.row) == 1


def test_a_row_shows_only_its_own_records() -> None:
    one, two, _ = logs()
    one.note(5, b"a")
    one.note(6, b"b")
    assert two.raw[two.row(4)] == two.blank
    assert [record.text for record in two.read(6, two.blank).records] == [b"b"]


def test_a_record_that_is_too_long_or_overwritten_says_that_anything_may_have_happened() -> None:
    one, two, _ = logs()
    one.note(5, b"x" * (MOST_TEXT + 1))
    assert [record.text for record in two.read(5, two.blank).records] == [b""]
    one.note(5, b"old")
    for _ in range(RECORDS):
        one.note(6, b"new")
    assert two.read(5, two.blank).lost == (0,)


def test_writes_of_a_dead_worker_are_settled_once_by_records_without_text() -> None:
    one, two, _ = logs()
    one.begin(5, b"a")
    one.begin(5, b"b")
    one.begin(65_535, b"c")
    one.begin(7, b"d")
    one.end(7, b"d")
    seen = two.read(5, two.blank).row
    assert two.settle(0) == 2
    news = two.read(5, seen)
    assert [record.text for record in news.records] == [b""]
    assert two.under_way_elsewhere(news.row) == 0
    assert two.settle(0) == 0


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([1, 2, 65_535]), st.sampled_from("ben"))))
def test_each_worker_reads_every_record_of_the_others_once(steps: list[tuple[int, int, str]]) -> None:
    workers = logs()
    seen = {(slot, index): workers[slot].blank for slot in range(3) for index in (1, 2, 65_535)}
    told: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    expected: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    for number, (slot, index, kind) in enumerate(steps):
        text = str(number).encode()
        {"b": workers[slot].begin, "e": workers[slot].end, "n": workers[slot].note}[kind](index, text)
        for other in range(3):
            if other != slot:
                expected[other].append(text)
            if number % 3 == other:
                for row in (1, 2, 65_535):
                    news = workers[other].read(row, seen[other, row])
                    seen[other, row] = news.row
                    told[other] += [record.text for record in news.records]
    for other in range(3):
        for row in (1, 2, 65_535):
            told[other] += [record.text for record in workers[other].read(row, seen[other, row]).records]
        assert sorted(told[other], key=int) == expected[other]


def test_records_of_one_place_keep_their_order_at_equal_times() -> None:
    shared = SharedMemory.create(2)
    one, two = (WriteLog(shared, slot, lambda: 1.0) for slot in range(2))
    for text in (b"c", b"a", b"b"):
        one.note(5, text)
    assert [record.text for record in two.read(5, two.blank).records] == [b"c", b"a", b"b"]

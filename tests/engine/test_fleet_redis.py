"""What a member decides about the orders in Redis, with plain values."""

from __future__ import annotations

from collections import deque
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from gateway.engine.fleet_redis import HEAR_S, Loss, is_continued, lacking, loss_since, surplus, unstored
from gateway.protocol.fleet_orders import InEffect, Order
from gateway.protocol.stored_orders import StoredEntry

BEGIN: Final = StoredEntry("-", b"")
TIMES: Final = st.floats(0, 100)


@given(TIMES, st.dictionaries(st.sampled_from("abc"), st.none() | TIMES), TIMES)
def test_entries_that_may_be_lost_are_harmless_only_if_every_other_member_has_shown_it_since(
    lost_at: float, agreed: dict[str, float | None], open_s: float
) -> None:
    loss = loss_since(lost_at, agreed, open_s)
    have_shown = [at is not None and at > lost_at for at in agreed.values()]
    match loss:
        case Loss.NOTHING_MISSED:
            assert agreed
            assert all(have_shown)
        case Loss.MISSED:
            assert not all(have_shown) or not agreed
            assert open_s >= HEAR_S or not agreed
        case Loss.UNKNOWN:
            assert open_s < HEAR_S
    # The question is answered within a bound.
    assert loss is not Loss.UNKNOWN or loss_since(lost_at, agreed, HEAR_S) is not Loss.UNKNOWN


def test_a_member_without_others_assumes_the_worst() -> None:
    assert loss_since(5.0, {}, 0.0) is Loss.MISSED


class Stream:
    """A stream as Redis keeps it."""

    def __init__(self) -> None:
        self.entries: deque[StoredEntry] = deque()
        self.lost: set[bytes] = set()
        """What was trimmed or lost."""
        self._clock = 0

    def add(self, data: bytes) -> None:
        self._clock += 1
        self.entries.append(StoredEntry(f"{self._clock:03}-0", data))

    def trim(self, count: int) -> None:
        for _ in range(min(count, len(self.entries))):
            self.lost.add(self.entries.popleft().data)

    def lose_all(self, *, is_clock_reset: bool) -> None:
        self.trim(len(self.entries))
        if is_clock_reset:
            self._clock = 0

    def since(self, entry_id: str, count: int) -> list[StoredEntry]:
        return [one for one in self.entries if entry_id == "-" or one.id >= entry_id][:count]


STEPS: Final = st.one_of(
    st.just(("add", 0)),
    st.tuples(st.just("trim"), st.integers(1, 3)),
    st.tuples(st.just("lose"), st.integers(0, 1)),
    st.tuples(st.just("read"), st.integers(2, 4)),
)


@given(st.lists(STEPS, max_size=40))
def test_a_reader_gets_every_entry_or_knows_that_it_may_have_lost_some(steps: list[tuple[str, int]]) -> None:
    stream, number = Stream(), 0
    read: set[bytes] = set()

    def start_over() -> StoredEntry:
        stream.lost.clear()
        if not stream.entries:
            stream.add(b"mark")
        entries = stream.since("-", 99)
        assert is_continued(entries, BEGIN)
        read.update(one.data for one in entries)
        return entries[-1]

    last = start_over()
    for step, count in [*steps, ("read", 99)]:
        match step:
            case "add":
                number += 1
                stream.add(b"%d" % number)
            case "trim":
                stream.trim(count)
            case "lose":
                stream.lose_all(is_clock_reset=bool(count))
            case _:
                page = stream.since(last.id, count)
                if is_continued(page, last):
                    # Nothing that it has not read is lost.
                    assert stream.lost <= read
                    last = page[-1]
                    read.update(one.data for one in page)
                else:
                    last = start_over()
    assert {one.data for one in stream.entries} <= read


PAIRS: Final = st.lists(st.tuples(st.sampled_from("pq"), st.integers(1, 6)), unique=True)


@given(PAIRS, st.sets(st.tuples(st.sampled_from("pq"), st.integers(1, 6))))
def test_each_order_that_redis_lacks_is_added_once_in_its_order(
    known: list[tuple[str, int]], stored: set[tuple[str, int]]
) -> None:
    orders = [Order(process, number, "purge", "", 0.0) for process, number in known]
    own, of_others = lacking(orders, stored, "p")
    assert {one.process for one in own} <= {"p"}
    assert {one.process for one in of_others} <= {"q"}
    assert sorted(own + of_others) == sorted(one for one in orders if (one.process, one.number) not in stored)
    for part in (own, of_others):
        assert part == [one for one in orders if one in part]


REVOCATIONS: Final = st.builds(
    InEffect, st.just("principal"), st.sampled_from("xyz"), st.sampled_from([None, "i"]), st.floats(10, 1_000)
)


@given(st.lists(REVOCATIONS, unique_by=lambda one: one[:3]), st.lists(REVOCATIONS))
def test_after_the_revocations_that_redis_lacks_are_added_it_lacks_none(
    in_effect: list[InEffect], stored: list[InEffect]
) -> None:
    absent = unstored(in_effect, stored)
    assert unstored(in_effect, [*stored, *absent]) == []
    for one in in_effect:
        longest = max((other.for_s for other in stored if other[:3] == one[:3]), default=0.0)
        # Clocks differ by some seconds.
        assert (one in absent) == (one.for_s > longest + 5)


@given(st.dictionaries(st.binary(max_size=2), st.floats(-10, 10), max_size=40), st.integers(8, 20), st.integers(0, 10))
def test_revocations_in_redis_stay_within_bounds_and_the_longest_stay(
    remaining_s: dict[bytes, float], most: int, most_ended: int
) -> None:
    gone = set(surplus(remaining_s, most, most_ended))
    kept = {field: for_s for field, for_s in remaining_s.items() if field not in gone}
    assert len(kept) <= most
    assert sum(for_s <= 0 for for_s in kept.values()) <= most_ended
    dropped = [remaining_s[field] for field in gone if remaining_s[field] > 0]
    lasting = [for_s for for_s in kept.values() if for_s > 0]
    if dropped:
        assert sum(for_s > 0 for for_s in remaining_s.values()) > most
        assert max(dropped) <= min(lasting)
        # There is room for some, so that not each further one takes a look at all.
        assert len(lasting) == most * 7 // 8

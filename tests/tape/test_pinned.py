"""Pinned streams: never past their share, never past the budget, never a victim."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from gateway.protocol.sharing import StreamKey
from gateway.tape import block as block_module
from gateway.tape.costs import TAPE_COST
from gateway.tape.eviction import POLICIES
from gateway.tape.pinned import PinnedTapes
from gateway.tape.store import TapeStore
from gateway.tape.stream import End, Stream
from tests.effort import examples
from tests.tape.store_machine import FOR_EVER, StoreAgainstRecount, fill, key, new_store

KEYS = [key("a"), key("a", "p"), key("b")]


class StoreWithPins(StoreAgainstRecount):
    """The same events, with preferences that change between them."""

    @rule(
        pinned=st.lists(st.sampled_from(KEYS), unique=True),
        share=st.sampled_from([0.0, 0.3, 0.9]),
        not_stored=st.lists(st.sampled_from([key("b"), key("")]), max_size=1),
    )
    def prefer(self, pinned: list[StreamKey], share: float, not_stored: list[StreamKey]) -> None:
        self.tapes.prefer(pinned, share, not_stored)

    @rule(budget_bytes=st.sampled_from([3_500, 7_500, 15_000]))
    def resize(self, budget_bytes: int) -> None:
        self.tapes.resize(budget_bytes)

    @invariant()
    def every_stream_is_evictable_or_pinned(self) -> None:
        order, pinned = self.order, self.tapes.pinned
        for stream in self.tapes:
            assert stream.holds or (stream.key in order) != (stream.key in pinned)
            assert not (stream.key in order and stream.key in pinned)
        assert len(order) + len(pinned) == sum(one.key in order or one.key in pinned for one in self.tapes)

    @invariant()
    def the_cost_of_pinned_streams_is_right_and_within_its_limit(self) -> None:
        pinned = self.tapes.pinned
        assert pinned.cost == sum(stream.cost for stream in self.tapes if stream.key in pinned)
        assert pinned.cost <= pinned.limit

    @invariant()
    def a_stream_that_is_not_stored_holds_nothing_unless_its_record_is_pinned(self) -> None:
        for stream in list(self.tapes):
            if self.tapes.is_not_stored(stream) and not stream.holds:
                # The engine stores bytes for such a stream only while it is pinned; this machine does so at any time.
                stream.holds += 1
                self.tapes.release(stream)
                assert stream.tape.block_count == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_budget_and_share_hold_in_every_order_of_events(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_module, "SEAL_BYTES", 1_000)

    class Against(StoreWithPins):
        pass

    Against.policy = policy
    run_state_machine_as_test(Against, settings=settings(max_examples=examples(25, 100), stateful_step_count=40))


def a_stream(store: TapeStore, name: str, size: int) -> Stream:
    stream = store.open(key(name), 0.0)
    stream.expiry.know(FOR_EVER)
    fill(store, stream, size)
    return stream


@pytest.mark.parametrize("policy", POLICIES)
@given(
    sizes=st.lists(st.integers(1, 3_000), min_size=1, max_size=60),
    names=st.lists(st.sampled_from("defghijk"), min_size=60, max_size=60),
)
def test_a_pinned_stream_is_never_evicted_while_it_is_within_the_share(
    policy: str, sizes: list[int], names: list[str]
) -> None:
    store, _ = new_store(30_000, policy)
    store.prefer([key("a"), key("b"), key("c")], 0.5, [])
    kept = [a_stream(store, name, 1_000) for name in "abc"]
    for name, size in zip(names, sizes, strict=False):
        a_stream(store, name, size)
    assert all(stream.ended is None and stream.tape.size == 1_000 for stream in kept)
    assert store.cost <= store.budget_bytes


def test_growing_past_the_share_unpins_the_least_valuable() -> None:
    store, _ = new_store(15_000)
    store.prefer([key("a"), key("b")], 0.5, [])
    first, second = a_stream(store, "a", 1_000), a_stream(store, "b", 1_000)
    assert all(one.key in store.pinned for one in (first, second))
    fill(store, first, 1_500)
    assert (first.key in store.pinned, second.key in store.pinned) == (True, False)
    # Both are still in memory: an unpinned stream stays until room is needed.
    ended = [first.ended, second.ended]
    for name in "cdef":
        a_stream(store, name, 1_500)
    assert [*ended, first.ended, second.ended] == [None, None, None, End.EVICTED]


def test_an_unpinned_stream_is_pinned_again_once_there_is_room() -> None:
    store, _ = new_store(15_000)
    store.prefer([key("a"), key("b")], 0.5, [])
    first, second = a_stream(store, "a", 3_000), a_stream(store, "b", 1_500)
    assert second.key not in store.pinned
    store.drop_stream(first, End.DELETED)
    fill(store, second, 10)
    assert second.key in store.pinned


def test_a_stream_larger_than_the_share_does_not_unpin_the_others() -> None:
    store, _ = new_store(17_000)
    store.prefer([key("a"), key("b"), key("c")], 0.5, [])
    kept = [a_stream(store, name, 500) for name in "bc"]
    large = a_stream(store, "a", 6_000)
    assert [one.key in store.pinned for one in (large, *kept)] == [False, True, True]


def test_a_higher_rank_takes_the_room_of_a_stream_pinned_before() -> None:
    store, _ = new_store(15_000)
    late, first = a_stream(store, "a", 2_500), a_stream(store, "b", 2_500)
    store.prefer([late.key], 0.5, [])
    store.prefer([first.key, late.key], 0.5, [])
    assert [one.key in store.pinned for one in (first, late)] == [True, False]
    assert store.pinned.cost == first.cost


def test_a_new_preference_replaces_the_one_before() -> None:
    store, _ = new_store(15_000)
    first, second = a_stream(store, "a", 1_000), a_stream(store, "b", 1_000)
    store.prefer([first.key], 0.5, [])
    assert [one.key in store.pinned for one in (first, second)] == [True, False]
    store.prefer([second.key], 0.5, [])
    assert [one.key in store.pinned for one in (first, second)] == [False, True]
    store.prefer([], 0.0, [])
    assert not store.pinned
    assert store.pinned.cost == 0


def test_a_loan_does_not_evict_pinned_streams() -> None:
    store, _ = new_store(15_000)
    store.prefer([key("a")], 0.9, [])
    kept = a_stream(store, "a", 6_000)
    other = a_stream(store, "b", 100)
    assert not store.lend(4_000, other)
    assert kept.tape.size == 6_000
    assert repr(store.pinned) == "<PinnedTapes 1 of 1, 8632 of 13500 bytes>"


def test_a_stream_that_is_not_stored_holds_bytes_only_while_its_record_is_pinned() -> None:
    store, _ = new_store(15_000)
    mine, theirs = a_stream(store, "a", 1_000), store.open(key("a", "someone"), 0.0)
    theirs.expiry.know(FOR_EVER)
    fill(store, theirs, 1_000)
    theirs.holds += 1
    store.prefer([], 0.0, [mine.key])
    assert store.is_not_stored(theirs)
    assert [one.tape.size for one in (mine, theirs)] == [0, 1_000]
    store.release(theirs)
    assert theirs.tape.size == 0
    # The facts stay.
    assert theirs.tape.tail is not None
    assert store.cost == mine.cost + theirs.cost == 2 * TAPE_COST + mine.facts_cost + theirs.facts_cost


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["pin", "add_cost", "forget", "set_limit", "pop"]), st.integers(0, 7), st.integers(0, 9)
        ),
        max_size=60,
    )
)
def test_the_lowest_rank_is_always_unpinned_first(steps: list[tuple[str, int, int]]) -> None:
    keys = [key(str(rank)) for rank in range(8)]
    pinned = PinnedTapes()
    pinned.prefer(keys, 20)
    kept: dict[StreamKey, int] = {}

    def expect_unpinned(gone: Iterable[StreamKey]) -> None:
        for one in gone:
            assert one == max(kept, key=keys.index) or kept[one] > pinned.limit
            del kept[one]

    for step, rank, size in steps:
        one = keys[rank]
        match step:
            case "pin":
                if pinned.pin(one, size):
                    kept.setdefault(one, size)
            case "add_cost":
                if one in kept:
                    kept[one] += size
                expect_unpinned(pinned.add_cost(one, size))
            case "forget":
                pinned.forget(one)
                kept.pop(one, None)
            case "set_limit":
                expect_unpinned(pinned.set_limit(size * 4))
            case "pop":
                last = pinned.pop_last()
                assert (last is None) == (not kept)
                expect_unpinned([last] if last is not None else [])
        assert set(kept) == {one for one in keys if one in pinned}
        assert pinned.cost == sum(kept.values()) <= pinned.limit

"""Which worker owns a stream."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gateway.workers.shared_memory import SharedMemory, SlotState
from gateway.workers.worker_owners import Owners, owner, path_hash

HASHES = st.integers(0, (1 << 64) - 1)
SLOTS = st.lists(st.integers(0, 40), min_size=2, unique=True)


@given(HASHES, SLOTS, st.randoms())
def test_all_workers_agree_on_the_owner_whatever_the_order_of_the_slots(
    hashed: int, slots: list[int], rng: Random
) -> None:
    shuffled = rng.sample(slots, len(slots))
    assert owner(hashed, slots) == owner(hashed, shuffled)


@given(HASHES, SLOTS)
def test_only_the_streams_of_a_dead_worker_get_another_owner(hashed: int, slots: list[int]) -> None:
    dead, before = slots[0], owner(hashed, slots)
    after = owner(hashed, slots[1:])
    assert after == before or before == dead


def test_streams_are_divided_evenly() -> None:
    counts = [0] * 4
    for number in range(8_000):
        counts[owner(path_hash(b"secret", "http://origin", f"/stream/{number}"), range(4))] += 1
    assert min(counts) > 1_800


def test_a_path_has_the_same_hash_at_every_worker_and_another_at_another_origin() -> None:
    assert path_hash(b"k", "http://a", "/s") == path_hash(b"k", "http://a", "/s")
    assert path_hash(b"k", "http://a", "/s") != path_hash(b"k", "http://b", "/s")


def test_a_stream_is_owned_by_another_worker_only_until_that_worker_ends() -> None:
    shared = SharedMemory.create(2)
    views = [Owners(shared, slot) for slot in range(2)]
    hashed = next(number for number in range(100) if owner(number, (0, 1)) == 1)
    assert views[0].other_owner(hashed) is None
    for slot in range(2):
        shared.set_slot(slot, SlotState.SERVING, 1, 100 + slot)
    assert [view.other_owner(hashed) for view in views] == [1, None]
    # In a drain, no stream changes its owner while the workers are told one after another.
    for slot in (1, 0):
        shared.set_slot(slot, SlotState.DRAINING, 1, 100 + slot)
        assert [view.other_owner(hashed) for view in views] == [1, None]
    shared.set_slot(1, SlotState.DEAD, 1, 0)
    assert views[0].other_owner(hashed) is None

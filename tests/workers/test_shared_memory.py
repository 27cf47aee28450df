"""The memory that workers share."""

from __future__ import annotations

import os

import pytest

from gateway.workers.shared_memory import COMMON_BYTES, MOST_WORKERS, ORIGIN_BYTES, ORIGINS, SharedMemory, SlotState


def test_a_slot_begins_dead_and_shows_what_the_supervisor_records() -> None:
    shared = SharedMemory.create(3)
    assert shared.serving() == ()
    before = shared.epoch
    shared.set_slot(1, SlotState.SERVING, 7, 4_242)
    assert (shared.state(1), shared.generation(1), shared.pid(1)) == (SlotState.SERVING, 7, 4_242)
    assert shared.serving() == (1,)
    assert shared.epoch != before


def test_a_fork_sees_what_its_parent_writes_later() -> None:
    shared = SharedMemory.create(1)
    ready, told = os.pipe(), os.pipe()
    if (pid := os.fork()) == 0:
        os.write(ready[1], b"!")
        os.read(told[0], 1)
        os._exit(shared.state(0))
    os.read(ready[0], 1)
    shared.set_slot(0, SlotState.DRAINING, 1, pid)
    os.write(told[1], b"!")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == SlotState.DRAINING


def test_a_new_supervisor_takes_places_that_the_old_one_does_not_use() -> None:
    old = SharedMemory.create(3)
    for slot in range(3):
        old.set_slot(slot, SlotState.SERVING, 1, 100 + slot)
    new = SharedMemory.attach(old.descriptor, 4)
    assert new is not None
    assert new.secret == old.secret
    assert new.serving() == ()
    new.set_slot(0, SlotState.SERVING, 1, 200)
    assert old.serving() == (0, 1, 2)
    assert SharedMemory.attach(old.descriptor, 5) is None


def test_memory_of_another_layout_is_not_taken_over() -> None:
    descriptor = os.memfd_create("other")
    assert SharedMemory.attach(descriptor, 1) is None
    os.ftruncate(descriptor, 1 << 20)
    assert SharedMemory.attach(descriptor, 1) is None


def test_tables_have_rooms_of_their_own() -> None:
    shared = SharedMemory.create(2)
    assert len(shared.common) == shared.places * COMMON_BYTES
    shared.common[:] = b"\x01" * len(shared.common)
    assert shared.raw[shared.cells_at :].count(b"\x01") == len(shared.common)
    assert shared.raw.rfind(b"\x01") == shared.origins_at - 1
    assert len(shared.raw) == shared.origins_at + ORIGINS * ORIGIN_BYTES * (1 + shared.places)


@pytest.mark.parametrize("workers", [0, MOST_WORKERS + 1])
def test_a_number_of_workers_out_of_range_is_refused(workers: int) -> None:
    with pytest.raises(ValueError, match="workers"):
        SharedMemory.create(workers)

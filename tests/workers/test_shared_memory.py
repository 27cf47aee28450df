"""The memory that workers share."""

from __future__ import annotations

import errno
import mmap
import os
import random
from pathlib import Path

import pytest

from gateway.workers.removals import Removals
from gateway.workers.shared_counts import Counted, SharedCounts
from gateway.workers.shared_memory import (
    COMMON_BYTES,
    HASHES,
    MOST_WORKERS,
    ORIGIN_BYTES,
    ORIGINS,
    SharedMemory,
    SlotState,
)
from gateway.workers.shared_origins import SharedOrigins
from gateway.workers.write_log import WriteLog


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


def test_a_new_supervisor_takes_no_place_of_a_worker_that_is_dead_for_the_moment() -> None:
    old = SharedMemory.create(2)
    old.set_slot(0, SlotState.SERVING, 1, 100)
    old.set_slot(1, SlotState.DEAD, 3, 0)
    new = SharedMemory.attach(old.descriptor, 2, taken=(old.first, old.workers))
    assert new is not None
    assert new.first >= 2
    assert SharedMemory.attach(old.descriptor, new.places - 1, taken=(old.first, old.workers)) is None


def test_the_places_of_a_version_that_was_killed_are_free_once_its_workers_have_ended() -> None:
    shared = SharedMemory.create(2)
    killed = SharedMemory.attach(shared.descriptor, 2, taken=(0, 2))
    assert killed is not None
    if not (supervisor := os.fork()):
        killed.set_slot(0, SlotState.STARTING, 3, 0)
        killed.set_slot(1, SlotState.STARTING, 1, os.getppid())
        os._exit(0)
    # Its status stays unread, as in a container without an init process.
    os.waitid(os.P_PID, supervisor, os.WEXITED | os.WNOWAIT)
    assert shared.left_slots() == [2], "one of its workers runs, and the other one was not forked"
    assert killed.left_slots() == []
    os.waitpid(supervisor, 0)
    assert shared.left_slots() == [2]
    killed.record_process(0)
    killed.record_process(1)
    assert shared.left_slots() == [], "they have been forked after all"
    killed.set_slot(0, SlotState.SERVING, 3, supervisor)
    assert shared.left_slots() == [], "the supervisor runs, and records the end itself"


def test_a_worker_that_runs_keeps_its_place_without_a_proc_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(path: Path) -> bytes:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_bytes", absent)
    shared = SharedMemory.create(1)
    other = SharedMemory.attach(shared.descriptor, 1, taken=(0, 1))
    assert other is not None
    if not (supervisor := os.fork()):
        other.set_slot(0, SlotState.DRAINING, 1, os.getppid())
        os._exit(0)
    os.waitpid(supervisor, 0)
    assert shared.left_slots() == []
    other.words[other.place_word(other.first, 2)] = supervisor
    assert shared.left_slots() == [1]


def test_a_place_has_another_tenure_and_no_open_store_once_another_version_has_it() -> None:
    first = SharedMemory.create(2)
    first.set_slot(1, SlotState.SERVING, 1, 1)
    Removals(first, 1).set_open(1)
    tenure = Removals(first, 1).tenure
    assert first.place_of(tenure) == 1
    second = SharedMemory.attach(first.descriptor, 2, taken=(0, 2))
    assert second is not None
    assert second.place_of(tenure) == 1
    first.set_slot(1, SlotState.DEAD, 1, 0)
    third = SharedMemory.attach(first.descriptor, 2, taken=(2, 2))
    assert third is not None
    third.set_slot(1, SlotState.SERVING, 1, 1)
    assert (Removals(third, 1).place, third.place_of(tenure), third.place_of(99)) == (1, None, None)
    assert third.place_of(Removals(third, 1).tenure) == 1
    assert not Removals(third, 1).is_open(1)


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
    assert shared.counts_at == shared.origins_at + ORIGINS * ORIGIN_BYTES * (1 + shared.places)
    assert shared.removals_at == shared.counts_at + 8 * (3 * HASHES + 1) * shared.places
    assert len(shared.raw) == shared.removals_at + 2 * 8 * HASHES * shared.places


@pytest.mark.parametrize("workers", [0, MOST_WORKERS + 1])
def test_a_number_of_workers_out_of_range_is_refused(workers: int) -> None:
    with pytest.raises(ValueError, match="workers"):
        SharedMemory.create(workers)


def test_the_tables_take_further_memory_only_for_the_removals_of_a_worker_that_dies() -> None:
    shared = SharedMemory.create(16)
    log, counts, origins = WriteLog(shared, 3, lambda: 1.0), SharedCounts(shared, 3), SharedOrigins(shared, 3)
    for index in (5, 65_535):
        log.begin(index, b"a")
    key = counts.key_of("net")
    counts.add(key, Counted.LIVE_READS, 2, 1.0)
    row = origins.join("http://a")
    assert row is not None
    row.set_waiting(3)
    before = os.fstat(shared.descriptor).st_blocks
    settled = log.settle(3)
    counts.clear()
    origins.clear()
    # Each of the two writes may have removed its stream, which is counted in a page of its row.
    assert os.fstat(shared.descriptor).st_blocks - before <= 2 * mmap.PAGESIZE // 512
    assert (settled, counts.own(key, Counted.LIVE_READS)) == (2, 0)
    assert repr(row) == "<OriginRow version 0, 0 workers, 0 waiting>"


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("step", [8, 160, 4_096, 10_000])
def test_no_value_that_was_written_is_taken_for_unused(
    monkeypatch: pytest.MonkeyPatch, step: int, is_known: bool
) -> None:
    """`is_known`: whether the kernel says which pages are used."""

    def refused(_descriptor: int, _at: int, _how: int) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    if not is_known:
        monkeypatch.setattr(os, "lseek", refused)
    rng = random.Random(step)
    shared = SharedMemory.create(4)
    at, count = shared.common_at + 40, COMMON_BYTES // step
    assert list(shared.used(at, step, count)) == ([] if is_known else list(range(count)))
    written = {0, count - 1, *(rng.randrange(count) for _ in range(5))}
    for outside in (at - 8, at + count * step):
        shared.words[outside // 8] = 1
    for index in written:
        shared.words[(at + index * step) // 8] = 1
    used = list(shared.used(at, step, count))
    assert used == sorted({*used})
    assert written <= {*used} <= {*range(count)}
    if is_known:
        assert len(used) <= (len(written) + 2) * max(1, 4_096 // step + 1)
    else:
        assert len(used) == count

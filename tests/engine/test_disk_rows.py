"""A worker's disk never shows a stream that was removed, whatever worker has removed it, and however often its own
worker has died meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from gateway.disk.index import Holder
from gateway.engine.disk_rows import DiskRows
from gateway.protocol.sharing import Group
from gateway.workers.removals import Removals
from gateway.workers.shared_memory import _TAKEN, SharedMemory

PATHS = [Group("http://o", f"/{number}") for number in range(3)]
ROWS = {group: number // 2 for number, group in enumerate(PATHS)}
"""The first two paths share a row."""
OWN, OTHER = 0, 1


class Disk:
    """The paths on disk with the life of each, and the jobs of the writer."""

    def __init__(self, durable: dict[Group, int]) -> None:
        self.lives = dict(durable)
        self.durable = durable
        self._jobs: list[Callable[[], object]] = []
        self.holder: Holder | None = None
        self.path_removed: Callable[[Group], object] = lambda group: None

    def withdraw_group(self, group: Group) -> None:
        if self.lives.pop(group, None) is not None:
            self._jobs.append(lambda: self.durable.pop(group, None))
            self.path_removed(group)

    def write(self, group: Group, life: int) -> None:
        self.lives[group] = life
        self._jobs.append(lambda: self.durable.update({group: life}))

    def when_done(self, done: Callable[[bool], object], holder: Holder | None) -> None:
        def finished() -> None:
            done(True)
            if holder is not None:
                self.holder = holder

        self._jobs.append(finished)

    def work(self, most: int = 99) -> None:
        for _ in range(min(most, len(self._jobs))):
            self._jobs.pop(0)()


class Worker:
    """One generation of the worker with the disk: its store, its memory, and the records that it has read."""

    def __init__(self, site: Site, durable: dict[Group, int], holder: Holder | None) -> None:
        self.site = site
        self.memory: dict[Group, int] = {}
        self._seen: dict[int, int] = {}
        self.disk = Disk(durable)
        self.disk.holder = holder
        rows: dict[int, set[Group]] = {}
        for group in durable:
            rows.setdefault(ROWS[group], set()).add(group)
        removals = Removals(site.shared, OWN)
        self.rows = DiskRows(self.disk, rows, removals, ROWS.__getitem__, self.look_at_row, holder)
        self.disk.path_removed = self.rows.path_removed

    def look_at_row(self, row: int) -> None:
        """As `OthersWrites` does: the first look at a row skips the records before it."""
        records = self.site.records
        for at, group in records[self._seen.get(row, len(records)) :]:
            if at == row:
                self.memory.pop(group, None)
                self.disk.withdraw_group(group)
        self._seen[row] = len(records)


class Site(RuleBasedStateMachine):
    """A worker with a disk, and another worker that removes streams.  Each removal has three steps."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = SharedMemory.create(2)
        self.removals = Removals(self.shared, OTHER)
        self.records: list[tuple[int, Group]] = []
        self.lives = dict.fromkeys(PATHS, 0)
        """The lives at the origin."""
        self.acknowledged = dict.fromkeys(PATHS, 0)
        """The lives before which no bytes may be served."""
        self.begun: list[Group] = []
        self.recorded: list[Group] = []
        self.durable = dict.fromkeys(PATHS, 0)
        self.worker: Worker | None = Worker(self, self.durable, None)
        self.holder: Holder | None = None

    def teardown(self) -> None:
        self.shared.words.release()
        self.shared.bytes.release()

    # -- the other worker

    @rule(group=st.sampled_from(PATHS))
    def remove(self, group: Group) -> None:
        """All three steps, unless another removal is under way."""
        if not (self.begun or self.recorded):
            self.begin_removal(group)
            self.record_removal()
            self.end_removal()

    @rule(group=st.sampled_from(PATHS))
    def begin_removal(self, group: Group) -> None:
        self.lives[group] += 1
        self.removals.begin(ROWS[group])
        self.begun.append(group)

    @precondition(lambda self: self.begun)
    @rule()
    def record_removal(self) -> None:
        group = self.begun.pop(0)
        self.records.append((ROWS[group], group))
        self.recorded.append(group)

    @precondition(lambda self: self.recorded)
    @rule()
    def end_removal(self) -> None:
        group = self.recorded.pop(0)
        self.removals.end(ROWS[group])
        self.acknowledged[group] = self.lives[group] - self.begun.count(group) - self.recorded.count(group)

    @rule(group=st.sampled_from(PATHS))
    def purge(self, group: Group) -> None:
        """The stream was made again behind the gateway's back."""
        with self.removals.purging():
            self.lives[group] += 1
            if self.worker is not None:
                self.worker.memory.pop(group, None)
                self.worker.disk.withdraw_group(group)
                self.worker.rows.purged()
                self.worker.disk.work()
        self.acknowledged[group] = self.lives[group] - self.begun.count(group) - self.recorded.count(group)

    # -- the worker with the disk

    @precondition(lambda self: self.worker is not None)
    @rule(group=st.sampled_from(PATHS), fetches=st.booleans())
    def read(self, group: Group, fetches: bool) -> None:
        """Serve a stream from disk, or fetch it and write it to disk."""
        worker = self._worker
        worker.look_at_row(ROWS[group])
        worker.rows.check(group)
        if (life := worker.disk.lives.get(group)) is not None:
            assert life >= self.acknowledged[group], f"{group} comes from an earlier life"
            worker.memory[group] = life
        elif fetches:
            worker.memory[group] = self.lives[group]

    @precondition(lambda self: self.worker is not None)
    @rule(group=st.sampled_from(PATHS))
    def evict(self, group: Group) -> None:
        """Write a stream to disk from memory, without a look at the other worker's records."""
        worker = self._worker
        if not worker.rows.is_unchecked(group) and (life := worker.memory.pop(group, None)) is not None:
            worker.disk.write(group, life)
            worker.rows.path_added(group)

    @precondition(lambda self: self.worker is not None)
    @rule(most=st.sampled_from([1, 99]), jobs=st.sampled_from([0, 1, 99]))
    def step(self, most: int, jobs: int) -> None:
        self._worker.rows.step(most)
        self._worker.disk.work(jobs)

    @precondition(lambda self: self.worker is not None)
    @rule(starts=st.booleans())
    def die(self, starts: bool) -> None:
        """The jobs that wait are lost."""
        self.holder, self.worker = self._worker.disk.holder, None
        if starts:
            self.start()

    @precondition(lambda self: self.worker is None)
    @rule()
    def start(self) -> None:
        self.worker = Worker(self, self.durable, self.holder)

    @property
    def _worker(self) -> Worker:
        assert self.worker is not None
        return self.worker


Site.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestNoDiskShowsARemovedStream: Any = Site.TestCase


A, SAME_ROW, ELSEWHERE = PATHS


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.teardown()


def read_all(site: Site) -> set[Group]:
    """Read all streams, which fails if one comes from an earlier life.  Returns those that came from disk."""
    for group in PATHS:
        site.read(group=group, fetches=False)
    worker = site.worker
    assert worker is not None
    return set(worker.disk.lives)


def test_a_removal_that_was_not_applied_drops_its_row_at_the_next_worker(site: Site) -> None:
    site.remove(group=A)
    site.die(starts=True)
    assert read_all(site) == {ELSEWHERE}


def test_a_removal_that_has_been_applied_drops_its_path_alone(site: Site) -> None:
    site.step(most=99, jobs=99)
    site.remove(group=A)
    site.step(most=99, jobs=99)
    site.die(starts=True)
    assert read_all(site) == {SAME_ROW, ELSEWHERE}


def test_a_removal_that_the_disk_has_not_recorded_drops_its_row_at_the_next_worker(site: Site) -> None:
    site.remove(group=A)
    site.step(most=99, jobs=0)
    site.die(starts=True)
    assert read_all(site) == {ELSEWHERE}


def test_bytes_that_were_written_before_the_worker_has_looked_are_dropped_at_the_next_worker(site: Site) -> None:
    site.read(group=A, fetches=False)
    site.step(most=99, jobs=99)
    site.remove(group=A)
    site.evict(group=A)
    site.step(most=0, jobs=99)
    site.die(starts=True)
    assert A not in read_all(site)


def test_a_removal_that_is_under_way_while_the_store_is_opened_drops_its_row(site: Site) -> None:
    site.begin_removal(group=A)
    site.record_removal()
    site.die(starts=True)
    # The record is there, but the removal is not counted yet.
    assert read_all(site) == {ELSEWHERE}
    site.end_removal()
    assert read_all(site) == {ELSEWHERE}


def test_a_removal_that_happens_while_a_row_is_checked_is_found(site: Site) -> None:
    worker = site.worker
    assert worker is not None

    def look_at_row(row: int) -> None:
        if not site.records:
            site.remove(group=A)
        Worker.look_at_row(worker, row)

    worker.rows._look_at_row = look_at_row
    worker.rows.check(A)
    site.step(most=99, jobs=99)
    assert read_all(site) == {ELSEWHERE}


def test_a_purge_that_the_disk_has_missed_drops_all_streams(site: Site) -> None:
    site.step(most=99, jobs=99)
    site.die(starts=False)
    site.purge(group=A)
    site.start()
    assert read_all(site) == set()


def test_a_purge_that_the_disk_has_recorded_drops_its_own_streams(site: Site) -> None:
    site.step(most=99, jobs=99)
    site.purge(group=A)
    site.step(most=99, jobs=99)
    site.die(starts=True)
    assert read_all(site) == {SAME_ROW, ELSEWHERE}


def test_a_purge_that_the_worker_has_not_carried_out_drops_all_streams(site: Site) -> None:
    site.step(most=99, jobs=99)
    site.purge(group=A)
    # The worker of this disk hangs, so it is not asked in time.
    with site.removals.purging():
        site.step(most=99, jobs=99)
    assert read_all(site) == {SAME_ROW, ELSEWHERE}
    site.step(most=99, jobs=99)
    assert read_all(site) == set()
    assert site.durable == {}
    assert Removals(site.shared, OWN).done_purges(OWN) == 2


def test_a_purge_that_the_worker_has_missed_is_found_by_the_next_purge(site: Site) -> None:
    site.step(most=99, jobs=99)
    with site.removals.purging():
        pass
    site.purge(group=A)
    assert read_all(site) == set()


def test_purges_at_the_same_time_drop_their_own_streams(site: Site) -> None:
    site.step(most=99, jobs=99)
    with site.removals.purging(), Removals(site.shared, OWN).purging():
        for group in (A, SAME_ROW):
            site.purge(group=group)
            site.step(most=99, jobs=99)
    site.step(most=99, jobs=99)
    assert read_all(site) == {ELSEWHERE}


def test_a_purge_that_is_missed_before_the_first_pass_leaves_no_row_unchecked(site: Site) -> None:
    worker = site.worker
    assert worker is not None
    with site.removals.purging():
        pass
    worker.rows.purged()
    site.step(most=99, jobs=99)
    site.step(most=99, jobs=99)
    assert not any(map(worker.rows.is_unchecked, PATHS)), "what is not checked is not written"
    assert worker.rows.is_settled
    assert worker.disk.holder == Holder(site.shared.name, 0)


def test_a_store_whose_counts_another_version_has_overwritten_is_emptied(site: Site) -> None:
    site.step(most=99, jobs=99)
    site.die(starts=False)
    # Another version without a store has taken the place over, and has ended.
    before = site.shared.tenure(OWN)
    site.shared.words[site.shared.place_word(OWN, _TAKEN)] += 1
    site.holder = Holder(site.shared.name, before)
    site.start()
    assert read_all(site) == set()


def test_a_pass_takes_few_rows_in_a_turn_and_notes_its_end_once(site: Site) -> None:
    worker = site.worker
    assert worker is not None
    assert repr(worker.rows) == "<DiskRows 2 rows, 2 unchecked, 0 to visit>"
    site.step(most=1, jobs=99)
    assert repr(worker.rows) == "<DiskRows 2 rows, 1 unchecked, 1 to visit>"
    assert (worker.disk.holder, worker.rows.is_settled) == (None, False)
    site.step(most=1, jobs=99)
    assert (worker.disk.holder, worker.rows.is_settled) == (Holder(site.shared.name, 0), True)
    site.remove(group=A)
    assert not worker.rows.is_settled


def test_a_disk_that_does_not_take_a_removal_is_asked_again(site: Site) -> None:
    site.step(most=99, jobs=99)
    site.remove(group=A)
    worker = site.worker
    assert worker is not None
    asked: list[Callable[[bool], object]] = []
    worker.disk.when_done = lambda done, holder: asked.append(done)  # type: ignore[method-assign]
    worker.rows.step()
    asked.pop()(False)
    assert Removals(site.shared, OWN).done(ROWS[A], OWN) == 0
    worker.rows.step()
    asked.pop()(True)
    assert (Removals(site.shared, OWN).done(ROWS[A], OWN), worker.rows.is_settled) == (1, True)

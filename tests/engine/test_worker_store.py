"""A worker's store: when it is opened, and how the folders of other slots are marked."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.aio.clock import ManualClock
from gateway.config.errors import ConfigError
from gateway.config.store import StoreConfig
from gateway.disk.folders import SLOT_LOCK, folder_of, is_behind, mark_behind, take_lock
from gateway.disk.index import Index
from gateway.disk.store import DiskStore
from gateway.engine.others_writes import OthersWrites
from gateway.engine.process_store import AGAIN_S, FAILED_S
from gateway.engine.worker_store import BEHIND_S, LOOK_S, OPEN_BEHIND_LOOKS, WorkerStore
from gateway.ops.admin.origins import store_lines
from gateway.protocol.sharing import Group
from gateway.workers.place import WorkerPlace
from gateway.workers.removals import Removals
from gateway.workers.shared_memory import SharedMemory, SlotState
from gateway.workers.worker_owners import Owners
from tests.waiting import eventually

GROUP = Group("http://o", "/s")


class Crew:
    """Workers that share memory, each with a store."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = ManualClock()
        self.shared = SharedMemory.create(2, secret=bytes(16))
        self.stores: list[WorkerStore] = []
        self.disks: dict[int, DiskStore] = {}

    def store(self, slot: int, generation: int = 1) -> WorkerStore:
        """The store of a worker that has just started."""
        self.shared.set_slot(slot, SlotState.SERVING, generation, 1)
        owners = Owners(self.shared, slot)
        others = SimpleNamespace(
            keep_on_disk=lambda kept: None,
            look_at_row=lambda row: None,
            index_of=lambda group: owners.cell_of(*group),
        )
        place = SimpleNamespace(
            slot=slot,
            workers=2,
            generation=generation,
            shared=self.shared,
            has_predecessor=False,
            control=SimpleNamespace(is_alone=False),
        )
        config = StoreConfig(path=str(self.root), max_bytes=8 << 20, segment_bytes=1 << 20)
        made = WorkerStore(
            config,
            cast(WorkerPlace, place),
            owners,
            cast(OthersWrites, others),
            self.clock,
            lambda disk: self.disks.update({slot: disk}),
        )
        self.stores.append(made)
        return made

    async def passes(self, seconds: float) -> None:
        """Let time pass, and the writers work."""
        for _ in range(round(seconds / LOOK_S) + 1):
            self.clock.advance(LOOK_S)
            for disk in self.disks.values():
                assert await disk.settled()
            await asyncio.sleep(0)

    async def close(self) -> None:
        for store in self.stores:
            closing = asyncio.ensure_future(store.close(1.0))
            await eventually(partial(self._advanced, closing), look_s=0)
            await closing
        for disk in self.disks.values():
            await disk.close([])

    def _advanced(self, closing: asyncio.Future[None]) -> bool:
        """Let time pass; return whether a store has closed."""
        self.clock.advance(0.01)
        return closing.done()

    async def waits(self) -> None:
        """Return once a store waits for its next attempt to open."""
        # Besides the next look at the other slots.
        await eventually(lambda: self.clock.pending == 2, look_s=0)


@pytest.fixture
async def crew(tmp_path: Path) -> AsyncIterator[Crew]:
    made = Crew(tmp_path)
    yield made
    await made.close()


async def test_the_first_worker_of_a_slot_opens_its_store_before_it_serves(crew: Crew) -> None:
    await crew.store(0).open()
    await crew.store(1).open()
    assert set(crew.disks) == {0, 1}
    assert crew.disks[1].max_bytes == 4 << 20
    assert crew.stores[0].without() == []
    owners = [crew.disks[slot].owns(GROUP) for slot in (0, 1)]
    assert sorted(owners) == [False, True]


async def test_a_worker_waits_without_its_store_for_the_end_of_the_version_before(crew: Crew) -> None:
    lock = take_lock(crew.root, SLOT_LOCK)
    crew.shared.set_slot(1, SlotState.SERVING, 1, 1)
    store = crew.store(0)
    await store.open()
    await crew.waits()
    assert not crew.disks
    assert store_lines(store) == (
        "[-] worker 0: serves without its store on disk\n[-] worker 1: serves without its store on disk\n"
    )
    os.close(lock)
    await eventually(lambda: opens(crew, AGAIN_S))
    assert store_lines(store) == "[-] worker 1: serves without its store on disk\n"


@pytest.mark.parametrize("generation", [1, 2])
async def test_a_worker_opens_no_store_while_a_worker_of_the_version_before_runs(crew: Crew, generation: int) -> None:
    """The folder may be free: the slot's earlier worker is dead, or the store was off."""
    store = crew.store(0, generation)
    store._crew.has_predecessor = True  # type: ignore[misc]
    await store.open()
    for _ in range(5):
        await crew.waits()
        crew.clock.advance(AGAIN_S)
    await crew.waits()
    assert not crew.disks
    store._crew.has_predecessor = False  # type: ignore[misc]
    await eventually(lambda: opens(crew, AGAIN_S))


def opens(crew: Crew, after_s: float) -> bool:
    """Let time pass until the store is open."""
    crew.clock.advance(after_s)
    return bool(crew.disks)


async def test_a_worker_that_replaces_a_dead_one_serves_before_its_store_is_open(
    crew: Crew, caplog: pytest.LogCaptureFixture
) -> None:
    folder = folder_of(crew.root, 1)
    folder.write_text("no folder")
    with pytest.raises(ConfigError, match=r"store\.path: "):
        await crew.store(1).open()
    await crew.store(1, generation=2).open()
    await eventually(lambda: bool(caplog.messages))
    assert caplog.messages[0].startswith("worker 1: serves without its store on disk: store.path: [Errno")
    await crew.waits()
    crew.clock.advance(FAILED_S)
    await crew.waits()
    assert len(caplog.messages) == 1, "the same line once"
    with suppress(FileNotFoundError):
        folder.unlink()
    await eventually(lambda: opens(crew, FAILED_S))


async def test_the_folder_of_a_slot_that_falls_behind_is_marked(crew: Crew) -> None:
    await crew.store(0).open()
    await crew.store(1).open()
    await crew.passes(3 * BEHIND_S)
    one, two = (folder_of(crew.root, slot) for slot in (0, 1))
    assert (is_behind(one), is_behind(two)) == (False, False)
    # The other worker goes on, and so does its disk.
    removals = Removals(crew.shared, 0)
    removals.begin(5)
    removals.end(5)
    await crew.passes(3 * BEHIND_S)
    assert (is_behind(one), is_behind(two)) == (False, False)
    dead = crew.stores.pop()
    await stopped(dead, crew)
    removals.begin(5)
    removals.end(5)
    # A worker that serves may need some seconds.
    await crew.passes(3 * BEHIND_S)
    assert (is_behind(one), is_behind(two)) == (False, False)
    await crew.passes(OPEN_BEHIND_LOOKS * BEHIND_S)
    assert (is_behind(one), is_behind(two)) == (False, True)
    assert removals.slots_behind() == [1]
    # Its next worker has caught up.
    await crew.store(1, generation=2).open()
    await eventually(lambda: 1 in crew.disks)
    await crew.passes(2 * BEHIND_S)
    assert (is_behind(one), is_behind(two)) == (False, False)
    assert removals.slots_behind() == []


async def test_a_disk_that_is_full_does_not_keep_a_worker_from_starting(
    crew: Crew, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = folder_of(crew.root, 1)
    with monkeypatch.context() as patched:
        patched.setattr("gateway.disk.opening.open_index", full_disk)
        store = crew.store(1)
        await store.open()
        assert is_behind(folder), "the next gateway may begin before this one has opened it"
        assert store.without() == [1]
        await crew.waits()
        crew.clock.advance(FAILED_S)
        await crew.waits()
        text = f"worker 1: serves without its store on disk: store.path: the index in {folder} cannot be opened: full"
        assert caplog.messages == [text], "the same line once"
    await eventually(lambda: opens(crew, FAILED_S))
    assert (is_behind(folder), store.without()) == (False, [])


async def test_a_disk_that_cannot_be_marked_keeps_a_worker_from_starting(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.disk.opening.open_index", full_disk)
    (folder_of(crew.root, 1) / "behind").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"full; the gateway does not start without the store, because .*behind"):
        await crew.store(1).open()


def full_disk(folder: Path) -> Index:
    error = sqlite3.OperationalError("full")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
    raise error


@pytest.mark.parametrize("is_replacing", [False, True])
async def test_folders_that_no_worker_can_open_are_marked(crew: Crew, is_replacing: bool) -> None:
    """After an upgrade, for example because the disk is full."""
    locks = [take_lock(folder_of(crew.root, slot), SLOT_LOCK) for slot in (0, 1)]
    for slot in (0, 1):
        store = crew.store(slot, generation=2)
        store._crew.has_predecessor = is_replacing  # type: ignore[misc]
        await store.open()
    removals = Removals(crew.shared, 0)
    removals.begin(7)
    removals.end(7)

    def marked() -> list[bool]:
        crew.clock.advance(LOOK_S)
        return [is_behind(folder_of(crew.root, slot)) for slot in (0, 1)]

    if is_replacing:
        for _ in range(30):
            await asyncio.sleep(0)
            assert marked() == [False, False], "the workers of the version before look themselves"
    else:
        await eventually(lambda: marked() == [True, True])
    for lock in locks:
        os.close(lock)


async def test_a_folder_that_cannot_be_marked_is_logged_once(crew: Crew, caplog: pytest.LogCaptureFixture) -> None:
    await crew.store(0).open()
    crew.shared.set_slot(1, SlotState.DEAD, 1, 0)
    mark = folder_of(crew.root, 1) / "behind"
    mark.mkdir(parents=True)
    removals = Removals(crew.shared, 0)
    removals.begin(5)
    removals.end(5)
    for _ in range(4):
        await crew.passes(BEHIND_S)
        assert (marking := crew.stores[0]._marking) is None or await marking
    assert caplog.messages == [
        f"worker 0: cannot mark {mark.parent}, whose store has missed removals: [Errno 21] Is a directory: '{mark}'"
    ]
    assert crew.disks[0].errors == 0


@pytest.mark.parametrize("is_alone", [True, False])
async def test_the_last_worker_marks_the_folders_that_are_behind_if_the_supervisor_is_gone(
    crew: Crew, is_alone: bool
) -> None:
    await crew.store(0).open()
    folder_of(crew.root, 1).mkdir()
    crew.stores[0]._crew.control.is_alone = is_alone  # type: ignore[misc]
    removals = Removals(crew.shared, 0)
    removals.begin(5)
    removals.end(5)
    await crew.close()
    assert [is_behind(folder_of(crew.root, slot)) for slot in (0, 1)] == [False, is_alone]
    crew.stores.clear()
    crew.disks.clear()


async def stopped(store: WorkerStore, crew: Crew) -> None:
    """End a store without a last look, as a death does."""
    assert store._timer is not None
    store._timer.cancel()
    await crew.disks.pop(1).close([])


async def test_a_purge_marks_the_folders_that_do_not_learn_of_it(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    store = crew.store(0)
    await store.open()
    crew.shared.set_slot(1, SlotState.SERVING, 1, 1)
    folder = folder_of(crew.root, 1)
    folder.mkdir()
    assert await store.mark_absent()
    assert not is_behind(folder), "its worker is asked itself"
    late = crew.store(1, generation=2)
    assert await late.mark_absent()
    assert is_behind(folder), "its store is not open"
    (folder / "behind").unlink()
    crew.shared.set_slot(1, SlotState.DEAD, 2, 0)
    assert await store.mark_absent()
    assert is_behind(folder)

    def fails(folder: Path) -> None:
        raise OSError

    monkeypatch.setattr("gateway.engine.worker_store.mark_behind", fails)
    assert not await store.mark_absent()


async def test_the_end_of_a_store_waits_until_its_removals_are_noted(crew: Crew) -> None:
    store: Any = crew.store(0)
    await store.open()
    removals = Removals(crew.shared, 1)
    removals.begin(5)
    removals.end(5)
    assert removals.slots_behind() == [0, 1]
    await crew.close()
    assert removals.slots_behind() == [1]
    crew.stores.clear()
    crew.disks.clear()


async def test_the_end_of_a_store_removes_a_mark_that_came_after_it_had_caught_up(crew: Crew) -> None:
    await crew.store(0).open()
    await crew.passes(1.0)
    mark_behind(crew.root)
    await crew.passes(1.0)
    assert is_behind(crew.root), "no removal, so no new note"
    await crew.close()
    assert not is_behind(crew.root)
    crew.stores.clear()
    crew.disks.clear()


async def test_the_end_of_a_store_that_is_behind_leaves_its_mark(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    await crew.store(0).open()
    await crew.passes(1.0)
    mark_behind(crew.root)
    monkeypatch.setattr(crew.disks[0], "when_done", lambda done, holder: None)
    removals = Removals(crew.shared, 1)
    removals.begin(5)
    removals.end(5)
    await crew.close()
    assert is_behind(crew.root)
    crew.stores.clear()
    crew.disks.clear()

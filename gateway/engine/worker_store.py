"""Opens the store on disk of one of several workers, and applies the other workers' removals to it.

Each worker uses the folder of its slot (`gateway.disk.folders`), and a share of the bytes.  The first worker of a slot
opens the folder before the gateway serves requests.  If the folder cannot be used, the start fails.  Three kinds of
workers serve without their store at first, and open it in a thread: a worker that replaces a dead worker, a worker
whose folder is still used by the previous version, and a worker whose disk is full or fails.

After the opening, each worker applies the removals of the other workers (`gateway.engine.disk_rows`).  From its start
on, it also looks for slots whose disks have not done all removals: their workers are dead, hang, or have not opened
their stores.  It marks the folders of these slots, because the counts of removals are lost if the whole gateway is
killed.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from pathlib import Path
from typing import Final

from gateway.aio.clock import Clock, Timer, wait_until
from gateway.aio.daemon_threads import in_daemon_thread
from gateway.aio.tasks import Tasks
from gateway.config.store import StoreConfig
from gateway.disk.folders import (
    WORKER_LOCKS,
    DiskFailsError,
    InUseError,
    folder_of,
    mark_behind,
    part_of,
    remove_rest,
    rest_of,
)
from gateway.disk.index import Holder
from gateway.disk.logger import StoreLog
from gateway.disk.opening import OpenedFolder, mark_unopened, open_folder
from gateway.disk.store import SETTLE_S, DiskStore
from gateway.engine.disk_rows import DiskRows
from gateway.engine.others_writes import OthersWrites
from gateway.engine.process_store import AGAIN_S, FAILED_S, log_without, opened_later
from gateway.protocol.sharing import Group
from gateway.workers.place import WorkerPlace
from gateway.workers.removals import Removals
from gateway.workers.shared_memory import HASHES, SlotState
from gateway.workers.worker_owners import Owners, owner

LOOK_S: Final = 0.1
"""The seconds between two checks for new removals of the other workers."""
BEHIND_S: Final = 1.0
"""The seconds between two looks at the other slots.  A slot without an open store gets a mark if its disk has not done
a removal that was counted at the previous look."""
OPEN_BEHIND_LOOKS: Final = 5
"""A slot with an open store gets a mark if its disk has not done a removal that was counted this many looks earlier.
Its worker may need two passes over its rows.  With the maximum of 65,536 rows, two passes take 3.2 s."""

Rows = dict[int, set[Group]]


class WorkerStore:
    """Opens the store of this worker, and applies removals to it.  The owner must call `close` before it closes the
    store."""

    def __init__(
        self,
        config: StoreConfig,
        crew: WorkerPlace,
        owners: Owners,
        others: OthersWrites,
        clock: Clock,
        take: Callable[[DiskStore], object],
    ) -> None:
        """`config` is the store of the whole gateway.  `take` is called with the open store."""
        self._root = Path(config.path)
        self._config = part_of(config, crew.slot, crew.workers)
        self._crew = crew
        self._cell_of = owners.cell_of
        self._others = others
        self._clock = clock
        self._take = take
        self.removals = Removals(crew.shared, crew.slot)
        self._owner: Callable[[int], int] = lru_cache(HASHES)(partial(owner, slots=range(crew.workers)))
        self._rows: DiskRows | None = None
        self._disk: DiskStore | None = None
        self._log = StoreLog(crew.slot)
        self._tasks = Tasks()
        self._timer: Timer | None = None
        self._earlier: deque[tuple[int, int]] = deque(maxlen=OPEN_BEHIND_LOOKS)
        """The numbers of ended removals and purges at the latest looks at the other slots, the oldest first."""
        self._look_at_others_at = clock.now() + BEHIND_S
        self._marking: asyncio.Future[frozenset[Path]] | None = None
        """The latest marking, which is not repeated before it has ended."""
        self._unmarked: frozenset[Path] = frozenset()
        """The folders whose latest marking has failed."""

    def __repr__(self) -> str:
        return f"<WorkerStore {self._crew.slot}, {self._rows or 'not open'}>"

    # -- opening

    async def open(self) -> None:
        """Open the store, or start a task that opens it later.  Raises ConfigError if the slot's first worker cannot
        use the folder.  If its disk is full or fails, the worker serves without it."""
        failure = ""
        if self._crew.generation == 1 and not self._crew.has_predecessor:
            try:
                opened, rows = await self._opened(is_late=False)
            except InUseError:
                pass
            except DiskFailsError as error:
                failure = str(error)
                await self._mark_unopened(error)
                log_without(self._log, error)
            else:
                self._use(opened, rows)
                self._look()
                return
        if self._crew.generation == 1 and not failure:
            self._log.info("serves without its store on disk until no other process uses it")
        self._tasks.start(self._open_later(failure), "open the store on disk")
        self._look()

    async def _mark_unopened(self, error: DiskFailsError) -> None:
        folder = folder_of(self._root, self._crew.slot)
        # The first worker removes the folders of slots that no longer exist once it has opened its own.
        rest = rest_of(self._root, self._crew.workers) if self._crew.slot == 0 else ()
        await in_daemon_thread(lambda: mark_unopened((folder, *rest), error), "store-marks")

    async def _open_later(self, failure: str = "") -> None:
        if failure:
            await self._pause(FAILED_S)
        while self._crew.has_predecessor:
            # Wait until the previous version has ended, because this worker does not see the purges of its workers.
            await self._pause(AGAIN_S)
        opened, rows = await opened_later(lambda: self._opened(is_late=True), self._clock, self._log, failure)
        self._use(opened, rows)
        self._log.info("has opened its store on disk: %d streams", len(opened.loaded.streams))

    async def _opened(self, *, is_late: bool) -> tuple[OpenedFolder, Rows]:
        holder, cell_of = Holder(self.removals.memory, self.removals.tenure), self._cell_of

        def work() -> tuple[OpenedFolder, Rows]:
            opened = open_folder(self._config, WORKER_LOCKS, holder, is_late=is_late)
            rows: Rows = defaultdict(set)
            for group in opened.loaded.paths:
                rows[cell_of(*group)].add(group)
            return opened, rows

        return await in_daemon_thread(work, "store-opener")

    async def _pause(self, delay_s: float) -> None:
        await wait_until(asyncio.get_running_loop().create_future(), self._clock, delay_s)

    def _use(self, opened: OpenedFolder, rows: Rows) -> None:
        disk = self._disk = DiskStore(opened, self._config, self._clock, self._crew.slot, self._crew.workers)
        others, row_of = self._others, self._others.index_of
        kept = self._rows = DiskRows(disk, rows, self.removals, row_of, others.look_at_row, opened.holder)
        others.keep_on_disk(kept.in_row)
        disk.owns = lambda group: self._owner(row_of(group)) == self._crew.slot
        disk.check, disk.is_unchecked = kept.check, kept.is_unchecked
        disk.path_added, disk.path_removed = kept.path_added, kept.path_removed
        self._take(disk)
        self.removals.set_open(self._crew.generation)
        if self._crew.slot == 0:
            self._tasks.start(self._remove_rest(), "folders of slots that are gone")
        kept.step()

    async def _remove_rest(self) -> None:
        """Remove the folders of slots that no longer exist, as soon as no process uses them."""
        root, workers = self._root, self._crew.workers
        while not await in_daemon_thread(lambda: remove_rest(root, workers), "store-remover"):
            await self._pause(AGAIN_S)

    # -- keeping in step

    def _look(self) -> None:
        self._timer = self._clock.call_later(LOOK_S, self._look)
        if self._rows is not None:
            self._rows.step()
        if (now := self._clock.now()) >= self._look_at_others_at:
            self._look_at_others_at = now + BEHIND_S
            self._look_at_others()

    def _look_at_others(self) -> None:
        """Mark the folders of slots whose disks have not done the removals and purges of an earlier look."""
        crew, earlier = self._crew, self._earlier
        if self._disk is None and crew.has_predecessor:
            # Its workers have the folders, and look themselves.
            return
        behind = []
        for slot in range(crew.workers):
            is_open = self.removals.is_open(slot) and crew.shared.state(slot) is not SlotState.DEAD
            looks = OPEN_BEHIND_LOOKS if is_open else 1
            is_own = slot == crew.slot and self._disk is not None
            if not is_own and len(earlier) >= looks and self.removals.is_behind(slot, *earlier[-looks]):
                behind.append(slot)
        earlier.append((self.removals.total.ended, self.removals.purges.ended))
        if behind and (self._marking is None or self._marking.done()):
            self._marking = self._mark(behind)

    def _mark(self, slots: Iterable[int]) -> asyncio.Future[frozenset[Path]]:
        """Mark the folders of these slots, in a thread.  The result are the folders that cannot be marked."""
        folders = [folder_of(self._root, slot) for slot in slots]

        def mark() -> frozenset[Path]:
            failed = set()
            for folder in folders:
                try:
                    mark_behind(folder)
                except OSError as error:
                    failed.add(folder)
                    if folder not in self._unmarked:
                        self._log.error("cannot mark %s, whose store has missed removals: %s", folder, error)
            self._unmarked = frozenset(failed)
            return self._unmarked

        return in_daemon_thread(mark, "store-marks")

    def purged(self) -> None:
        """Note that this worker has carried out a purge.  Must be called before the purge is counted as ended."""
        # A store that is opened later finds by the count that it may have missed the purge.
        if self._rows is not None:
            self._rows.purged()

    async def mark_absent(self) -> bool:
        """Mark the folders whose stores cannot do a purge.  These are the folders of dead slots, and the folder of this
        worker if its store is not open.

        Returns whether all marks were written within `SETTLE_S`.
        """
        crew = self._crew
        absent = [slot for slot in range(crew.workers) if crew.shared.state(slot) is SlotState.DEAD]
        if self._disk is None:
            absent.append(crew.slot)
        if not absent:
            return True
        marking = self._mark(absent)
        return await wait_until(marking, self._clock, SETTLE_S) and not marking.result()

    def without(self) -> list[int]:
        """Return the slots whose workers serve without their store on disk."""
        return [slot for slot in range(self._crew.workers) if not self.removals.is_open(slot)]

    # -- the end

    async def close(self, within_s: float) -> None:
        """Stop the opening, and let the disk record all removals so far, for at most `within_s`.

        If the supervisor is gone, mark the folders that are behind, which the supervisor does otherwise.  A worker that
        ends later removes the mark of its folder again.
        """
        await self._tasks.close()
        if self._timer is not None:
            self._timer.cancel()
        until = self._clock.now() + within_s
        if self._rows is not None:
            await self._settle(self._rows, until)
        if self._crew.control.is_alone and (behind := self.removals.slots_behind()):
            await wait_until(self._mark(behind), self._clock, max(0.0, until - self._clock.now()))

    async def _settle(self, rows: DiskRows, until: float) -> None:
        # Another worker may have marked the folder after the latest pass.  A new note removes the mark.
        rows.note_again()
        rows.step(HASHES)
        while not rows.is_settled and self._clock.now() < until:
            await self._pause(0.005)
            rows.step(HASHES)

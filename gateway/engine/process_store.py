"""Opens the store on disk of a gateway of one process.

The store is opened before the gateway serves requests.  If its disk is full or fails, the gateway serves without the
store, and tries again every `FAILED_S` seconds.  Nobody counts the removals meanwhile.  So the folder is marked first,
and is emptied when it is opened (`gateway.disk.folders.mark_behind`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

from gateway.aio.clock import Clock, pause
from gateway.aio.daemon_threads import in_daemon_thread
from gateway.aio.tasks import Tasks
from gateway.config.errors import ConfigError
from gateway.config.store import StoreConfig
from gateway.disk.folders import ALL_LOCKS, DiskFailsError, InUseError, remove_rest, rest_of
from gateway.disk.logger import StoreLog
from gateway.disk.opening import OpenedFolder, mark_unopened, open_folder
from gateway.disk.store import DiskStore

AGAIN_S: Final = 0.5
"""The seconds between two attempts to open a folder that another process uses."""
FAILED_S: Final = 30.0
"""The seconds between two attempts to open a folder that could not be opened for another reason."""

T = TypeVar("T")


class ProcessStore:
    """Opens the store.  The owner must call `close`."""

    def __init__(self, config: StoreConfig, clock: Clock, take: Callable[[DiskStore], object]) -> None:
        """`take` is called with the open store."""
        self._config = config
        self._clock = clock
        self._take = take
        self._tasks = Tasks()
        self.is_open = False

    def __repr__(self) -> str:
        return f"<ProcessStore {'open' if self.is_open else 'not open'}>"

    def open(self) -> None:
        """Open the store, or start a task that opens it later.  Raises ConfigError if the folder cannot be used."""
        try:
            disk = DiskStore.open(self._config, self._clock)
        except DiskFailsError as error:
            root = Path(self._config.path)
            mark_unopened((root, *rest_of(root, 1)), error)
            log_without(StoreLog(), error)
            self._tasks.start(self._open_later(str(error)), "open the store on disk")
        else:
            self._use(disk)

    async def _open_later(self, failure: str) -> None:
        def work() -> Awaitable[OpenedFolder]:
            return in_daemon_thread(lambda: open_folder(self._config, ALL_LOCKS, is_late=True), "store-opener")

        await pause(self._clock, FAILED_S)
        opened = await opened_later(work, self._clock, StoreLog(), failure)
        self._use(DiskStore(opened, self._config, self._clock))
        StoreLog().info("has opened its store on disk, which begins empty")

    def _use(self, disk: DiskStore) -> None:
        self.is_open = True
        self._take(disk)
        # Remove the folders of all slots except slot 0, because this gateway has only one process.
        root = Path(self._config.path)
        self._tasks.start(_removed(root), "folders of workers that are gone")

    async def close(self) -> None:
        """Stop the opening."""
        await self._tasks.close()


async def _removed(root: Path) -> None:
    await in_daemon_thread(lambda: remove_rest(root, 1), "store-remover")


async def opened_later(open_: Callable[[], Awaitable[T]], clock: Clock, log: StoreLog, failure: str = "") -> T:
    """Call `open_` until it succeeds, and return its result.  `failure` is the reason that was logged last."""
    while True:
        try:
            return await open_()
        except InUseError:
            await pause(clock, AGAIN_S)
        except ConfigError as error:
            if str(error) != failure:
                failure = str(error)
                log_without(log, error)
            await pause(clock, FAILED_S)


def log_without(log: StoreLog, why: ConfigError) -> None:
    """Log that the store cannot be opened for now."""
    log.error("serves without its store on disk: %s", why)

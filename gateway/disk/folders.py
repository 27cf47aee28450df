"""The folders of the store on disk, and the locks that protect them.

The worker of slot 0 uses the folder `store.path` itself, as a gateway of one process does.  Each other slot has a
subfolder, whose name is the slot's number.  If the number of workers changes, each remaining slot keeps its folder, and
the folders of slots that no longer exist are removed.

    lock         The lock of the whole gateway.  Its supervisor and all processes forked from it hold this lock.  In an
                 upgrade, the next version inherits it.
    slot.lock    The lock of a slot's worker.  In an upgrade, the next version's worker waits for it.  A gateway of one
                 process holds both locks.
    hash.key     The key of the hash that assigns each stream to an owner among the workers.  It is kept over restarts.
    behind       See `mark_behind`.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from gateway.config.errors import ConfigError
from gateway.config.store import StoreConfig

_log = logging.getLogger("gateway.store")

LOCK: Final = "lock"
SLOT_LOCK: Final = "slot.lock"
WORKER_LOCKS: Final = (SLOT_LOCK,)
ALL_LOCKS: Final = (SLOT_LOCK, LOCK)
"""The locks of a gateway of one process.  The lock of the slot is first, so that a folder of another gateway's worker
gets no lock of a gateway."""
_KEY: Final = "hash.key"
_KEY_BYTES: Final = 16
_BEHIND: Final = "behind"
_INDEX: Final = "index.sqlite"
_OWN_FILES: Final = (
    *(f"{name}{end}" for name in (_INDEX, "index.damaged") for end in ("", "-wal", "-shm")),
    "[0-9]*.segment",
    _BEHIND,
    SLOT_LOCK,
)
"""The files of a slot, in the order of their removal.  The index is first, because segments cannot be used without it.
The lock is last, because it shows that the folder belongs to a slot."""


_FAILING: Final = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
_FAILING_IN_SQLITE: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


class InUseError(Exception):
    """Another process holds the lock."""


class DiskFailsError(ConfigError):
    """The disk is full, or fails.  The configuration may be right, so the gateway serves without the store."""


def cannot_use(text: str, error: OSError | sqlite3.Error) -> ConfigError:
    """Return the exception for a store that cannot be used because of `error`: a DiskFailsError if the disk is full
    or fails."""
    if isinstance(error, sqlite3.Error):
        # The lower byte of an extended code is the primary code.
        is_failing = getattr(error, "sqlite_errorcode", 0) & 0xFF in _FAILING_IN_SQLITE
    else:
        is_failing = error.errno in _FAILING
    return (DiskFailsError if is_failing else ConfigError)(text)


def folder_of(root: Path, slot: int) -> Path:
    """Return the folder of a slot."""
    return root / str(slot) if slot else root


def part_of(config: StoreConfig, slot: int, workers: int) -> StoreConfig:
    """Return the configuration of the store of one worker: the folder of its slot, and its share of the bytes.

    `workers` is the number of workers.  With one worker, the configuration is not changed.
    """
    if workers == 1:
        return config
    most = config.max_bytes // workers
    path = str(folder_of(Path(config.path), slot))
    return config.model_copy(
        update={"path": path, "max_bytes": most, "segment_bytes": min(config.segment_bytes, most // 2)}
    )


def take_lock(folder: Path, name: str) -> int:
    """Create the folder if it is missing, and lock it.  Returns the descriptor that holds the lock.

    Raises InUseError, OSError.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise InUseError from None
    except OSError:
        os.close(lock)
        raise
    return lock


def take_locks(folder: Path, names: Sequence[str]) -> list[int]:
    """Like `take_lock`, for several locks of the folder."""
    with ExitStack() as taken:
        locks = []
        for name in names:
            locks.append(lock := take_lock(folder, name))
            taken.callback(os.close, lock)
        taken.pop_all()
    return locks


def lock_gateway(path: str, inherited: int | None = None) -> int:
    """Lock the store for a gateway with several workers.  Returns the descriptor that holds the lock.

    `inherited` is the lock's descriptor from the previous version.  If it locks the same folder, this version keeps it.
    Otherwise it is closed.  Raises ConfigError if another gateway uses the folder, or if the folder cannot be used.
    """
    folder = Path(path)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if inherited is not None:
            if _is_file(inherited, folder / LOCK):
                return inherited
            os.close(inherited)
        # A worker of another gateway may use the folder.
        os.close(take_lock(folder, SLOT_LOCK))
        return take_lock(folder, LOCK)
    except InUseError:
        raise ConfigError(in_use(folder)) from None
    except OSError as error:
        raise ConfigError(f"store.path: {error}") from None


def in_use(folder: Path) -> str:
    """Return the error message for a folder that another process uses."""
    return f"store.path: another process uses {folder}"


def _is_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def read_key(path: str) -> bytes | None:
    """Return the key of the hash that assigns streams to owners; None if there is no valid key.  Raises ConfigError."""
    try:
        key = (Path(path) / _KEY).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"store.path: {error}") from None
    return key if len(key) == _KEY_BYTES else None


def write_key(path: str, key: bytes) -> None:
    """Keep the key for the next start.  Raises ConfigError, or DiskFailsError if the disk is full or fails."""
    file = Path(path) / _KEY
    try:
        part = file.with_suffix(".new")
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as out:
            out.write(key)
        part.replace(file)
    except OSError as error:
        raise cannot_use(f"store.path: {error}", error) from None


# -- folders that have missed removals


def mark_behind(folder: Path) -> None:
    """Mark a folder whose store has not done all removals.  Returns once the mark would survive a crash.

    The counts of removals (`gateway.workers.removals`) are in memory, and are lost when the whole gateway ends.  The
    next gateway therefore does not know which removals are missing, and empties a folder with this mark.  Does nothing
    if the folder does not exist.  Raises OSError.
    """
    if not folder.is_dir():
        return
    os.close(os.open(folder / _BEHIND, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(held)
    finally:
        os.close(held)


def is_behind(folder: Path) -> bool:
    """Return whether a folder has the mark.  Raises OSError."""
    return (folder / _BEHIND).exists()


def unmark(folder: Path) -> None:
    """Remove the mark, because the folder's store has done all removals or is empty.  Raises OSError."""
    (folder / _BEHIND).unlink(missing_ok=True)


# -- folders of slots that no longer exist


def remove_rest(root: Path, workers: int) -> bool:
    """Remove the folders of all slots whose number is at least `workers`.  The folder of slot 0 is never removed.

    Returns False if another process still uses one of these folders.  If the removal of a folder fails for another
    reason, a warning is logged.  Runs in a thread, because the files may be large.
    """
    is_complete = True
    for folder in rest_of(root, workers):
        is_complete &= _remove(folder)
    return is_complete


def rest_of(root: Path, workers: int) -> Iterator[Path]:
    """Return the folders of all slots whose number is at least `workers`, without that of slot 0."""
    for folder in sorted(root.glob("[1-9]*")):
        is_rest = (
            folder.name.isdecimal() and str(int(folder.name)) == folder.name and int(folder.name) >= max(workers, 1)
        )
        # The operator may have other folders here, so take only folders with a slot's lock.  A folder with the lock of
        # a gateway belongs to another gateway.
        is_slot = not folder.is_symlink() and (folder / SLOT_LOCK).is_file() and not (folder / LOCK).exists()
        if is_rest and is_slot:
            yield folder


def _remove(folder: Path) -> bool:
    try:
        lock = take_lock(folder, SLOT_LOCK)
    except InUseError:
        return False
    except OSError as error:
        _log.warning("the store on disk cannot remove the folder of a worker that is gone: %s", error)
        return True
    try:
        for pattern in _OWN_FILES:
            for file in folder.glob(pattern):
                file.unlink()
        folder.rmdir()
        _log.info("the store on disk has removed %s, the folder of a worker that is gone", folder)
    except OSError as error:
        _log.warning("the store on disk cannot remove the folder of a worker that is gone: %s", error)
    finally:
        os.close(lock)
    return True

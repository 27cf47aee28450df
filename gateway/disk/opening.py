"""Opens a store's folder: takes the lock, opens the index, and loads the streams and runs from the index.

If there are several workers, a store may have missed removals while its folder was not open.  Such a folder is emptied
(`gateway.disk.folders.mark_behind`).  It is not emptied if the shared memory that its index refers to is still in use,
because this memory counts all removals.
"""

from __future__ import annotations

import os
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.config.errors import ConfigError
from gateway.config.store import StoreConfig
from gateway.disk.folders import DiskFailsError, cannot_use, is_behind, mark_behind, take_locks, unmark
from gateway.disk.index import Holder, Index, OtherFormatError, StoredKey, open_index
from gateway.disk.runs import Run, StoredStream
from gateway.disk.writer_thread import Place, Withdraw, segment_path
from gateway.protocol.sharing import Group


@dataclass(slots=True)
class Loaded:
    """The content of an index."""

    sizes: dict[int, int]
    """The sizes of the segments, by number."""
    following: int
    """The number of the next segment."""
    replaced: list[Withdraw]
    """The withdrawals that the writer must repeat, for streams that later streams have replaced."""
    streams: dict[StoredKey, StoredStream]
    paths: defaultdict[Group, set[StoredStream]]
    segments: defaultdict[int, set[StoredStream]]
    runs: int
    numbered: int
    """The highest number of any stream."""


@dataclass(slots=True)
class OpenedFolder:
    """A folder that this process has locked, with its open index.  The owner must pass it to a `DiskStore`, or call
    `close`."""

    folder: Path
    locks: list[int]
    index: Index
    loaded: Loaded
    holder: Holder | None
    """The worker that used the folder last; None if its counts of removals can no longer be read."""

    def close(self) -> None:
        """Close the index, and release the locks."""
        self.index.close()
        release(self.locks)


def release(locks: Iterable[int]) -> None:
    """Release the locks of a folder."""
    for lock in locks:
        os.close(lock)


def open_folder(
    config: StoreConfig, lock_names: Sequence[str], holder: Holder | None = None, *, is_late: bool = False
) -> OpenedFolder:
    """Open the folder `config.path`, and create it if it is missing.  May run in any thread.

    `holder` is this process, if it is one of several workers.  `is_late` states that this gateway already serves
    requests.  The store may then have missed removals although the folder has no mark, so the folder is treated as
    marked.  Raises InUseError if another process uses the folder, and ConfigError if the folder cannot be used; a
    DiskFailsError if the reason is a disk that is full or fails.
    """
    folder = Path(config.path)
    try:
        locks = take_locks(folder, lock_names)
    except OSError as error:
        raise cannot_use(f"store.path: {error}", error) from None
    try:
        index = open_index(folder)
        try:
            earlier = index.holder
            if earlier is None or holder is None or earlier.memory != holder.memory:
                earlier = None
                if is_late or is_behind(folder):
                    index.clear()
                    unmark(folder)
                if holder is not None:
                    index.begin()
                    index.put_holder(holder)
                    index.commit()
            return OpenedFolder(folder, locks, index, _load(folder, index), earlier)
        except BaseException:
            index.close()
            raise
    except OtherFormatError as other:
        text = f"store.path: {folder} has format {other}, which this version does not read: use another folder"
        failure = ConfigError(text)
    except (OSError, sqlite3.Error) as error:
        failure = cannot_use(f"store.path: the index in {folder} cannot be opened: {error}", error)
    except BaseException:
        release(locks)
        raise
    release(locks)
    raise failure


def mark_unopened(folders: Iterable[Path], error: DiskFailsError) -> None:
    """Mark the folders of a gateway that starts without them, because their disk fails.  Raises ConfigError if a mark
    cannot be made: the next gateway would not know that the folder has missed removals."""
    try:
        for folder in folders:
            mark_behind(folder)
    except OSError as failed:
        raise ConfigError(f"{error}; the gateway does not start without the store, because {failed}") from None


def _load(folder: Path, index: Index) -> Loaded:
    """Read the index.  Skips runs that are not completely in a segment, and deletes segments without runs."""
    # The operator may have other files here.
    files = ((int(path.stem), path) for path in folder.glob("*.segment") if path.stem.isdecimal())
    sizes = {number: path.stat().st_size for number, path in files if path == segment_path(folder, number)}
    by_number: dict[int, StoredStream] = {}
    latest_of: dict[StoredKey, int] = {}
    numbered = 0
    for number, key, facts in index.streams():
        numbered = max(numbered, number)
        by_number[number] = StoredStream(number, key, facts)
        latest_of[key] = max(number, latest_of.get(key, 0))
    # The index may have two streams with the same key: the withdrawal of the earlier one could not be recorded.
    kept = set(latest_of.values())
    replaced = [Withdraw(number, ()) for number in by_number if number not in kept]
    by_number = {number: by_number[number] for number in kept}
    segments: defaultdict[int, set[StoredStream]] = defaultdict(set)
    runs, latest = 0, max(sizes, default=0)
    for row in index.runs():
        # A damaged index may have runs without a stream.  Count the numbers of such streams too, so that no new stream
        # gets these runs.
        numbered = max(numbered, row.stream)
        stored, place = by_number.get(row.stream), Place(row.segment, row.position, row.size)
        latest = max(latest, row.segment)
        if stored is None or place.position + place.size > sizes.get(place.segment, 0):
            continue
        if stored.add(Run(row.start, row.end, row.check, row.body, place)):
            segments[place.segment].add(stored)
            runs += 1
    for segment in sizes.keys() - segments.keys():
        segment_path(folder, segment).unlink(missing_ok=True)
        del sizes[segment]
    streams = {stored.key: stored for stored in by_number.values() if len(stored)}
    paths: defaultdict[Group, set[StoredStream]] = defaultdict(set)
    for stored in streams.values():
        paths[stored.group].add(stored)
    return Loaded(sizes, latest + 1, replaced, streams, paths, segments, runs, numbered)

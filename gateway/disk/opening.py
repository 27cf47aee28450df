"""Opening of a store's folder: its lock, its index, and the streams and runs that the index has.

A folder of one of several workers may lack removals that happened while nobody had it open.  Such a folder is emptied
(`gateway.disk.folders`), unless the shared memory that its index names still counts all removals.
"""

from __future__ import annotations

import os
import sqlite3
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from gateway.config.errors import ConfigError
from gateway.config.store import StoreConfig
from gateway.disk.folders import is_behind, take_lock, unmark
from gateway.disk.index import Holder, Index, OtherFormatError, StoredKey, open_index
from gateway.disk.runs import Run, StoredStream
from gateway.disk.writer_thread import Place, Withdraw, segment_path
from gateway.protocol.sharing import Group


@dataclass(slots=True)
class Loaded:
    """The content of an index."""

    sizes: dict[int, int]
    """The sizes of the segments."""
    following: int
    """The number of the next segment."""
    replaced: list[Withdraw]
    """The withdrawals of streams that later streams have replaced."""
    streams: dict[StoredKey, StoredStream]
    paths: defaultdict[Group, set[StoredStream]]
    segments: defaultdict[int, set[StoredStream]]
    runs: int
    numbered: int
    """The highest number of a stream."""


@dataclass(slots=True)
class OpenedFolder:
    """A folder that this process has locked, with its open index.  A `DiskStore` takes it over, or `close` must be
    called."""

    folder: Path
    lock: int
    index: Index
    loaded: Loaded
    holder: Holder | None
    """The place of the worker that has used the folder last, if its counts can still be read."""

    def close(self) -> None:
        """Release the folder."""
        self.index.close()
        os.close(self.lock)


def open_folder(
    config: StoreConfig, lock_name: str, holder: Holder | None = None, *, is_late: bool = False
) -> OpenedFolder:
    """Open the folder `config.path`, or make it.  May run in any thread.

    `holder` is this process, if it is one of several workers.  `is_late`: this gateway serves already, so removals may
    have happened that only its memory knows.  Raises InUseError if another process has the folder, and ConfigError if
    it cannot be used.
    """
    folder = Path(config.path)
    try:
        lock = take_lock(folder, lock_name)
    except OSError as error:
        raise ConfigError(f"store.path: {error}") from None
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
            return OpenedFolder(folder, lock, index, _load(folder, index), earlier)
        except BaseException:
            index.close()
            raise
    except OtherFormatError as other:
        text = f"store.path: {folder} has format {other}, which this version does not read: use another folder"
    except (OSError, sqlite3.Error) as error:
        text = f"store.path: the index in {folder} cannot be opened: {error}"
    except BaseException:
        os.close(lock)
        raise
    os.close(lock)
    raise ConfigError(text)


def _load(folder: Path, index: Index) -> Loaded:
    """Read the index.  Skips runs that the segments do not have as a whole, and deletes segments without runs."""
    sizes = {int(path.stem): path.stat().st_size for path in folder.glob("*.segment")}
    by_number: dict[int, StoredStream] = {}
    latest_of: dict[StoredKey, int] = {}
    numbered = 0
    for number, key, facts in index.streams():
        numbered = max(numbered, number)
        by_number[number] = StoredStream(number, key, facts)
        latest_of[key] = max(number, latest_of.get(key, 0))
    # The index may still have an earlier stream of the same key, because its withdrawal could not be recorded.
    kept = set(latest_of.values())
    replaced = [Withdraw(number, ()) for number in by_number if number not in kept]
    by_number = {number: by_number[number] for number in kept}
    segments: defaultdict[int, set[StoredStream]] = defaultdict(set)
    runs, latest = 0, max(sizes, default=0)
    for row in index.runs():
        # A damaged index may have runs without a stream.  No later stream must get them.
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

"""The store on disk, without its writer's thread: it lists the streams, decides what to write, and reads runs.

The loop decides which runs are written, and the writer's thread writes them (`gateway.disk.writer_thread`).
`gateway.engine.from_disk` decides when bytes on disk may be used again.

During normal operation the loop never waits for the writer.  Runs wait in a queue of at most `MOST_QUEUED_BYTES`.  If
the queue is full, further runs are not written.  Bytes that are not on disk are fetched from the origin, so the only
cost of a lost run is a request.

Runs are written in three cases: about `RUN_BYTES` of a stream were stored on its tape since the last write, bytes of
the stream are evicted, or the gateway stops.  Streams with fewer than `LEAST_BYTES` are not written, because their
confirmation would cost the origin as much as a fetch.  Only streams of readers without credentials are written, unless
the operator allows other streams (`store.with_credentials`).

The store belongs to one process, which locks the store's folder.  If there are several workers, each has its own store
(`gateway.disk.folders`).  This store has the streams that the worker owns while all workers serve.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from gateway.aio.clock import Clock
from gateway.config.errors import ConfigError
from gateway.config.store import StoreConfig
from gateway.disk.folders import ALL_LOCKS, InUseError, in_use, unmark
from gateway.disk.index import Facts, Holder, Index, StoredKey, is_unicode
from gateway.disk.logger import StoreLog
from gateway.disk.opening import OpenedFolder, open_folder, release
from gateway.disk.reads import NotRead, Reads
from gateway.disk.record import Record
from gateway.disk.runs import RUN_BYTES, Run, StoredStream
from gateway.disk.writer_thread import (
    Describe,
    DropOldest,
    DropRun,
    Finish,
    Place,
    Withdraw,
    Work,
    Write,
    Writer,
)
from gateway.protocol.names import START
from gateway.protocol.sharing import Group, Partition, StreamKey
from gateway.tape.block import Block
from gateway.tape.stream import Stream

MOST_QUEUED_BYTES: Final = 1 << 26
LEAST_BYTES: Final = 1 << 17
LEAST_LEFT_BYTES: Final = 1 << 14
"""The least size of the last run that is written before a stream's bytes are evicted.  A smaller rest is not written,
because the origin sends it anyway in the reply that confirms the earlier runs."""
MOST_RUNS: Final = 1 << 19
"""The maximum number of runs in the index.  Each run takes about 500 bytes of memory."""
SETTLE_S: Final = 10.0
"""The seconds for which a purge, or the end of the process, waits for the disk."""
STOP_S: Final = 2.0
"""The seconds for which the end of the process waits for the writer's thread to end after its last job."""


@dataclass(slots=True)
class DiskCounts:
    """Counts of the store's work."""

    written_bytes: int = 0
    dropped_bytes: int = 0
    """Bytes of runs that were not written, because the queue was full or a write failed.  If the same bytes are tried
    and dropped again, they are counted again."""
    read_bytes: int = 0
    damaged: int = 0
    """Runs whose record was damaged or missing, or belonged to another run."""
    refuted: int = 0
    """Streams that were dropped because the origin's reply showed that their bytes on disk are not valid."""


class DiskStore:
    """The store on disk.  It is a `gateway.tape.store.Keeper`."""

    def __init__(
        self, opened: OpenedFolder, config: StoreConfig, clock: Clock, slot: int | None = None, workers: int = 1
    ) -> None:
        """The store takes ownership of `opened`.  `workers` is the number of workers, and `slot` is the slot of this
        worker; None if this process is the only one."""
        folder, index, loaded = opened.folder, opened.index, opened.loaded
        self._folder = folder
        self._locks = opened.locks
        self._index = index
        self._clock = clock
        self.max_bytes = config.max_bytes
        self.with_credentials = config.with_credentials
        self._most_run_bytes = config.segment_bytes // 4
        self.counts = DiskCounts()
        self._streams, self._paths, self._segments = loaded.streams, loaded.paths, loaded.segments
        self._log = StoreLog(slot)
        self._reads = Reads(folder, clock, self._log)
        self._sharing: Mapping[Partition, str] = {}
        self._unwritten: dict[Stream, int] = {}
        """For each stream in memory, the number of bytes stored on its tape since the last write."""
        self._queued_bytes = 0
        self._runs = loaded.runs
        self._most_runs = MOST_RUNS // workers
        self._is_dropping = False
        """Whether the writer was asked to delete the oldest segment, because there are too many runs, and has not done
        so yet."""
        self._numbered = loaded.numbered
        self.is_not_stored: Callable[[Stream], bool] = lambda stream: False
        """Whether the cache plan excludes a stream.  The engine sets it."""
        self.is_in_doubt: Callable[[Stream], bool] = lambda stream: stream.version.may_have_ended
        """Whether another stream may have taken the place of a stream.  The engine sets it."""
        self.owns: Callable[[Group], bool] = lambda group: True
        """Whether this process keeps the streams of a path on disk.  The engine sets it."""
        self.check: Callable[[Group], object] = lambda group: None
        """Drops the streams of a path if the disk has missed a removal.  Called before one of these streams is used.
        The engine sets it."""
        self.is_unchecked: Callable[[Group], bool] = lambda group: False
        """Whether `check` must still be called for a path.  Before this call, no bytes of the path are written.  The
        engine sets it."""
        self.path_added: Callable[[Group], object] = lambda group: None
        """Called when a stream of a path is added to the store.  The engine sets it."""
        self.path_removed: Callable[[Group], object] = lambda group: None
        """Called when the last stream of a path is removed from the store.  The engine sets it."""
        self._writer = Writer(folder, index, loaded.sizes, loaded.following, config, clock.now, self._log)
        loop = asyncio.get_running_loop()

        def tell(event: Callable[[], object]) -> None:
            try:
                loop.call_soon_threadsafe(event)
            except RuntimeError:
                # The loop is closed, and the store with it.
                return

        self._writer.tell = tell
        self._writer.segment_dropped = self._segment_dropped
        self._writer.start()
        for withdrawal in loaded.replaced:
            self._writer.put(withdrawal)

    @classmethod
    def open(cls, config: StoreConfig, clock: Clock) -> Self:
        """Open the store of a gateway of one process, and create the store if it is missing.  Raises ConfigError if the
        store cannot be used, and DiskFailsError if its disk is full or fails."""
        try:
            return cls(open_folder(config, ALL_LOCKS), config, clock)
        except InUseError:
            raise ConfigError(in_use(Path(config.path))) from None

    def __repr__(self) -> str:
        return f"<DiskStore {len(self._streams)} streams, {self._runs} runs, {self._queued_bytes} bytes to write>"

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def total_bytes(self) -> int:
        """The number of bytes in all segments."""
        return self._writer.total_bytes

    @property
    def errors(self) -> int:
        """The number of failed writes."""
        return self._writer.errors

    def take_routes(self, sharing: Mapping[Partition, str]) -> None:
        """Use the routes of the current configuration.

        `sharing` maps each partition whose streams may be on disk to a digest of the sharing settings of the
        partition's route.
        """
        self._sharing = sharing

    # -- what the tapes say

    def stored(self, stream: Stream, size: int) -> None:
        """See `Keeper.stored`."""
        unwritten = self._unwritten.get(stream, 0) + size
        if unwritten < RUN_BYTES:
            self._unwritten[stream] = unwritten
        else:
            self._unwritten[stream] = 0
            self._write(stream, RUN_BYTES)

    def leaving(self, stream: Stream) -> None:
        """See `Keeper.leaving`."""
        self._unwritten.pop(stream, None)
        if stream.block_count:
            if self._may_be_written(stream):
                self._write(stream, LEAST_LEFT_BYTES)
            else:
                self.withdraw(stream)

    def _may_be_written(self, stream: Stream) -> bool:
        return not (self.is_in_doubt(stream) or self.is_not_stored(stream))

    def withdraw(self, stream: Stream) -> None:
        """See `Keeper.withdraw`."""
        self._unwritten.pop(stream, None)
        if (stored := self.find(stream.key)) is not None:
            self.drop(stored)

    def withdraw_group(self, group: Group) -> None:
        """See `Keeper.withdraw_group`."""
        for stored in tuple(self._paths.get(group, ())):
            self.drop(stored)

    # -- streams on disk

    def _key(self, key: StreamKey) -> StoredKey | None:
        """Return the key on disk of a stream in memory; None if the stream may not be on disk."""
        partition = key.partition
        sharing = None if partition.readers else self._sharing.get(partition)
        return None if sharing is None else StoredKey(*key.group, key.query, partition.route, sharing)

    def find(self, key: StreamKey) -> StoredStream | None:
        """Return the stream on disk; None if there is none."""
        stored_key = self._key(key)
        return self._streams.get(stored_key) if stored_key is not None else None

    def usable(self, key: StreamKey) -> StoredStream | None:
        """Return the stream on disk, if its bytes may be used after the origin has confirmed them; otherwise None.

        This method may apply the writes of other workers, so it must not be called during a change of the tapes.
        """
        if self.find(key) is None or not self.owns(key.group):
            return None
        self.check(key.group)
        return self.find(key)

    def partition_of(self, stored: StoredStream) -> Partition:
        """Return the partition of the readers of a stream on disk."""
        key = stored.key
        found = (one for one, sharing in self._sharing.items() if (one.route, sharing) == (key.route, key.sharing))
        return next(found, Partition(key.route))

    def streams(self) -> Iterator[StoredStream]:
        """Return the streams on disk."""
        return iter(tuple(self._streams.values()))

    def drop(self, stored: StoredStream) -> bool:
        """Drop a stream from disk; return False if it was already dropped."""
        if stored.is_withdrawn:
            return False
        self._forget(stored)
        places = [run.place for run in stored if run.place is not None]
        for segment in {place.segment for place in places}:
            self._segments[segment].discard(stored)
        self._runs -= len(stored)
        self._writer.put(Withdraw(stored.number, places))
        return True

    def _forget(self, stored: StoredStream) -> None:
        stored.is_withdrawn = True
        if self._streams.get(stored.key) is stored:
            del self._streams[stored.key]
        path = stored.group
        self._paths[path].discard(stored)
        if not self._paths[path]:
            del self._paths[path]
            self.path_removed(path)

    def _drop_run(self, stored: StoredStream, run: Run) -> None:
        if stored.remove(run):
            self._runs -= 1

    # -- writing

    def _write(self, stream: Stream, least: int) -> None:
        """Enqueue the bytes that are on the tape but not on disk.  The last run must have at least `least` bytes."""
        key, content_type = self._key(stream.key), stream.content_type
        if key is None or content_type is None or self._writer.is_paused or not self._may_be_written(stream):
            return
        if not self.owns(stream.key.group) or self.is_unchecked(stream.key.group):
            return
        tape, stored = stream.tape, self.find(stream.key)
        if stored is not None and not stored.is_bound_to(stream):
            check = stored.check
            is_fetched = check is None or (tape.is_indexed(check) and tape.size >= stored.body)
            if stored.asking or not is_fetched:
                # Keep the runs, because they can be used as soon as the origin has confirmed them.
                return
            # Drop the runs, because they save no fetches.  The tape already has at least as many bytes as the runs, and
            # all of these bytes were fetched from the origin.
            self.drop(stored)
            stored = None
        if stored is None:
            if tape.size < LEAST_BYTES:
                return
            self._numbered += 1
            facts = Facts(content_type, None, None, False, frozenset())
            stored = StoredStream(self._numbered, key, facts)
            stored.incarnation = stream.version.incarnation
            self._streams[key] = stored
            self._paths[stream.key.group].add(stored)
            self.path_added(stream.key.group)
        before, first = stored.facts, tape.resolve(START)
        stored.facts = before._replace(
            identity=stream.identity,
            first=first if first != START else before.first,
            varies_by_origin=before.varies_by_origin or stream.varies_by_origin,
            surrogate_keys=before.surrogate_keys | stream.surrogate_keys,
        )
        if not is_unicode(key, stored.facts):
            self.drop(stored)
            return
        for block in tape.blocks():
            # A block does not grow any more once another block follows.  Its last run may therefore have any size.
            least_part = 1 if tape.is_indexed(block.end) else least
            if not all(self._enqueue(stored, part) for part in stored.missing(block, least_part, self._most_run_bytes)):
                break
        if not len(stored):
            self._forget(stored)
        elif stored.facts != before:
            self._writer.put(Describe(stored.number, stored.key, stored.facts))

    def _enqueue(self, stored: StoredStream, block: Block) -> bool:
        """Enqueue a run, unless it overlaps another run.  Returns False if the queue has no room."""
        size, run = block.size, Run.of(block)
        if self._queued_bytes + size > MOST_QUEUED_BYTES:
            self.counts.dropped_bytes += size
            return False
        if not stored.add(run):
            return True
        self._runs += 1
        self._queued_bytes += size

        def done(place: Place | None) -> None:
            self._queued_bytes -= size
            if place is not None:
                self.counts.written_bytes += size
            elif not stored.is_withdrawn:
                self.counts.dropped_bytes += size
            if stored.is_withdrawn:
                return
            run.place = place
            if place is not None:
                self._segments[place.segment].add(stored)
                return
            self._drop_run(stored, run)
            if not len(stored):
                self._forget(stored)

        written_at = self._clock.wall()
        self._writer.put(Write(stored.number, stored.key, stored.facts, run.check, written_at, block, done))
        if self._runs > self._most_runs and not self._is_dropping:
            self._is_dropping = True
            self._writer.put(DropOldest(self._dropped))
        return True

    def _dropped(self) -> None:
        self._is_dropping = False

    def _segment_dropped(self, segment: int) -> None:
        """Forget the runs of a segment that is being deleted."""
        self._reads.forget(segment)
        for stored in self._segments.pop(segment, ()):
            self._runs -= stored.remove_segment(segment)
            if not stored.is_withdrawn and stored.body < LEAST_BYTES:
                self.drop(stored)

    # -- reading

    async def read(self, stored: StoredStream, run: Run) -> Block | None:
        """Return the bytes of a run; None if the run cannot be read, or is not written yet."""
        place = run.place
        if place is None or stored.is_withdrawn:
            return None
        try:
            record = await self._reads.read(place)
        except NotRead:
            return None
        if not _is_at(stored, run, place):
            return None
        if record is None or not _is_of(record, stored.key.owner_in(self._index.store), run):
            self._damaged(stored, run, place)
            return None
        block = record.block
        # The age of the bytes is the age of the record.
        block.stored_at = self._clock.now() - max(0.0, self._clock.wall() - record.written_at)
        self.counts.read_bytes += block.size
        return block

    def _damaged(self, stored: StoredStream, run: Run, place: Place) -> None:
        self.counts.damaged += 1
        self._log.warning("the store on disk has lost %d bytes of %s: a record is damaged", run.body, stored.key.path)
        run.place = None
        self._drop_run(stored, run)
        self._writer.put(DropRun(place))
        if not len(stored):
            self.drop(stored)

    # -- what the disk has done

    def when_done(self, done: Callable[[bool], object], holder: Holder | None) -> None:
        """Let the writer finish all jobs so far, then call `done` on the loop.  The argument of `done` states whether
        all withdrawals so far would survive a crash.

        If this argument is true and `holder` is not None, remove the folder's mark
        (`gateway.disk.folders.mark_behind`), and record `holder` as the worker that used the store last.
        """

        def finished(is_done: bool) -> None:
            done(is_done)
            if is_done and holder is not None:
                self._writer.put(Work(lambda index: self._hold(index, holder)))

        self._writer.put(Finish(finished))

    def _hold(self, index: Index, holder: Holder) -> None:
        unmark(self._folder)
        if index.holder != holder:
            index.put_holder(holder)

    # -- the end

    async def settled(self) -> bool:
        """Wait until the writer has done all jobs so far.

        Returns whether all withdrawals so far are on disk.  Returns False if the jobs take longer than `SETTLE_S`.
        """
        return await self._finished(SETTLE_S) is True

    async def _finished(self, within_s: float) -> bool | None:
        """Wait until the writer has done all jobs so far, for at most `within_s`.  Returns whether all withdrawals are
        on disk; None if the jobs take longer."""
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def finish(is_withdrawn: bool) -> None:
            if not done.done():
                done.set_result(is_withdrawn)

        self._writer.put(Finish(finish))
        finished, _ = await asyncio.wait([done], timeout=within_s)
        return done.result() if finished else None

    async def close(self, streams: Iterable[Stream], within_s: float = SETTLE_S) -> None:
        """Write the bytes of the streams in memory that are not on disk yet, and unlock the folder."""
        for stream in streams:
            self.leaving(stream)
        self._reads.close()
        if await self._finished(within_s) is None or not self._writer.stop(STOP_S):
            self._log.error("the store on disk does not take its last writes")
            return
        self._index.close()
        release(self._locks)


def _is_at(stored: StoredStream, run: Run, place: Place) -> bool:
    """Return whether the run is still on disk at this place."""
    return not stored.is_withdrawn and run.place is place


def _is_of(record: Record, owner: str, run: Run) -> bool:
    """Return whether this is the record of the run, and of the stream that the digest `owner` identifies."""
    block = record.block
    return (record.owner, block.start, block.end, block.size) == (owner, run.start, run.end, run.body)

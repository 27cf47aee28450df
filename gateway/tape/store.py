"""The tape store: all streams in memory, under one byte budget.

Only the store creates, drops and evicts streams and stores their bytes, so its sum of costs is always exact.  If an
evicted stream is in use, only its bytes are dropped: the object stays, with an empty tape.

The store reports *uses* to the eviction policy, not requests.  A client that reads a stream once sends at least two
requests: first for the existing bytes, then for the tail.  If each request counted, a single client would make the
stream look popular.  Requests within `USE_S` after a use therefore belong to that use.  LRU-K calls this interval the
correlated reference period (O'Neil et al., SIGMOD 1993, 2.1).

A cache plan can pin streams and exclude streams.  A pinned stream is withheld from the eviction policy.  An excluded
stream keeps bytes only while it is held (`Stream.hold`), for example by the follower that feeds its live readers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from typing import Final, Protocol, TypeVar

from multidict import CIMultiDict

from gateway.protocol.sharing import Group, Partition, StreamKey
from gateway.protocol.stream_version import FIRST, Edition, Version
from gateway.s2.records import Record
from gateway.tape.block import Block
from gateway.tape.costs import RouteUsage, key_cost
from gateway.tape.eviction import USE_S, Eviction
from gateway.tape.paths import PathEvent, Paths, all_tags
from gateway.tape.pinned import EvictionOrder
from gateway.tape.record_stream import RecordStream
from gateway.tape.stream import End, Stream
from gateway.tape.tape import Tape
from gateway.telemetry.metrics import MetricsRecorder
from gateway.tuples import make

S = TypeVar("S", bound=Stream)

# Looking up a member of an enum is slow in Python 3.11.
_EVICTED: Final = End.EVICTED
_NO_KEY = StreamKey(Group("", ""), "", Partition(""))
"""A key that no stream has, for evictions that may evict any stream."""
_NO_HEADERS: Final[CIMultiDict[str]] = CIMultiDict()
"""The headers of new streams, before the first reply.  Never changed."""


class Keeper(Protocol):
    """Keeps the bytes of streams outside memory."""

    def stored(self, stream: Stream, size: int) -> None:
        """Called when about `size` bytes were stored on the stream's tape."""

    def leaving(self, stream: Stream) -> None:
        """Called before bytes of the stream are evicted."""

    def withdraw(self, stream: Stream) -> None:
        """Called when bytes of the stream have become invalid and must not be used again."""

    def withdraw_group(self, group: Group) -> None:
        """Called when the streams of a path may have been replaced, whether or not they are in memory."""


class OtherWorkers(Protocol):
    """The other workers of this gateway, which may have bytes of the same streams."""

    def ended(self, key: StreamKey, *, was_known: bool, is_certain: bool) -> None:
        """Called when the origin has refused a read of a stream with 404 or 410, or when a reply has shown that another
        stream has replaced the stream."""

    def withdrawn(self, group: Group) -> None:
        """Called when the streams of a path may have been replaced, whether or not they are in memory."""


class TapeStore:
    """All streams in memory, by their keys.

    `budget_bytes` bounds `cost` + `lent`.  `mint` returns a new name for an incarnation (the life of a stream from
    creation to deletion).
    """

    def __init__(
        self, budget_bytes: int, eviction: Eviction[StreamKey], mint: Callable[[], str], metrics: MetricsRecorder
    ) -> None:
        self.budget_bytes = budget_bytes
        self.cost = 0
        self.lent = 0
        """The bytes of the budget that are used for data derived from tapes, and for arriving bodies."""
        self.arriving = 0
        """The part of `lent` that is used for arriving bodies (`gateway.tape.arriving_charge`)."""
        self._mint = mint
        self._metrics = metrics
        self.paths: Final = Paths()
        self.awake: Final = self.paths.awake
        self.has: Final = self.paths.has
        self.group: Final = self.paths.group
        self.tagged: Final = self.paths.tagged
        self._count = 0
        self._order = EvictionOrder(eviction, self.paths.find)
        self.pinned = self._order.pinned
        """The streams exempt from eviction."""
        self._not_stored: frozenset[StreamKey] = frozenset()
        """The keys of the excluded streams.  Each key has the partition of readers without credentials."""
        self.may_grow = True
        """Whether fetches that add bytes may be sent.  False while the process is short of memory."""
        self.unstored_bytes = 0
        """The number of bytes that were fetched but not stored, because their streams are excluded."""
        self.holdings: defaultdict[str, RouteUsage] = defaultdict(RouteUsage)
        """The use of memory by each route: the number of tapes and blocks, and the bytes charged to the budget."""
        self.on_forget: Callable[[Stream], None] = lambda stream: None
        """Called when data derived from a stream's bytes becomes invalid, so that the data's owners can drop it."""
        self.others: OtherWorkers | None = None
        """The other workers of this gateway, if there are any."""
        self.keeper: Keeper | None = None
        """The store on disk; None if there is none."""

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"{self._count} streams in {len(self.paths)} groups, {len(self.paths.tags)} surrogate keys"

    def __iter__(self) -> Iterator[Stream]:
        return iter(self.paths)

    def find(self, key: StreamKey) -> Stream | None:
        """Return the stream of `key`; None if the stream is not in memory.  If the stream sleeps, wake it
        (`gateway.tape.paths`)."""
        stream = self.paths.find(key)
        if stream is not None and not stream.is_awake:
            self.wake(stream)
            return stream if stream.ended is None else None
        return stream

    def wake(self, stream: Stream) -> None:
        """Wake a sleeping stream, and apply the missed events to the stream.  These events may end the stream."""
        if stream.is_awake or stream.ended is not None:
            return
        missed, dropped = self.paths.wake(stream)
        if missed is None:
            # Some of the missed events are no longer kept.  Because one of them may have been a deletion, the keeper
            # must not get the bytes.
            self._withdraw_kept(stream)
            blocks = stream.block_count
            self._book(stream, -stream.drop_all(), blocks=-blocks)
            self.drop_stream(stream, End.EVICTED)
        for event in missed or ():
            if stream.ended is None:
                event(stream)
        for other in dropped:
            self.on_forget(other)

    def is_in_doubt(self, stream: Stream) -> bool:
        """Return whether an event of the path may have replaced the stream by another stream.  Does not wake a sleeping
        stream."""
        return stream.version.may_have_ended or self.paths.has_missed(stream)

    def tell(self, group: Group, event: PathEvent) -> None:
        """Apply an event to every stream of the path: at once to awake streams, and later to sleeping streams."""
        for stream in self.paths.told(group, event):
            self.on_forget(stream)
        for stream in self.paths.awake(group):
            if stream.ended is None:
                event(stream)

    def tag(self, stream: Stream, surrogate_keys: frozenset[str]) -> None:
        """Add the surrogate keys of a reply with bytes of the stream.  Does nothing on an ended stream.

        The keys of all replies are collected until the bytes are dropped.  If the stream then has more than `MAX_TAGS`
        keys, or the keys have more than `MAX_TAG_BYTES` in total, the bytes are dropped at once.  A purge by key
        therefore always finds all bytes with the key.
        """
        if not surrogate_keys or stream.ended is not None:
            return
        if stream.tagged_as == stream.version.incarnation:
            if surrogate_keys <= stream.surrogate_keys:
                return
            if (collected := all_tags(stream, surrogate_keys)) is not None:
                surrogate_keys = collected
            else:
                self.forget_bytes(stream)
        self.paths.tag(stream, surrogate_keys)
        stream.tagged_as = stream.version.incarnation
        self.weigh(stream)

    def open(self, key: StreamKey, now: float) -> Stream:
        """Return the stream of `key`; create it if it is not in memory."""
        return self.open_as(Stream, key, now)

    def open_as(self, kind: type[S], key: StreamKey, now: float) -> S:
        """Return the stream of `key`.  Create it if it is not in memory, or if the object in memory is of another
        kind."""
        stream = self.find(key)
        if stream is not None and type(stream) is not kind:
            # The protocol of the route has been changed.
            self.drop_stream(stream, End.PURGED)
            stream = None
        if stream is None:
            return self.create(kind, key, now)
        self._count_use(stream, now)
        assert isinstance(stream, kind)
        return stream

    def create(self, kind: type[S], key: StreamKey, now: float) -> S:
        """Create the stream of `key`, which must not be in memory."""
        version = make(Version, (make(Edition, (self._mint(), 0)), *FIRST[1:]))
        stream = kind(key, Tape(), version, None, _NO_HEADERS, contacted_at=now, begun_at=now, used_at=now)
        stream.facts_cost = key_cost(key)
        for other in self.paths.add_stream(stream):
            self.on_forget(other)
        self._count += 1
        self._order.admit(stream, 0)
        self._charge(stream, stream.cost, tapes=1)
        return stream

    def touch(self, stream: Stream) -> None:
        """Record a use of the stream by remembered answers.  These answers are sent without a call of `open`."""
        if stream.ended is None:
            self._order.touch(stream.key)
            self.paths.touch(stream)

    def _count_use(self, stream: Stream, now: float) -> None:
        if now - stream.used_at >= USE_S:
            stream.used_at = now
            self._order.touch(stream.key)
            self.paths.touch(stream)

    def store(self, stream: Stream, start: str, end: str, pieces: Sequence[bytes], now: float) -> None:
        """Store bytes on the stream's tape, and evict until the budget is met.  Does nothing on an ended stream."""
        if stream.ended is not None:
            return
        tape = stream.tape
        before, blocks = tape.cost + stream.facts_cost, tape.block_count
        tape.store(start, end, pieces, now)
        if not stream.is_ranked or self.pinned.is_used:
            self._order.admit(stream, before)
        if stream.is_followed:
            # Live readers receive each append without a new request, so count the append as a use.
            self._count_use(stream, now)
        if not stream.is_weighed:
            stream.is_weighed, stream.facts_cost = True, stream.weigh()
        self._charge(stream, tape.cost + stream.facts_cost - before, blocks=tape.block_count - blocks)
        if self.keeper is not None and stream.ended is None:
            self.keeper.stored(stream, sum(map(len, pieces)))

    def restore(self, stream: Stream, block: Block) -> None:
        """Put bytes back on the stream's tape (`Tape.restore`), and evict until the budget is met."""
        before = stream.cost
        stream.tape.restore(block)
        self._order.admit(stream, before)
        self._charge(stream, stream.cost - before, blocks=1)

    def withdraw_kept(self, group: Group) -> None:
        """Drop the bytes that the keeper has for the path, because other streams may have replaced the path's
        streams."""
        if self.keeper is not None:
            self.keeper.withdraw_group(group)
        if self.others is not None:
            self.others.withdrawn(group)

    def _withdraw_kept(self, stream: Stream) -> None:
        if self.keeper is not None:
            self.keeper.withdraw(stream)

    def store_records(self, stream: RecordStream, start: int, records: Sequence[Record], now: float) -> None:
        """Store the records that a read of an S2 stream from `start` has returned, and evict until the budget is met.

        Does nothing on an ended stream.  Raises RecordsReplaced, and stores nothing, if the stream was created again.
        """
        if stream.ended is not None:
            return
        tape = stream.records
        before, blocks = stream.cost, tape.block_count
        is_trimmed = tape.store(start, records)
        self._order.admit(stream, before)
        if stream.is_followed:
            self._count_use(stream, now)
        self._charge(stream, stream.cost - before, blocks=tape.block_count - blocks)
        if is_trimmed:
            self.withdraw(stream)

    def trim_records(self, stream: RecordStream, seq_num: int) -> None:
        """Drop the records of an S2 stream before `seq_num`, because the origin has trimmed them.  Does nothing on an
        ended stream."""
        if stream.ended is not None:
            return
        tape = stream.records
        before, blocks = stream.cost, tape.block_count
        if tape.drop_before(seq_num):
            self._charge(stream, stream.cost - before, blocks=tape.block_count - blocks)
            self.withdraw(stream)

    def doubt_records(self, stream: Stream) -> None:
        """Mark the records of an S2 stream as doubted: the origin must confirm them before they are served again."""
        if stream.ended is None and isinstance(stream, RecordStream):
            stream.doubts += 1
            self.withdraw(stream)

    def doubt_replaced(
        self, group: Group, queries: Collection[str] | None, start: int, seen: Container[Stream]
    ) -> None:
        """Doubt the records of an S2 path's streams whose records in memory reach the sequence number `start`.

        The origin has just given this number to a new record, so the record in memory belongs to a deleted stream.
        Affects only streams with one of `queries`, or with any query if `queries` is None.  Streams in `seen` are
        skipped, because the caller has handled them.
        """
        if start >= self.paths.records_to(group, queries):
            return
        for stream in self.group(group):
            if isinstance(stream, RecordStream) and stream not in seen and stream.reaches(start, queries):
                self.doubt_records(stream)
        self.paths.looked_at(group)

    def weigh(self, stream: Stream) -> None:
        """Charge the budget for newly added headers and other texts.  Does nothing on an ended stream."""
        if stream.ended is None:
            stream.is_weighed = True
            before, stream.facts_cost = stream.facts_cost, stream.weigh()
            if stream.facts_cost != before:
                self._charge(stream, stream.facts_cost - before)

    def prefer(self, pinned: Iterable[StreamKey], share: float, not_stored: Collection[StreamKey]) -> None:
        """Replace the cache plan.

        Pins as many of the streams in `pinned` as fit into `share` of the budget.  The most valuable stream is first in
        `pinned`.  Excludes the streams in `not_stored`.
        """
        self._order.prefer(pinned, share, self.budget_bytes)
        self._not_stored = frozenset(not_stored)
        for key in self._not_stored:
            for stream in self.group(key.group):
                if not stream.holds:
                    self._drop_unwanted(stream)

    def is_not_stored(self, stream: Stream) -> bool:
        """Return whether the cache plan excludes the stream.  A plan excludes a path for all partitions."""
        key = stream.key
        return bool(self._not_stored) and key._replace(partition=key.partition.public) in self._not_stored

    def _drop_unwanted(self, stream: Stream) -> None:
        """Drop the bytes of an excluded stream, and all data derived from them."""
        if stream.ended is None and self.is_not_stored(stream):
            self._drop_bytes(stream)

    def _drop_bytes(self, stream: Stream) -> None:
        """Drop a stream's bytes but keep the stream."""
        if self.keeper is not None:
            self.keeper.leaving(stream)
        blocks = stream.block_count
        self._book(stream, -stream.drop_all(), blocks=-blocks)
        self.withdraw(stream)

    def drop_stream(self, stream: Stream, why: End, *, is_by_origin: bool = False) -> bool:
        """End the stream.  Return False if the stream has already ended.  The caller ends the live readers.

        `is_by_origin`: this worker has learned of the end from the origin's reply to a read.  The method then informs
        the other workers.
        """
        if stream.ended is not None:
            return False
        was_known = stream.is_known
        self._order.forget(stream.key)
        self._remove(stream, why)
        if is_by_origin:
            self.tell_ended(stream.key, was_known=was_known, is_certain=True)
        return True

    def tell_ended(self, key: StreamKey, *, was_known: bool, is_certain: bool) -> None:
        """Tell the other workers that the origin has refused a read of a stream, or that another stream has replaced
        the stream."""
        if self.others is not None:
            self.others.ended(key, was_known=was_known, is_certain=is_certain)

    def _remove(self, stream: Stream, why: End) -> None:
        if why is not _EVICTED:
            self._withdraw_kept(stream)
        elif self.keeper is not None:
            self.keeper.leaving(stream)
        stream.ended = why
        self.paths.remove(stream)
        self._count -= 1
        self._book(stream, -stream.cost, tapes=-1, blocks=-stream.block_count)
        if self.pinned.is_used:
            self.pinned.forget(stream.key)
        stream.drop_all()
        self.withdraw(stream)

    def forget_bytes(self, stream: Stream) -> None:
        """Drop a stream's bytes and begin a new incarnation, because the origin may send other bytes from now on."""
        if stream.ended is None:
            self._withdraw_kept(stream)
            blocks = stream.block_count
            self._charge(stream, -stream.drop_all(), blocks=-blocks)
            stream.tape.forget_facts()
            stream.begin_incarnation(self._mint())
            stream.lost_tail()
            stream.confirmed.clear()
            self.withdraw(stream)

    def forget_before(self, stream: Stream, token: str) -> None:
        """Drop the bytes before an offset, because the origin has trimmed them."""
        self._forget(stream, lambda tape: tape.drop_before(token))

    def forget_through(self, stream: Stream, token: str) -> None:
        """Drop the bytes before `token`, because they are trimmed.  Also drop the bytes from `token` to the next known
        offset."""
        tail = stream.tape.tail
        self._forget(stream, lambda tape: tape.drop_through(token))
        if stream.tape.tail != tail:
            stream.lost_tail()

    def _forget(self, stream: Stream, drop: Callable[[Tape], int]) -> None:
        """Call `drop` on the stream's tape.  `drop` drops bytes and returns the cost freed.  Does nothing on an ended
        stream."""
        if stream.ended is None and not isinstance(stream, RecordStream):
            self._withdraw_kept(stream)
            blocks = stream.block_count
            self._charge(stream, -drop(stream.tape), blocks=stream.block_count - blocks)
            self.withdraw(stream)

    def withdraw(self, stream: Stream) -> None:
        """Invalidate all data derived from the stream's bytes, including data that is still being prepared."""
        stream.withdrawn()
        self.on_forget(stream)

    def vary_by_origin(self, stream: Stream) -> None:
        """Restrict the stream to requests without an Origin header from now on."""
        if not stream.varies_by_origin:
            stream.varies_by_origin = True
            # Remembered answers to requests with an Origin header are invalid now.
            self.withdraw(stream)

    def release(self, stream: Stream) -> None:
        """Undo one `Stream.hold`.

        Without a remaining hold, a stream that has neither bytes nor a known tail is dropped.  A refusal of the origin
        leads to such a stream.
        """
        stream.holds -= 1
        if stream.ended is not None:
            return
        if not stream.is_weighed:
            self.weigh(stream)
        if stream.holds:
            return
        if stream.tape.tail is None and stream.block_count == 0:
            self.drop_stream(stream, _EVICTED)
            return
        if self._not_stored:
            self._drop_unwanted(stream)
        if not stream.is_ranked or self.pinned.is_used:
            # The stream may have been removed from the eviction order when its bytes were dropped.
            self._order.admit(stream, stream.cost)
        if self.cost + self.lent > self.budget_bytes:
            self._make_room(stream, may_shorten=True)
        for other in self.paths.released(stream):
            self.on_forget(other)

    def lend(self, size: int, borrower: Stream) -> bool:
        """Lend `size` bytes of the budget, and evict other streams to make room.

        The loan is for data derived from the bytes of `borrower`, or for bytes about to be stored on `borrower`.
        Returns False and lends nothing in two cases: the borrower has ended, or only the eviction of the borrower's own
        bytes could make room.
        """
        if borrower.ended is not None or borrower.cost + self.lent + size > self.budget_bytes:
            return False
        self.lent += size
        try:
            self._make_room(borrower, may_shorten=False)
        except BaseException:
            self.take_back(size)
            raise
        if self.cost + self.lent > self.budget_bytes:
            self.take_back(size)
            return False
        return True

    def take_back(self, size: int) -> None:
        """Return `size` lent bytes to the budget."""
        self.lent -= size

    def resize(self, budget_bytes: int) -> None:
        """Change the budget, and evict until it is met."""
        self.budget_bytes = budget_bytes
        self._order.resize(budget_bytes)
        self._make_room(None, may_shorten=False)
        while self.cost + self.lent > budget_bytes and self._order.unpin_last():
            # All streams without a pin are evicted, but pinned streams and lent bytes together still exceed the budget.
            self._make_room(None, may_shorten=False)

    def _charge(self, stream: Stream, delta: int, *, tapes: int = 0, blocks: int = 0) -> None:
        """Charge `delta` more bytes for the stream, and evict until the budget is met."""
        self._book(stream, delta, tapes=tapes, blocks=blocks)
        if self.cost + self.lent > self.budget_bytes:
            self._make_room(stream, may_shorten=True)

    def _book(self, stream: Stream, delta: int, *, tapes: int = 0, blocks: int = 0) -> None:
        """Add these values to the total cost, and to the figures of the stream's route.  Negative values subtract."""
        self.cost += delta
        holding = self.holdings[stream.key.partition.route]
        holding.tapes += tapes
        holding.blocks += blocks
        holding.cost += delta
        if delta and self.pinned.is_used:
            self._order.add_cost(stream.key, delta)

    def _make_room(self, stream: Stream | None, *, may_shorten: bool) -> None:
        """Evict other streams than `stream` until the budget is met.  If this is not enough, and `may_shorten` is true,
        evict bytes of `stream` too."""
        spared = stream.key if stream is not None else _NO_KEY
        while self.cost + self.lent > self.budget_bytes:
            key = self._order.victim(spared)
            if key is None:
                if not may_shorten or stream is None:
                    break
                if self.keeper is not None:
                    self.keeper.leaving(stream)
                blocks = stream.block_count
                freed = stream.drop_oldest()
                if not freed:
                    if self._order.unpin_last():
                        continue
                    break
                self._book(stream, -freed, blocks=stream.block_count - blocks)
                self._metrics.eviction(1, stream.key.route)
                self.withdraw(stream)
            else:
                # Do not wake a sleeping victim: waking may drop it, or put other streams to sleep.
                victim = self.paths.find(key)
                if victim is None:
                    continue
                victim.is_ranked = False
                if victim.holds and not victim.block_count:
                    # The stream is in use but has no bytes.  It is added to the order again with its first bytes.
                    self._order.forget(key)
                    continue
                self._metrics.eviction(1, key.partition.route)
                if victim.holds:
                    self._drop_bytes(victim)
                else:
                    self._remove(victim, _EVICTED)

"""The tape store: every stream in memory, under one byte budget.

Only the store creates, drops and evicts streams and stores bytes, so the sum of costs is right at every moment.  An
eviction drops bytes, never facts: a stream that is in use stays, with an empty tape.

The store reports *uses* to the eviction policy, not requests.  A client that reads a stream once sends at least two
requests in a row (the existing bytes, then the tail), so requests within `USE_S` of a use belong to that use: the
correlated reference period of LRU-K (O'Neil et al., SIGMOD 1993, 2.1).  Otherwise every reader would look like one that
comes back.

A plan can single out two kinds of streams.  A pinned stream is withheld from the policy, so it cannot be chosen as a
victim.  A stream that is not to be stored holds bytes only while its record is held (`Stream.hold`), for example
by a follower that stores what its live readers need.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from gateway.protocol.sharing import Group, Partition, StreamKey
from gateway.protocol.stream_version import Edition, Version
from gateway.s2.records import Record
from gateway.tape.costs import RouteUsage, key_cost
from gateway.tape.eviction import USE_S, Eviction
from gateway.tape.paths import PathEvent, Paths
from gateway.tape.pinned import EvictionOrder
from gateway.tape.record_stream import RecordStream
from gateway.tape.stream import End, Stream
from gateway.tape.tape import Tape
from gateway.telemetry.metrics import MetricsRecorder

S = TypeVar("S", bound=Stream)

MAX_TAGS = 1_024
"""The most surrogate keys of one stream."""

_NO_KEY = StreamKey(Group("", ""), "", Partition(""))
"""A key that no stream has, for evictions that spare no stream."""


class TapeStore:
    """Streams by key.  `budget_bytes` bounds the cost of tapes plus the bytes lent; `mint` names incarnations."""

    def __init__(
        self, budget_bytes: int, eviction: Eviction[StreamKey], mint: Callable[[], str], metrics: MetricsRecorder
    ) -> None:
        self.budget_bytes = budget_bytes
        self.cost = 0
        self.lent = 0
        """Bytes of the budget taken by data derived from tapes, and by bodies that arrive."""
        self.arriving = 0
        """The part of `lent` for bodies that arrive (`gateway.tape.arriving`)."""
        self._mint = mint
        self._metrics = metrics
        self._paths = Paths()
        self.awake: Final = self._paths.awake
        """The streams of a path that hear of its events at once; all unless they are a crowd."""
        self.has: Final = self._paths.has
        """Whether a stream of a path is in memory."""
        self.group: Final = self._paths.group
        """Every stream that a write to a path affects."""
        self.tagged: Final = self._paths.tagged
        """Every stream that the origin tagged with a surrogate key."""
        self.origins: Final = self._paths.origins
        """Every origin with a stream in memory."""
        self.groups: Final = self._paths.groups
        """The groups that exist now.  Each is a live view of its streams, so a caller can go through many of them over
        several turns of the loop."""
        self._count = 0
        self._order = EvictionOrder(eviction, self._paths.find)
        self.pinned = self._order.pinned
        """The streams exempt from eviction."""
        self._not_stored: frozenset[StreamKey] = frozenset()
        """The streams whose bytes are not to be kept, by their keys in the public partition."""
        self.may_grow = True
        """Whether requests that bring more bytes may be sent; False while the process is short of memory."""
        self.unstored_bytes = 0
        """Bytes fetched and not stored, because their streams are not to be stored."""
        self.holdings: defaultdict[str, RouteUsage] = defaultdict(RouteUsage)
        """The contents of each route's streams."""
        self.on_forget: Callable[[Stream], None] = lambda stream: None
        """Called when a stream's bytes are dropped or may no longer be shared, so that data derived from them is
        dropped too."""

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"{self._count} streams in {len(self._paths)} groups, {len(self._paths.tags)} surrogate keys"

    def __iter__(self) -> Iterator[Stream]:
        return iter(self._paths)

    def find(self, key: StreamKey) -> Stream | None:
        """The stream of `key`, or None if it is not in memory."""
        stream = self._paths.find(key)
        if stream is not None and not stream.is_awake:
            self.wake(stream)
            return stream if stream.ended is None else None
        return stream

    def wake(self, stream: Stream) -> None:
        """Apply to a sleeping stream the events that it has missed, which may end it."""
        if stream.is_awake or stream.ended is not None:
            return
        missed, dropped = self._paths.wake(stream)
        if missed is None:
            self.drop_stream(stream, End.EVICTED)
        for event in missed or ():
            if stream.ended is None:
                event(stream)
        for other in dropped:
            self.on_forget(other)

    def tell(self, group: Group, event: PathEvent) -> None:
        """Apply an event to every stream of the path: at once, or when the stream wakes."""
        for stream in self._paths.told(group, event):
            self.on_forget(stream)
        for stream in self._paths.awake(group):
            if stream.ended is None:
                event(stream)

    def tag(self, stream: Stream, surrogate_keys: frozenset[str]) -> None:
        """Add the surrogate keys that a reply with a part of the stream names.

        A stream has the keys of all its parts together, until its bytes are forgotten; the next reply then starts a
        new set.  A stream that would exceed `MAX_TAGS` keys loses its bytes, so that each byte held can be found by its
        key.  Does nothing on an ended stream.
        """
        if not surrogate_keys or stream.ended is not None:
            return
        if stream.tagged_as == stream.version.incarnation:
            if surrogate_keys <= stream.surrogate_keys:
                return
            if len(stream.surrogate_keys | surrogate_keys) > MAX_TAGS:
                self.forget_bytes(stream)
            else:
                surrogate_keys |= stream.surrogate_keys
        self._paths.tag(stream, surrogate_keys)
        stream.tagged_as = stream.version.incarnation
        self.weigh(stream)

    def open(self, key: StreamKey, now: float) -> Stream:
        """The stream of `key`, created if it is not in memory."""
        return self.open_as(Stream, key, now)

    def open_as(self, kind: type[S], key: StreamKey, now: float) -> S:
        """The stream of `key`, which is of this kind; created if it is not in memory, or is of another kind."""
        stream = self.find(key)
        if stream is not None and type(stream) is not kind:
            # The route has spoken another protocol until now.
            self.drop_stream(stream, End.PURGED)
            stream = None
        if stream is None:
            return self.create(kind, key, now)
        self._count_use(stream, now)
        assert isinstance(stream, kind)
        return stream

    def create(self, kind: type[S], key: StreamKey, now: float) -> S:
        """A stream for `key`, which is not in memory."""
        stream = kind(key, Tape(), Version(Edition(self._mint())), contacted_at=now, used_at=now)
        stream.facts_cost = key_cost(key)
        for other in self._paths.add_stream(stream):
            self.on_forget(other)
        self._count += 1
        self._order.admit(stream, 0)
        self._charge(stream, stream.cost, tapes=1)
        return stream

    def touch(self, stream: Stream) -> None:
        """Record that remembered answers of the stream were sent, one or many times, without opening it."""
        if stream.ended is None:
            self._order.touch(stream.key)
            self._paths.touch(stream)

    def _count_use(self, stream: Stream, now: float) -> None:
        if now - stream.used_at >= USE_S:
            stream.used_at = now
            self._order.touch(stream.key)
            self._paths.touch(stream)

    def store(self, stream: Stream, start: str, end: str, pieces: Sequence[bytes], now: float) -> None:
        """Store bytes on the stream's tape and evict what no longer fits.  Does nothing on an ended stream."""
        if stream.ended is not None:
            return
        tape = stream.tape
        before, blocks = tape.cost, tape.block_count
        tape.store(start, end, pieces, now)
        if not stream.is_ranked or self.pinned.is_used:
            self._order.admit(stream, before + stream.facts_cost)
        if stream.is_followed:
            # Live readers send one request and then receive all stored bytes, so each append counts as a use.
            self._count_use(stream, now)
        self._charge(stream, tape.cost - before, blocks=tape.block_count - blocks)

    def store_records(self, stream: RecordStream, start: int, records: Sequence[Record], now: float) -> None:
        """Store the records of a read of an S2 stream from `start`, and evict what no longer fits.

        Does nothing on an ended stream.  Raises RecordsReplaced, with nothing stored, if the stream has been created
        again.
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
        """Drop the records of an S2 stream before `seq_num`, because the origin no longer has them.  Does nothing on an
        ended stream."""
        if stream.ended is not None:
            return
        tape = stream.records
        before, blocks = stream.cost, tape.block_count
        if tape.drop_before(seq_num):
            self._charge(stream, stream.cost - before, blocks=tape.block_count - blocks)
            self.withdraw(stream)

    def doubt_records(self, stream: Stream) -> None:
        """Doubt the records of an S2 stream: the origin has to confirm them before they are read again."""
        if stream.ended is None and isinstance(stream, RecordStream):
            stream.doubts += 1
            self.withdraw(stream)

    def doubt_replaced(
        self, group: Group, queries: Collection[str] | None, start: int, seen: Container[Stream]
    ) -> None:
        """Doubt all records held from `start` on, except in the streams `seen`, because an append to the S2 stream at
        this path began at `start`.  Only streams with one of `queries` are doubted; None stands for all.

        All streams of the path are looked at only if a sleeping stream may hold such records.
        """
        if start >= self._paths.records_to(group, queries):
            return
        for stream in self.group(group):
            is_beyond = isinstance(stream, RecordStream) and start < stream.records.end_seq_num
            if is_beyond and stream not in seen and (queries is None or stream.key.query in queries):
                self.doubt_records(stream)
        self._paths.looked_at(group)

    def weigh(self, stream: Stream) -> None:
        """Charge the texts that the record has gained since it was last weighed: headers, surrogate keys, queries.
        Does nothing on an ended stream."""
        if stream.ended is None:
            before, stream.facts_cost = stream.facts_cost, stream.weigh()
            if stream.facts_cost != before:
                self._charge(stream, stream.facts_cost - before)

    def prefer(self, pinned: Iterable[StreamKey], share: float, not_stored: Collection[StreamKey]) -> None:
        """Pin the streams `pinned`, the first of them first, within `share` of the budget, and keep no bytes of the
        streams `not_stored`.  Replaces what was preferred before."""
        self._order.prefer(pinned, share, self.budget_bytes)
        self._not_stored = frozenset(not_stored)
        for key in self._not_stored:
            for stream in self.group(key.group):
                if not stream.holds:
                    self._drop_unwanted(stream)

    def is_not_stored(self, stream: Stream) -> bool:
        """Whether no bytes of the stream are to be kept, in any partition."""
        key = stream.key
        return bool(self._not_stored) and key._replace(partition=key.partition.public) in self._not_stored

    def _drop_unwanted(self, stream: Stream) -> None:
        """Drop the bytes of a stream that is not to be stored, and everything derived from them.  Its facts stay."""
        if stream.ended is not None or not self.is_not_stored(stream):
            return
        self._drop_bytes(stream)
        self._metrics.cache(self.cost + self.lent, self._count)

    def _drop_bytes(self, stream: Stream) -> None:
        """Drop a stream's bytes and keep its facts."""
        blocks = stream.block_count
        self._book(stream, -stream.drop_all(), blocks=-blocks)
        self.withdraw(stream)

    def drop_stream(self, stream: Stream, why: End) -> bool:
        """End the stream; return False if it had ended before.  The caller ends its live readers."""
        if stream.ended is not None:
            return False
        self._order.forget(stream.key)
        self._remove(stream, why)
        self._metrics.cache(self.cost + self.lent, self._count)
        return True

    def _remove(self, stream: Stream, why: End) -> None:
        stream.ended = why
        self._paths.remove(stream)
        self._count -= 1
        self._book(stream, -stream.cost, tapes=-1, blocks=-stream.block_count)
        if self.pinned.is_used:
            self.pinned.forget(stream.key)
        stream.drop_all()
        self.withdraw(stream)

    def forget_bytes(self, stream: Stream) -> None:
        """Drop a stream's bytes and keep its record, because the origin may send other bytes from now on."""
        if stream.ended is None:
            blocks = stream.block_count
            self._charge(stream, -stream.drop_all(), blocks=-blocks)
            stream.tape.forget_facts()
            stream.tape.has_lost_start = False
            stream.begin_incarnation(self._mint())
            stream.lost_tail()
            stream.beyond.clear()
            stream.confirmed.clear()
            self.withdraw(stream)

    def forget_before(self, stream: Stream, token: str) -> None:
        """Forget the bytes before an offset, because the origin no longer has them."""
        self._forget(stream, lambda tape: tape.drop_before(token))

    def forget_through(self, stream: Stream, token: str) -> None:
        """Forget the bytes before an offset, and the bytes after it up to the next offset, because the origin no longer
        has them."""
        tail = stream.tape.tail
        self._forget(stream, lambda tape: tape.drop_through(token))
        if stream.tape.tail != tail:
            stream.lost_tail()

    def _forget(self, stream: Stream, drop: Callable[[Tape], int]) -> None:
        """Forget what `drop` drops; it returns the cost freed.  Does nothing on an ended stream."""
        if stream.ended is None and not isinstance(stream, RecordStream):
            blocks = stream.block_count
            self._charge(stream, -drop(stream.tape), blocks=stream.block_count - blocks)
            self.withdraw(stream)

    def withdraw(self, stream: Stream) -> None:
        """Withdraw everything derived from the stream's bytes, including what is still being derived."""
        stream.withdrawn()
        self.on_forget(stream)

    def vary_by_origin(self, stream: Stream) -> None:
        """Restrict the stream to requests without an Origin header from now on."""
        if not stream.varies_by_origin:
            stream.varies_by_origin = True
            # Answers to requests with that header may be remembered.
            self.withdraw(stream)

    def release(self, stream: Stream) -> None:
        """Unpin; drop an unpinned stream that has no bytes and no known tail, which is the state after a refusal."""
        stream.holds -= 1
        if stream.holds or stream.ended is not None:
            return
        if stream.tape.tail is None and stream.block_count == 0:
            self.drop_stream(stream, End.EVICTED)
            return
        if self._not_stored:
            self._drop_unwanted(stream)
        if not stream.is_ranked or self.pinned.is_used:
            # A pinned stream may have left the eviction order together with its bytes.
            self._order.admit(stream, stream.cost)
        if self.cost + self.lent > self.budget_bytes:
            self._make_room(stream, may_shorten=True)
        for other in self._paths.released(stream):
            self.on_forget(other)

    def lend(self, size: int, borrower: Stream) -> bool:
        """Lend `size` bytes of the budget for data derived from `borrower`'s bytes, or for bytes that are about to be
        stored on it, and evict others to make room.

        Returns False and lends nothing if only the borrower's own tape could make room, or if it has ended.
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
        self._metrics.cache(self.cost + self.lent, self._count)

    def resize(self, budget_bytes: int) -> None:
        """Change the budget."""
        self.budget_bytes = budget_bytes
        self._order.resize(budget_bytes)
        self._make_room(None, may_shorten=False)
        while self.cost + self.lent > budget_bytes and self._order.unpin_last():
            # Lent bytes may have left less room than the share of the budget for pinned streams.
            self._make_room(None, may_shorten=False)

    def _charge(self, stream: Stream, delta: int, *, tapes: int = 0, blocks: int = 0) -> None:
        """Charge `delta` more bytes for the stream, and evict what no longer fits."""
        self._book(stream, delta, tapes=tapes, blocks=blocks)
        if self.cost + self.lent > self.budget_bytes:
            self._make_room(stream, may_shorten=True)
        else:
            self._metrics.cache(self.cost + self.lent, self._count)

    def _book(self, stream: Stream, delta: int, *, tapes: int = 0, blocks: int = 0) -> None:
        """Add to the cost of all streams, and to the figures of the stream's route; negative values subtract."""
        self.cost += delta
        holding = self.holdings[stream.key.partition.route]
        holding.tapes += tapes
        holding.blocks += blocks
        holding.cost += delta
        if delta and self.pinned.is_used:
            self._order.add_cost(stream.key, delta)

    def _make_room(self, stream: Stream | None, *, may_shorten: bool) -> None:
        """Evict until the budget is met: other streams first, then bytes of `stream` itself if it may be shortened."""
        spared = stream.key if stream is not None else _NO_KEY
        while self.cost + self.lent > self.budget_bytes:
            key = self._order.victim(spared)
            if key is None:
                if not may_shorten or stream is None:
                    break
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
                # A victim that sleeps is not woken: waking could drop it, or put others to sleep.
                victim = self._paths.find(key)
                if victim is None:
                    continue
                victim.is_ranked = False
                if victim.holds and not victim.block_count:
                    # The stream's bytes are still on their way.  It has lost none, so let it return as a new stream.
                    self._order.forget(key)
                    continue
                self._metrics.eviction(1, key.route)
                if victim.holds:
                    self._drop_bytes(victim)
                else:
                    self._remove(victim, End.EVICTED)
        self._metrics.cache(self.cost + self.lent, self._count)

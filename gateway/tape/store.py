"""The tape store: every stream that the gateway remembers, under one byte budget.

It alone creates, drops and evicts streams and lays bytes, so that the sum of costs is right at every moment.  An
eviction forgets bytes, never facts: a stream that someone follows stays, with an empty tape.

What it tells the policy is *uses*, not requests.  A client that reads a stream once asks for it at least twice in a row
(what there is, then the tail), so requests within `USE_S` of a use are that same use: the correlated reference period
of LRU-K (O'Neil et al., SIGMOD 1993, 2.1).  Without it no reader would ever look like one that came only once.

Two kinds of streams are told apart by wish.  Those of the `pinned` are unknown to the policy while they are kept, so
that it cannot choose them.  Those that are `not_stored` hold bytes only while somebody needs their record: for the live
readers of one, say, whose follower lays what it brings.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gateway.protocol.stream_key import Group, Partition, StreamKey
from gateway.tape.eviction import Eviction
from gateway.tape.pinned import PinnedTapes
from gateway.tape.stream import End, Stream
from gateway.tape.tape import TAPE_COST, Tape
from gateway.telemetry.metrics import MetricsRecorder

USE_S = 1.0
"""Requests for a stream within this time of its last use are a part of that use."""

MOST_TAGS = 1_024
"""Groups that one stream may be in."""

_NOBODYS = StreamKey(Group("", ""), "", Partition(""))
"""The key of no stream, to spare none."""


@dataclass(slots=True)
class RouteUsage:
    """What the streams of one route take: tapes, blocks, and bytes of the budget."""

    tapes: int = 0
    blocks: int = 0
    cost: int = 0


class TapeStore:
    """Streams by key.  `budget_bytes` bounds their tapes' costs and what is lent of it; `mint` names incarnations."""

    def __init__(
        self, budget_bytes: int, eviction: Eviction[StreamKey], mint: Callable[[], str], metrics: MetricsRecorder
    ) -> None:
        self.budget_bytes = budget_bytes
        self.cost = 0
        self.lent = 0
        """Bytes of the budget that are taken by what was made of tapes' bytes."""
        self._eviction = eviction
        self._mint = mint
        self._metrics = metrics
        self._groups: dict[Group, dict[StreamKey, Stream]] = {}
        self._origins: dict[str, int] = {}
        """How many groups there are of each origin."""
        self._tagged: dict[str, dict[Stream, None]] = {}
        """Streams by each of their surrogate keys."""
        self._count = 0
        self.pinned = PinnedTapes()
        """Streams that are not given up for others."""
        self._reserve_share = 0.0
        self._not_stored: frozenset[StreamKey] = frozenset()
        """Streams that are not to hold bytes, by the keys of those who show no credentials."""
        self.unlaid_bytes = 0
        """Bytes that were not laid for that."""
        self.holdings: dict[str, RouteUsage] = {}
        """What is held, by route."""
        self.on_forget: Callable[[Stream], None] = lambda stream: None
        """Called when bytes of a stream are dropped or may no longer be shared, for whoever keeps something made of
        them."""

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"{self._count} streams in {len(self._groups)} groups, {len(self._tagged)} surrogate keys"

    def __iter__(self) -> Iterator[Stream]:
        for streams in self._groups.values():
            yield from streams.values()

    def find(self, key: StreamKey) -> Stream | None:
        """The stream of `key`, if any is remembered."""
        streams = self._groups.get(key.group)
        return streams.get(key) if streams is not None else None

    @property
    def origins(self) -> list[str]:
        """Every origin of which a stream is remembered, those included that no route leads to any more."""
        return list(self._origins)

    def groups(self) -> list[Mapping[StreamKey, Stream]]:
        """Every group that there is now.  Each shows what is in it when it is looked at, so that whoever has many to go
        through may take his time."""
        return list(self._groups.values())

    def group(self, group: Group) -> list[Stream]:
        """Every stream that a write to the group's path concerns."""
        return list(self._groups.get(group, {}).values())

    def tagged(self, surrogate_key: str) -> list[Stream]:
        """Every stream that the origin put into this group."""
        return list(self._tagged.get(surrogate_key, ()))

    def tag(self, stream: Stream, surrogate_keys: frozenset[str]) -> None:
        """The origin has named groups that the stream is in, on a reply with a part of it.

        They are those of all its parts together, until its bytes are forgotten: then the next reply begins them anew.
        A stream that would come to be in more than `MOST_TAGS` loses its bytes for that, so that nothing is held that
        its key does not lead to.  Nothing happens on an ended stream.
        """
        if not surrogate_keys or stream.ended is not None:
            return
        if stream.tagged_as == stream.tape.incarnation:
            if surrogate_keys <= stream.surrogate_keys:
                return
            if len(stream.surrogate_keys | surrogate_keys) > MOST_TAGS:
                self.forget_bytes(stream)
            else:
                surrogate_keys |= stream.surrogate_keys
        self._untag(stream)
        stream.surrogate_keys = surrogate_keys
        stream.tagged_as = stream.tape.incarnation
        for key in surrogate_keys:
            self._tagged.setdefault(key, {})[stream] = None

    def _untag(self, stream: Stream) -> None:
        for key in stream.surrogate_keys:
            streams = self._tagged[key]
            del streams[stream]
            if not streams:
                del self._tagged[key]
        stream.surrogate_keys = frozenset()

    def open(self, key: StreamKey, now: float) -> Stream:
        """The stream of `key`, begun now where none is remembered."""
        stream = self.find(key)
        if stream is None:
            stream = Stream(key, Tape(self._mint()), contacted_at=now, used_at=now)
            group = self._groups.get(key.group)
            if group is None:
                group = self._groups[key.group] = {}
                self._origins[key.group.origin] = self._origins.get(key.group.origin, 0) + 1
            group[key] = stream
            self._count += 1
            self._held(stream, 1, 0, 0)
            self._admit(stream, 0)
            self._charge(stream, TAPE_COST)
        else:
            self._used(stream, now)
        return stream

    def touch(self, stream: Stream) -> None:
        """The stream was answered from, once in a while or many times, by somebody who did not open it."""
        if stream.ended is None:
            self._eviction.touch(stream.key)

    def _used(self, stream: Stream, now: float) -> None:
        if now - stream.used_at >= USE_S:
            stream.used(now)
            self._eviction.touch(stream.key)

    def store(self, stream: Stream, start: str, end: str, pieces: Sequence[bytes], now: float) -> None:
        """Lay bytes on the stream's tape and evict what no longer fits.  Nothing happens on an ended stream."""
        if stream.ended is not None:
            return
        before, blocks = stream.tape.cost, stream.tape.block_count
        stream.tape.store(start, end, pieces, now)
        self._held(stream, 0, stream.tape.block_count - blocks, 0)
        self._admit(stream, before)
        if stream.is_followed:
            # Live readers ask once and are sent what is laid: each of it is a use.
            self._used(stream, now)
        self._charge(stream, stream.tape.cost - before)

    def _admit(self, stream: Stream, cost: int) -> None:
        """The stream, charged with `cost` so far, can be given up from now on, unless it is kept."""
        key = stream.key
        if not self.pinned:
            self._eviction.admit(key)
        elif key not in self.pinned:
            if self.pinned.take(key, cost):
                self._eviction.forget(key)
            else:
                self._eviction.admit(key)

    def prefer(self, pinned: Iterable[StreamKey], share: float, not_stored: Collection[StreamKey]) -> None:
        """Keep the `reserved` when others are given up, the first of them rather than the last, while they take no more
        than `share` of the budget; and have the `not_stored` hold no bytes.  From here on, in place of any wish
        before."""
        self._reserve_share = share
        # All of them first: who was kept by the wish before is not to take the room of those who come before it now.
        self._let_go(self.pinned.prefer((), 0))
        self.pinned.prefer(pinned, int(self.budget_bytes * share))
        for key in self.pinned.preferred:
            stream = self.find(key)
            if stream is not None:
                self._admit(stream, stream.tape.cost)
        self._not_stored = frozenset(not_stored)
        for key in self._not_stored:
            for stream in self.group(key.group):
                if not stream.pins:
                    self._bare(stream)

    def _let_go(self, keys: Iterable[StreamKey]) -> None:
        """These are streams like any other from here on."""
        for key in keys:
            if self.find(key) is not None:
                self._eviction.admit(key)

    def _yield(self) -> bool:
        """Let the least worthwhile of those that are kept go, because the budget comes first; False where none is."""
        key = self.pinned.pop_last()
        if key is None:
            return False
        self._let_go([key])
        return True

    def is_not_stored(self, stream: Stream) -> bool:
        """Whether no bytes are to be held of the stream, whoever shares it."""
        key = stream.key
        return bool(self._not_stored) and key._replace(partition=key.partition.public) in self._not_stored

    def pass_over(self, size: int) -> None:
        """So many bytes of a shunned stream were delivered without being laid."""
        self.unlaid_bytes += size

    def _bare(self, stream: Stream) -> None:
        """Have a shunned stream hold no bytes, nor anything be kept that was made of them.  What is known of it stays
        true."""
        if stream.ended is not None or not self.is_not_stored(stream):
            return
        if stream.tape.block_count:
            self._strip(stream)
            self._metrics.cache(self.cost + self.lent, self._count)
        else:
            self.call_back(stream)

    def _strip(self, stream: Stream) -> None:
        """Drop a stream's bytes and no facts."""
        blocks = stream.tape.block_count
        freed = stream.tape.drop_all()
        self.cost -= freed
        self._held(stream, 0, -blocks, -freed)
        self.call_back(stream)

    def drop(self, stream: Stream, why: End) -> bool:
        """End one stream; False when it had ended before.  The caller ends its live readers."""
        if stream.ended is not None:
            return False
        self._eviction.forget(stream.key)
        self._remove(stream, why)
        return True

    def _remove(self, stream: Stream, why: End) -> None:
        stream.ended = why
        self._untag(stream)
        streams = self._groups[stream.key.group]
        del streams[stream.key]
        if not streams:
            origin = stream.key.group.origin
            del self._groups[stream.key.group]
            self._origins[origin] -= 1
            if not self._origins[origin]:
                del self._origins[origin]
        self._count -= 1
        self.cost -= stream.tape.cost
        self._held(stream, -1, -stream.tape.block_count, -stream.tape.cost)
        self.pinned.forget(stream.key)
        stream.tape.drop_all()
        self.call_back(stream)
        self._metrics.cache(self.cost + self.lent, self._count)

    def purge(self, group: Group, why: End) -> list[Stream]:
        """End every stream of the group; those ended, whose live readers the caller ends."""
        return [stream for stream in self.group(group) if self.drop(stream, why)]

    def forget_bytes(self, stream: Stream) -> None:
        """Drop a stream's bytes but keep it: what it holds is no longer what the origin would send."""
        if stream.ended is None:
            blocks = stream.tape.block_count
            self._charge(stream, -stream.tape.drop_all())
            self._held(stream, 0, -blocks, 0)
            stream.tape.forget_facts()
            # Other bytes may follow at the same offsets: they are to have other tags.
            stream.tape.incarnation = self._mint()
            stream.lost_tail()
            stream.beyond.clear()
            self.call_back(stream)

    def call_back(self, stream: Stream) -> None:
        """What was made of the stream's bytes is given no more, and what is being made of them is not to be kept."""
        stream.called_back()
        self.on_forget(stream)

    def release(self, stream: Stream) -> None:
        """A holder let go: a stream without holders is dropped where no tail of it is known, which is how one is left
        that was refused to its readers."""
        stream.pins -= 1
        if stream.pins or stream.ended is not None:
            return
        if stream.tape.block_count == 0 and stream.tape.tail is None:
            self.drop(stream, End.EVICTED)
            return
        if self._not_stored:
            self._bare(stream)
        # It may have lost its place in the order together with its bytes, while it could not be given up.
        self._admit(stream, stream.tape.cost)
        self._charge(stream, 0)

    def lend(self, size: int, borrower: Stream) -> bool:
        """Give `size` bytes of the budget to what was made of `borrower`'s bytes; others make room for it.

        False, and nothing is lent, where only the borrower's own tape could.
        """
        if borrower.ended is not None or borrower.tape.cost + self.lent + size > self.budget_bytes:
            return False
        self.lent += size
        self._make_room(borrower, may_shorten=False)
        if self.cost + self.lent > self.budget_bytes:
            self.take_back(size)
            return False
        return True

    def take_back(self, size: int) -> None:
        """What `size` bytes were lent for is gone."""
        self.lent -= size
        self._metrics.cache(self.cost + self.lent, self._count)

    def _held(self, stream: Stream, tapes: int, blocks: int, cost: int) -> None:
        """Take note of what has come to the stream's route, or gone."""
        holding = self.holdings.get(stream.key.route)
        if holding is None:
            holding = self.holdings[stream.key.route] = RouteUsage()
        holding.tapes += tapes
        holding.blocks += blocks
        holding.cost += cost
        if cost and self.pinned:
            self._let_go(self.pinned.changed(stream.key, cost))

    def resize(self, budget_bytes: int) -> None:
        """Keep to another budget from here on."""
        self.budget_bytes = budget_bytes
        if self.pinned:
            self._let_go(self.pinned.bound(int(budget_bytes * self._reserve_share)))
        self._make_room(None, may_shorten=False)
        while self.cost + self.lent > budget_bytes and self._yield():
            # What is lent may have left less room than their share of the budget.
            self._make_room(None, may_shorten=False)

    def _charge(self, stream: Stream, delta: int) -> None:
        self.cost += delta
        self._held(stream, 0, 0, delta)
        self._make_room(stream, may_shorten=True)

    def _make_room(self, stream: Stream | None, *, may_shorten: bool) -> None:
        """Keep to the budget: other streams go before bytes of `stream`, and those only if they may."""
        spared = stream.key if stream is not None else _NOBODYS
        while self.cost + self.lent > self.budget_bytes:
            key = self._eviction.victim(spared)
            if key is None:
                if not may_shorten or stream is None:
                    break
                blocks = stream.tape.block_count
                freed = stream.tape.drop_oldest()
                if not freed:
                    if self._yield():
                        continue
                    break
                self.cost -= freed
                self._held(stream, 0, stream.tape.block_count - blocks, -freed)
                self._metrics.eviction(1, stream.key.route)
                self.call_back(stream)
            else:
                victim = self.find(key)
                assert victim is not None
                self._metrics.eviction(1, key.route)
                if victim.pins:
                    self._strip(victim)
                else:
                    self._remove(victim, End.EVICTED)
        self._metrics.cache(self.cost + self.lent, self._count)

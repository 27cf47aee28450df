"""Streams by path, key and surrogate key: awake streams, to which each event of their path is applied at once, and
crowds.

A path has a stream for each query and for each credential partition, and clients can invent both.  So only streams in
use and `MOST_AWAKE` others are *awake*: each write is applied to them at once.  The other streams sleep.  A crowd
numbers the events of its path and keeps the latest.  A sleeping stream knows the number of the last event applied to
it, and the later ones are applied when it is looked up.  A stream that has missed more events than are kept is dropped,
as if it had been evicted.

While a stream sleeps no fetch and no live reader refers to it.  Its remembered answers stay valid until the next event,
which drops them: until then they are found without a look at the stream.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, Protocol

from gateway.limits.memory import evict_oldest
from gateway.protocol.sharing import Group, StreamKey
from gateway.tape.record_stream import RecordStream
from gateway.tape.stream import Stream

MOST_AWAKE: Final = 512
"""The most streams of one path that are awake, in addition to streams in use."""
MOST_EVENTS: Final = 64
"""The number of latest events of a path that are kept for its sleeping streams."""
MOST_DOZING: Final = 4_096
"""The most sleeping streams of one path that keep their remembered answers until the next event."""
MOST_QUERIES: Final = 64
"""The most queries of an S2 path for which the end of the records of sleeping streams is kept separately."""
_LOOKS: Final = 8
"""The most streams that one call looks at to find streams that are not in use."""


class PathEvent(Protocol):
    """A change of all streams of a path.  It is applied once to each stream, now or later, and must not depend on
    anything that changes."""

    def __call__(self, stream: Stream, /) -> object:
        """Apply it to a stream."""

    def with_earlier(self, earlier: PathEvent, /) -> PathEvent | None:
        """One event in place of `earlier` and this one, which is correct whether or not `earlier` has been applied to a
        stream; None if the two stay apart."""


class Crowd:
    """The awake streams of a path and its latest events."""

    def __init__(self, streams: Iterable[Stream]) -> None:
        self.awake: OrderedDict[Stream, None] = OrderedDict.fromkeys(streams)
        """The streams to which each event is applied at once, in the order of their latest use."""
        self._dozing: OrderedDict[Stream, None] = OrderedDict()
        """The sleeping streams that have missed no event, and may have remembered answers, in the order in which they
        fell asleep."""
        self._version = 0
        self._events: deque[tuple[int, PathEvent]] = deque()
        self._complete_from = 0
        """The number of the last event that is not kept any more.  A stream that has missed it cannot wake."""
        self._records_to: dict[str | None, int] = {}
        """For each query of an S2 path, the end of the furthest records of a stream that has slept; None stands for all
        queries together."""

    def __repr__(self) -> str:
        return f"<Crowd {len(self.awake)} awake, {len(self._events)} events>"

    def told(self, event: PathEvent) -> Iterable[Stream]:
        """Keep an event, which the caller applies to the awake streams; returns the streams whose remembered answers
        are not valid any more."""
        self._version += 1
        dozing, self._dozing = self._dozing, OrderedDict()
        if self._events and (both := event.with_earlier(self._events[-1][1])) is not None:
            self._events[-1] = self._version, both
            return dozing
        self._events.append((self._version, event))
        if len(self._events) > MOST_EVENTS:
            self._complete_from, _ = self._events.popleft()
        return dozing

    def wake(self, stream: Stream) -> list[PathEvent] | None:
        """Count a sleeping stream as awake: returns the events that it has missed, or None if they are not kept any
        more."""
        stream.is_awake = True
        self.awake[stream] = None
        self._dozing.pop(stream, None)
        if stream.heard < self._complete_from:
            return None
        return [event for version, event in self._events if version > stream.heard]

    def put_to_sleep(self, spared: Stream) -> list[Stream]:
        """Put the least recently used streams to sleep, except `spared`, while more are awake than necessary; returns
        the streams whose remembered answers are too many to keep."""
        awake, dozing = self.awake, self._dozing
        for _ in range(_LOOKS):
            if len(awake) <= MOST_AWAKE:
                break
            stream = next(iter(awake))
            if stream.holds or stream is spared:
                awake.move_to_end(stream)
                continue
            del awake[stream]
            stream.is_awake = False
            stream.heard = self._version
            # A write may begin meanwhile.
            stream.forget_beyond()
            self._holds_records(stream)
            dozing[stream] = None
        return [stream for stream, _ in evict_oldest(dozing, MOST_DOZING)]

    def records_to(self, queries: Collection[str] | None) -> int:
        """The end of the furthest records that a sleeping stream with one of these queries may hold; None: any."""
        known = self._records_to.items()
        return max((end for query, end in known if query is None or queries is None or query in queries), default=0)

    def looked_at(self, streams: Iterable[Stream]) -> None:
        """Record that all streams of an S2 path have been looked at, and that those with records which the origin does
        not have are in doubt."""
        self._records_to.clear()
        for stream in streams:
            self._holds_records(stream)

    def _holds_records(self, stream: Stream) -> None:
        if isinstance(stream, RecordStream) and stream.block_count and not stream.is_doubted:
            held = self._records_to
            query = None if None in held else stream.key.query
            held[query] = max(held.get(query, 0), stream.records.end_seq_num)
            if len(held) > MOST_QUERIES:
                self._records_to = {None: max(held.values())}

    def remove(self, stream: Stream) -> None:
        """Forget a stream that is no longer in memory."""
        self.awake.pop(stream, None)
        self._dozing.pop(stream, None)

    def touch(self, stream: Stream) -> None:
        """Record that an awake stream was used."""
        if stream in self.awake:
            self.awake.move_to_end(stream)


class Paths:
    """The streams in memory.  The `TapeStore` adds and removes them."""

    def __init__(self) -> None:
        self._groups: dict[Group, dict[StreamKey, Stream]] = {}
        self._origins: dict[str, int] = {}
        """The number of groups of each origin."""
        self._crowds: dict[Group, Crowd] = {}
        """The paths that have had more than `MOST_AWAKE` streams at once."""
        self.tags: dict[str, dict[Stream, None]] = {}
        """The streams with each surrogate key."""

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[Stream]:
        for streams in self._groups.values():
            yield from streams.values()

    def __repr__(self) -> str:
        return f"<Paths {len(self._groups)} groups, {len(self._crowds)} crowds>"

    def origins(self) -> list[str]:
        """Every origin with a stream in memory, including origins that no route leads to any more."""
        return list(self._origins)

    def groups(self) -> list[Mapping[StreamKey, Stream]]:
        """The groups that exist now; each is a live view of its streams."""
        return list(self._groups.values())

    def find(self, key: StreamKey) -> Stream | None:
        """The stream of `key`, which may sleep; None if it is not in memory."""
        streams = self._groups.get(key.group)
        return streams.get(key) if streams is not None else None

    def add_stream(self, stream: Stream) -> Iterable[Stream]:
        """Add a stream, which is awake; returns the streams whose remembered answers must be dropped for it."""
        group = stream.key.group
        streams = self._groups.get(group)
        if streams is None:
            streams = self._groups[group] = {}
            self._origins[group.origin] = self._origins.get(group.origin, 0) + 1
        streams[stream.key] = stream
        if len(streams) <= MOST_AWAKE and group not in self._crowds:
            return ()
        crowd = self._crowds.get(group)
        if crowd is None:
            crowd = self._crowds[group] = Crowd(streams.values())
        crowd.awake[stream] = None
        return crowd.put_to_sleep(stream)

    def remove(self, stream: Stream) -> None:
        """Remove a stream."""
        if stream.surrogate_keys:
            self.tag(stream, frozenset())
        group = stream.key.group
        streams = self._groups[group]
        del streams[stream.key]
        if self._crowds and (crowd := self._crowds.get(group)) is not None:
            crowd.remove(stream)
        if not streams:
            self._crowds.pop(group, None)
            del self._groups[group]
            self._origins[group.origin] -= 1
            if not self._origins[group.origin]:
                del self._origins[group.origin]

    def tagged(self, surrogate_key: str) -> list[Stream]:
        """Every stream with this surrogate key."""
        return list(self.tags.get(surrogate_key, ()))

    def tag(self, stream: Stream, surrogate_keys: frozenset[str]) -> None:
        """Give a stream these surrogate keys in place of its own."""
        for key in stream.surrogate_keys:
            streams = self.tags[key]
            del streams[stream]
            if not streams:
                del self.tags[key]
        stream.surrogate_keys = surrogate_keys
        for key in surrogate_keys:
            self.tags.setdefault(key, {})[stream] = None

    def has(self, group: Group) -> bool:
        """Whether a stream of the path is in memory."""
        return group in self._groups

    def group(self, group: Group) -> list[Stream]:
        """Every stream of the path, whether it sleeps or not."""
        return list(self._groups.get(group, {}).values())

    def awake(self, group: Group) -> list[Stream]:
        """The streams of the path to which its events are applied at once: all, unless they are a crowd."""
        if self._crowds and (crowd := self._crowds.get(group)) is not None:
            return list(crowd.awake)
        streams = self._groups.get(group)
        return list(streams.values()) if streams is not None else []

    def told(self, group: Group, event: PathEvent) -> Iterable[Stream]:
        """Keep an event for the sleeping streams of the path; returns the streams whose remembered answers it ends."""
        if self._crowds and (crowd := self._crowds.get(group)) is not None:
            return crowd.told(event)
        return ()

    def records_to(self, group: Group, queries: Collection[str] | None) -> int:
        """The end of the furthest records that a sleeping S2 stream of the path may hold; 0 if there is none."""
        crowd = self._crowds.get(group)
        return crowd.records_to(queries) if crowd is not None else 0

    def looked_at(self, group: Group) -> None:
        """Record that all S2 streams of the path have been looked at."""
        if (crowd := self._crowds.get(group)) is not None:
            crowd.looked_at(self.group(group))

    def wake(self, stream: Stream) -> tuple[list[PathEvent] | None, Iterable[Stream]]:
        """Wake a stream: returns the events that it has missed, None if they are not kept any more, and the streams
        whose remembered answers must be dropped for it."""
        crowd = self._crowds[stream.key.group]
        return crowd.wake(stream), crowd.put_to_sleep(stream)

    def released(self, stream: Stream) -> Iterable[Stream]:
        """Record that a stream is not in use any more; returns the streams whose remembered answers must be dropped."""
        if self._crowds and (crowd := self._crowds.get(stream.key.group)) is not None:
            return crowd.put_to_sleep(stream)
        return ()

    def touch(self, stream: Stream) -> None:
        """Record that a stream was used."""
        if self._crowds and (crowd := self._crowds.get(stream.key.group)) is not None:
            crowd.touch(stream)

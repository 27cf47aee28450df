"""The index of streams in memory: by path, by key and by surrogate key.

One path can have many streams: one for each query and each set of credentials.  Clients can invent queries and
credentials.  A write to the path affects all streams of the path, and yet the cost of a write must not grow with the
number of streams.

Therefore only some streams of a path are *awake*: streams in use, and at most `MOST_AWAKE` other streams.  An event of
the path, such as a write, is applied to awake streams at once.  The other streams *sleep*.  A path with more than
`MOST_AWAKE` streams is a *crowd*.  A crowd numbers the path's events and keeps the latest events.  When a sleeping
stream is looked up, the missed events are applied to the stream.  If some of the missed events are no longer kept, the
stream is dropped, as if it had been evicted.

No fetch and no live reader uses a sleeping stream.  Its remembered answers (responses that the server keeps for
repetition) stay valid until the next event of the path.  The server finds these answers without waking the stream.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, Protocol

from gateway.limits.memory import evict_oldest
from gateway.protocol.sharing import Group, StreamKey
from gateway.tape.record_stream import RecordStream
from gateway.tape.stream import Stream

MOST_AWAKE: Final = 512
"""The most streams of one path that are awake, in addition to the streams in use."""
MOST_EVENTS: Final = 64
"""The most events of one path that are kept for its sleeping streams."""
MOST_DOZING: Final = 4_096
"""The most sleeping streams of one path that keep their remembered answers until the next event."""
MOST_QUERIES: Final = 64
"""The most queries of an S2 path that have separate values in `Crowd.records_to`."""
MAX_TAGS: Final = 1_024
"""The most surrogate keys of one stream."""
MAX_TAG_BYTES: Final = 1 << 16
"""The most bytes of all surrogate keys of one stream together.  A single reply may have keys with this many bytes."""
_LOOKS: Final = 8
"""The most streams that one call examines in its search for streams that are not in use."""


class PathEvent(Protocol):
    """A change that concerns all streams of a path.

    The event is applied once to each stream: at once to awake streams, and later to sleeping streams.  The event must
    therefore not depend on mutable state.
    """

    def __call__(self, stream: Stream, /) -> object:
        """Apply the event to a stream."""

    def with_earlier(self, earlier: PathEvent, /) -> PathEvent | None:
        """Merge the preceding event and this one; return None if they cannot be merged.

        The result may be applied to streams to which `earlier` has been applied already, and to streams to which it has
        not.  The effect must be correct in both cases.
        """


class Crowd:
    """A path with more than `MOST_AWAKE` streams: the streams that are awake, and the latest events."""

    def __init__(self, streams: Iterable[Stream]) -> None:
        self.awake: OrderedDict[Stream, None] = OrderedDict.fromkeys(streams)
        """The streams to which each event is applied at once.  The least recently used stream is first."""
        self._dozing: OrderedDict[Stream, None] = OrderedDict()
        """The sleeping streams that have missed no event.  Their remembered answers are valid.  The stream that has
        slept longest is first."""
        self._version = 0
        self._events: deque[tuple[int, PathEvent]] = deque()
        self._complete_from = 0
        """The number of the last event that is no longer kept.  A stream that has missed this event cannot wake."""
        self._records_to: dict[str | None, int] = {}
        """For each query of an S2 path, the highest sequence number up to which a sleeping stream may hold records.
        The key None means all queries together."""

    def __repr__(self) -> str:
        return f"<Crowd {len(self.awake)} awake, {len(self._events)} events>"

    def told(self, event: PathEvent) -> Iterable[Stream]:
        """Keep an event for sleeping streams.  The caller applies the event to the awake streams.

        Returns the streams whose remembered answers become invalid.
        """
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
        """Mark a sleeping stream as awake.  Return the events that the stream has missed; None if some of these events
        are no longer kept."""
        stream.is_awake = True
        self.awake[stream] = None
        self._dozing.pop(stream, None)
        if stream.heard < self._complete_from:
            return None
        return [event for version, event in self._events if version > stream.heard]

    def has_missed(self, stream: Stream) -> bool:
        """Return whether a stream sleeps and has missed events."""
        return not stream.is_awake and stream.heard < self._version

    def put_to_sleep(self, spared: Stream) -> list[Stream]:
        """Put the least recently used streams to sleep until `MOST_AWAKE` are awake, but never `spared`.

        Streams in use stay awake.  Returns the streams whose remembered answers must be dropped, because at most
        `MOST_DOZING` sleeping streams keep their answers.
        """
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
            self._holds_records(stream)
            dozing[stream] = None
        return [stream for stream, _ in evict_oldest(dozing, MOST_DOZING)]

    def records_to(self, queries: Collection[str] | None) -> int:
        """Return the highest sequence number up to which a sleeping stream with one of these queries may hold records.
        None means all queries."""
        known = self._records_to.items()
        return max((end for query, end in known if query is None or queries is None or query in queries), default=0)

    def looked_at(self, streams: Iterable[Stream]) -> None:
        """Compute `records_to` again from all streams of the S2 path.  The caller has just marked records of some of
        these streams as doubted (`RecordStream`)."""
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
        """Remove a stream that has left memory."""
        self.awake.pop(stream, None)
        self._dozing.pop(stream, None)

    def touch(self, stream: Stream) -> None:
        """Record that an awake stream was used."""
        if stream in self.awake:
            self.awake.move_to_end(stream)


def all_tags(stream: Stream, surrogate_keys: frozenset[str]) -> frozenset[str] | None:
    """Return the surrogate keys of a stream together with further keys; None if the union is too large."""
    collected = stream.surrogate_keys | surrogate_keys
    return None if len(collected) > MAX_TAGS or sum(map(len, collected)) > MAX_TAG_BYTES else collected


class Paths:
    """The index of all streams in memory.  Owner: the `TapeStore`."""

    def __init__(self) -> None:
        self._groups: dict[Group, dict[StreamKey, Stream]] = {}
        self._origins: dict[str, int] = {}
        """The number of groups of each origin.  An origin without groups is removed."""
        self._crowds: dict[Group, Crowd] = {}
        """The paths that have had more than `MOST_AWAKE` streams at some time."""
        self._row_of: Callable[[Group], int] | None = None
        self._rows: dict[int, set[Group]] = {}
        """For each number, the paths with this number.  Empty unless `number_paths` was called."""
        self.tags: dict[str, dict[Stream, None]] = {}
        """For each surrogate key, the streams with this key."""

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[Stream]:
        for streams in self._groups.values():
            yield from streams.values()

    def __repr__(self) -> str:
        return f"<Paths {len(self._groups)} groups, {len(self._crowds)} crowds>"

    def origins(self) -> list[str]:
        """Return all origins with a stream in memory, including origins that the configuration no longer has."""
        return list(self._origins)

    def groups(self) -> list[Mapping[StreamKey, Stream]]:
        """Return the streams of each path, as live views."""
        return list(self._groups.values())

    def find(self, key: StreamKey) -> Stream | None:
        """Return the stream of `key`, awake or asleep; None if the stream is not in memory."""
        streams = self._groups.get(key.group)
        return streams.get(key) if streams is not None else None

    def number_paths(self, row_of: Callable[[Group], int]) -> None:
        """Assign to each path the number `row_of(path)`, so that `in_row` finds paths by their number.  The index must
        have no path yet."""
        self._row_of = row_of

    def in_row(self, number: int) -> set[Group]:
        """Return a copy of the paths with this number."""
        return set(self._rows.get(number, ()))

    def add_stream(self, stream: Stream) -> Iterable[Stream]:
        """Add an awake stream.  Other streams may be put to sleep to make room for the new stream.  Return the streams
        whose remembered answers must be dropped (`Crowd.put_to_sleep`)."""
        group = stream.key.group
        streams = self._groups.get(group)
        if streams is None:
            streams = self._groups[group] = {}
            self._origins[group.origin] = self._origins.get(group.origin, 0) + 1
            if self._row_of is not None:
                self._rows.setdefault(self._row_of(group), set()).add(group)
        streams[stream.key] = stream
        if len(streams) <= MOST_AWAKE and group not in self._crowds:
            return ()
        crowd = self._crowds.get(group)
        if crowd is None:
            crowd = self._crowds[group] = Crowd(streams.values())
        crowd.awake[stream] = None
        return crowd.put_to_sleep(stream)

    def remove(self, stream: Stream) -> None:
        """Remove a stream that is in the index."""
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
            if self._row_of is not None:
                paths = self._rows[number := self._row_of(group)]
                paths.remove(group)
                if not paths:
                    del self._rows[number]

    def tagged(self, surrogate_key: str) -> list[Stream]:
        """Return all streams with this surrogate key."""
        return list(self.tags.get(surrogate_key, ()))

    def tag(self, stream: Stream, surrogate_keys: frozenset[str]) -> None:
        """Replace the surrogate keys of a stream."""
        for key in stream.surrogate_keys:
            streams = self.tags[key]
            del streams[stream]
            if not streams:
                del self.tags[key]
        stream.surrogate_keys = surrogate_keys
        for key in surrogate_keys:
            self.tags.setdefault(key, {})[stream] = None

    def has(self, group: Group) -> bool:
        """Return whether a stream of the path is in memory."""
        return group in self._groups

    def group(self, group: Group) -> list[Stream]:
        """Return all streams of the path, awake and asleep."""
        return list(self._groups.get(group, {}).values())

    def awake(self, group: Group) -> list[Stream]:
        """Return the awake streams of the path: all of them, unless the path is a crowd."""
        if self._crowds and (crowd := self._crowds.get(group)) is not None:
            return list(crowd.awake)
        streams = self._groups.get(group)
        return list(streams.values()) if streams is not None else []

    def told(self, group: Group, event: PathEvent) -> Iterable[Stream]:
        """Keep an event for the sleeping streams of the path.  Return the streams whose remembered answers become
        invalid."""
        if self._crowds and (crowd := self._crowds.get(group)) is not None:
            return crowd.told(event)
        return ()

    def records_to(self, group: Group, queries: Collection[str] | None) -> int:
        """Return the highest sequence number up to which a sleeping S2 stream of the path may hold records; 0 if no
        sleeping stream may hold records.  If `queries` is None, streams with any query count."""
        crowd = self._crowds.get(group)
        return crowd.records_to(queries) if crowd is not None else 0

    def looked_at(self, group: Group) -> None:
        """Compute `records_to` again.  The caller has just marked records of the path's streams as doubted."""
        if (crowd := self._crowds.get(group)) is not None:
            crowd.looked_at(self.group(group))

    def wake(self, stream: Stream) -> tuple[list[PathEvent] | None, Iterable[Stream]]:
        """Wake a stream.

        Returns two results.  The first has the events that the stream has missed; None if some of these events are no
        longer kept.  The second has the streams whose remembered answers must be dropped (`Crowd.put_to_sleep`).
        """
        crowd = self._crowds[stream.key.group]
        return crowd.wake(stream), crowd.put_to_sleep(stream)

    def has_missed(self, stream: Stream) -> bool:
        """Return whether a stream sleeps and has missed events."""
        crowd = self._crowds.get(stream.key.group)
        return crowd is not None and crowd.has_missed(stream)

    def released(self, stream: Stream) -> Iterable[Stream]:
        """Record that a stream is no longer in use.  Return the streams whose remembered answers must be dropped
        (`Crowd.put_to_sleep`)."""
        if self._crowds and (crowd := self._crowds.get(stream.key.group)) is not None:
            return crowd.put_to_sleep(stream)
        return ()

    def touch(self, stream: Stream) -> None:
        """Record that a stream was used."""
        if self._crowds and (crowd := self._crowds.get(stream.key.group)) is not None:
            crowd.touch(stream)

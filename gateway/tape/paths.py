"""Streams by path, key and surrogate key, and which of a path's streams hear of its events at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from gateway.protocol.sharing import Group, StreamKey
from gateway.tape.crowd import MOST_AWAKE, Crowd, PathEvent
from gateway.tape.stream import Stream


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

    def add(self, stream: Stream) -> Iterable[Stream]:
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
        """The streams of the path that hear of its events at once: all, unless they are a crowd."""
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
        """All S2 streams of the path have been looked at."""
        if (crowd := self._crowds.get(group)) is not None:
            crowd.looked_at(self.group(group))

    def wake(self, stream: Stream) -> tuple[list[PathEvent] | None, Iterable[Stream]]:
        """Wake a stream: returns the events that it has missed, None if they are not kept any more, and the streams
        whose remembered answers must be dropped for it."""
        crowd = self._crowds[stream.key.group]
        return crowd.wake(stream), crowd.put_to_sleep(stream)

    def released(self, stream: Stream) -> Iterable[Stream]:
        """A stream is not in use any more; returns the streams whose remembered answers must be dropped."""
        if self._crowds and (crowd := self._crowds.get(stream.key.group)) is not None:
            return crowd.put_to_sleep(stream)
        return ()

    def touch(self, stream: Stream) -> None:
        """A stream was used."""
        if self._crowds and (crowd := self._crowds.get(stream.key.group)) is not None:
            crowd.touch(stream)

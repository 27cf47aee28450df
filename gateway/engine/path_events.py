"""The changes that a write makes to all streams of its path, at once or later.

Each is a `gateway.tape.paths.PathEvent`, made when the write is answered, and records the facts of that time.  A stream
that may have expired by then is dropped, because the write may be the first to reach its successor.

`Purge` drops or invalidates a stream at an operator's request.  No connection of a Durable Stream's client ends.  A
stream without a topic is dropped as a whole, and reads under way on it start again.  A stream with a topic keeps its
record, as in an eviction: its bytes go, and with them the facts that would let it answer alone.  Its live request is
restarted, which finds out whether the stream is still the same.  Its readers notice nothing if it is, and are ended if
it is not.

An S2 stream is dropped as a whole, and its live readers are given an error with which they come again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from gateway.live.topics import LiveTopics
from gateway.protocol.sharing import Partition
from gateway.tape.paths import PathEvent
from gateway.tape.store import TapeStore
from gateway.tape.stream import End, Stream


class PathChange:
    """Any change.  Of two changes of one `kind` in a row, the later one is enough; a change with None stays apart."""

    __slots__ = ("_apply", "_kind", "_live", "_now", "_wall")

    def __init__(
        self, apply: Callable[[Stream], object], live: LiveTopics, now: float, wall: float, kind: str | None = None
    ) -> None:
        self._apply = apply
        self._live = live
        self._now = now
        self._wall = wall
        self._kind = kind

    def __repr__(self) -> str:
        return f"<PathChange {self._kind or 'of its own'}>"

    def __call__(self, stream: Stream, /) -> None:
        if stream.has_expired(self._now, self._wall):
            self._live.drop_stream(stream, End.PURGED)
        else:
            self._apply(stream)

    def with_earlier(self, earlier: PathEvent, /) -> PathEvent | None:
        """This change, if `earlier` is one of the same kind."""
        is_like = self._kind is not None and isinstance(earlier, PathChange) and earlier._kind == self._kind
        return self if is_like else None


class Acknowledged:
    """A write that was acknowledged, and neither made nor may have ended a stream."""

    __slots__ = ("_asked_at", "_is_closed", "_live", "_now", "_query", "_tail", "_wall")

    def __init__(
        self, live: LiveTopics, tail: str, query: str, now: float, wall: float, asked_at: float, *, is_closed: bool
    ) -> None:
        """`tail` is where the write ended, `query` that of its target.  It was sent at `asked_at`, and answered at
        `now` (monotonic seconds) and `wall` (Unix time)."""
        self._live = live
        self._tail = tail
        self._query = query
        self._now = now
        self._wall = wall
        self._asked_at = asked_at
        self._is_closed = is_closed

    def __repr__(self) -> str:
        return f"<Acknowledged to {self._tail}>"

    def __call__(self, stream: Stream, /) -> None:
        if stream.has_expired(self._now, self._wall):
            self._live.drop_stream(stream, End.PURGED)
            return
        stream.acknowledged(self._tail, is_closed=self._is_closed, query=self._query)
        self._live.expect(stream)
        # A sliding TTL runs from when the origin did the write, which may be long before it answers.
        stream.contacted(self._asked_at)

    def with_earlier(self, earlier: PathEvent, /) -> PathEvent | None:
        """The further one of the two, if both have the same query."""
        if not isinstance(earlier, Acknowledged) or earlier._query != self._query:
            return None
        return Acknowledged(
            self._live,
            max(self._tail, earlier._tail),
            self._query,
            self._now,
            self._wall,
            max(self._asked_at, earlier._asked_at),
            is_closed=self._is_closed or earlier._is_closed,
        )


class Purge:
    """Purges streams of one tape store.  Keeps no state of its own."""

    def __init__(self, store: TapeStore, live: LiveTopics) -> None:
        self._store = store
        self._live = live

    def drop_stream(self, stream: Stream) -> bool:
        """Drop the stream's bytes now; return False if it had ended before."""
        if stream.ended is not None:
            return False
        if self._live.find_topic(stream) is not None:
            self._store.forget_bytes(stream)
            return self.revalidate(stream)
        return self._store.drop_stream(stream, End.PURGED)

    def revalidate(self, stream: Stream) -> bool:
        """Soft purge: keep the bytes, but ask the origin before the next hit; return False if it had ended before."""
        if stream.ended is not None:
            return False
        stream.mark_stale(may_have_ended=False)
        self._live.revalidate(stream)
        return True

    def drop_others(self, partitions: Collection[Partition]) -> None:
        """Drop streams that no route leads to any more: those outside these public partitions (`Route.public`).  A
        stream with a topic stays until the topic ends."""
        for stream in list(self._store):
            if stream.key.partition.public not in partitions and self._live.find_topic(stream) is None:
                self._store.drop_stream(stream, End.PURGED)

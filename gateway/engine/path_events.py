"""Events of a path, which writes cause and which concern all streams at the path, and the operator's purge of single
streams.

One path may have several streams in memory, for instance one for each set of credentials.  `PathChange`, `Acknowledged`
and `AppendedElsewhere` are `gateway.tape.paths.PathEvent`s: the store applies each event to each stream of the path, at
once or when the stream is next used.  An event records the time at which the write was answered, or at which this
gateway has learned of it.  A stream that may have expired before that time is dropped, because the write may have
reached a new stream of that name.

`Purge` drops or invalidates a stream at the operator's request, without ending connections of Durable Streams clients.
A stream without live readers is dropped, and reads of the stream that are under way start again.  A stream with live
readers keeps its record, and its bytes are dropped.  Its live request to the origin is restarted, to check that the
stream is still the same.  The connections of its readers end only if the stream has changed.

An S2 stream is always dropped.  Its live readers get an error after which clients reconnect.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from gateway.live.topics import LiveTopics
from gateway.protocol.sharing import Partition
from gateway.tape.paths import PathEvent
from gateway.tape.store import TapeStore
from gateway.tape.stream import End, Stream


class PathChange:
    """A change that a write makes to each stream of its path.

    `kind` marks changes that replace each other: of two successive changes of the same kind, only the later change is
    applied.  A change whose kind is None is always applied.
    """

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
        """Return this change if it replaces `earlier`, else None."""
        is_like = self._kind is not None and isinstance(earlier, PathChange) and earlier._kind == self._kind
        return self if is_like else None


class Acknowledged:
    """An acknowledged append to a stream that existed before the append and still exists."""

    __slots__ = ("_asked_at", "_is_closed", "_live", "_now", "_query", "_tail", "_wall")

    def __init__(
        self, live: LiveTopics, tail: str, query: str, now: float, wall: float, asked_at: float, *, is_closed: bool
    ) -> None:
        """`tail` is the offset after the write, and `query` is the query of the write's target.

        The request was sent at `asked_at` (monotonic seconds) and answered at `now` (monotonic seconds) and `wall`
        (Unix seconds).
        """
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
        # A sliding TTL restarts when the origin executes the write, possibly long before it answers.
        stream.contacted(self._asked_at)

    def with_earlier(self, earlier: PathEvent, /) -> PathEvent | None:
        """Return one event for both appends, with the later of the two tails.  Returns None if `earlier` is no append,
        or has another query."""
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


class AppendedElsewhere:
    """Appends through another gateway.  Their ends are unknown.  The origin had acknowledged all of them by a known
    time."""

    __slots__ = ("_by", "_live", "_now", "_wall")

    def __init__(self, live: LiveTopics, by: float, now: float, wall: float) -> None:
        """The origin had acknowledged the appends at `by` (monotonic seconds).  This gateway has learned of them at
        `now` (monotonic seconds) and `wall` (Unix seconds)."""
        self._live = live
        self._by = by
        self._now = now
        self._wall = wall

    def __repr__(self) -> str:
        return f"<AppendedElsewhere by {self._by}>"

    def __call__(self, stream: Stream, /) -> None:
        if stream.has_expired(self._now, self._wall):
            self._live.drop_stream(stream, End.PURGED)
            return
        stream.acknowledged_elsewhere(self._by)
        stream.mark_stale(may_have_ended=False)

    def with_earlier(self, earlier: PathEvent, /) -> PathEvent | None:
        """Return one event for both, with the later of the two times.  Returns None unless `earlier` is of this
        kind."""
        if not isinstance(earlier, AppendedElsewhere):
            return None
        return AppendedElsewhere(self._live, max(self._by, earlier._by), self._now, self._wall)


class Purge:
    """Purges streams of one store.  Keeps no state of its own."""

    def __init__(self, store: TapeStore, live: LiveTopics) -> None:
        self._store = store
        self._live = live

    def drop_stream(self, stream: Stream) -> bool:
        """Drop the stream's bytes; return False if the stream had already ended."""
        if stream.ended is not None:
            return False
        if self._live.find_topic(stream) is not None:
            self._store.forget_bytes(stream)
            return self.revalidate(stream)
        return self._store.drop_stream(stream, End.PURGED)

    def revalidate(self, stream: Stream) -> bool:
        """Keep the bytes, but revalidate them at the origin before the next hit (soft purge).  Return False if the
        stream had already ended."""
        if stream.ended is not None:
            return False
        stream.mark_stale(may_have_ended=False)
        self._live.revalidate(stream)
        return True

    def drop_others(self, partitions: Collection[Partition]) -> None:
        """Drop the streams that no route reaches.

        `partitions` are the public partitions (`Route.public`) of the routes in effect.  A stream with live readers is
        not dropped.
        """
        for stream in list(self._store):
            if stream.key.partition.public not in partitions and self._live.find_topic(stream) is None:
                self._store.drop_stream(stream, End.PURGED)

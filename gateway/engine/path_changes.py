"""The changes that a write makes to all streams of its path, at once or later.

Each is a `gateway.tape.crowd.PathEvent`, made when the write is answered, and records the facts of that time.  A stream
that may have expired by then is dropped, because the write may be the first to reach its successor.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.live.topics import LiveTopics
from gateway.tape.crowd import PathEvent
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
            self._live.drop(stream, End.PURGED)
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
            self._live.drop(stream, End.PURGED)
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

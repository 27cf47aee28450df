"""Purging: what an operator no longer wants believed, let go without anybody's connection being ended.

A stream that nobody follows is forgotten as a whole, and who is on his way through it begins anew.  One that is
followed keeps its record, as it does when it is evicted: its bytes go, the facts by which it would answer alone go with
them, and its live request is made anew, which finds out whether the stream is still the same.  Its readers notice
nothing if it is, and are told if it is not.
"""

from __future__ import annotations

from collections.abc import Collection

from gateway.live.topics import LiveTopics
from gateway.tape.store import TapeStore
from gateway.tape.stream import End, Stream


class Purge:
    """Purges streams of one library.  Keeps no state of its own."""

    def __init__(self, store: TapeStore, live: LiveTopics) -> None:
        self._store = store
        self._live = live

    def drop(self, stream: Stream) -> bool:
        """Forget the stream's bytes now; False when it had ended before."""
        if stream.ended is not None:
            return False
        if self._live.find(stream) is not None:
            self._store.forget_bytes(stream)
            return self.revalidate(stream)
        return self._store.drop(stream, End.PURGED)

    def revalidate(self, stream: Stream) -> bool:
        """Soft: keep the bytes, and have the origin looked at before the next hit; False when it had ended before."""
        if stream.ended is not None:
            return False
        stream.doubts += 1
        self._live.revalidate(stream)
        return True

    def drop_others(self, shares: Collection[str]) -> None:
        """Forget what no route leads to any more: streams of other shares than these (`Route.share`).  Those that are
        followed stay with their readers, who are the last."""
        for stream in list(self._store):
            if stream.key.share not in shares and self._live.find(stream) is None:
                self._store.drop(stream, End.PURGED)

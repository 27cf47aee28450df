"""Purging: what an operator no longer wants believed, let go without anybody's connection being ended.

A stream that nobody follows is forgotten as a whole, and who is on his way through it begins anew.  One that is
followed keeps its record, as it does when it is evicted: its bytes go, the facts by which it would answer alone go with
them, and its live request is made anew, which finds out whether the stream is still the same.  Its readers notice
nothing if it is, and are told if it is not.
"""

from __future__ import annotations

from collections.abc import Collection

from gateway.live.topics import LiveTopics
from gateway.protocol.stream_key import Partition
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
        stream.mark_stale(may_have_ended=False)
        self._live.revalidate(stream)
        return True

    def drop_others(self, partitions: Collection[Partition]) -> None:
        """Drop streams that no route leads to any more: those outside these public partitions (`Route.public`).  A
        followed stream stays until its last reader leaves."""
        for stream in list(self._store):
            if stream.key.partition.public not in partitions and self._live.find(stream) is None:
                self._store.drop(stream, End.PURGED)

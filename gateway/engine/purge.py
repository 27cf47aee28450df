"""Purging: drop or invalidate a stream at an operator's request.  No connection of a Durable Stream's client ends.

A stream without a topic is dropped as a whole, and reads under way on it start again.  A stream with a topic keeps its
record, as in an eviction: its bytes go, and with them the facts that would let it answer alone.  Its live request is
restarted, which finds out whether the stream is still the same.  Its readers notice nothing if it is, and are ended if
it is not.

An S2 stream is dropped as a whole, and its live readers are given an error with which they come again.
"""

from __future__ import annotations

from collections.abc import Collection

from gateway.live.topics import LiveTopics
from gateway.protocol.stream_key import Partition
from gateway.tape.store import TapeStore
from gateway.tape.stream import End, Stream


class Purge:
    """Purges streams of one tape store.  Keeps no state of its own."""

    def __init__(self, store: TapeStore, live: LiveTopics) -> None:
        self._store = store
        self._live = live

    def drop(self, stream: Stream) -> bool:
        """Drop the stream's bytes now; return False if it had ended before."""
        if stream.ended is not None:
            return False
        if self._live.find(stream) is not None:
            self._store.forget_bytes(stream)
            return self.revalidate(stream)
        return self._store.drop(stream, End.PURGED)

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
            if stream.key.partition.public not in partitions and self._live.find(stream) is None:
                self._store.drop(stream, End.PURGED)

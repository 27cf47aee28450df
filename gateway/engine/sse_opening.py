"""The beginning of an SSE answer, kept for the next reader that joins a followed stream at the same offset.

Readers come together: a page that everybody opens, a network that comes back.  The next reader is sent the same head
and first event until the stream, its tail or its live request changes, and within the second that the head names.
"""

from __future__ import annotations

from typing import Final
from weakref import ref

from gateway.live.reader import LiveStep
from gateway.live.topic import Topic

MOST_BYTES: Final = 512
"""A first piece that is larger is not kept: most readers join at the tail, and are sent a control event."""


class SseOpening:
    """The first piece of an SSE response, valid with its head for one version of its stream and one second."""

    __slots__ = ("_headers", "_second", "_tail", "_topic", "_version", "step")

    def __init__(self, topic: Topic, step: LiveStep, wall: float) -> None:
        """`wall` is the time that the head names, in Unix seconds."""
        stream = topic.stream
        # Requests are remembered for longer than the topics that they have joined.
        self._topic = ref(topic)
        self.step = step
        self._headers = stream.headers
        self._tail = stream.tape.tail
        self._version = stream.version
        self._second = int(wall)

    def __repr__(self) -> str:
        return f"<SseOpening {self.step.end}, {self.step.size} bytes>"

    def topic_at(self, wall: float) -> Topic | None:
        """The topic whose next reader may be sent the same at `wall` (Unix seconds); None if it may not.

        The stream's version changes with the live request, with what that reports, with each acknowledged write and
        with the end of the stream.
        """
        topic = self._topic()
        if topic is None or int(wall) != self._second:
            return None
        stream = topic.stream
        tape = stream.tape
        is_same = (
            (self._version is stream.version or self._version.same_answers_as(stream.version))
            and tape.tail == self._tail
            and tape.closed_at is None
            and stream.headers is self._headers
        )
        return topic if is_same else None

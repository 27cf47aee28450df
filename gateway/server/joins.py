"""Live requests that are remembered by their bytes, so that whoever sends the same is not read anew.

Who waits at the same offset with the same cursor has sent the same bytes: a thousand clients that were woken by one
event come back with one request.  The first is parsed and judged; what it asked for is kept beside its bytes.  Whether
it may wait without the origin being asked is decided each time, by the engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from multidict import CIMultiDict

from gateway.engine.read import Read
from gateway.protocol.mode import Mode
from gateway.server.poll_group import PollGroup

_MOST_BYTES: Final = 1 << 22
_COST: Final = 1_000
"""Bytes charged for a request beside its own."""


@dataclass(slots=True)
class SseHead:
    """The head of an SSE response, and what it was made of: the same again within the second."""

    headers: CIMultiDict[str]
    """Those that the stream's answers repeat."""
    content_type: str | None
    second: int
    head: bytes


@dataclass(slots=True)
class Join:
    """What a live request asks for."""

    read: Read
    mode: Mode
    origin: str | None
    """Its Origin header, which shapes what an answer says of CORS."""
    group: PollGroup | None = None
    """Those who have sent the same and wait."""
    sse_head: SseHead | None = None


class Joins:
    """Requests to what they ask for; the oldest go first.  `generation` counts the times at which all of it was forgotten:
    what a request of an earlier one asked for was read with other routes."""

    def __init__(self) -> None:
        self._joins: dict[bytes, Join] = {}
        self._size = 0
        self.generation = 0
        self.get = self._joins.get
        """What exactly this request asks for, None where that is not remembered."""

    def __len__(self) -> int:
        return len(self._joins)

    def remember(self, request: bytes, join: Join) -> None:
        """The request, which came by itself and whole, asked for this."""
        if request in self._joins:
            return
        self._size += len(request) + _COST
        while self._size > _MOST_BYTES and self._joins:
            oldest = next(iter(self._joins))
            del self._joins[oldest]
            self._size -= len(oldest) + _COST
        self._joins[request] = join

    def clear(self) -> None:
        """Forget everything: routes have changed."""
        self.generation += 1
        self._joins.clear()
        self._size = 0

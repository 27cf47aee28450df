"""Live requests remembered by their bytes, so that the same bytes need not be parsed again.

Clients that wait at the same offset with the same cursor send the same bytes: when one event wakes a thousand clients,
all of them come back with one request.  The first such request is parsed and handled; what it asks for is kept under
its bytes.  Whether a later one may wait without a request to the origin is the engine's decision each time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from multidict import CIMultiDict

from gateway.engine.read import Read
from gateway.engine.sse_opening import SseOpening
from gateway.protocol.mode import Mode
from gateway.server.poll_group import PollGroup
from gateway.tape.stream import Stream

_MOST_BYTES: Final = 1 << 22
_COST: Final = 5_000
"""Bytes charged for a request in addition to its own: what it asks for, and the beginning of its answer."""


@dataclass(slots=True)
class SseHead:
    """The head of an SSE response and what it was made from; it can be sent again within the same second."""

    headers: CIMultiDict[str]
    """The stream's headers that its answers repeat."""
    content_type: str | None
    second: int
    head: bytes

    def is_of(self, stream: Stream, second: int) -> bool:
        """Whether the head is that of an answer that begins in this second (Unix time)."""
        return self.second == second and self.headers is stream.headers and self.content_type == stream.content_type


@dataclass(slots=True)
class Join:
    """What a live request asks for."""

    read: Read
    mode: Mode
    origin: str | None
    """The Origin header, which determines the CORS fields of the answer."""
    group: PollGroup | None = None
    """The clients that have sent the same request and wait."""
    sse_head: SseHead | None = None
    sse_opening: SseOpening | None = None
    """The beginning of the latest reader's answer, for the next one."""
    request: bytes | None = None
    """Its bytes, once it is remembered."""


class Joins:
    """What live requests ask for, by their bytes; the oldest are evicted first.

    `generation` counts calls to `clear`.  A request read in an earlier generation was read under other routes, and must
    not be remembered.
    """

    def __init__(self) -> None:
        self._joins: dict[bytes, Join] = {}
        self._size = 0
        self.generation = 0
        self.get = self._joins.get
        """What exactly this request asks for; None if it is not remembered."""

    def __repr__(self) -> str:
        return f"<Joins {len(self._joins)} requests, {self._size} bytes>"

    def __len__(self) -> int:
        return len(self._joins)

    def remember(self, request: bytes, join: Join) -> None:
        """Remember that `request`, which arrived whole and alone, asks for `join`."""
        join.request = request
        if join.group is not None:
            join.group.request = request
        if request in self._joins:
            return
        self._size += len(request) + _COST
        while self._size > _MOST_BYTES and self._joins:
            oldest = next(iter(self._joins))
            del self._joins[oldest]
            self._size -= len(oldest) + _COST
        self._joins[request] = join

    def clear(self) -> None:
        """Forget everything, because the routes have changed."""
        self.generation += 1
        self._joins.clear()
        self._size = 0

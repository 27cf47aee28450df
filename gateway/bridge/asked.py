"""One request to a bridged stream: what it asks for, and what is shared by all that answer it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from gateway.aio.clock import Clock
from gateway.bridge.content import Content, Page
from gateway.bridge.names import parse_offset
from gateway.bridge.origin import Call
from gateway.protocol.cursor import next_cursor
from gateway.protocol.names import START


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of the engine's."""

    call: Call
    content: Content
    offset: str | None
    cursor: str | None
    wait_s: int
    """How long a long-poll waits."""
    lifetime_s: float
    """After how long an SSE answer ends."""
    location: str
    """The stream's URL at the origin."""
    clock: Clock
    rng: random.Random
    on_trim: Callable[[int], object]
    """Called with the first sequence number that a trim has left."""

    @property
    def start(self) -> str:
        """The offset asked for; the beginning if there is none."""
        return self.offset if self.offset is not None else START

    @property
    def place(self) -> int:
        """The sequence number of the record after the offset.  Raises `BadOffset`."""
        return 0 if self.start == START else parse_offset(self.start)

    def next_cursor(self) -> str:
        """The cursor of the answer."""
        return next_cursor(self.clock.wall(), self.cursor, self.rng)

    def etag(self, end: str, *, is_closed: bool) -> str:
        """The tag of the bytes from the offset asked for to `end`, in the form that names the stream's incarnation."""
        return f'"{self.call.sighting.identity}:{self.start}:{end}{":c" if is_closed else ""}"'

    def take(self, page: Page) -> None:
        """A page is part of the answer."""
        if page.trimmed:
            self.on_trim(page.trimmed)

"""A topic: the live group of one stream.

It holds no queue for anybody.  The follower lays what it receives on the tape and moves `position`; every live reader
reads the tape from its own place and waits here when it has nothing more to read.  A slow one therefore costs the
others nothing and is, by construction, a reader of the tape.  Frames are encoded once for all who stand at the same
place.

`is_confirmed` means: the follower's live request is open and the origin has said on it that `position` is the tail.
Only then may anyone be told to be up to date.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Final

from cachetools import LRUCache

from gateway.errors import GatewayError
from gateway.protocol.cursor import interval, next_cursor, parse_cursor, shared_cursor
from gateway.protocol.names import is_sse_text
from gateway.protocol.sse import Control, encode_control, encode_data
from gateway.signals import Signal
from gateway.tape.stream import End, Stream
from gateway.tape.tape import Reading
from gateway.upstream.flight import Head
from gateway.upstream.source import Source

Look = Callable[[str | None], Awaitable[Head]]
"""A fresh catch-up look at an offset, or at the metadata alone; what it brings is on the tape when it returns."""

_FRAMES: Final = 64
_CURSOR_REACH: Final = 1_000
"""A client's cursor that is further ahead than this many intervals does not lift everybody's."""


class Topic:
    """Live state of one stream.  Owner: the `Live` registry; the follower moves it."""

    def __init__(self, stream: Stream, source: Source, look: Look, lifetime_s: float) -> None:
        self.stream = stream
        self.source = source
        self.look = look
        self.lifetime_s = lifetime_s
        self.readers = 0
        self.position: str | None = None
        self.is_confirmed = False
        self.ended: End | None = None
        self.trouble: GatewayError | None = None
        """Why the follower is not connected, where it failed."""
        self.changed = Signal()
        self._cursor_floor = 0
        self._frames: LRUCache[tuple[str, str, bool, bool, str | None], bytes] = LRUCache(_FRAMES)

    # -- the follower's side

    def moved(self, position: str, *, is_confirmed: bool) -> None:
        """The follower stands at `position`; everyone who waits looks again."""
        self.position = position
        self.is_confirmed = is_confirmed
        self.stream.is_followed = True
        self.trouble = None
        self.changed.fire()

    def lost(self, now: float, trouble: GatewayError | None) -> None:
        """The live request is closed, as planned or by `trouble`: nothing is known of the tail from here on."""
        self.is_confirmed = False
        if self.stream.is_followed:
            self.stream.is_followed = False
            self.stream.contacted_at = now
        self.trouble = trouble
        if trouble is not None:
            self.changed.fire()

    def end(self, why: End) -> None:
        """The stream is no more: every reader is sent off at once."""
        self.ended = why
        self.is_confirmed = False
        self.stream.is_followed = False
        self.changed.fire()

    # -- the readers' side

    def is_current(self, at: str) -> bool:
        """Whether a reader that has everything before `at` may be told that it is up to date."""
        return (
            self.is_confirmed
            and self.position is not None
            and self.stream.tape.resolve(self.position) == at
            and self.stream.holds_acknowledged(at)
        )

    def greet(self, cursor: str | None, wall: float) -> None:
        """Take note of a client's cursor, so that shared frames carry a greater one."""
        value = parse_cursor(cursor)
        if value is not None and value <= interval(wall) + _CURSOR_REACH:
            self._cursor_floor = max(self._cursor_floor, value)

    def cursor_for(self, client: str | None, wall: float, rng: random.Random) -> str:
        """The cursor of the next frame for a client that showed `client`: the shared one unless its own is higher."""
        shared = shared_cursor(wall, self._cursor_floor) if self._cursor_floor else interval(wall)
        own = parse_cursor(client)
        return str(shared) if own is None or own < shared else next_cursor(wall, client, rng)

    def frame(self, start: str, reading: Reading, *, is_current: bool, is_closed: bool, cursor: str) -> bytes:
        """The data event of a reading with the control event that must follow it (section 5.8)."""
        key = (start, reading.end, is_current, is_closed, cursor)
        frame = self._frames.get(key)
        if frame is None:
            stream = self.stream
            pieces = [b"[", *reading.pieces, b"]"] if stream.tape.is_json else reading.pieces
            data = encode_data(pieces, base64=not is_sse_text(stream.content_type))
            frame = self._frames[key] = data + self.control(
                reading.end, is_current=is_current, is_closed=is_closed, cursor=cursor
            )
        return frame

    @staticmethod
    def control(at: str, *, is_current: bool, is_closed: bool, cursor: str) -> bytes:
        """A control event alone."""
        return encode_control(Control(at, None if is_closed else cursor, is_current or is_closed, is_closed))

"""Bodies of the replies that the bridge makes: whole, or written while they are read.

The writer of a long body waits while the reader has not taken what is there (`room`), so that a client that reads
slowly holds up the S2 session instead of memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from gateway.upstream.deadline import Deadline

HIGH_WATER_BYTES: Final = 1 << 18
"""Unread bytes above which the writer waits."""


class MadeBody:
    """A body made here: the source of one reply's bytes.  One writer, one reader."""

    def __init__(self, on_left: Callable[[], object] = lambda: None) -> None:
        self.on_change: Callable[[], object] = _nothing
        self.has_ended = False
        self._on_left = on_left
        self._pieces: list[bytes] = []
        self._size = 0
        self._is_complete = False
        self._error: BaseException | None = None
        self._room: asyncio.Event | None = None
        self._deadline: Deadline | None = None

    @classmethod
    def whole(cls, data: bytes) -> MadeBody:
        """A body that is complete."""
        body = cls()
        body.write(data)
        body.finish()
        return body

    # -- for the writer

    def write(self, data: bytes) -> None:
        """Add bytes."""
        if data and not self._is_over:
            self._pieces.append(data)
            self._size += len(data)
            self._changed()

    def retire(self) -> None:
        """It came by no connection."""

    def finish(self) -> None:
        """It is complete."""
        if not self._is_over:
            self._is_complete = True
            self.has_ended = not self._pieces
            self._changed()

    async def room(self) -> None:
        """Wait until the reader has taken most of it.  The caller is cancelled if the reader leaves."""
        while self._size > HIGH_WATER_BYTES and not self._is_over:
            self._room = asyncio.Event()
            await self._room.wait()

    @property
    def _is_over(self) -> bool:
        return self._is_complete or self._error is not None

    def _changed(self) -> None:
        if self._deadline is not None:
            self._deadline.clear()
        self.on_change()

    # -- for the reader

    def take(self) -> bytes | None:
        """The bytes not yet taken; empty at the end, None if more is still to come."""
        if self._pieces:
            taken = b"".join(self._pieces)
            self._pieces = []
            self._size = 0
            self.has_ended = self._is_complete
            if self._room is not None:
                self._room.set()
            return taken
        if self._is_complete:
            return b""
        if self._error is not None:
            raise self._error
        return None

    def expect(self, by: float) -> None:
        """Fail with TimeoutError unless more arrives by this time of the loop's clock."""
        if not self._is_over:
            if self._deadline is None:
                self._deadline = Deadline(asyncio.get_running_loop(), lambda: self.end(TimeoutError()))
            self._deadline.move(by)

    async def changed(self) -> None:
        """Wait for the next change."""
        changed = asyncio.Event()
        self.on_change = changed.set
        try:
            await changed.wait()
        finally:
            self.on_change = _nothing

    def end(self, error: BaseException) -> None:
        """Fail with this error unless it is complete; the writer learns of it."""
        if self._deadline is not None:
            self._deadline.close()
            self._deadline = None
        if not self._is_over:
            self._error = error
            self._on_left()
            self.on_change()


def _nothing() -> None:
    """The callback while no reader waits."""

"""Bounds the bytes that one turn of the event loop reads from connections to origins.

A large body arrives in reads of up to 256 KiB.  The data of each read is copied, stored and written to clients, which
takes a millisecond if the memory is new to the process.  While bodies of a dozen fetches arrive at once, a turn that
reads all of them delays every other client by that many milliseconds.  uvloop even reads the same socket up to 32 times
in one turn while it finds a full buffer.

A connection therefore stops reading after each large read.  When its reader has taken the data, the connection calls
`resume_later` and waits in a queue.  Each turn resumes one connection.  A turn of an idle loop costs about 20 us, so
large bodies lose little there.  On a busy loop they get one read a turn, and leave the rest of the turn to other
clients.  A connection never stops reading for a small reply.

`Inflow` bounds the bytes that fetched bodies add to memory between two checks of the process's memory.  One turn of the
loop reads the data of all connections to origins, and writes it to all readers that share a fetch.  The data of one
turn may fill a tenth of a small memory limit.  The owner of an `Inflow` therefore checks the process's memory
periodically, and sets how many bytes may be added until the next check.  When these bytes are used up, `spent` requests
the next check, and bodies wait for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from gateway.aio.signal import Signal


class Paused(Protocol):
    """A connection that has stopped reading."""

    def read_on(self) -> None:
        """Read again, unless the connection has ended."""


class Intake:
    """The queue of connections whose next read waits for its turn."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[Paused] = deque()

    def __repr__(self) -> str:
        return f"<Intake {len(self._waiting)} waiting>"

    def resume_later(self, connection: Paused) -> None:
        """Call the connection's `read_on` in a later turn of the loop, after the connections that wait already."""
        # Never resume within this turn: uvloop would read the socket again at once.
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        self._waiting.append(connection)

    def _next(self) -> None:
        connection = self._waiting.popleft()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        connection.read_on()


class Inflow:
    """The number of bytes that may be added until the next check.  Unbounded until `bound` is called."""

    __slots__ = ("_left", "_renewed", "spent")

    def __init__(self) -> None:
        self._left: int | None = None
        self._renewed = Signal()
        self.spent = Signal()
        """Fires when no more bytes may be added."""

    def __repr__(self) -> str:
        return f"<Inflow {'unbounded' if self._left is None else self._left}>"

    def bound(self, size: int | None) -> None:
        """Let `size` bytes be added until the next call.  None means no bound."""
        self._left = size
        if size is None:
            self._renewed.fire()
        elif size > 0:
            self._renewed.fire_one()

    def count_bytes(self, size: int) -> bool:
        """Count `size` added bytes; return whether more may be added."""
        left = self._left
        if left is None:
            return True
        self._left = left = left - size
        if left > 0:
            # Wake one waiting body at a time.  If all waiting bodies woke at once, they would exceed the bound by far.
            self._renewed.fire_one()
            return True
        self.spent.fire()
        return False

    @property
    def has_room(self) -> bool:
        """Whether more bytes may be added."""
        return self._left is None or self._left > 0

    async def renewed(self) -> None:
        """Wait until more bytes may be added.  The owner checks memory at least once a second."""
        while not self.has_room:
            await self._renewed.wait()

"""Bounds the bytes that one turn of the event loop reads from connections to origins.

A large body arrives in reads of up to 256 KiB.  The data of each read is copied, stored and written to clients, which
takes a millisecond if the memory is new to the process.  While bodies of a dozen fetches arrive at once, a turn that
reads all of them delays every other client by that many milliseconds.  uvloop even reads the same socket up to 32 times
in one turn while it finds a full buffer.

A connection therefore stops reading after each large read.  When its reader has taken the data, the connection calls
`resume_later` and waits in a queue.  Each turn resumes one connection.  A turn of an idle loop costs about 20 us, so
large bodies lose little there.  On a busy loop they get one read a turn, and leave the rest of the turn to other
clients.  A connection never stops reading for a small reply.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol


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

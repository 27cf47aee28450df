"""How far a run is, and what a client may meet while there are faults."""

from __future__ import annotations

import asyncio
from typing import Final

import aiohttp

from gateway.s2.session import BadFrame
from tests.waiting import pause

BOUND_S: Final = 10.0
"""Longest call of a client; the outcome of a longer one is unknown."""

TROUBLE: Final = (aiohttp.ClientError, OSError, TimeoutError, BadFrame)
"""What a call may fail with.  A frame that ends in the middle is a broken connection."""

_PAUSE_S: Final = 0.01


class Progress:
    """The calls that have come to an end.  Faults are set and removed by this count, so no run depends on a clock."""

    def __init__(self) -> None:
        self.calls = 0
        self._changed = asyncio.Event()

    def count(self) -> None:
        """A call has come to an end."""
        self.calls += 1
        self._changed.set()

    async def failed(self) -> None:
        """A call got no answer, or was refused: wait as a client does before it tries again."""
        await pause(_PAUSE_S)

    async def more(self, calls: int) -> None:
        """Wait for so many calls more."""
        until = self.calls + calls
        while self.calls < until:
            self._changed.clear()
            await self._changed.wait()

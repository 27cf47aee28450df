"""The doorkeeper: every open connection of the process, what they share, and how they are all sent off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from gateway.clock import Clock, SystemClock
from gateway.config import LimitsConfig
from gateway.metrics_seam import Recorder
from gateway.server.connection import ClientConnection, ClientServer
from gateway.server.door import Door
from gateway.server.ready import Ready, ReadyAnswers
from gateway.signals import Signal
from gateway.wheel import Wheel

_ABORT_S: Final = 1.0


class Doorkeeper:
    """Makes doors and knows those that are open.  `ready` is None where every request goes the strict way."""

    def __init__(
        self, server: ClientServer, limits: LimitsConfig, ready: ReadyAnswers | None, clock: Clock, recorder: Recorder
    ) -> None:
        self._server = server
        self.limits = limits
        self.ready = ready
        self.recorder = recorder
        self.exact: Mapping[bytes, Ready] = ready.exact if ready is not None else {}
        self.now = clock.now
        self.loop = asyncio.get_running_loop()
        # Connections go by the machine's time, whatever the clock that streams go by.
        self.wheel = Wheel(SystemClock())
        self.sent_bytes = 0
        """Body bytes of live answers that have not been counted yet."""
        self.on_hit: Callable[[Ready, str | None, bytes], None] | None = None
        """Called with each ready answer, the client's address and its request, where somebody notes them one by one."""
        self.is_leaving = False
        self._coming = 0
        """Connections that are accepted and have not been made yet."""
        self._doors: set[Door] = set()
        self._emptied = Signal()

    def __call__(self) -> Door:
        self._coming += 1
        return Door(self)

    def __len__(self) -> int:
        return len(self._doors)

    def admit(self, door: Door) -> bool:
        """Take note of a new connection; False when there are too many, or the gateway is leaving."""
        self._coming -= 1
        if self.is_leaving or len(self._doors) >= self.limits.max_connections:
            self._emptied.fire()
            return False
        self._doors.add(door)
        return True

    async def emptied(self, timeout_s: float) -> None:
        """Wait until no connection is left, for at most `timeout_s`."""
        # What the loop has accepted already becomes a door in its next turn.
        await asyncio.sleep(0)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._doors or self._coming:
                    await self._emptied.wait()

    def leave(self, door: Door) -> None:
        self._doors.discard(door)
        if not self._doors:
            self._emptied.fire()

    def unsent(self) -> tuple[int, int]:
        """Bytes that clients have left in their connections' buffers: of all of them, and the most of one."""
        sizes = [door.transport.get_write_buffer_size() for door in self._doors if door.transport is not None]
        return sum(sizes), max(sizes, default=0)

    def count(self) -> None:
        """Tell the recorder what is not counted one by one."""
        sent, self.sent_bytes = self.sent_bytes, 0
        self.recorder.downstream_bytes(sent)
        if self.ready is not None:
            self.ready.count()

    def strict(self, door: Door) -> ClientConnection:
        """An aiohttp protocol for the door's connection."""
        return self._server.connect(door)

    def leave_in_order(self) -> None:
        """Close idle connections now, and the others as they become idle."""
        self.is_leaving = True
        for door in list(self._doors):
            door.close_if_idle()

    async def abort(self) -> None:
        """Drop every connection that is left, and see it go."""
        for door in list(self._doors):
            door.abort()
        await self.emptied(_ABORT_S)

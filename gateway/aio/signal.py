"""A broadcast: everyone who waits now is woken by the next firing, and by no earlier one.

Each waiter has a future of its own.  One shared by all would be simpler, but whoever leaves it, because the time ran
out or the client went, has to be looked for among all the others: 10,000 idle subscribers stopped the loop for 0.8 s
at every round of heartbeats, and stop it for 0.04 s like this.
"""

from __future__ import annotations

import asyncio

from gateway.aio.clock import Clock


class Signal:
    """`fire` wakes, in the order of their coming, all who wait; it costs nothing when none do."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[bool], None] = {}

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    async def wait(self) -> None:
        """Wait for the coming firing."""
        gate = self._enter()
        try:
            await gate
        finally:
            self._waiting.pop(gate, None)

    async def wait_within(self, clock: Clock, delay_s: float) -> bool:
        """Wait for the coming firing for at most `delay_s`; whether it came."""
        gate = self._enter()

        def give_up() -> None:
            if not gate.done():
                gate.set_result(False)

        timer = clock.call_later(delay_s, give_up)
        try:
            return await gate
        finally:
            timer.cancel()
            self._waiting.pop(gate, None)

    def _enter(self) -> asyncio.Future[bool]:
        gate: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[gate] = None
        return gate

    def fire(self) -> None:
        """Wake everyone who waits."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, {}
        for gate in waiting:
            if not gate.done():
                gate.set_result(True)

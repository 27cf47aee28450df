"""How late a process's event loop is: what its clients wait for it, whatever it does meanwhile."""

from __future__ import annotations

import asyncio
import time
from typing import Final

_TIMER_S: Final = 0.01


async def note_delays(late_s: list[float]) -> None:
    """Record how late this process's loop calls a timer, each 10 ms."""
    while True:
        due = time.monotonic() + _TIMER_S
        await asyncio.sleep(_TIMER_S)
        late_s.append(max(0.0, time.monotonic() - due))

"""A bound on the bytes that fetched bodies add to memory between two checks of the process's memory.

One iteration of the event loop reads the data of all connections to origins, and writes it to all readers that share a
fetch.  The data of one iteration may fill a tenth of a small memory limit.  The owner of an `Inflow` therefore checks
the process's memory periodically, and sets how many bytes may be added until the next check.  When these bytes are used
up, `spent` requests the next check, and bodies wait for it.
"""

from __future__ import annotations

from gateway.aio.signal import Signal


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

"""Bytes that fetched bodies may add to memory before the process's memory is looked at again.

A turn of the loop reads the bytes that have arrived on all connections to origins, and writes them to all readers that
share a fetch.  Together these bytes may be a tenth of a small memory limit.  The owner of the limit checks memory from
time to time, and sets how many bytes may be added until its next check.  When these are used up, bodies wait for the
check, which `spent` requests.
"""

from __future__ import annotations

from gateway.aio.signal import Signal


class Inflow:
    """How many bytes may be added now; without a bound until one is given."""

    __slots__ = ("_left", "_renewed", "spent")

    def __init__(self) -> None:
        self._left: int | None = None
        self._renewed = Signal()
        self.spent = Signal()
        """Fired when no more may be added."""

    def __repr__(self) -> str:
        return f"<Inflow {'unbounded' if self._left is None else self._left}>"

    def bound(self, size: int | None) -> None:
        """Let `size` bytes be added until the next call; any number if None."""
        self._left = size
        if size is None:
            self._renewed.fire()
        elif size > 0:
            self._renewed.fire_one()

    def count_bytes(self, size: int) -> bool:
        """Count `size` added bytes; return whether more may be added now."""
        left = self._left
        if left is None:
            return True
        self._left = left = left - size
        if left > 0:
            # Waiting bodies go on one after the other, because all at once would exceed the bound by far.
            self._renewed.fire_one()
            return True
        self.spent.fire()
        return False

    @property
    def has_room(self) -> bool:
        """Whether more may be added now."""
        return self._left is None or self._left > 0

    async def renewed(self) -> None:
        """Wait until more may be added.  The owner of the bound looks at least once a second, so the wait is short."""
        while not self.has_room:
            await self._renewed.wait()

"""A body on its way to a tape: the cache's budget is charged for it while it arrives.

So a large body evicts other streams bit by bit, as its bytes arrive, and not thousands of them at once when it is
stored.  The body's own stream makes no room for it.
"""

from __future__ import annotations

from gateway.tape.store import TapeStore
from gateway.tape.stream import Stream

_LARGEST_SHARE = 2
"""Arriving bodies take up to 1 / this of the budget.  Further bytes are held for their readers only."""


class Arriving:
    """The budget's charge for one body, which is to be stored on `stream`.  `release` must be called."""

    __slots__ = ("_store", "_stream", "size")

    def __init__(self, store: TapeStore, stream: Stream) -> None:
        self._store = store
        self._stream = stream
        self.size = 0
        """Bytes that are charged."""

    def __repr__(self) -> str:
        return f"<Arriving {self.size} bytes>"

    def grow(self, size: int) -> bool:
        """Charge `size` more bytes; False, with nothing charged, if there is no room for them."""
        store = self._store
        if store.arriving + size > store.budget_bytes // _LARGEST_SHARE or not store.lend(size, self._stream):
            return False
        store.arriving += size
        self.size += size
        return True

    @property
    def has_room(self) -> bool:
        """Whether arriving bodies have not used up their part of the budget."""
        return self._store.arriving < self._store.budget_bytes // _LARGEST_SHARE

    def release(self) -> None:
        """Charge nothing more: the body is about to be stored, or will not be."""
        size, self.size = self.size, 0
        if size:
            self._store.arriving -= size
            self._store.take_back(size)

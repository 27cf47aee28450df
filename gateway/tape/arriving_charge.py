"""The cache budget's charge for a response body that is still being received.

The charge grows as the bytes arrive, so a large body evicts other streams gradually.  If the budget were charged only
when the body is stored, thousands of streams might be evicted in one call.  The charge does not evict the stream on
which the body will be stored.  `gateway.upstream.flight` decides how readers share an arriving body.
"""

from __future__ import annotations

from gateway.tape.store import TapeStore
from gateway.tape.stream import Stream

_LARGEST_SHARE = 2
"""All arriving bodies together take at most 1 / `_LARGEST_SHARE` of the budget.  Further bytes go to the waiting
readers, but are not stored."""


class ArrivingCharge:
    """The budget's charge for one body that will be stored on `stream`.  The caller must call `release` at the end."""

    __slots__ = ("_store", "_stream", "size")

    def __init__(self, store: TapeStore, stream: Stream) -> None:
        self._store = store
        self._stream = stream
        self.size = 0
        """The bytes charged so far."""

    def __repr__(self) -> str:
        return f"<ArrivingCharge {self.size} bytes>"

    def grow(self, size: int) -> bool:
        """Charge `size` more bytes.  Charge nothing and return False if the budget has no room for them."""
        store = self._store
        if store.arriving + size > store.budget_bytes // _LARGEST_SHARE or not store.lend(size, self._stream):
            return False
        store.arriving += size
        self.size += size
        return True

    @property
    def has_room(self) -> bool:
        """Whether all arriving bodies together are below their bound (`_LARGEST_SHARE`)."""
        return self._store.arriving < self._store.budget_bytes // _LARGEST_SHARE

    def release(self) -> None:
        """Return the whole charge to the budget, just before the body is stored or discarded."""
        size, self.size = self.size, 0
        if size:
            self._store.arriving -= size
            self._store.take_back(size)

"""The owner of each stream: the worker that asks the origin for the stream on behalf of all workers.

The owner is found by rendezvous hashing of the path's cell (`gateway.workers.write_log`) over the workers that serve.
If a worker dies, only its own streams get other owners.  When the worker serves again, these streams get their former
owner back.  `gateway.engine.owner_upstream` decides whether a request goes to the owner.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from math import log
from typing import Final

from gateway.workers.shared_memory import HASHES, SharedMemory

_MASK: Final = (1 << 64) - 1


def path_hash(secret: bytes, origin: str, path: str) -> int:
    """Return the 64-bit hash of a path at an origin, which is the same at all workers."""
    text = f"{origin}\n{path}".encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8, key=secret).digest(), "little")


def owner(cell: int, slots: Sequence[int]) -> int:
    """Return the slot, out of `slots`, that owns the paths of this cell."""
    return max(slots, key=lambda slot: _score(cell, slot))


def weighted_owner(cell: int, weights: Mapping[int, float]) -> int:
    """Return the slot that owns the paths of this cell.  `weights` has the weight of each slot, in (0, 1].

    The slot with the greatest -w / ln(u) is returned, where w is the weight of the slot, and u is its score as a number
    between 0 and 1.  If all weights are equal, `owner` returns the same slot.  If the weight of a slot grows, this slot
    only gains cells, and loses none."""
    return max(weights, key=lambda slot: -weights[slot] / log((_score(cell, slot) + 0.5) / (_MASK + 1)))


def _score(cell: int, slot: int) -> int:
    """Return a hash of both numbers (the finisher of SplitMix64)."""
    mixed = (cell * 0xD6E8_FEB8_6659_FD93 + (slot + 1) * 0x9E37_79B9_7F4A_7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58_476D_1CE4_E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D0_49BB_1331_11EB) & _MASK
    return mixed ^ (mixed >> 31)


class Owners:
    """The owner of each stream, as one worker sees it now."""

    def __init__(self, shared: SharedMemory, slot: int) -> None:
        self._shared = shared
        self._slot = slot
        self._epoch = -1
        self._serving: tuple[int, ...] = ()
        self._known: dict[int, int] = {}
        """The owners of cells, computed for the workers in `_serving`."""

    def __repr__(self) -> str:
        return f"<Owners {self._serving} seen by {self._slot}>"

    @property
    def epoch(self) -> int:
        """A number that changes when the owners may have changed."""
        return self._shared.epoch

    def cell_of(self, origin: str, path: str) -> int:
        """Return the number of the cell of a path at an origin."""
        return path_hash(self._shared.secret, origin, path) % HASHES

    def other_owner(self, cell: int) -> int | None:
        """Return the slot that owns the paths of this cell; None if this worker owns them, or if no worker serves."""
        if (epoch := self._shared.epoch) != self._epoch:
            self._epoch, self._serving = epoch, self._shared.owning()
            self._known.clear()
        if not self._serving:
            return None
        found = self._known.get(cell)
        if found is None:
            found = self._known[cell] = owner(cell, self._serving)
        return None if found == self._slot else found

"""The owner of each stream in a fleet: the member that asks the origin for the stream on behalf of all members.

The owner is found by rendezvous hashing of the path's cell over the members that can be reached.  If a member becomes
unreachable, only its own streams get other owners.  When it can be reached again, it gets its former streams back step
by step: its weight in the hashing grows (`set_weight`).  The member therefore need not fetch all of its streams at
once.

A member's weight in its own view is always 1.  Each hop of a request therefore leads to a member that would also rank
higher than the sender if all weights were 1.  For this reason, members with different views never ask each other in a
circle.

A member may have several workers.  The owner among them is found by rendezvous hashing of the same cell over the
workers that serve (`owning_worker`).  The member itself uses the same method, and finds the same worker.

Each member has its own view of which members can be reached.  Members with different views may ask different owners.
This costs the origin one more request and has no other effect, because a member that is asked by another member asks
the origin itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from gateway.workers.shared_memory import HASHES
from gateway.workers.worker_owners import owner, path_hash, weighted_owner

_ONE: Final = (0,)
"""The workers of a member with a single process."""


def cell_key(secret: bytes) -> bytes:
    """Return the key of the path hash.  It is the same at all members with this secret, and at all of their workers."""
    return hashlib.blake2b(b"cells", digest_size=16, key=secret).digest()


class MemberOwners:
    """The owner of each stream, as one member sees it now.

    Members are identified by an index.  The first members have their indexes in the list `names`.  Each later member
    has an index that no other member has had.
    """

    def __init__(self, names: Sequence[str], own: int, secret: bytes) -> None:
        self._names = dict(enumerate(names))
        self._next = len(names)
        self._own = own
        self._key = hashlib.blake2b(b"owners", digest_size=32, key=secret).digest()
        self._cell_key = cell_key(secret)
        self._marks = {self._mark(name): index for index, name in enumerate(names)}
        self._reached = {own}
        self._workers: dict[int, tuple[int, ...]] = {}
        """The serving workers of each member that has stated them."""
        self._weights: dict[int, float] = {}
        """The weights of the members whose weight is not 1."""
        self.epoch = 0
        """A number that changes when the owners may have changed."""
        self._known: dict[int, int] = {}
        """The owners of cells that were computed since the last change."""

    def __repr__(self) -> str:
        return f"<MemberOwners {[self._names[index] for index in sorted(self._reached)]}>"

    def _mark(self, name: str) -> int:
        return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8, key=self._key).digest(), "little")

    def cell_of(self, origin: str, path: str) -> int:
        """Return the number of the cell of a path at an origin, which is the same at all members."""
        return path_hash(self._cell_key, origin, path) % HASHES

    def add(self, name: str) -> int:
        """Add another member, which counts as unreachable at first.  Return its index."""
        index, self._next = self._next, self._next + 1
        self._names[index] = name
        self._marks[self._mark(name)] = index
        return index

    def remove(self, member: int) -> None:
        """Remove another member.  Its streams get other owners."""
        self.set_reached(member, is_reached=False)
        self._weights.pop(member, None)
        self._workers.pop(member, None)
        del self._marks[self._mark(self._names.pop(member))]

    def set_reached(self, member: int, *, is_reached: bool) -> None:
        """Record whether a member can be reached.  A member always reaches itself."""
        if is_reached != (member in self._reached) and member != self._own:
            (self._reached.add if is_reached else self._reached.discard)(member)
            self._changed()

    def set_weight(self, member: int, weight: float) -> None:
        """Set the weight of another member, in (0, 1].  The member then owns about this fraction of the streams that it
        owns with the weight 1."""
        if weight != self.weight(member) and member != self._own:
            if weight < 1:
                self._weights[member] = weight
            else:
                self._weights.pop(member, None)
            if member in self._reached:
                self._changed()

    def set_workers(self, member: int, workers: tuple[int, ...]) -> None:
        """Set which workers of another member serve."""
        earlier = self._workers.get(member, _ONE)
        self._workers[member] = workers
        self.epoch += workers != earlier

    def workers_of(self, member: int) -> int:
        """Return how many workers of another member serve; 0 if the member has not stated any."""
        return len(self._workers.get(member, ()))

    def is_only_worker(self, member: int, worker: int) -> bool:
        """Return whether `worker` is the only worker of another member that serves."""
        return self._workers.get(member) == (worker,)

    def owning_worker(self, member: int, cell: int) -> int:
        """Return the worker that owns the paths of this cell among the workers of another member."""
        return owner(cell, self._workers.get(member, _ONE))

    def weight(self, member: int) -> float:
        """Return a member's weight."""
        return self._weights.get(member, 1.0)

    def _changed(self) -> None:
        self._known.clear()
        self.epoch += 1

    def is_reached(self, member: int) -> bool:
        """Return whether a member can be reached."""
        return member in self._reached

    def other_owner(self, cell: int) -> int | None:
        """Return the member that owns the paths of this cell; None if this member does."""
        found = self._known.get(cell)
        if found is None:
            marks = {mark: self.weight(index) for mark, index in self._marks.items() if index in self._reached}
            mark = weighted_owner(cell, marks) if self._weights else owner(cell, list(marks))
            found = self._known[cell] = self._marks[mark]
        return None if found == self._own else found

"""What a worker knows of the owner's record of a stream (`gateway.protocol.hop`).

Workers hold the bytes of one stream in records of their own.  Each record of a worker has a name (its *life*), which
the other workers are told with its bytes.  If an owner answers from another record than before, it has another stream,
or has forgotten the earlier record, and the bytes of both must not be joined.  Another owner knows nothing of the
records of the first: then only the origin's own identifier could tell.
"""

from __future__ import annotations

from itertools import count
from typing import Final

from gateway.protocol.hop import HopSaid

_lives: Final = count(1)


class OwnersRecord:
    """One stream's record at its owner, and the name of this worker's own record."""

    __slots__ = ("_incarnation", "_name", "life", "said")

    def __init__(self) -> None:
        self.life: Final = f"{next(_lives)}"
        """The name of this worker's own record."""
        self.said: HopSaid | None = None
        """What the owner said last; None if no owner but this worker has been asked."""
        self._incarnation = ""
        self._name = ""

    def __repr__(self) -> str:
        return f"<OwnersRecord {self.life}, {self.said}>"

    def is_same(self, said: HopSaid, identity: str | None) -> bool:
        """Return whether the owner still has the stream that this worker knows, whose `identity` is the origin's."""
        known = self.said
        if known is None or said.owner != known.owner or not said.life or said.life == known.life:
            return True
        return identity is not None and identity == said.identity

    def has_dropped_bytes(self, said: HopSaid) -> bool:
        """Return whether the owner has dropped all bytes of its record since it was heard last."""
        known = self.said
        if known is None or not said.name:
            return False
        return (known.owner, known.life) == (said.owner, said.life) and known.name != said.name

    def learn(self, said: HopSaid, incarnation: str) -> None:
        """Record what the owner says; `incarnation` is this worker's own name for the bytes that it has."""
        if said.life:
            self.said, self._incarnation, self._name = said, incarnation, said.name

    def tag_name(self, incarnation: str) -> str:
        """Return the name in entity tags for bytes of this incarnation: the same at all workers."""
        return self._name if self._name and incarnation == self._incarnation else incarnation

"""The header fields between two workers of one gateway, over their own Unix sockets.

A worker that does not own a stream asks the stream's owner, as if that were the origin.  `HOP` in its request names the
tape that the answer is for.  `HOP_RECORD` in the answer tells what the origin's own headers do not tell: which record
of the stream the owner has, and how long ago the origin was in contact about it.

Clients and origins never see these fields (`gateway.protocol.forwarded_headers`), and no client can send them: they are
read only from the workers' sockets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

HOP: Final = "Gateway-Hop"
HOP_RECORD: Final = "Gateway-Hop-Record"
_ABSENT: Final = "-"


class HopAsk(NamedTuple):
    """The tape that a worker asks for, and the network of the client that causes the request."""

    route: str
    generation: int
    readers: str
    """The route's name, and the rest of the `Partition`."""
    query: str
    """The query of the tape's key."""
    client: str

    def rendered(self) -> str:
        """Return the value of `HOP`."""
        words = (self.route, str(self.generation), self.readers, self.query, self.client)
        return " ".join(quote(word, safe="") or _ABSENT for word in words)

    @classmethod
    def parse(cls, text: str) -> HopAsk:
        """Read the value of `HOP`.  Raises ValueError."""
        route, generation, readers, query, client = ("" if word == _ABSENT else unquote(word) for word in text.split())
        return cls(route, int(generation), readers, query, client)


class HopSaid(NamedTuple):
    """What an owner says about its record of a stream."""

    owner: str
    """The owner's process: another process knows nothing of the records of this one."""
    life: str
    """The record's name.  A stream that was created again has another record."""
    name: str
    """The name of the record's incarnation in entity tags.  It changes if the record drops all bytes."""
    identity: str | None
    """The origin's identifier of the incarnation, if there is one."""
    as_of: float
    """When the origin was last in contact about all that the answer states (monotonic seconds, which all processes of a
    machine share)."""
    is_stale: bool
    """Whether the answer was given because the origin has failed."""

    def rendered(self) -> str:
        """Return the value of `HOP_RECORD`."""
        identity = quote(self.identity, safe="") if self.identity else _ABSENT
        stale = "stale" if self.is_stale else "fresh"
        return f"{self.owner} {self.life or _ABSENT} {self.name or _ABSENT} {identity} {self.as_of:.6f} {stale}"

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> HopSaid | None:
        """Read the field from an owner's answer; None if the answer is not from an owner."""
        text = headers.get(HOP_RECORD)
        if text is None:
            return None
        owner, life, name, identity, as_of, stale = text.split(" ")
        known = None if identity == _ABSENT else unquote(identity)
        return cls(owner, _read(life), _read(name), known, float(as_of), stale == "stale")


def _read(word: str) -> str:
    return "" if word == _ABSENT else word

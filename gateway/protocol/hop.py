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

from gateway.protocol.freshness_headers import Lifetime

HOP: Final = "Gateway-Hop"
HOP_RECORD: Final = "Gateway-Hop-Record"
_ABSENT: Final = "-"


class HopAsk(NamedTuple):
    """The tape that a worker asks for, and the network of the client that causes the request."""

    route: str
    readers: str
    """The route's name, and the readers of its `Partition`."""
    query: str
    """The query of the tape's key."""
    client: str

    def rendered(self) -> str:
        """Return the value of `HOP`."""
        return " ".join(map(_word, self))

    @classmethod
    def parse(cls, text: str) -> HopAsk:
        """Read the value of `HOP`.  Raises ValueError."""
        route, readers, query, client = (_text(word) or "" for word in text.split(" "))
        return cls(route, readers, query, client)


class Alone(NamedTuple):
    """Why the origin's reply is for one reader alone (`gateway.upstream.flight.NotShareable`)."""

    reason: str
    is_lasting: bool
    is_personal: bool


class HopSaid(NamedTuple):
    """What an owner says about its record of a stream."""

    owner: str
    """The owner's process: another process knows nothing of the records of this one."""
    as_of: float
    """When the origin was last in contact about all that the answer states (monotonic seconds, which all processes of a
    machine share)."""
    life: str = ""
    """The record's name; empty without a record.  A stream that was created again has another record."""
    name: str = ""
    """The name of the record's incarnation in entity tags.  It changes if the record drops all bytes."""
    identity: str | None = None
    """The origin's identifier of the incarnation, if there is one."""
    is_stale: bool = False
    """Whether the answer was given because the origin has failed."""
    lifetime: Lifetime | None = None
    """The stream's lifetime, if the owner knows it."""
    alone: Alone | None = None
    """Set if the owner has no answer, because the origin's reply is for one reader alone."""
    failure: str = ""
    """The name of the owner's own error (`gateway.errors`), if it has no answer of the origin."""

    def rendered(self) -> str:
        """Return the value of `HOP_RECORD`."""
        life, alone = self.lifetime, self.alone
        words = [
            self.owner,
            f"{self.as_of:.6f}",
            _word(self.life),
            _word(self.name),
            _word(self.identity),
            "stale" if self.is_stale else _ABSENT,
            _ABSENT if life is None else f"{_number(life.ttl_s)},{_number(life.expires_at)}",
            _ABSENT if alone is None else f"{alone.is_lasting:d}{alone.is_personal:d}{_word(alone.reason)}",
            _word(self.failure),
        ]
        return " ".join(words)

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> HopSaid | None:
        """Read the field from another worker's answer; None if the answer has none.  Raises ValueError.

        Only an answer that came from a worker's socket may be read: an origin may send a field of this name, too.
        """
        text = headers.get(HOP_RECORD)
        if text is None:
            return None
        owner, as_of, life, name, identity, stale, lifetime, alone, failure = text.split(" ")
        return cls(
            owner,
            float(as_of),
            _text(life) or "",
            _text(name) or "",
            _text(identity),
            stale != _ABSENT,
            _lifetime(lifetime) if lifetime != _ABSENT else None,
            Alone(_text(alone[2:]) or "", alone[:1] == "1", alone[1:2] == "1") if alone != _ABSENT else None,
            _text(failure) or "",
        )


def _word(text: str | None) -> str:
    """Return a word without spaces for a text; `_text` reads it.  No text, and an empty one, have the word `-`."""
    return quote(text, safe="", errors="surrogateescape").replace(_ABSENT, "%2D") if text else _ABSENT


def _text(word: str) -> str | None:
    return None if word == _ABSENT else unquote(word, errors="surrogateescape")


def _number(value: float | None) -> str:
    return "" if value is None else repr(value)


def _lifetime(word: str) -> Lifetime:
    ttl_s, _, expires_at = word.partition(",")
    return Lifetime(int(ttl_s) if ttl_s else None, float(expires_at) if expires_at else None)

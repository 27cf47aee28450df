"""The header fields between two workers of one gateway, over their own Unix sockets.

Each stream has one worker as its owner.  Any other worker asks the owner as it would ask the origin.  The field `HOP`
of the request names the tape (a stream's bytes in memory) that the answer is for.  The field `HOP_RECORD` of the answer
adds facts that the origin's headers do not state: the owner's record of the stream, and the time of the origin's last
contact about it.  If the origin fails, or if the tail does not matter, the field also has the facts that the owner
remembers.

The asking worker usually records the answer in its own memory.  It can also ask for an answer in the form that clients
get (`HopAsk.accepted`), and pass this answer on without recording it.  Such an answer has `HOP_OUTCOME` instead of
`HOP_RECORD`.

These fields are never sent to clients and origins (`gateway.protocol.header_forwarding`), and are read only from the
workers' sockets, so no client can set them.

Each worker holds the bytes of a stream in its own record.  Each record has a name (its *life*), which its worker sends
with the bytes.  An owner that answers from a new record has another stream, or has forgotten the earlier record, so the
bytes of both records must not be joined (`OwnersRecord`).  After a change of the owner, the names of records differ in
any case.  Then only the origin's identifier of the incarnation shows whether the stream is the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from itertools import count
from math import inf
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from gateway.protocol.coding import AcceptedCodings, Coding
from gateway.protocol.freshness_headers import Lifetime

HOP: Final = "Gateway-Hop"
HOP_RECORD: Final = "Gateway-Hop-Record"
HOP_OUTCOME: Final = "Gateway-Hop-Outcome"
"""How the owner has answered a read (`Outcome`), in answers to be passed on to clients."""
HOP_SAVED: Final = "Gateway-Hop-Saved"
"""The number of bytes that the owner has saved by compressing an answer to be passed on."""
_LEAST_AGE_S: Final = 1.0
"""By how much a statement of the origin that comes from memory may be older than the request, and still count as an
answer of the origin, because the clocks of members differ a little."""
_MOST_ASKS: Final = 256
_ABSENT: Final = "-"
_FACTS: Final = "facts"
_PLAIN: Final = "".join(sorted(set(map(chr, range(0x21, 0x7F))) - {"%", _ABSENT}))
"""The characters that stand for themselves in a word.  All others are percent-encoded."""


class HopAsk(NamedTuple):
    """The request of a worker: the tape, the network of the client that causes the request, and the kinds of answers
    that suffice."""

    route: str
    readers: str
    """The route's name, and the readers of its `Partition`."""
    query: str
    """The query of the tape's key."""
    client: str
    facts_suffice: bool = False
    """Whether remembered facts of the stream (`Remembered`) are an answer, because the worker does not ask for the
    present tail."""
    accepted: AcceptedCodings | None = None
    """The content codings that the client accepts, if the answer is to be passed on to the client.  None if the asking
    worker records the answer."""

    def rendered(self) -> str:
        """Return the value of `HOP`."""
        return _rendered(self)

    @classmethod
    def parse(cls, text: str) -> HopAsk:
        """Read the value of `HOP`.  Raises ValueError."""
        *words, facts, accepted = text.split(" ")
        route, readers, query, client = (_text(word) or "" for word in words)
        codings = _accepted(accepted) if accepted != _ABSENT else None
        return cls(route, readers, query, client, facts == _FACTS, codings)


@lru_cache(_MOST_ASKS)
def _rendered(asked: HopAsk) -> str:
    texts = map(_word, (asked.route, asked.readers, asked.query, asked.client))
    facts = _FACTS if asked.facts_suffice else _ABSENT
    return " ".join((*texts, facts, _ABSENT if asked.accepted is None else _codings(asked.accepted)))


def _codings(accepted: AcceptedCodings) -> str:
    """Return the codings as one word: whether identity is accepted, the preferred coding, and all other codings."""
    return f"{accepted.accepts_identity:d}{','.join([accepted.best or '', *sorted(accepted.codings)])}"


def _accepted(word: str) -> AcceptedCodings:
    best, *codings = word[1:].split(",")
    return AcceptedCodings(Coding(best) if best else None, frozenset(map(Coding, codings)), word[0] == "1")


class Alone(NamedTuple):
    """Why the origin's reply is for one reader alone (`gateway.upstream.flight.NotShareable`)."""

    reason: str
    is_lasting: bool
    is_personal: bool


class Remembered(NamedTuple):
    """The facts of a stream in the owner's memory, which the owner sends if the origin fails or if the tail does not
    matter.

    The stream may have grown or ended since `contacted_at`.
    """

    content_type: str
    tail: str | None
    """The furthest offset that the origin has named."""
    is_closed: bool
    """Whether the stream is closed at `tail`."""
    contacted_at: float
    """When the origin last served the stream (monotonic seconds)."""
    is_doubted: bool
    """Whether the owner itself would ask the origin before it used the facts."""
    varies_by_origin: bool
    surrogate_keys: tuple[str, ...]
    headers: tuple[tuple[str, str], ...]
    """The origin's headers, which answers from memory repeat."""

    def rendered(self) -> str:
        """Return the facts as one word."""
        return _word(json.dumps(self, separators=(",", ":"), ensure_ascii=False))

    @classmethod
    def parse(cls, word: str) -> Remembered:
        """Parse the result of `rendered`.  Raises ValueError."""
        try:
            facts = cls._make(json.loads(_text(word) or ""))
            headers = tuple((name, value) for name, value in facts.headers)
            return facts._replace(surrogate_keys=tuple(facts.surrogate_keys), headers=headers)
        except TypeError as error:
            raise ValueError(str(error)) from None


class HopSaid(NamedTuple):
    """An owner's statement about its record of a stream."""

    owner: str
    """The name of the owner's process.  The names of records are valid within one process."""
    as_of: float
    """When the origin last confirmed everything that the answer states (monotonic seconds, which all processes of a
    machine share)."""
    life: str = ""
    """The record's name; empty without a record.  A re-created stream has a new record."""
    name: str = ""
    """The name of the record's incarnation in entity tags.  It changes if the record drops all bytes."""
    identity: str | None = None
    """The origin's identifier of the incarnation, if there is one."""
    is_stale: bool = False
    """Whether the answer repeats an earlier statement of the origin.  The reason is that the origin has failed, or that
    the tail does not matter.  For an S2 stream, it may also be that the owner trusts the tail that its session has
    stated."""
    lifetime: Lifetime | None = None
    """The stream's lifetime, if the owner knows it."""
    alone: Alone | None = None
    """Set if the owner has no answer, because the origin's reply is for one reader alone."""
    failure: str = ""
    """The name of the owner's error (`gateway.errors`) if the origin has not answered the owner."""
    remembered: Remembered | None = None
    """The facts in the owner's memory, if the origin has failed to answer or the tail does not matter."""
    is_tail_unknown: bool = False
    """Whether the answer ends at the furthest bytes in the owner's memory, and the owner does not know whether more
    bytes follow.  In contrast, an answer of the origin that does not reach the tail shows that more bytes follow."""

    def is_from_memory(self, asked_at: float) -> bool:
        """Return whether the owner has answered a request that was sent at `asked_at` without the origin, which may be
        silent."""
        return self.is_stale or self.as_of < asked_at - _LEAST_AGE_S

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
            self.remembered.rendered() if self.remembered is not None else _ABSENT,
            "unknown" if self.is_tail_unknown else _ABSENT,
        ]
        return " ".join(words)

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> HopSaid | None:
        """Read the field from another worker's answer; return None if the answer has none.  Raises ValueError.

        The answer must come from a worker's socket, because an origin may send a field of this name, too.
        """
        text = headers.get(HOP_RECORD)
        if text is None:
            return None
        owner, as_of, life, name, identity, stale, lifetime, alone, failure, remembered, tail = text.split(" ")
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
            Remembered.parse(remembered) if remembered != _ABSENT else None,
            tail != _ABSENT,
        )


def _word(text: str | None) -> str:
    """Encode a text as a word without spaces, which `_text` decodes.  None and the empty text become `-`."""
    return quote(text, safe=_PLAIN, errors="surrogateescape").replace(_ABSENT, "%2D") if text else _ABSENT


def _text(word: str) -> str | None:
    return None if word == _ABSENT else unquote(word, errors="surrogateescape")


def _number(value: float | None) -> str:
    return "" if value is None else repr(value)


def _lifetime(word: str) -> Lifetime:
    ttl_s, _, expires_at = word.partition(",")
    return Lifetime(int(ttl_s) if ttl_s else None, float(expires_at) if expires_at else None)


_lives: Final = count(1)


class OwnersRecord:
    """One stream's record at its owner, and the name of this worker's own record."""

    __slots__ = ("_incarnation", "_name", "life", "said", "stale_stored_at")

    def __init__(self) -> None:
        self.life: Final = f"{next(_lives)}"
        """The name of this worker's own record."""
        self.said: HopSaid | None = None
        """The latest answer of an owner; None if no other worker has been asked."""
        self.stale_stored_at = -inf
        """When this worker last stored bytes that an owner has sent from its memory because the origin has failed
        (monotonic seconds); -inf if it never did."""
        self._incarnation = ""
        self._name = ""

    def __repr__(self) -> str:
        return f"<OwnersRecord {self.life}, {self.said}>"

    def is_same(self, said: HopSaid, identity: str | None) -> bool:
        """Return whether the owner still has the stream that this worker knows.  `identity` is the origin's identifier
        of that stream."""
        known = self.said
        if known is None or said.owner != known.owner or not said.life or said.life == known.life:
            return True
        return identity is not None and identity == said.identity

    def is_known(self, said: HopSaid) -> bool:
        """Return whether the latest answer came from the same owner and the same record."""
        known = self.said
        return known is not None and bool(said.life) and (known.owner, known.life) == (said.owner, said.life)

    def has_dropped_bytes(self, said: HopSaid) -> bool:
        """Return whether the owner has dropped all bytes of its record since its latest answer."""
        return bool(said.name) and self.is_known(said) and self.said is not None and self.said.name != said.name

    def learn(self, said: HopSaid, incarnation: str) -> None:
        """Record the owner's statement; `incarnation` is this worker's own name for the bytes that it has."""
        if said.life:
            self.said, self._incarnation, self._name = said, incarnation, said.name

    def tag_name(self, incarnation: str) -> str:
        """Return the name of this incarnation in entity tags, which is the same at all workers."""
        return self._name if self._name and incarnation == self._incarnation else incarnation

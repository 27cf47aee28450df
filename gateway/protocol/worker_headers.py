"""The header fields between two workers of one gateway, over their own Unix sockets.

Each stream has one worker as its owner.  Any other worker asks the owner as it would ask the origin.  The field `HOP`
of the request names the tape (a stream's bytes in memory) that is to be read.  The field `HOP_RECORD` of the answer has
metadata that the origin's headers lack: the name of the owner's record of the stream, and the time of the origin's
latest reply about the stream.  If the origin fails, or if the tail does not matter, the field also has the metadata in
the owner's memory (`Remembered`).

The asking worker usually records the answer in its own memory.  It can also ask for an answer in the form that clients
get (`HopAsk.accepted`), and pass this answer on without recording it.  Such an answer has `HOP_OUTCOME` instead of
`HOP_RECORD`.

These fields are never sent to clients and origins (`gateway.protocol.header_forwarding`), and are read only from the
workers' sockets, so no client can set them.

Each worker has its own record of a stream, with the bytes in memory.  Each record has a name (its *life*), which the
worker sends with the bytes.  If the owner answers from a new record, the stream is another one, or the owner has
forgotten the earlier record.  The bytes of both records must then not be joined (`OwnersRecord`).  After a change of
the owner, the names of records always differ.  Only the origin's identifier of the incarnation then shows whether the
stream is the same.
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
"""The outcome of a read at the owner (`Outcome`).  Only answers that are passed on to clients have this field."""
HOP_SAVED: Final = "Gateway-Hop-Saved"
"""The number of bytes that the owner has saved by compressing an answer that is passed on."""
_LEAST_AGE_S: Final = 1.0
"""If a statement of the origin is older than the request by more than this number of seconds, it comes from the owner's
memory.  A smaller difference may come from the clocks of members, which differ a little."""
_MOST_ASKS: Final = 256
_ABSENT: Final = "-"
_FACTS: Final = "facts"
_PLAIN: Final = "".join(sorted(set(map(chr, range(0x21, 0x7F))) - {"%", _ABSENT}))
"""The characters that a word contains unchanged.  All others are percent-encoded."""


class HopAsk(NamedTuple):
    """The value of `HOP`: the tape, the network of the client that causes the request, and the kinds of answers that
    suffice."""

    route: str
    readers: str
    """The fields of the tape's `Partition`: the name of the route, and the readers."""
    query: str
    """The query of the tape's key."""
    client: str
    facts_suffice: bool = False
    """Whether metadata from the owner's memory (`Remembered`) suffices as an answer, because the asking worker does not
    need the present tail."""
    accepted: AcceptedCodings | None = None
    """The content codings that the client accepts if the answer is passed on to the client.  None if the asking worker
    records the answer."""

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
    """The reason why the origin's reply must not be shared between readers
    (`gateway.upstream.flight.NotShareable`)."""

    reason: str
    is_lasting: bool
    is_personal: bool


class Remembered(NamedTuple):
    """The metadata of a stream in the owner's memory.  The owner sends it if the origin fails or if the tail does not
    matter.

    The stream may have grown or ended since `contacted_at`.
    """

    content_type: str
    tail: str | None
    """The furthest offset that the origin has stated."""
    is_closed: bool
    """Whether the stream is closed at `tail`."""
    contacted_at: float
    """The time of the origin's latest successful reply about the stream (monotonic seconds)."""
    is_doubted: bool
    """Whether the owner itself would revalidate the metadata at the origin before it used them."""
    varies_by_origin: bool
    surrogate_keys: tuple[str, ...]
    headers: tuple[tuple[str, str], ...]
    """The origin's headers that are repeated in answers from memory."""

    def rendered(self) -> str:
        """Return the metadata as one word."""
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
    """The latest time at which the origin has confirmed everything in the answer (monotonic seconds, which all
    processes of a machine share)."""
    life: str = ""
    """The record's name; empty without a record.  A re-created stream has a new record."""
    name: str = ""
    """The name of the record's incarnation in entity tags.  It changes if the record drops all bytes."""
    identity: str | None = None
    """The origin's identifier of the incarnation; None if the origin sends none."""
    is_stale: bool = False
    """Whether the answer repeats an earlier statement of the origin.  There are three possible reasons: the origin has
    failed, the tail does not matter, or the owner of an S2 stream trusts the tail that its session has stated."""
    lifetime: Lifetime | None = None
    """The stream's lifetime, if the owner knows it."""
    alone: Alone | None = None
    """The reason why the origin's reply must not be shared, so that the owner has no answer; None if the owner has
    one."""
    failure: str = ""
    """The name of the owner's error (`gateway.errors`) if the origin has not answered the owner."""
    remembered: Remembered | None = None
    """The metadata in the owner's memory, if the origin has failed to answer or the tail does not matter."""
    is_tail_unknown: bool = False
    """Whether the answer ends at the furthest bytes in the owner's memory, and the owner does not know whether more
    bytes follow.  In contrast, an answer of the origin that does not reach the tail shows that more bytes follow."""

    def is_from_memory(self, asked_at: float) -> bool:
        """Return whether the owner has answered from memory, without a reply of the origin to this request.  The
        request was sent to the owner at `asked_at`."""
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
        """Read the field from another worker's answer; return None if the answer lacks the field.  Raises ValueError.

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
        """The statement in the latest answer of an owner; None if no other worker has been asked."""
        self.stale_stored_at = -inf
        """The latest time at which this worker stored bytes that an owner has sent from memory because the origin has
        failed (monotonic seconds); -inf if this has never happened."""
        self._incarnation = ""
        self._name = ""

    def __repr__(self) -> str:
        return f"<OwnersRecord {self.life}, {self.said}>"

    def is_same(self, said: HopSaid, identity: str | None) -> bool:
        """Return whether the owner's stream is still the stream that this worker knows.  `identity` is the origin's
        identifier of the known stream."""
        known = self.said
        if known is None or said.owner != known.owner or not said.life or said.life == known.life:
            return True
        return identity is not None and identity == said.identity

    def is_known(self, said: HopSaid) -> bool:
        """Return whether the preceding answer of an owner came from the same owner and the same record."""
        known = self.said
        return known is not None and bool(said.life) and (known.owner, known.life) == (said.owner, said.life)

    def has_dropped_bytes(self, said: HopSaid) -> bool:
        """Return whether the owner has dropped all bytes of its record since its preceding answer."""
        return bool(said.name) and self.is_known(said) and self.said is not None and self.said.name != said.name

    def learn(self, said: HopSaid, incarnation: str) -> None:
        """Record the owner's statement.  `incarnation` is this worker's own name for the bytes in its memory."""
        if said.life:
            self.said, self._incarnation, self._name = said, incarnation, said.name

    def tag_name(self, incarnation: str) -> str:
        """Return the name of this incarnation in entity tags, which is the same at all workers."""
        return self._name if self._name and incarnation == self._incarnation else incarnation

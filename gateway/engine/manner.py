"""A reply's manner: the header fields of a reply that are the same in most replies of a route.

Fields that differ from reply to reply, such as offset, tag and date, are left out.  Most replies of a route therefore
have one of a few manners.  The decisions that depend on the remaining fields are made once for each manner: whether a
reply may be shared, how long it may be reused, and which of its headers a hit repeats.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from multidict import CIMultiDict

from gateway.http.reply_lines import FieldLine, ReplyShape
from gateway.limits.memory import evict_oldest
from gateway.protocol.freshness_headers import parse_cache_control, stated_reuse, surrogate_keys
from gateway.protocol.header_forwarding import Headers, storable_headers
from gateway.protocol.names import STREAM_CLOSED, STREAM_UP_TO_DATE, is_true
from gateway.protocol.sharing import Ground, SharingRules
from gateway.protocol.worker_headers import HOP_RECORD
from gateway.tape.origin_statements import Caching

_MOST_MANNERS: Final = 64
_MOST_CHARACTERS: Final = 2_048
"""The limit on the total length of a manner's fields, in characters.  A manner with longer fields is not cached."""
_OWN: Final = frozenset(
    spelling
    for name in (
        "Content-Length",
        "Date",
        "ETag",
        "Expires",
        HOP_RECORD,
        "Last-Modified",
        "Server-Timing",
        "Stream-Cursor",
        "Stream-Next-Offset",
        "Traceparent",
        "X-Request-Id",
        "X-Timer",
    )
    for spelling in (name, name.lower(), name.title())
)
"""Fields that differ from reply to reply.  No decision in this module depends on them."""


class Manner(NamedTuple):
    """The decisions for all replies with the same fields."""

    ground: Ground | None
    """The reason why a stored reply may not be shared; None if it may."""
    ground_unstored: Ground | None
    """The reason why a reply that is not stored may not be shared; None if it may."""
    is_coded: bool
    """Whether the body has a content coding."""
    is_up_to_date: bool
    is_closed: bool
    content_type: str | None
    headers: CIMultiDict[str]
    """The fields that hits repeat.  Treat as immutable."""
    varies_by_origin: bool
    """Whether the reply may not be used for requests with an Origin header."""
    surrogate_keys: frozenset[str]
    caching_at_tail: Caching
    """How a stream's bytes may be cached after a reply that reaches the tail, if no reply has ended before the tail
    yet."""
    caching_short: Caching
    """How a stream's bytes may be cached after any reply that ends before the tail."""

    def caching_after(self, before: Caching, *, up_to_date: bool) -> Caching:
        """Return how a stream's bytes may be cached after another reply.  `up_to_date` states whether this reply
        reaches the tail."""
        if not up_to_date:
            return self.caching_short
        if not before.is_of_bytes:
            return self.caching_at_tail
        return before._replace(is_verbatim=self.caching_short.is_verbatim)


class Manners:
    """A cache of the manners of one route's replies, keyed by header fields."""

    def __init__(self, rules: SharingRules) -> None:
        self._rules = rules
        self._known: OrderedDict[tuple[tuple[str, str], ...], Manner] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Manners {len(self._known)}>"

    def manner_of(self, headers: Headers, shape: ReplyShape | None = None, own: Sequence[FieldLine] = ()) -> Manner:
        """Return the manner of a reply with these headers.

        If `shape` is given, it has the lines that other replies share, `own` has the reply's other lines, and `headers`
        has both.
        """
        if shape is None:
            return self._of(headers)
        for line in own:
            if line.name not in _OWN:
                return self._of(headers)
        manner: Manner | None = shape.facts.get(self)
        if manner is None:
            manner = self._of(headers)
            shape.derived(self, manner)
        return manner

    def _of(self, headers: Headers) -> Manner:
        fields = tuple([field for field in headers.items() if field[0] not in _OWN])
        manner = self._known.get(fields)
        if manner is None:
            manner = self._read(headers)
            if sum(len(name) + len(value) for name, value in fields) <= _MOST_CHARACTERS:
                self._known[fields] = manner
                evict_oldest(self._known, _MOST_MANNERS)
        return manner

    def _read(self, headers: Headers) -> Manner:
        rules = self._rules
        reuse = stated_reuse(parse_cache_control(", ".join(headers.getall("Cache-Control", ())) or None))
        return Manner(
            rules.why_alone(headers, is_stored=True),
            rules.why_alone(headers, is_stored=False),
            headers.get("Content-Encoding", "identity").lower() != "identity",
            is_true(headers.get(STREAM_UP_TO_DATE)),
            is_true(headers.get(STREAM_CLOSED)),
            headers.get("Content-Type"),
            storable_headers(headers),
            rules.varies_by_origin(headers),
            surrogate_keys(headers),
            Caching.at_tail(reuse),
            Caching.of_bytes(headers.get("Cache-Control"), reuse),
        )

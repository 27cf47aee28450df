"""Classifies the origin's reply to a flight (an upstream fetch that readers share).

There are three kinds of replies.  Most are part of a stream: they have bytes to store, and may state the tail.  Some
are errors for all readers that wait for the reply.  The others may not be shared, because they are personal
(`gateway.protocol.sharing`), have a content coding, do not state their length, or are not replies of the protocol.

`classify` is pure.  From the head of a reply, and the state of the stream when the request was sent, it derives the
reply's *meaning*: an instance of one of the classes below.  `reply_recorder` applies the meaning to the stream in
memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from gateway.engine.manner import Manner
from gateway.engine.route import Route
from gateway.errors import UpstreamBroken
from gateway.http.reply_lines import FieldLine, ReplyShape
from gateway.protocol.freshness_headers import Lifetime, lifetime_from_headers, lifetime_here
from gateway.protocol.header_forwarding import Headers, response_headers_for_client
from gateway.protocol.names import NOW, START, is_before, is_position, stated_offset
from gateway.protocol.stream_version import Version
from gateway.protocol.worker_headers import HopSaid
from gateway.tape.stream import Stream
from gateway.tuples import make
from gateway.upstream.flight import METADATA, Beyond, NotShareable, OriginError, StreamHead
from gateway.upstream.origin_call import Source
from gateway.upstream.reply import Reply

NO_HEAD = frozenset({405, 501})
"""Statuses that show that an origin does not implement HEAD."""
_MAX_ERROR_BYTES = 1 << 16
_EMPTY_BYTES = 16
"""A longer body counts as non-empty, even if it is all whitespace."""
PERSONAL = frozenset({400, 401, 403, 407, 431})
"""Statuses that may depend on the reader's credentials."""
_ALL_PERSONAL: Final = PERSONAL | {404, 410}
"""`PERSONAL`, and the statuses that hide a stream."""
BEYOND_TAIL: Final = NotShareable("offset beyond the tail", is_lasting=False)
"""The reply to an offset beyond the tail.  The client has made up the offset, or has taken it from another stream."""


class TapeFacts(NamedTuple):
    """The state of the stream when a request was sent.  The reply to the request is compared with this state."""

    tail: str | None
    closed_at: str | None
    has_seen: bool
    """Whether the origin had stated the requested offset before."""
    is_origin_token: bool
    """Like `has_seen`, but False for sentinels (`-1`, `now`) and for the gateway's internal offsets."""
    identity: str | None
    version: Version
    asked_at: float
    """When the request was sent, in Unix seconds."""
    said: HopSaid | None = None
    """The statement of the stream's owner, another worker, about its record; None if the origin itself has answered."""

    @classmethod
    def of(cls, stream: Stream, start: str, wall: float) -> TapeFacts:
        """Return the facts for a request that asks, at `wall` (Unix seconds), for the bytes after `start`."""
        tape, has_seen = stream.tape, stream.tape.has_seen(start)
        is_token = start not in (METADATA, NOW, START)
        seen_token = has_seen and is_token
        return make(cls, (tape.tail, tape.closed_at, has_seen, seen_token, stream.identity, stream.version, wall, None))


class ReplyHead(Protocol):
    """The parts of a reply that decide its meaning."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Headers: ...

    @property
    def is_delimited(self) -> bool:
        """Whether the reply states where its body ends."""

    @property
    def shape(self) -> ReplyShape | None:
        """The header lines that this reply shares with other replies of the origin; None if the head was not parsed
        line by line."""

    @property
    def own(self) -> Sequence[FieldLine]:
        """The header lines of this reply that are not in `shape`."""


class SharedRefusal(NamedTuple):
    """The reply is an error that all readers share."""


class Learned(NamedTuple):
    """The reply is part of the stream."""

    start: str
    """The requested offset, `NOW` or `METADATA`."""
    offset: str
    """The offset after the reply's bytes, or the tail if the request was for `NOW` or `METADATA`."""
    up_to_date: bool
    """Whether `offset` is the tail."""
    is_closed: bool
    is_beyond: bool
    """Whether the requested offset is after `offset`."""
    headers: Headers
    manner: Manner
    lifetime: Lifetime | None
    """The stream's lifetime by this machine's clock, if the request was for metadata."""

    def head(self) -> StreamHead | Beyond:
        """Return the head for the readers of the flight."""
        if self.is_beyond:
            return Beyond(self.offset, self.up_to_date, self.is_closed)
        return make(StreamHead, (self.offset, self.up_to_date, self.is_closed, False))


class Personal(NamedTuple):
    """The reply is part of the stream, but may be shown to one reader only."""

    why: NotShareable
    lifetime: Lifetime | None
    """The lifetime by this machine's clock, if the request was for metadata.  This lifetime limits how long the
    stream's other replies may be repeated."""


def classify(
    start: str, reply: ReplyHead, route: Route, facts: TapeFacts, wall: float
) -> Learned | Personal | NotShareable | SharedRefusal:
    """Classify the reply to a request for `start`.  `wall` is the present time (Unix seconds).  Changes nothing.

    Raises UpstreamBroken if the protocol does not allow the reply.
    """
    headers, is_metadata = reply.headers, start == METADATA
    if reply.status >= 400:
        if is_metadata and reply.status in NO_HEAD:
            return NotShareable("no HEAD")
        return route.why_refusal_alone(reply.status, headers) or SharedRefusal()
    if reply.status == 304:
        raise UpstreamBroken
    if reply.status != 200:
        return NotShareable("status")
    offset = stated_offset(headers)
    if offset is None:
        return NotShareable("no Stream-Next-Offset")
    if not is_position(offset):
        raise UpstreamBroken
    if not reply.is_delimited:
        return NotShareable("no length")
    manner = route.manners.manner_of(headers, reply.shape, reply.own)
    if manner.is_coded:
        return NotShareable("encoded")
    is_fetch = start not in (METADATA, NOW)
    lifetime = lifetime_here(lifetime_from_headers(headers), headers, facts.asked_at, wall) if is_metadata else None
    ground = manner.ground if is_fetch else manner.ground_unstored
    if ground is not None:
        return Personal(NotShareable(ground, is_personal=True), lifetime)
    is_closed = manner.is_closed
    # If the origin has stated `start` before, or if the request is for the tail, an earlier offset means that the tail
    # has moved back.  `ReplyRecorder` detects such a move.
    is_beyond = is_fetch and not facts.has_seen and is_before(offset, start)
    up_to_date = is_closed or not is_fetch or manner.is_up_to_date
    return make(Learned, (start, offset, up_to_date, is_closed, is_beyond, headers, manner, lifetime))


async def is_empty(reply: Reply) -> bool:
    """Return whether the body of a reply contains no bytes of the stream."""
    try:
        return (await reply.read(_EMPTY_BYTES)).strip() in (b"", b"[]")
    except UpstreamBroken:
        return False


async def read_error(reply: Reply, route: Route, source: Source) -> OriginError:
    """Read the body of an error reply, to be shared by the flight's readers."""
    headers = response_headers_for_client(reply.headers, node=route.node, http_version="1.1")
    for name in ("Content-Length", "Content-Encoding", "ETag", "Set-Cookie"):
        headers.popall(name, None)
    body = b""
    if "Content-Encoding" not in reply.headers:
        try:
            body = await reply.read(_MAX_ERROR_BYTES)
        except UpstreamBroken:
            body = b""
    # Unless the route is shared (`Route.is_shared`), all readers of a fetch have the same credentials.
    is_personal = route.is_shared and reply.status in _ALL_PERSONAL
    varies = route.varies_by_origin(reply.headers)
    return OriginError(reply.status, headers, body, source.headers if is_personal else None, varies)

"""A read as the engine sees it, without sockets or an HTTP library, and the ways it can fail."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from gateway.engine.hit_for_miss import Shape
from gateway.engine.route import Route
from gateway.protocol.coding import PLAIN, AcceptedCodings
from gateway.protocol.forwarded_headers import Headers
from gateway.protocol.sharing import StreamKey, allows
from gateway.tape.stream import Stream
from gateway.upstream.call import Source
from gateway.upstream.flight import NotShareable, OriginError

MOST_CHANGES: Final = 8
"""How often a stream may become another, or its bytes be forgotten, while it is read; then the read is relayed."""


class Read(NamedTuple):
    """One client's read.  `start` is an offset token or a sentinel; `cursor` matters only for live reads."""

    route: Route
    key: StreamKey
    source: Source
    start: str
    cursor: str | None = None
    if_none_match: str | None = None
    is_private: bool = False
    """Whether the request carried credentials, so that downstream caches must keep the answer private."""
    accepted: AcceptedCodings = PLAIN
    """The content codings that the reader accepts."""
    is_live: bool = False
    web_origin: str | None = None
    """The request's Origin header, if the gateway does not answer for it: the request shares only replies that are the
    same for that web origin."""
    max_age_s: float | None = None
    """The age up to which the client accepts bytes in memory, in seconds; None if it states none."""

    @property
    def shape(self) -> Shape:
        """The parts of the request, besides the stream, that determine the origin's answer."""
        return Shape(self.is_live, self.start)

    def is_kept_from(self, stream: Stream) -> bool:
        """Whether shared answers from the stream do not suit the request's Origin header."""
        return self.web_origin is not None and (stream.varies_by_origin or not self.is_origin_met(stream.headers))

    def is_origin_met(self, headers: Headers) -> bool:
        """Whether a shared reply with these headers is what the origin would answer to the request's Origin header."""
        origin = self.web_origin
        return origin is None or allows(headers, origin) or self.route.denied_origins.has(self.key.group, origin)


class Uncacheable(Exception):
    """The origin's answer may not be shared: relay the request alone."""

    def __init__(self, why: NotShareable) -> None:
        super().__init__(why.reason)
        self.why = why


class StreamEnded(Exception):
    """The stream ended during the read."""

    def __init__(self, error: OriginError) -> None:
        super().__init__(error.status)
        self.error = error


class Poll(Enum):
    """Why a long-poll cannot be answered at once."""

    WAIT = "nothing there"
    ASK = "the origin has to be asked"

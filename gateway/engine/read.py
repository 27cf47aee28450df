"""The engine's view of a read, and the errors that end a read.  Neither depends on sockets or HTTP messages."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple, Protocol

from gateway.engine.hit_for_miss import Shape
from gateway.engine.route import Route
from gateway.protocol.coding import PLAIN, AcceptedCodings
from gateway.protocol.header_forwarding import Headers
from gateway.protocol.sharing import StreamKey, allows
from gateway.tape.stream import Stream
from gateway.upstream.flight import NotShareable, OriginError
from gateway.upstream.origin_call import Handed, Source

MOST_CHANGES: Final = 8
"""How many times a stream may be re-created, or its bytes dropped, during one read.  After that the read is relayed."""


class Read(NamedTuple):
    """One client's read.  `start` is an offset or a sentinel such as `now`; only live reads use `cursor`."""

    route: Route
    key: StreamKey
    source: Source
    start: str
    cursor: str | None = None
    if_none_match: str | None = None
    is_private: bool = False
    """Whether the request carried credentials.  The answer must then forbid storage in shared caches downstream."""
    accepted: AcceptedCodings = PLAIN
    """The content codings that the client accepts."""
    is_live: bool = False
    web_origin: str | None = None
    """The request's Origin header if the origin, rather than the gateway, is responsible for CORS.  The request then
    shares only replies that are valid for this web origin."""
    max_age_s: float | None = None
    """The greatest age in seconds of cached bytes that the client accepts; None if the client states no limit."""
    handed: Handed = Handed.NO
    """Whether another worker sent this read.  That worker has already counted the read against its client's limits."""

    @property
    def is_handed(self) -> bool:
        """Whether another process sent this read."""
        return self.handed is not Handed.NO

    @property
    def is_confirmation(self) -> bool:
        """Whether another process has sent this read to request a confirmation of bytes in its memory.

        If the origin is silent, the other process decides whether its readers get these bytes or wait for the origin.
        """
        return self.is_handed and self.max_age_s is not None

    @property
    def shape(self) -> Shape:
        """The parts of the request, other than the stream, on which the origin's answer depends."""
        return Shape(self.is_live, self.start)

    def remember_unshared(self, why: NotShareable) -> None:
        """Remember that the origin's answers to reads of this shape may not be shared.  Do nothing if the reason is not
        lasting."""
        if why.is_lasting:
            self.route.unshared.remember(self.key, self.shape, why.reason)

    def is_kept_from(self, stream: Stream) -> bool:
        """Return whether the stream's shared answers are invalid for the request's Origin header."""
        return self.web_origin is not None and (stream.varies_by_origin or not self.is_origin_met(stream.headers))

    def is_origin_met(self, headers: Headers) -> bool:
        """Return whether a shared reply with these headers is valid for the request's Origin header."""
        origin = self.web_origin
        return origin is None or allows(headers, origin) or self.route.denied_origins.has(self.key.group, origin)


class Closeable(Protocol):
    """The result of a read: an answer, or a subscription to a stream.  It keeps resources until it is closed."""

    def close(self) -> None: ...


class Uncacheable(Exception):
    """The origin's answer may not be shared, so the request must be relayed."""

    def __init__(self, why: NotShareable) -> None:
        super().__init__(why.reason)
        self.why = why


class StreamEnded(Exception):
    """The stream ended during the read."""

    def __init__(self, error: OriginError) -> None:
        super().__init__(error.status)
        self.error = error


class Poll(Enum):
    """The reason why a long-poll cannot be answered immediately."""

    WAIT = "nothing there"
    ASK = "the origin has to be asked"

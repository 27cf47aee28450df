"""A request to be relayed, and the state of its stream when the request was sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from multidict import CIMultiDict

from gateway.engine.route import Route
from gateway.http.outgoing import RenderedHeaders
from gateway.protocol.mode import Mode
from gateway.protocol.names import PRODUCER_ID, is_before
from gateway.protocol.sharing import Group, Partition, StreamKey
from gateway.tape.stream import Stream
from gateway.upstream.origin_call import Body, RepeatedUrl

WRITES = frozenset({Mode.CREATE, Mode.APPEND, Mode.DELETE})
Change: TypeAlias = int
"""Possible effects of writes on the existence of a stream, as a bit mask.  Not an `enum.Flag`: its operators would take
10 % of the time of a relayed append in Python 3.11."""
NO_CHANGE: Final[Change] = 0
DELETES: Final[Change] = 1
CREATES: Final[Change] = 2
APPENDS: Final[Change] = 4
"""The effect of an append that creates the stream if there is none.  A stream that was created in this way has no
lifetime."""
_CHANGES: Final = {Mode.DELETE: DELETES, Mode.CREATE: CREATES}
# An append to an S2 stream may create it (S2's `create_stream_on_append`).
_BRIDGED_CHANGES: Final = {Mode.DELETE: DELETES, Mode.CREATE: APPENDS, Mode.APPEND: APPENDS}


def origin_url(route: Route, group: Group, raw_query: str) -> str:
    """Return the URL of a path at the route's origin, with this query."""
    url = route.url + group.path
    return f"{url}?{raw_query}" if raw_query else url


_UNPARTITIONED: Final = Partition("")


@dataclass(slots=True, eq=False)
class RelayedRequest:
    """A request to be relayed, without its body, and the keys of its stream in memory.

    Equal requests of a client may share one object, so this object is never changed.  It is not a named tuple, because
    slots are faster to read.

    `group` names the path at the origin: a write affects all streams of the group.  `query` is the canonical query, and
    `client` is the client's network.  `tape_key` is the key of the tape (a stream's bytes in memory) that reads of the
    same client would use; None if these reads would bypass all tapes.
    """

    route: Route
    group: Group
    tape_key: StreamKey | None
    mode: Mode
    method: str
    path: str
    query: str
    raw_query: str
    headers: CIMultiDict[str]
    client: str
    is_session: bool = False
    """Whether request and answer are streamed at the same time, without a time limit (S2 sessions)."""
    partition: Partition = _UNPARTITIONED
    """The client's own partition.  The same path may name another stream in another partition.  By default, requests
    with equal credentials are in one partition."""
    is_live: bool = False
    """Whether the answer may take minutes, so that the time limits of live requests apply."""
    url: RepeatedUrl | None = None
    """The URL, if equal requests share one object for it; else None."""
    has_own_credentials: bool = False
    """Whether the credentials that the route has for its origins are left out (`OriginCall.has_own_credentials`)."""

    def varied_by(self, varied: Sequence[tuple[str, str]]) -> RelayedRequest:
        """Return a copy of the request with these additional headers."""
        headers = self.headers
        if isinstance(headers, RenderedHeaders):
            headers = headers.varied_by(varied)
        else:
            headers = headers.copy()
            headers.update(varied)
        return RelayedRequest(
            self.route,
            self.group,
            self.tape_key,
            self.mode,
            self.method,
            self.path,
            self.query,
            self.raw_query,
            headers,
            self.client,
            self.is_session,
            self.partition,
            self.is_live,
            self.url,
            self.has_own_credentials,
        )


class SentRequest:
    """A relayed request that has been sent, with the state of its stream at that time."""

    __slots__ = ("asked_at", "body", "change", "is_overtaken", "is_to_another", "request", "stream", "tail", "version")

    def __init__(self, request: RelayedRequest, stream: Stream | None, asked_at: float, body: Body = None) -> None:
        self.request = request
        self.body = body
        self.asked_at = asked_at
        """The time at which the request was sent, or a little earlier (monotonic seconds)."""
        changes = _BRIDGED_CHANGES if request.route.is_bridged else _CHANGES
        self.change = changes.get(request.mode, NO_CHANGE)
        self.stream = stream
        """The stream of `request.tape_key`.  The answer shows the state of this stream only."""
        self.version = stream.version if stream is not None else None
        self.tail: str | None = None
        """The tail that was known when the request was sent; None if no tail was known."""
        self.is_to_another = False
        """Whether another worker has sent the request, and the answer has shown that worker that the stream was
        re-created."""
        self.is_overtaken = False
        """Whether another write has, or may have, deleted or created the stream since this request was sent."""

    @property
    def is_cut_short(self) -> bool:
        """Whether the client has failed to send the whole body."""
        return False

    def shows_another_stream(self, tail: str, status: int) -> bool:
        """Return whether an answer with this tail and status shows that the stream was re-created after `self.tail`
        became known.

        The tail in the answer must not be before the known tail.  After an append that has added something, the tail in
        the answer must be after the known tail."""
        known, request = self.tail, self.request
        if known is None or tail != known:
            return self.is_to_another or (known is not None and is_before(tail, known))
        # If the request has the headers of a producer, 204 answers a repeated append.
        is_repeated = status == 204 and PRODUCER_ID in request.headers
        has_added = request.mode is Mode.APPEND and status < 300 and bool(self.body) and not is_repeated
        return has_added or self.is_to_another

    @property
    def is_outdated(self) -> bool:
        """Whether a write to the stream was acknowledged, or may have been executed, after the request was sent."""
        stream, seen = self.stream, self.version
        return stream is not None and seen is not None and not seen.same_writes_as(stream.version)

    def __repr__(self) -> str:
        return f"<SentRequest {self.request.method} {self.request.path}>"

"""A request that is relayed, and what was known of its stream when it was sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from multidict import CIMultiDict

from gateway.engine.route import Route
from gateway.http.outgoing import RenderedHeaders
from gateway.protocol.mode import Mode
from gateway.protocol.sharing import Group, Partition, StreamKey
from gateway.tape.stream import Stream
from gateway.upstream.call import Body

WRITES = frozenset({Mode.CREATE, Mode.APPEND, Mode.DELETE})
Change: TypeAlias = int
"""What writes may do to the existence of a stream: a sum of bits.  No `enum.Flag`: in Python 3.11 its operators take
10 % of the time of a relayed append."""
NO_CHANGE: Final[Change] = 0
DELETES: Final[Change] = 1
CREATES: Final[Change] = 2
APPENDS: Final[Change] = 4
"""Appends where that creates a stream that does not exist; such streams have no lifetime."""
_CHANGES: Final = {Mode.DELETE: DELETES, Mode.CREATE: CREATES}
# An append to an S2 stream may create it (S2's `create_stream_on_append`).
_BRIDGED_CHANGES: Final = {Mode.DELETE: DELETES, Mode.CREATE: APPENDS, Mode.APPEND: APPENDS}


def may_remake(change: Change) -> bool:
    """Whether writes that do this together may delete the stream and make it anew."""
    return bool(change & DELETES) and change != DELETES


class RelayedRequest(NamedTuple):
    """A request to be relayed: what the origin is sent, without the body, and the keys of what is remembered of its
    stream.  Equal requests of one client may share it.

    `group` is what a write to the path affects, `query` the canonical rest of its target, and `client` the net of the
    client.  `tape_key` is the key of the tape that the client itself would read, None if its reads would bypass all
    tapes.
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
    """Whether request and answer go on side by side for as long as both parties like."""
    partition: Partition = Partition("")
    """The client's own.  Under another one the same path may name another stream."""
    is_live: bool = False
    """Whether it may last for minutes."""

    def varied_by(self, varied: Sequence[tuple[str, str]]) -> RelayedRequest:
        """The request with these headers besides."""
        headers = self.headers
        if isinstance(headers, RenderedHeaders):
            headers = headers.varied_by(varied)
        else:
            headers = headers.copy()
            headers.update(varied)
        # `_replace` takes three times as long.
        route, group, tape_key, mode, method, path, query, raw_query, _, client, is_session, partition, is_live = self
        return RelayedRequest(
            route,
            group,
            tape_key,
            mode,
            method,
            path,
            query,
            raw_query,
            headers,
            client,
            is_session,
            partition,
            is_live,
        )


class SentRequest:
    """A relayed request that has been sent, and what was known of its stream then."""

    __slots__ = ("asked_at", "body", "change", "is_overtaken", "request", "stream", "version")

    def __init__(self, request: RelayedRequest, stream: Stream | None, asked_at: float, body: Body = None) -> None:
        self.request = request
        self.body = body
        self.asked_at = asked_at
        """When it was sent (monotonic seconds), or a little before."""
        changes = _BRIDGED_CHANGES if request.route.is_bridged else _CHANGES
        self.change = changes.get(request.mode, NO_CHANGE)
        self.stream = stream
        """The stream of `request.tape_key`: the answer states facts about it alone."""
        self.version = stream.version if stream is not None else None
        self.is_overtaken = False
        """Whether the stream has, or may have, been deleted or created since."""

    @property
    def is_cut_short(self) -> bool:
        """Whether the client failed to send the whole body."""
        return False

    @property
    def is_outdated(self) -> bool:
        """Whether a write to its stream was acknowledged, or may have been done, after the request was sent."""
        stream, seen = self.stream, self.version
        return stream is not None and seen is not None and not seen.same_writes_as(stream.version)

    def __repr__(self) -> str:
        return f"<SentRequest {self.request.method} {self.request.path}>"

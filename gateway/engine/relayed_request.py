"""A relayed request with the state of its stream when it was sent, and the writes that are pending.

A pending write is one that the origin may carry out at any moment.  It is pending from when it is sent until it is
answered.  One that may create or delete the stream and had no answer may have been done, or may still be done: it stays
pending until a write is acknowledged after which nothing is held that could be of an earlier stream.  Writes belong to
the path, and not to the records of its streams, so a record that is begun later is in the same doubt.

While one that deletes and one that creates are pending, the origin may have re-created the stream at any offset, and no
answer has to show it.  A DELETE alone leaves no stream that could be mistaken for the earlier one, and a PUT alone
finds the stream there: anyone can send one of them, slowly, and what readers hold stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from multidict import CIMultiDict

from gateway.engine.route import Route
from gateway.http.outgoing import RenderedHeaders
from gateway.protocol.mode import Mode
from gateway.protocol.sharing import Group, Partition, StreamKey
from gateway.tape.costs import texts_cost
from gateway.tape.stream import Stream
from gateway.upstream.call import Body, RepeatedUrl

WRITES = frozenset({Mode.CREATE, Mode.APPEND, Mode.DELETE})
Change: TypeAlias = int
"""Possible effects of writes on the existence of a stream: a sum of bits.  No `enum.Flag`: in Python 3.11 its operators
take 10 % of the time of a relayed append."""
NO_CHANGE: Final[Change] = 0
DELETES: Final[Change] = 1
CREATES: Final[Change] = 2
APPENDS: Final[Change] = 4
"""Appends where that creates a stream that does not exist; such streams have no lifetime."""
_CHANGES: Final = {Mode.DELETE: DELETES, Mode.CREATE: CREATES}
# An append to an S2 stream may create it (S2's `create_stream_on_append`).
_BRIDGED_CHANGES: Final = {Mode.DELETE: DELETES, Mode.CREATE: APPENDS, Mode.APPEND: APPENDS}


def may_remake(change: Change) -> bool:
    """Whether writes that do this together may delete the stream and create it again."""
    return bool(change & DELETES) and change != DELETES


def origin_url(route: Route, group: Group, raw_query: str) -> str:
    """The URL of the path at the origins of its route, with this query."""
    url = route.url + group.path
    return f"{url}?{raw_query}" if raw_query else url


_UNPARTITIONED: Final = Partition("")


@dataclass(slots=True, eq=False)
class RelayedRequest:
    """A request to be relayed: what the origin is sent, without the body, and the keys of what is remembered of its
    stream.  Equal requests of one client may share it, so it is never changed.  A named tuple would be slower to read.

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
    """Whether request and answer are streamed at the same time, for as long as both parties like."""
    partition: Partition = _UNPARTITIONED
    """The client's own.  Under another one the same path may name another stream."""
    is_live: bool = False
    """Whether it may last for minutes."""
    url: RepeatedUrl | None = None
    """Its URL, if equal requests share it."""

    def varied_by(self, varied: Sequence[tuple[str, str]]) -> RelayedRequest:
        """The request with these headers besides."""
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


_MOST_BYTES: Final = 1 << 20
"""The most bytes charged for unanswered writes: paths are as long as clients make them."""
_ENTRY_COST: Final = 300
"""Bytes charged per path in addition to its texts: a tuple and an entry."""


class PendingWrites:
    """The writes of each path that the origin may do at any moment."""

    def __init__(self) -> None:
        self._under_way: dict[Group, set[SentRequest]] = {}
        """Writes that have been sent and not answered."""
        self._changes: dict[Group, dict[Change, int]] = {}
        """How many of them may do what; an append that can do neither is not counted."""
        self._unanswered: dict[Group, Change] = {}
        """Possible effects of the writes that had no answer, the latest last."""
        self._cost = 0
        self.epoch = 0
        """Counts starts and ends of writes of all paths: an answer that spans one of them may predate the write."""

    def __len__(self) -> int:
        """How many are under way."""
        return sum(map(len, self._under_way.values()))

    def __repr__(self) -> str:
        return f"<PendingWrites {len(self)} under way, {len(self._unanswered)} paths unanswered>"

    def add_write(self, write: SentRequest) -> None:
        """A write is about to be sent; `remove_write` must follow."""
        self.epoch += 1
        group, change = write.request.group, write.change
        writes = self._under_way.get(group)
        if writes is None:
            self._under_way[group] = {write}
        else:
            writes.add(write)
        if change:
            counts = self._changes.setdefault(group, {})
            counts[change] = counts.get(change, 0) + 1

    def remove_write(self, write: SentRequest) -> None:
        """The write was answered, or will never be."""
        self.epoch += 1
        group = write.request.group
        writes = self._under_way[group]
        writes.discard(write)
        if not writes:
            del self._under_way[group]
        if write.change:
            counts = self._changes[group]
            counts[write.change] -= 1
            if not counts[write.change]:
                del counts[write.change]
                if not counts:
                    del self._changes[group]

    def is_under_way(self, group: Group) -> bool:
        """Whether a write to the path is under way: what the origin refuses, it may take at any moment."""
        return group in self._under_way

    def remember(self, write: SentRequest) -> list[Group]:
        """A write that may create or delete the stream has no answer.

        Returns the paths whose unanswered writes are forgotten for it, because too many are remembered: their streams
        are to be doubted.
        """
        group = write.request.group
        change = self._unanswered.get(group, NO_CHANGE) | write.change
        self.settle(group)
        self._unanswered[group] = change
        self._cost += _cost(group)
        displaced = []
        while self._cost > _MOST_BYTES:
            oldest, change = next(iter(self._unanswered.items()))
            self.settle(oldest)
            # While an origin fails, appends to many streams do, and hardly ever is one of these deleted meanwhile.
            if change != APPENDS or self.change(oldest) & DELETES:
                displaced.append(oldest)
        return displaced

    def settle(self, group: Group) -> None:
        """Forget the writes without an answer: nothing is held of the path's earlier streams."""
        if self._unanswered.pop(group, None) is not None:
            self._cost -= _cost(group)

    def overtake(self, group: Group) -> None:
        """A write may have ended the path's stream: the others may be answered for that one or for the next."""
        for write in self._under_way.get(group, ()):
            write.is_overtaken = True

    def change(self, group: Group, *, beside: SentRequest | None = None) -> Change:
        """The changes that the path's pending writes, except `beside`, may make or have made."""
        change = self._unanswered.get(group, NO_CHANGE)
        if not self._changes:
            return change
        # Not write by write: as many may be under way as clients send.
        for other, count in self._changes.get(group, {}).items():
            if count > (beside is not None and beside.change == other):
                change |= other
        return change


def _cost(group: Group) -> int:
    return _ENTRY_COST + texts_cost(group)

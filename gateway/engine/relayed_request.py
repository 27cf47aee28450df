"""A relayed request, the state of its stream when it was sent, and the list of pending writes.

A write is *pending* while the origin may still execute it: from when it is sent until it is answered.  If a write that
may create or delete the stream gets no answer, it stays pending: the origin may have executed it, or may still do so.
It stops being pending when a later write is acknowledged and the gateway has dropped all bytes that may belong to an
earlier stream.  Pending writes are recorded by path rather than by stream record, so that they also count for records
that are created later.

While a DELETE and a creating write are both pending, the origin may have re-created the stream without any reply
showing it.  This cannot happen while only one kind is pending: after a DELETE there is no stream, and a PUT finds the
existing stream.  A client that sends many slow writes of one kind therefore cannot make the gateway drop bytes.
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
"""Possible effects of writes on the existence of a stream, as a bit mask.  Not an `enum.Flag`: its operators would take
10 % of the time of a relayed append in Python 3.11."""
NO_CHANGE: Final[Change] = 0
DELETES: Final[Change] = 1
CREATES: Final[Change] = 2
APPENDS: Final[Change] = 4
"""An append that creates the stream if there is none.  A stream created in this way has no lifetime."""
_CHANGES: Final = {Mode.DELETE: DELETES, Mode.CREATE: CREATES}
# An append to an S2 stream may create it (S2's `create_stream_on_append`).
_BRIDGED_CHANGES: Final = {Mode.DELETE: DELETES, Mode.CREATE: APPENDS, Mode.APPEND: APPENDS}


def may_remake(change: Change) -> bool:
    """Return whether writes with this combined effect may delete the stream and create it again."""
    return bool(change & DELETES) and change != DELETES


def origin_url(route: Route, group: Group, raw_query: str) -> str:
    """Return the URL of a path at the route's origin, with this query."""
    url = route.url + group.path
    return f"{url}?{raw_query}" if raw_query else url


_UNPARTITIONED: Final = Partition("")


@dataclass(slots=True, eq=False)
class RelayedRequest:
    """A request to be relayed, without its body, and the keys of its stream in memory.

    Equal requests of a client may share one object, so it is never changed.  It is not a named tuple, because slots are
    faster to read.

    `group` names the path at the origin: a write affects all streams of the group.  `query` is the canonical query, and
    `client` is the client's network.  `tape_key` is the key of the tape (a stream's bytes in memory) that the client's
    own reads would use; None if they would bypass all tapes.
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
    """The client's own partition: the requests that share its tapes, by default the requests with equal credentials.
    In another partition the same path may name another stream."""
    is_live: bool = False
    """Whether the answer may take minutes."""
    url: RepeatedUrl | None = None
    """The URL, if equal requests share one object for it; else None."""

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
        )


class SentRequest:
    """A relayed request that has been sent, with the state of its stream at that time."""

    __slots__ = ("asked_at", "body", "change", "is_overtaken", "request", "stream", "version")

    def __init__(self, request: RelayedRequest, stream: Stream | None, asked_at: float, body: Body = None) -> None:
        self.request = request
        self.body = body
        self.asked_at = asked_at
        """When the request was sent (monotonic seconds), or a little earlier."""
        changes = _BRIDGED_CHANGES if request.route.is_bridged else _CHANGES
        self.change = changes.get(request.mode, NO_CHANGE)
        self.stream = stream
        """The stream of `request.tape_key`.  The answer shows the state of this stream only."""
        self.version = stream.version if stream is not None else None
        self.is_overtaken = False
        """Whether another write has, or may have, deleted or created the stream since."""

    @property
    def is_cut_short(self) -> bool:
        """Whether the client has failed to send the whole body."""
        return False

    @property
    def is_outdated(self) -> bool:
        """Whether a write to the stream was acknowledged, or may have been executed, after the request was sent."""
        stream, seen = self.stream, self.version
        return stream is not None and seen is not None and not seen.same_writes_as(stream.version)

    def __repr__(self) -> str:
        return f"<SentRequest {self.request.method} {self.request.path}>"


_MOST_BYTES: Final = 1 << 20
"""The size limit of the unanswered writes.  Clients choose the length of paths."""
_ENTRY_COST: Final = 300
"""Size charged for each path, in addition to its strings: a tuple and a dictionary entry."""


class PendingWrites:
    """The pending writes of each path: the writes that the origin may execute at any moment."""

    def __init__(self) -> None:
        self._under_way: dict[Group, set[SentRequest]] = {}
        """Writes that have been sent and not answered yet."""
        self._changes: dict[Group, dict[Change, int]] = {}
        """The number of writes in `_under_way` with each effect.  Writes without effect are not counted."""
        self._unanswered: dict[Group, Change] = {}
        """The combined effects of each path's unanswered writes, latest path last."""
        self._cost = 0
        self.epoch = 0
        """Counts the starts and ends of writes to all paths.  If it changes during a request, the reply may predate a
        write."""

    def __len__(self) -> int:
        """The number of writes under way."""
        return sum(map(len, self._under_way.values()))

    def __repr__(self) -> str:
        return f"<PendingWrites {len(self)} under way, {len(self._unanswered)} paths unanswered>"

    def add_write(self, write: SentRequest) -> None:
        """Record that a write is about to be sent; `remove_write` must follow."""
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
        """Record that a write has been answered, or never will be."""
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
        """Return whether a write to the path is under way.  The origin's refusals may then be out of date at any
        moment."""
        return group in self._under_way

    def remember(self, write: SentRequest) -> list[Group]:
        """Record that no answer came to a write that may create or delete the stream.

        If the list is full, other paths are removed from it.  Returns the removed paths: the caller must assume that
        their streams have been re-created.
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
            # Failing origins leave many appends unanswered.  A path whose pending writes are only appends cannot have
            # lost its stream, so it is left out of the result.
            if change != APPENDS or self.change(oldest) & DELETES:
                displaced.append(oldest)
        return displaced

    def settle(self, group: Group) -> None:
        """Remove the path's unanswered writes, because no bytes of its earlier streams are kept."""
        if self._unanswered.pop(group, None) is not None:
            self._cost -= _cost(group)

    def overtake(self, group: Group) -> None:
        """Mark the path's other writes as overtaken: a write may have ended the stream to which they were sent."""
        for write in self._under_way.get(group, ()):
            write.is_overtaken = True

    def change(self, group: Group, *, beside: SentRequest | None = None) -> Change:
        """Return the combined effects of the path's pending writes, except `beside`."""
        change = self._unanswered.get(group, NO_CHANGE)
        if not self._changes:
            return change
        # Use the counts: clients may have any number of writes under way.
        for other, count in self._changes.get(group, {}).items():
            if count > (beside is not None and beside.change == other):
                change |= other
        return change


def _cost(group: Group) -> int:
    return _ENTRY_COST + texts_cost(group)

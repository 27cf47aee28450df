"""Effects of writes through the gateway on the records in memory of S2 streams.

Creating or deleting a stream, or a basin (S2's namespace of streams), makes the records in memory invalid, so they are
dropped.  Only the records of streams in the writer's own partition are certain to be invalid: with other credentials
the same name may belong to another stream.

Appends drop nothing, because readers that need the tail ask the origin.  But an acknowledgement can show that the
stream was re-created elsewhere (`S2Acknowledgements`).  The records of a new stream are numbered from 0, whereas an
append to the known stream is numbered after all records in memory.  The gateway detects the re-creation before the
client gets the acknowledgement, because the client's next read must include its append.

Some answers do not show whether a stream was deleted or created.  A 404 may be due to the writer's credentials, and the
request body that names a created stream may not have been kept.  Any client can cause such answers, so nothing is
dropped.  Instead the records are *doubted*: the origin must confirm them before they are read again.  A stream with
live readers is confirmed within a few seconds (`streams.py`), and the readers continue meanwhile.

A path may have many streams in memory.  Most of them then sleep: events of the path reach them only when they are used
again (`gateway.tape.paths`).  An append checks only the streams that are awake.  If a sleeping stream may have records
from the acknowledged sequence number on, all streams of the path are searched, and the streams with such records are
doubted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from multidict import CIMultiDict

from gateway.engine.relayed_request import RelayedRequest
from gateway.engine.s2.request import (
    BASIN_HEADER,
    S2Unnamed,
    created_basin,
    created_stream,
    key_query,
    parse_basin,
    parse_path,
    plain,
)
from gateway.protocol.mode import Mode
from gateway.protocol.sharing import Group, StreamKey
from gateway.s2 import protobuf, session
from gateway.s2.json_format import BadJson, decode_append_ack
from gateway.s2.records import AppendAck
from gateway.s2.session import BadFrame, FrameReader, Message
from gateway.tape.paths import PathEvent
from gateway.tape.record_stream import RecordStream
from gateway.tape.store import TapeStore
from gateway.tape.stream import End, Stream
from gateway.upstream.origin_call import Body

_MOST_BYTES: Final = 4_096
"""The most bytes read of an acknowledgement.  Acknowledgements hold three positions and are always shorter."""


TellAppended = Callable[[Group, Collection[str] | None, int], object]
"""Informs other workers of an append: its path, the queries of its basin, and the number of its first record."""


class S2HeldBefore(NamedTuple):
    """A stream that had records in memory when an append was sent."""

    stream: Stream
    end: int
    """The sequence number after the stream's last record in memory."""
    is_own: bool
    """Whether the stream is in the writer's own partition.  In other partitions the name may belong to another
    stream."""


class S2Acknowledgements:
    """Reads the acknowledgement in the answer to one append, or the first acknowledgement of an append session."""

    __slots__ = (
        "_before",
        "_bytes",
        "_coding",
        "_frames",
        "_group",
        "_is_over",
        "_is_protobuf",
        "_length",
        "_queries",
        "_store",
        "_tell",
    )

    def __init__(
        self,
        store: TapeStore,
        before: Sequence[S2HeldBefore],
        group: Group,
        queries: Collection[str] | None,
        tell: TellAppended | None = None,
    ) -> None:
        """`before` are the streams of `group` that were awake when the append was sent.

        `queries` are the queries that stand for the basins of these streams in stream keys; None stands for any basin.
        `tell` informs other workers of the append.
        """
        self._store = store
        self._tell = tell
        self._before = before
        self._group = group
        self._queries = queries
        self._is_over = False
        """Whether the rest of the answer can be ignored."""
        self._bytes = b""
        """The bytes received so far."""
        self._length = _MOST_BYTES
        self._coding: str | None = None
        self._is_protobuf = False
        self._frames: FrameReader | None = None

    def __repr__(self) -> str:
        return f"<S2Acknowledgements to {len(self._before)} streams>"

    def read_head(self, status: int, headers: Mapping[str, str]) -> None:
        """Read the head of the answer."""
        type_ = headers.get("Content-Type", "").partition(";")[0].strip().lower()
        self._frames = FrameReader() if type_ == session.CONTENT_TYPE else None
        self._is_protobuf = type_ in protobuf.CONTENT_TYPES
        self._coding = headers.get("Content-Encoding")
        if status != 200 or (self._frames is not None and self._coding is not None):
            # An error has no acknowledgement.  A session's body has no coding as a whole, because each of its frames is
            # compressed on its own.
            self._stop()
            return
        length = headers.get("Content-Length", "")
        self._length = int(length) if length.isdigit() and len(length) < 10 else _MOST_BYTES

    def see(self, chunk: bytes) -> None:
        """Process a part of the body."""
        if self._is_over:
            return
        self._bytes += chunk
        if self._frames is not None:
            self._take(self._frames, chunk)
        if len(self._bytes) > _MOST_BYTES:
            self._stop()
        elif self._frames is None and len(self._bytes) >= self._length:
            self.finish()

    def _take(self, frames: FrameReader, chunk: bytes) -> None:
        try:
            frame = next(frames.feed(chunk), None)
            if isinstance(frame, Message):
                self._judge(protobuf.decode_append_ack(frame.body))
        except (BadFrame, protobuf.BadProtobuf):
            self._stop()

    def finish(self) -> None:
        """Handle the end of the body."""
        if self._is_over or self._frames is not None:
            return
        try:
            body = plain(self._bytes, self._coding)
            self._judge((protobuf.decode_append_ack if self._is_protobuf else decode_append_ack)(body))
        except (BadFrame, BadJson, protobuf.BadProtobuf):
            self._stop()

    def _judge(self, ack: AppendAck) -> None:
        before = self._before
        self._stop()
        if ack.end.seq_num <= ack.start.seq_num:
            # Not an acknowledgement: an empty body, for instance, decodes to zeros.
            return
        if self._tell is not None:
            self._tell(self._group, self._queries, ack.start.seq_num)
        for stream, end, is_own in before:
            if ack.start.seq_num < end:
                if is_own:
                    self._store.drop_stream(stream, End.RECREATED)
                else:
                    self._store.doubt_records(stream)
        seen = {stream for stream, _, _ in before}
        self._store.doubt_replaced(self._group, self._queries, ack.start.seq_num, seen)

    def _stop(self) -> None:
        """Ignore the rest of the answer."""
        self._is_over = True
        self._before, self._bytes, self._frames = (), b"", None


_GONE: Final = frozenset({404, 409, 410})
"""Statuses for a stream that is gone or being deleted (409)."""

_MOST_QUERIES: Final = 8
"""The most queries in one event.  An event that would have more queries stands for all queries."""


class S2Doubted:
    """A `gateway.tape.paths.PathEvent` that doubts the streams of a path in some basins.  `queries` stand for these
    basins in stream keys; None stands for all basins."""

    __slots__ = ("_queries", "_store")

    def __init__(self, store: TapeStore, queries: set[str] | None) -> None:
        self._store = store
        self._queries = queries

    def __repr__(self) -> str:
        return f"<S2Doubted {self._queries or 'in any basin'}>"

    def __call__(self, stream: Stream, /) -> None:
        if _is_of(stream, self._queries):
            self._store.doubt_records(stream)

    def with_earlier(self, earlier: PathEvent, /) -> PathEvent | None:
        """Return one event that doubts the streams of both events; None if `earlier` is an event of another kind."""
        if not isinstance(earlier, S2Doubted):
            return None
        if self._queries is None or earlier._queries is None:
            return S2Doubted(self._store, None)
        queries = self._queries | earlier._queries
        return S2Doubted(self._store, queries if len(queries) <= _MOST_QUERIES else None)


class S2Writes:
    """Records the effects of writes.  Keeps no state of its own."""

    def __init__(self, store: TapeStore) -> None:
        self._store = store
        self.tell: TellAppended | None = None
        """Informs other workers of an append; None if there are no other workers."""

    def __repr__(self) -> str:
        return f"<S2Writes to {self._store!r}>"

    def appends(self, request: RelayedRequest) -> S2Acknowledgements | None:
        """Return the observer for the answer to this request, which is about to be sent.

        Returns None unless the request appends to a stream with records in memory, of this worker or of another one.
        """
        if request.mode is not Mode.APPEND:
            return None
        group = _appended_to(request)
        if group is None:
            return None
        queries = _queries(request.headers)
        # The lookup wakes the writer's own streams.
        own = self._own(request, group, queries)
        streams = dict.fromkeys([*own, *self._store.awake(group)])
        if not streams and not self._store.group(group) and self.tell is None:
            return None
        before = [
            S2HeldBefore(stream, stream.records.end_seq_num, stream.key.partition == request.partition)
            for stream in streams
            if isinstance(stream, RecordStream) and (queries is None or stream.key.query in queries)
        ]
        return S2Acknowledgements(self._store, before, group, queries, self.tell)

    def written(self, request: RelayedRequest, status: int | None, body: Body = None) -> None:
        """Record the effects of a request, given the status of the origin's answer.

        `status` is None if there was no answer; the request may then have been executed.
        """
        match request.mode:
            case Mode.APPEND:
                if status in (None, 201):
                    self._created(request, body if isinstance(body, bytes) else None)
                elif status in _GONE and (group := _appended_to(request)) is not None:
                    self._doubt_at(request, group)
            case Mode.DELETE | Mode.CREATE:
                is_done = status is not None and (status == 201 if request.mode is Mode.CREATE else status < 300)
                if status is None:
                    self._change_at(request, request.group, Stream.may_be_another)
                elif is_done:
                    self._change_at(request, request.group, self._deleted)
                basin = parse_basin(request.group.path)
                if basin is not None and (is_done or status is None):
                    self._drop(request, self._of_basins(request.group.origin, {key_query(basin)}))
                if request.mode is Mode.DELETE and status in _GONE:
                    # Doubt only the path, not the streams of a basin.  Otherwise any client could make the gateway
                    # search all streams.
                    self._doubt_at(request, request.group)

    def _created(self, request: RelayedRequest, body: bytes | None) -> None:
        """Record that a POST has created, or may have created, the stream or basin named in its body.

        `body` is None if the body was streamed.
        """
        group, headers = request.group, request.headers
        coding = headers.get("Content-Encoding")
        match created_basin(group.path, body, coding):
            case str(basin):
                self._drop(request, self._of_basins(group.origin, {key_query(basin)}))
            case S2Unnamed():
                self._doubt(self._of_basins(group.origin, None))
        match created_stream(group.path, body, coding):
            case str(path):
                self._change_at(request, Group(group.origin, path), self._deleted)
            case S2Unnamed():
                self._doubt(self._of_basins(group.origin, _queries(headers)))

    def _own(self, request: RelayedRequest, group: Group, queries: set[str] | None) -> list[Stream]:
        """Return the streams in memory at a path that belong to the writer's own partition.

        If the request names no single basin, sleeping streams whose basin is named by a header are left out.  These
        streams are doubted when they wake.
        """
        partition = request.partition
        found = [self._store.find(StreamKey(group, query, partition)) for query in sorted(queries or {""})]
        if queries is None:
            found += [one for one in self._store.awake(group) if one.key.partition == partition and one not in found]
        return [one for one in found if isinstance(one, RecordStream)]

    def _change_at(self, request: RelayedRequest, group: Group, change: Callable[[Stream], object]) -> None:
        """Change the writer's own streams of a path, and doubt the path's other streams.

        For other credentials the path may name the same stream or another; only the origin can tell.
        """
        for stream in self._own(request, group, _queries(request.headers)):
            change(stream)
        self._doubt_at(request, group)

    def _doubt_at(self, request: RelayedRequest, group: Group) -> None:
        """Doubt the streams of a path: at once, or when they wake."""
        self._store.tell(group, S2Doubted(self._store, _queries(request.headers)))

    def _of_basins(self, origin: str, queries: set[str] | None) -> Iterator[Stream]:
        """Yield the streams in memory of these basins; None stands for all."""
        for stream in tuple(self._store):
            if stream.key.group.origin == origin and _is_of(stream, queries):
                yield stream

    def _deleted(self, stream: Stream) -> None:
        self._store.drop_stream(stream, End.DELETED)

    def _drop(self, request: RelayedRequest, streams: Iterable[Stream]) -> None:
        """Drop the given streams that are in the writer's own partition, and doubt the others."""
        for stream in streams:
            if stream.key.partition == request.partition:
                self._deleted(stream)
            else:
                self._store.doubt_records(stream)

    def _doubt(self, streams: Iterable[Stream]) -> None:
        for stream in streams:
            self._store.doubt_records(stream)


def _appended_to(request: RelayedRequest) -> Group | None:
    """Return the path of the stream to which a POST appends; None if it is not an append."""
    path = parse_path(request.group.path)
    return Group(request.group.origin, path.stream) if path is not None and path.is_records else None


def _is_of(stream: Stream, queries: set[str] | None) -> bool:
    """Return whether this is an S2 stream with one of these queries; None stands for any query."""
    return isinstance(stream, RecordStream) and (queries is None or stream.key.query in queries)


def _queries(headers: CIMultiDict[str]) -> set[str] | None:
    """Return the queries that name the request's basin in stream keys; None stands for any basin."""
    basins = headers.getall(BASIN_HEADER, ())
    # Without this header the origin's host names the basin, and the query in the stream's key is empty.
    return {"", key_query(basins[0])} if len(basins) == 1 else None

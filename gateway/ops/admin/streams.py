"""The streams in memory: all streams in pages, the busiest streams, and the details of one stream with its tape (its
bytes in memory).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from itertools import chain, islice
from math import isfinite
from typing import Annotated, Final, Literal

from pydantic import Field, with_config

from gateway.engine.s2.reader import S2SessionReader
from gateway.engine.s2.topic import S2Topic
from gateway.live.frames import LiveReader
from gateway.live.subscriber import Subscriber
from gateway.ops.admin.directory import Directory, Name, PrefixText, id_of, name_of_cursor, read_prefix
from gateway.ops.admin.endpoint import API_TYPE, ApiRequest, Endpoint, Nothing
from gateway.ops.admin.subject import Subject
from gateway.protocol.mode import Mode
from gateway.tape.record_stream import RecordStream
from gateway.tape.stream import Stream

MOST_ROWS: Final = 1_000
_MOST_READERS: Final = 1_000
_MOST_RUNS: Final = 1_000

By = Literal["requests", "bytes", "subscribers"]


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class StreamRow:
    """One stream, as shared by one partition of readers (readers with equal credentials)."""

    id: str
    """Stays the same when the stream is re-created."""
    origin: str
    path: str
    """The path as requested from the origin."""
    query: str
    partition: str
    """The id of the readers that share the stream, as in the access log.  Their credentials cannot be recovered from
    it."""
    is_private: bool
    """Whether only some of the route's readers share the stream: readers with equal credentials, or readers behind the
    same gateways.
    """
    route: str
    protocol: Literal["durable-streams", "s2"]
    content_type: str | None
    tail: str | None
    """The furthest offset that the origin has sent; for S2 a sequence number."""
    is_closed: bool
    is_followed: bool
    """Whether a live request for the stream is open at the origin."""
    bytes: int
    """The bytes of the stream that the gateway holds; for S2 metered bytes."""
    records: int | None
    """The S2 records that the gateway holds; null for a Durable Stream."""
    blocks: int
    readers: int
    """Live readers now, including readers that are about to join."""
    reads: int
    hits: int
    hit_ratio: float | None
    """Hits per read; null before the first read."""
    sent_bytes: int
    contacted_s: float
    """Seconds since the last contact with the origin."""


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class StreamPage:
    """Streams in the order of their paths."""

    streams: list[StreamRow]
    next: str | None
    """The `after` of the next page; null on the last page."""


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class TopStreams:
    """The busiest streams, busiest first."""

    by: By
    streams: list[StreamRow]


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class Lifetime:
    """How long the origin keeps the stream."""

    ttl_s: float | None
    """Seconds after the last read or write at the origin."""
    expires_at: float | None
    """When the stream expires, in Unix seconds."""


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class Run:
    """One run of held bytes."""

    start: str
    end: str
    bytes: int
    tokens: int
    """Offsets with a known position in the run; for S2 its records."""
    age_s: float | None
    """Seconds since the run's first byte was stored; null for records."""


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class Reader:
    """One live reader, or several long-polls at one offset that are answered together."""

    mode: Literal["sse", "longpoll", "session"]
    """Waiting reads of S2 count as long-polls."""
    at: str | None
    """The offset up to which the reader has received everything; null if it is unknown."""
    clients: int
    """The number of clients.  Long-polls with equal requests share an entry."""
    lived_s: float | None
    """Seconds since the first client arrived."""


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class OriginSession:
    """The one session that follows an S2 stream at its origin."""

    position: str
    """The next sequence number that the session will bring."""
    is_at_tail: bool
    """Whether the origin has reported `position` as the tail."""
    heard_s: float | None
    """Seconds since the origin last reported the tail; null before the first report."""


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class StreamDetail(StreamRow):
    """One stream with its tape."""

    incarnation: str
    lifetime: Lifetime | None
    """The stream's lifetime; null until the origin has sent a lifetime."""
    closed_at: str | None
    is_doubted: bool
    """Whether the stream is revalidated with the origin before the next hit."""
    surrogate_keys: list[str]
    tape: list[Run]
    """The first thousand runs of held bytes."""
    live_readers: list[Reader]
    """The first thousand live readers."""
    session: OriginSession | None
    """The session that follows the stream; null unless it is a followed S2 stream."""


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class StreamsQuery:
    """A page of the streams with a prefix."""

    prefix: PrefixText = ""
    """Prefix of the path."""
    limit: Annotated[int, Field(ge=1, le=MOST_ROWS)] = 100
    after: str = ""
    """`next` of the previous page, or a path."""


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class TopQuery:
    """The measure to rank streams by, and the number of streams."""

    by: By = "requests"
    limit: Annotated[int, Field(ge=1, le=MOST_ROWS)] = 20


def streams_endpoints(subject: Subject, directory: Directory) -> list[Endpoint]:
    """Make the endpoints `GET /api/streams`, `/api/streams/{id}` and `/api/top`."""
    rows_of = _Rows(subject, directory)

    async def page(request: ApiRequest[StreamsQuery, Nothing]) -> StreamPage:
        subject.metrics.before_collect()
        query = request.query
        prefix, after = read_prefix(query.prefix), name_of_cursor(query.after)
        first: list[tuple[Name, Stream]] = []
        async for streams in directory.slices():
            named = ((directory.name(one), one) for one in streams if one.key.group.path.startswith(prefix))
            rest = (pair for pair in named if pair[0] > after)
            first = sorted(chain(first, rest), key=lambda pair: pair[0])[: query.limit + 1]
        last = first[query.limit - 1][0] if len(first) > query.limit else None
        rows = [rows_of.row(stream) for _, stream in first[: query.limit]]
        return StreamPage(rows, last.cursor if last is not None else None)

    async def one(request: ApiRequest[Nothing, Nothing]) -> StreamDetail:
        subject.metrics.before_collect()
        return rows_of.detail(await directory.find(request.path["id"]))

    async def top(request: ApiRequest[TopQuery, Nothing]) -> TopStreams:
        subject.metrics.before_collect()
        query = request.query
        measure = rows_of.measures[query.by]
        most: list[Stream] = []
        async for streams in directory.slices():
            most = sorted(chain(most, streams), key=measure, reverse=True)[: query.limit]
        return TopStreams(query.by, [rows_of.row(stream) for stream in most])

    return [
        Endpoint("GET", "/api/streams", "Streams held, in the order of their paths", page, StreamPage, StreamsQuery),
        Endpoint(
            "GET",
            "/api/streams/{id}",
            "One stream with its tape and its live readers",
            one,
            StreamDetail,
            refusals={404: "No such stream is held."},
        ),
        Endpoint("GET", "/api/top", "The busiest streams", top, TopStreams, TopQuery),
    ]


class _Rows:
    """Makes rows of streams."""

    def __init__(self, subject: Subject, directory: Directory) -> None:
        self._clock = subject.engine.clock
        self._live = subject.engine.live
        self._s2 = subject.engine.s2.streams
        self._directory = directory
        self.measures: dict[By, Callable[[Stream], int]] = {
            "requests": lambda stream: stream.reads,
            "bytes": lambda stream: stream.sent_bytes,
            "subscribers": self._readers,
        }

    def _readers(self, stream: Stream) -> int:
        if isinstance(stream, RecordStream):
            return self._s2.readers_of(stream)
        topic = self._live.find_topic(stream)
        return topic.client_readers if topic is not None else 0

    def _tail(self, stream: Stream) -> str | None:
        topic = self._s2.topic_of(stream)
        # A followed stream may have no record in memory, because it may be followed from its tail.
        return stream.furthest if topic is None or stream.furthest is not None else str(topic.position)

    def row(self, stream: Stream) -> StreamRow:
        records = stream.records if isinstance(stream, RecordStream) else None
        tape, name = stream.tape, self._directory.name(stream)
        return StreamRow(
            id=id_of(name),
            origin=name.origin,
            path=name.path,
            query=name.query,
            partition=name.partition,
            is_private=bool(stream.key.partition.readers),
            route=stream.key.route,
            protocol="durable-streams" if records is None else "s2",
            content_type=_legible(stream.content_type) if stream.content_type is not None else None,
            tail=self._tail(stream),
            is_closed=tape.closed_at is not None,
            is_followed=stream.is_followed,
            bytes=tape.size if records is None else records.size,
            records=records.record_count if records is not None else None,
            blocks=stream.block_count,
            readers=self._readers(stream),
            reads=stream.reads,
            hits=stream.hits,
            hit_ratio=stream.hits / stream.reads if stream.reads else None,
            sent_bytes=stream.sent_bytes,
            contacted_s=self._clock.now() - stream.contacted_at,
        )

    def detail(self, stream: Stream) -> StreamDetail:
        now, tape, life, row = self._clock.now(), stream.tape, stream.expiry.lifetime, self.row(stream)
        return StreamDetail(
            **{field.name: getattr(row, field.name) for field in fields(row)},
            incarnation=stream.version.incarnation,
            lifetime=Lifetime(life.ttl_s, life.expires_at) if life is not None else None,
            closed_at=tape.closed_at,
            is_doubted=stream.needs_revalidation,
            surrogate_keys=sorted(map(_legible, stream.surrogate_keys)),
            tape=list(islice(_runs(stream, now), _MOST_RUNS)),
            live_readers=list(islice(self._live_readers(stream, now), _MOST_READERS)),
            session=_session(self._s2.topic_of(stream), now),
        )

    def _live_readers(self, stream: Stream, now: float) -> Iterator[Reader]:
        topic, followed = self._live.find_topic(stream), self._s2.topic_of(stream)
        if topic is not None:
            yield from (_reader(reader, now) for reader in topic.readers_now)
        elif followed is not None:
            for reader in tuple(followed.readers_now):
                if isinstance(reader, S2SessionReader):
                    yield Reader("sse" if reader.is_sse else "session", str(reader.at), 1, None)
            if waiting := followed.readers - len(followed.readers_now):
                yield Reader("longpoll", str(followed.position), waiting, None)


def _runs(stream: Stream, now: float) -> Iterator[Run]:
    if isinstance(stream, RecordStream):
        for span in stream.records.spans():
            yield Run(str(span.start), str(span.end), span.size, span.records, None)
    else:
        for block in stream.tape.blocks():
            yield Run(block.start, block.end, block.size, len(block.marks), now - block.stored_at)


def _session(topic: S2Topic | None, now: float) -> OriginSession | None:
    if topic is None:
        return None
    heard_s = now - topic.heard_at if isfinite(topic.heard_at) else None
    return OriginSession(str(topic.position), topic.tail is not None, heard_s)


def _legible(text: str) -> str:
    """Return a header's text.  Bytes that are not UTF-8 become backslash escapes, which JSON can represent."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _reader(reader: LiveReader, now: float) -> Reader:
    # The attributes of a live reader depend on its kind.  Some kinds have no offset.
    began: float | None = getattr(reader, "began", None)
    return Reader(
        Mode.SSE.value if isinstance(reader, Subscriber) else Mode.LONGPOLL.value,
        getattr(reader, "at", None),
        getattr(reader, "clients", 1),
        now - began if began is not None else None,
    )

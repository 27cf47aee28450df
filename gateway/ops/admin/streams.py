"""The streams that are held: all of them page by page, the busiest, and one with its tape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import chain, islice
from typing import Annotated, Final, Literal

from pydantic import Field, with_config

from gateway.live.subscriber import Subscriber
from gateway.live.topic import LiveReader
from gateway.ops.admin.directory import Directory, Name, PrefixText, id_of, named_by, read_prefix
from gateway.ops.admin.endpoint import SHOWN, ApiRequest, Endpoint, Nothing
from gateway.ops.admin.subject import Subject
from gateway.protocol.mode import Mode
from gateway.tape.stream import Stream

MOST_ROWS: Final = 1_000
_MOST_READERS: Final = 1_000
_MOST_RUNS: Final = 1_000

By = Literal["requests", "bytes", "subscribers"]


@with_config(SHOWN)
@dataclass(frozen=True, slots=True)
class StreamRow:
    """One stream as one partition of readers has it."""

    id: str
    """Stays the same when the stream is made anew."""
    origin: str
    path: str
    """As the origin is asked for it."""
    query: str
    partition: str
    """Who shares it: an id, the access log's own, that does not lead back to what they showed."""
    is_private: bool
    """Whether they are not all who read by the route: those with the same credentials, or by the same gateways."""
    route: str
    content_type: str | None
    tail: str | None
    """The furthest offset that the origin has named."""
    is_closed: bool
    is_followed: bool
    """Whether a live request for it is open at the origin."""
    bytes: int
    """Stream bytes held."""
    blocks: int
    readers: int
    """Live readers now, and those that are about to be."""
    reads: int
    hits: int
    hit_ratio: float | None
    """Hits per read; null before the first."""
    sent_bytes: int
    contacted_s: float
    """Seconds since the origin was last seen."""


@with_config(SHOWN)
@dataclass(frozen=True, slots=True)
class StreamPage:
    """Streams in the order of their paths."""

    streams: list[StreamRow]
    next: str | None
    """The `after` of the next page; null on the last."""


@with_config(SHOWN)
@dataclass(frozen=True, slots=True)
class TopStreams:
    """The busiest streams, busiest first."""

    by: By
    streams: list[StreamRow]


@with_config(SHOWN)
@dataclass(frozen=True, slots=True)
class Lifetime:
    """How long the origin keeps the stream."""

    ttl_s: float | None
    """Seconds after the last read or write there."""
    expires_at: float | None
    """Unix seconds."""


@with_config(SHOWN)
@dataclass(frozen=True, slots=True)
class Run:
    """One run of bytes that is held."""

    start: str
    end: str
    bytes: int
    tokens: int
    """Offsets whose place in it is known."""
    age_s: float
    """Seconds since its first byte was laid."""


@with_config(SHOWN)
@dataclass(frozen=True, slots=True)
class Reader:
    """One live reader, or several that stand in one place and are answered as one."""

    mode: Literal["sse", "longpoll"]
    at: str | None
    """Up to where it has everything; null where that is not known."""
    clients: int
    """How many they are: long-polls that have sent the same wait together."""
    lived_s: float | None
    """Seconds since the first of them came."""


@with_config(SHOWN)
@dataclass(frozen=True, slots=True)
class StreamDetail(StreamRow):
    """One stream with its tape."""

    incarnation: str
    lifetime: Lifetime | None
    """Null until the origin has told it."""
    closed_at: str | None
    is_doubted: bool
    """Whether the origin is looked at before the next hit."""
    surrogate_keys: list[str]
    tape: list[Run]
    """The first thousand runs."""
    live_readers: list[Reader]
    """The first thousand."""


@with_config(SHOWN)
@dataclass(frozen=True, slots=True)
class StreamsQuery:
    """Which page of which streams."""

    prefix: PrefixText = ""
    """What the path begins with."""
    limit: Annotated[int, Field(ge=1, le=MOST_ROWS)] = 100
    after: str = ""
    """`next` of the page before, or a path."""


@with_config(SHOWN)
@dataclass(frozen=True, slots=True)
class TopQuery:
    """By what, and how many."""

    by: By = "requests"
    limit: Annotated[int, Field(ge=1, le=MOST_ROWS)] = 20


def streams_endpoints(subject: Subject, directory: Directory) -> list[Endpoint]:
    """`GET /api/streams`, `/api/streams/{id}` and `/api/top`."""
    shown = _Shown(subject, directory)

    async def page(asked: ApiRequest[StreamsQuery, Nothing]) -> StreamPage:
        subject.metrics.before_collect()
        query = asked.query
        prefix, after = read_prefix(query.prefix), named_by(query.after)
        first: list[tuple[Name, Stream]] = []
        async for streams in directory.slices():
            named = ((directory.name(one), one) for one in streams if one.key.group.path.startswith(prefix))
            rest = (pair for pair in named if pair[0] > after)
            first = sorted(chain(first, rest), key=lambda pair: pair[0])[: query.limit + 1]
        last = first[query.limit - 1][0] if len(first) > query.limit else None
        rows = [shown.row(stream) for _, stream in first[: query.limit]]
        return StreamPage(rows, last.cursor if last is not None else None)

    async def one(asked: ApiRequest[Nothing, Nothing]) -> StreamDetail:
        subject.metrics.before_collect()
        return shown.detail(await directory.find(asked.path["id"]))

    async def top(asked: ApiRequest[TopQuery, Nothing]) -> TopStreams:
        subject.metrics.before_collect()
        query = asked.query
        measure = shown.measures[query.by]
        most: list[Stream] = []
        async for streams in directory.slices():
            most = sorted(chain(most, streams), key=measure, reverse=True)[: query.limit]
        return TopStreams(query.by, [shown.row(stream) for stream in most])

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


class _Shown:
    """Streams as rows."""

    def __init__(self, subject: Subject, directory: Directory) -> None:
        self._clock = subject.engine.clock
        self._live = subject.engine.live
        self._directory = directory
        self.measures: dict[By, Callable[[Stream], int]] = {
            "requests": lambda stream: stream.reads,
            "bytes": lambda stream: stream.sent_bytes,
            "subscribers": self._readers,
        }

    def _readers(self, stream: Stream) -> int:
        topic = self._live.find(stream)
        return topic.readers if topic is not None else 0

    def row(self, stream: Stream) -> StreamRow:
        tape, name = stream.tape, self._directory.name(stream)
        return StreamRow(
            id=id_of(name),
            origin=name.origin,
            path=name.path,
            query=name.query,
            partition=name.partition,
            is_private=bool(stream.key.partition.readers),
            route=stream.key.route,
            content_type=_legible(stream.content_type) if stream.content_type is not None else None,
            tail=tape.tail,
            is_closed=tape.closed_at is not None,
            is_followed=stream.is_followed,
            bytes=tape.size,
            blocks=tape.block_count,
            readers=self._readers(stream),
            reads=stream.reads,
            hits=stream.hits,
            hit_ratio=stream.hits / stream.reads if stream.reads else None,
            sent_bytes=stream.sent_bytes,
            contacted_s=self._clock.now() - stream.contacted_at,
        )

    def detail(self, stream: Stream) -> StreamDetail:
        now, tape, life, row = self._clock.now(), stream.tape, stream.lifetime, self.row(stream)
        topic = self._live.find(stream)
        return StreamDetail(
            **{field.name: getattr(row, field.name) for field in fields(row)},
            incarnation=tape.incarnation,
            lifetime=Lifetime(life.ttl_s, life.expires_at) if life is not None else None,
            closed_at=tape.closed_at,
            is_doubted=stream.needs_revalidation,
            surrogate_keys=sorted(map(_legible, stream.surrogate_keys)),
            tape=[
                Run(block.start, block.end, block.size, len(block.marks), now - block.stored_at)
                for block in islice(tape.blocks(), _MOST_RUNS)
            ],
            live_readers=[
                _reader(reader, now) for reader in islice(topic.readers_now if topic is not None else (), _MOST_READERS)
            ],
        )


def _legible(text: str) -> str:
    """A header's text, with bytes that are no UTF-8 as what they are: JSON has no way to say them as they came."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _reader(reader: LiveReader, now: float) -> Reader:
    # What a live reader tells of itself beside its kind is its own affair: not every one knows where it stands.
    began: float | None = getattr(reader, "began", None)
    return Reader(
        Mode.SSE.value if isinstance(reader, Subscriber) else Mode.LONGPOLL.value,
        getattr(reader, "at", None),
        getattr(reader, "clients", 1),
        now - began if began is not None else None,
    )

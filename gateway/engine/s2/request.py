"""Requests to S2 origins: the stream that a request names, the read that it asks for, and the format of the answer.

Only reads of records and of the tail are parsed here.  All other requests are relayed.  Three kinds of reads are
relayed as well:

- reads that S2 would refuse (unknown formats, malformed queries, limits of zero),
- reads with an unknown S2 header, which may affect the answer,
- reads with an encryption key, because only their sender may see the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple
from urllib.parse import quote

import orjson
from multidict import CIMultiDict

from gateway.engine.route import Route, SharingFacts
from gateway.engine.s2.fetch import S2Source
from gateway.errors import BadRequest
from gateway.protocol.coding import LONGEST_LIST
from gateway.protocol.mode import Mode
from gateway.protocol.names import NOW
from gateway.protocol.sharing import Group, StreamKey
from gateway.protocol.target import SEGMENT_SAFE, Target, unescaped_delimiters
from gateway.s2 import protobuf, session, sse
from gateway.s2.json_format import FORMAT_HEADER, BadFormat, Format, parse_format
from gateway.s2.read_query import BadQuery, FromSeqNum, FromTailOffset, ReadQuery, parse_read_query
from gateway.s2.records import fixed_width
from gateway.s2.session import Compression, choose_compression
from gateway.s2.sse import BadEventId, parse_event_id
from gateway.telemetry.access_record import RecordedStream
from gateway.upstream.origin_call import Handed, Shared

BASIN_HEADER: Final = "s2-basin"
_HEADERS: Final = frozenset({BASIN_HEADER, FORMAT_HEADER})
"""The S2 headers that a shared read may have."""

_PATH: Final = re.compile(r"(.*/v1/streams/[^/]+)(/records(/tail)?)?")
_BASIN_PATH: Final = re.compile(r".*/v1/basins/([^/]+)")
_BASINS_PATH: Final = re.compile(r".*/v1/basins")
_IN_BASIN_PATH: Final = re.compile(r".*/v1/streams(?:/.*)?", re.DOTALL)
_BASIN: Final = re.compile(r"[a-z0-9-]+")
_STREAMS_PATH: Final = re.compile(r"(.*/v1/streams)")
_MOST_CREATED_BYTES: Final = 1 << 16
"""The largest request that creates a stream, or a basin (S2's namespace of streams).  Names have up to 512 bytes,
configurations a few hundred."""

_COMPRESSIONS: Final = {"identity": Compression.NONE, "gzip": Compression.GZIP, "zstd": Compression.ZSTD}
"""Content codings of request bodies.  S2's Python SDK compresses every body if compression is enabled."""


class S2ReplyKind(Enum):
    """The kinds of answers to a read of records."""

    JSON = "JSON"
    PROTOBUF = "protobuf"
    SSE = "server-sent events"
    SESSION = "session"


@dataclass(frozen=True, slots=True)
class S2Form:
    """The encoding of an answer.  `format_` applies to JSON and SSE, `compression` to sessions."""

    reply: S2ReplyKind
    format_: Format = Format.RAW
    compression: Compression = Compression.NONE

    @property
    def is_unary(self) -> bool:
        """Whether the answer is one batch."""
        return self.reply in (S2ReplyKind.JSON, S2ReplyKind.PROTOBUF)


@dataclass(frozen=True, slots=True)
class S2ReadRecords:
    """GET /v1/streams/{stream}/records"""

    query: ReadQuery
    form: S2Form


@dataclass(frozen=True, slots=True)
class S2CheckTail:
    """GET /v1/streams/{stream}/records/tail"""


@dataclass(frozen=True, slots=True)
class S2StreamPath:
    """The path of a stream or of its records or tail.  `stream` is the stream's own path at the origin."""

    stream: str
    is_records: bool
    is_tail: bool


def parse_path(path: str) -> S2StreamPath | None:
    """Parse a path at the origin, with its percent-encoding; return None if it names no single stream."""
    found = _PATH.fullmatch(path)
    if found is None:
        return None
    is_tail = found[3] is not None
    return S2StreamPath(found[1], found[2] is not None and not is_tail, is_tail)


def parse_basin(path: str) -> str | None:
    """Return the basin that a path at the origin names; None if it names no single basin."""
    found = _BASIN_PATH.fullmatch(path)
    return found[1] if found is not None else None


class BadS2Basin(ValueError):
    """The request does not name its basin clearly.  The message is one line for the client."""


def basin_in_host(label: str, path: str, headers: CIMultiDict[str]) -> str | None:
    """Return the basin that a request names by its host; None for paths that belong to the account.

    `label` is the part of the host that names the basin.  S2's SDKs use `{basin}.zone` as their default endpoint, and
    send no basin header to such an endpoint.  Raises BadS2Basin if the host names no basin, or if a header names
    another basin.
    """
    if _IN_BASIN_PATH.fullmatch(path) is None:
        return None
    if _BASIN.fullmatch(label) is None:
        raise BadS2Basin("The host names no basin")
    if any(named != label for named in headers.getall(BASIN_HEADER, ())):
        raise BadS2Basin(f"The host and the header {BASIN_HEADER} name different basins")
    return label


@dataclass(frozen=True, slots=True)
class S2Unnamed:
    """The request creates a stream or basin whose name is not known."""


def created_basin(path: str, body: bytes | None, coding: str | None) -> str | S2Unnamed | None:
    """Return the basin that a POST to this path creates; None if it creates none.

    `body` is the request's body in the content coding `coding`; None if the body was not kept.
    """
    if _BASINS_PATH.fullmatch(path) is None:
        return None
    return _named(body, coding, "basin") or S2Unnamed()


def created_stream(path: str, body: bytes | None, coding: str | None) -> str | S2Unnamed | None:
    """Return the path of the stream that a POST to this path creates; None if it creates none."""
    found = _STREAMS_PATH.fullmatch(path)
    if found is None:
        return None
    name = _named(body, coding, "stream")
    return f"{found[1]}/{quote(name, safe=SEGMENT_SAFE)}" if name is not None else S2Unnamed()


def _named(body: bytes | None, coding: str | None, field: str) -> str | None:
    """Return the name in this field of the body of a creating request; None if the body does not show the name."""
    if body is None or len(body) > _MOST_CREATED_BYTES:
        return None
    try:
        text = plain(body, coding)
        fields = orjson.loads(text) if len(text) <= _MOST_CREATED_BYTES else None
    except (session.BadFrame, orjson.JSONDecodeError):
        return None
    name = fields.get(field) if isinstance(fields, dict) else None
    return name if isinstance(name, str) else None


def plain(body: bytes, coding: str | None) -> bytes:
    """Decode a body with this Content-Encoding.  Raises BadFrame."""
    compression = _COMPRESSIONS.get((coding or "identity").strip().lower())
    if compression is None:
        raise session.BadFrame(f"{coding} is not a content coding of S2")
    return session.decompress(body, compression)


def key_query(basin: str | None) -> str:
    """Return the query that stands for a basin in stream keys."""
    return "" if basin is None else f"{BASIN_HEADER}={basin}"


def parse_read(path: S2StreamPath, query: str, headers: CIMultiDict[str]) -> S2ReadRecords | S2CheckTail | None:
    """Parse the read that a GET asks for; return None if the request must be relayed."""
    if any(name not in _HEADERS for name in _own_headers(headers)) or len(headers.getall(BASIN_HEADER, ())) > 1:
        return None
    if path.is_tail:
        return S2CheckTail()
    if not path.is_records:
        return None
    try:
        read = parse_read_query(query)
        form = _form(headers)
        last = headers.get("Last-Event-ID")
        if form.reply is S2ReplyKind.SSE and last is not None:
            read = read.resumed(parse_event_id(last))
    except (BadQuery, BadFormat, BadEventId):
        return None
    if form.is_unary:
        read = read.unary()
    # With a limit of zero, S2's answer depends on more than the records.
    return S2ReadRecords(read, form) if read.count != 0 and read.bytes != 0 else None


def may_wait(query: str) -> bool:
    """Return whether a read with this query may wait at the tail."""
    try:
        return bool(parse_read_query(query).wait_s)
    except BadQuery:
        return False


def is_session(headers: CIMultiDict[str]) -> bool:
    """Return whether a request opens a session."""
    return _media_type(headers.get("Content-Type", "")) == session.CONTENT_TYPE


def _own_headers(headers: CIMultiDict[str]) -> Iterator[str]:
    return (name for name in map(str.lower, headers) if name.startswith("s2-"))


def _form(headers: CIMultiDict[str]) -> S2Form:
    """Return the encoding that the request asks for.  Raises BadFormat."""
    if is_session(headers):
        return S2Form(S2ReplyKind.SESSION, compression=choose_compression(headers.get("Accept-Encoding")))
    format_ = parse_format(headers.get(FORMAT_HEADER))
    listed = ",".join(headers.getall("Accept", ()))
    accepted = {_media_type(one) for one in listed.split(",")} if len(listed) <= LONGEST_LIST else set()
    if sse.CONTENT_TYPE in accepted:
        return S2Form(S2ReplyKind.SSE, format_)
    return S2Form(S2ReplyKind.JSON if accepted.isdisjoint(protobuf.CONTENT_TYPES) else S2ReplyKind.PROTOBUF, format_)


def _media_type(value: str) -> str:
    return value.partition(";")[0].strip().lower()


# -- a request on a route


@dataclass(frozen=True, slots=True)
class S2Read:
    """A client's read, or tail check, of one stream."""

    key: StreamKey
    source: S2Source
    client: str
    """The client's network."""
    linger_s: float
    """How long the stream is followed after its last live reader has gone, in seconds."""
    trust_s: float = 0.0
    """How long the tail is trusted after the live session has stated it, in seconds; 0 if every answer must be
    linearizable."""
    is_handed: bool = False
    """Whether another worker sent this read.  That worker has already counted the read against its client's limits."""


class S2Request(NamedTuple):
    """A read of an S2 stream that the engine answers itself."""

    read: S2Read
    asked: S2ReadRecords | S2CheckTail


def s2_mode(
    method: str, headers: CIMultiDict[str], query: str, asked: S2ReadRecords | S2CheckTail | None
) -> Mode | None:
    """Return the mode of a request; None if its method alone determines it."""
    match asked:
        case None:
            if method != "GET":
                return None
            # Sessions and SSE have no time limit.
            if is_session(headers) or sse.CONTENT_TYPE in headers.get("Accept", ""):
                return Mode.SSE
            return Mode.LONGPOLL if may_wait(query) else Mode.OTHER
        case S2CheckTail():
            return Mode.HEAD
        case S2ReadRecords(asked_query, form):
            if not form.is_unary:
                return Mode.SSE
            return Mode.LONGPOLL if asked_query.longest_wait_s else Mode.CATCHUP


def named_basin(headers: CIMultiDict[str], target: Target, route: Route, host: str) -> tuple[str | None, bool]:
    """Return the basin that a request names, and whether only the request's host names it.

    If only the host names it, the gateway must name the basin to the origin in a header.  Raises BadRequest.
    """
    label, named = route.label(host), headers.get(BASIN_HEADER)
    if label is None:
        return named, False
    try:
        basin = basin_in_host(label, unescaped_delimiters(target.path), headers)
    except BadS2Basin as error:
        raise BadRequest(str(error)) from None
    return (named, False) if basin is None else (basin, named is None)


def recorded_stream(target: Target, route: Route, sharing: SharingFacts, basin: str | None) -> RecordedStream:
    """Return the stream that a request names, as the access log shows it; works for every kind of request."""
    config, path = route.config, parse_path(unescaped_delimiters(target.path))
    if path is None:
        return RecordedStream.named(config.name, target.path, target.query, sharing.partition, is_s2=True)
    return RecordedStream.named(config.name, path.stream, key_query(basin), sharing.partition, is_s2=True)


def recorded_start(asked: S2ReadRecords | S2CheckTail) -> str | None:
    """Return a read's start as the access log shows it; None if only the answer states the sequence number."""
    if isinstance(asked, S2CheckTail):
        return None
    match asked.query.start:
        case FromSeqNum(seq_num):
            return fixed_width(seq_num)
        case FromTailOffset(0):
            return NOW
        case _:
            return None


def parse_s2(
    headers: CIMultiDict[str],
    target: Target,
    route: Route,
    sharing: SharingFacts,
    client: str,
    named: RecordedStream,
    basin: str | None,
) -> S2Request | None:
    """Return the read that a GET without a body asks for; None if the request must be relayed."""
    config = route.config
    may_share = config.cache and not (sharing.has_credentials and config.credentials == "bypass")
    if not may_share:
        return None
    path = parse_path(route.upstream_path(target.path))
    asked = parse_read(path, target.query, headers) if path is not None else None
    if path is None or asked is None:
        return None
    key = StreamKey(Group(route.authority, path.stream), key_query(basin), sharing.partition)
    sent = CIMultiDict(sharing.headers)
    if basin is not None:
        sent[BASIN_HEADER] = basin
    url, shared = route.url + path.stream, Shared(key, Handed.NO)
    source = S2Source(route, named, url, sent, route.bounds, route.live_bounds, shared)
    trust_s = config.tail_heard_s if config.consistency == "bounded-staleness" else 0.0
    return S2Request(S2Read(key, source, client, config.live_linger_s, trust_s), asked)

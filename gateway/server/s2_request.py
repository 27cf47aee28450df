"""What a request on a route to an S2 origin asks for."""

from __future__ import annotations

from typing import NamedTuple

from multidict import CIMultiDict

from gateway.engine.route import Route, SharingFacts
from gateway.engine.s2.fetch import S2Source
from gateway.engine.s2.request import (
    BASIN_HEADER,
    BadS2Basin,
    S2CheckTail,
    S2ReadRecords,
    basin_in_host,
    is_session,
    key_query,
    may_wait,
    parse_path,
    parse_read,
)
from gateway.engine.s2.unary import S2Read
from gateway.errors import BadRequest
from gateway.protocol.mode import Mode
from gateway.protocol.names import NOW
from gateway.protocol.sharing import Group, StreamKey
from gateway.protocol.target import Target, unescaped_delimiters
from gateway.s2 import sse
from gateway.s2.read_query import FromSeqNum, FromTailOffset
from gateway.s2.records import fixed_width
from gateway.server.request import Request
from gateway.telemetry.access_record import RecordedStream


class S2Request(NamedTuple):
    """A read of an S2 stream that the engine answers."""

    read: S2Read
    asked: S2ReadRecords | S2CheckTail


def s2_mode(request: Request, query: str, asked: S2ReadRecords | S2CheckTail | None) -> Mode | None:
    """What kind of request this is; None if its method tells."""
    match asked:
        case None:
            if request.method != "GET":
                return None
            # A session, or server-sent events, last as long as the client likes.
            if is_session(request.headers) or sse.CONTENT_TYPE in request.headers.get("Accept", ""):
                return Mode.SSE
            return Mode.LONGPOLL if may_wait(query) else Mode.OTHER
        case S2CheckTail():
            return Mode.HEAD
        case S2ReadRecords(asked_query, form):
            if not form.is_unary:
                return Mode.SSE
            return Mode.LONGPOLL if asked_query.longest_wait_s else Mode.CATCHUP


def named_basin(request: Request, target: Target, route: Route, host: str) -> tuple[str | None, bool]:
    """The basin that a request names, and whether only its host names it, so that a header must name it to the origin.

    Raises BadRequest.
    """
    label, named = route.label(host), request.headers.get(BASIN_HEADER)
    if label is None:
        return named, False
    try:
        basin = basin_in_host(label, unescaped_delimiters(target.path), request.headers)
    except BadS2Basin as error:
        raise BadRequest(str(error)) from None
    return (named, False) if basin is None else (basin, named is None)


def recorded_stream(target: Target, route: Route, sharing: SharingFacts, basin: str | None) -> RecordedStream:
    """The stream that a request names, whatever it asks of it, as records show it."""
    config, path = route.config, parse_path(unescaped_delimiters(target.path))
    if path is None:
        return RecordedStream.named(config.name, target.path, target.query, sharing.partition, is_s2=True)
    return RecordedStream.named(config.name, path.stream, key_query(basin), sharing.partition, is_s2=True)


def recorded_start(asked: S2ReadRecords | S2CheckTail) -> str | None:
    """Where a read starts, as records show it; None if its answer tells the number."""
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
    request: Request,
    target: Target,
    route: Route,
    sharing: SharingFacts,
    client: str,
    named: RecordedStream,
    basin: str | None,
) -> S2Request | None:
    """The read that a request asks for; None if it is to be relayed."""
    config = route.config
    may_share = config.cache and not (sharing.has_credentials and config.credentials == "bypass")
    if not may_share or request.method != "GET" or request.body is not None:
        return None
    path = parse_path(route.upstream_path(target.path))
    asked = parse_read(path, target.query, request.headers) if path is not None else None
    if path is None or asked is None:
        return None
    key = StreamKey(Group(route.authority, path.stream), key_query(basin), sharing.partition)
    headers = CIMultiDict(sharing.headers)
    if basin is not None:
        headers[BASIN_HEADER] = basin
    source = S2Source(
        route,
        named,
        route.url + path.stream,
        headers,
        route.bounds,
        route.live_bounds,
    )
    trust_s = config.tail_heard_s if config.consistency == "bounded-staleness" else 0.0
    return S2Request(S2Read(key, source, client, config.live_linger_s, trust_s), asked)

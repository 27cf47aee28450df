"""The verdict: what an origin's answer is to those who share it, and what it teaches of the stream.

An answer is a stream's (bytes to be laid, and the tail), a refusal that all who asked for it are told, or foreign: for
one client alone, because it is personal, encoded, without an end, or nothing that the protocol knows.  What it says is
held against what was known *when it was asked for*, since the tape moves on meanwhile: a tail that has moved back, a
stream that was closed and is not, another type or identity are another stream under the same name.

A refusal that was asked for before a write was acknowledged may be of before the write: it is one for those who wait
for it, and ends nothing.  An answer that was overtaken (the stream's bytes were forgotten while it was on its way) is
still one for those who wait for it, and teaches nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.engine.route import Route
from gateway.errors import TailMovedBack, UpstreamBroken
from gateway.protocol.etag import stream_identity
from gateway.protocol.forwarding import response_headers_for_client
from gateway.protocol.freshness import (
    forbids_storing,
    parse_cache_control,
    vary_allows_sharing,
)
from gateway.protocol.mode import Mode
from gateway.protocol.names import (
    DEFAULT_TYPE,
    STREAM_CLOSED,
    STREAM_NEXT_OFFSET,
    STREAM_UP_TO_DATE,
    is_true,
)
from gateway.protocol.offsets import NOW, START, is_before, is_sentinel, is_well_formed
from gateway.protocol.surrogate import surrogate_keys
from gateway.tape.store import TapeStore
from gateway.tape.stream import End, Stream
from gateway.telemetry.metrics import MetricsRecorder
from gateway.upstream.flight import METADATA, Beyond, Flight, Head, NotShareable, OriginError, StreamHead
from gateway.upstream.reply import Reply
from gateway.upstream.source import Source

NO_HEAD = frozenset({405, 501})
"""What an origin says that knows no HEAD."""
_REFUSAL_BYTES = 1 << 16
_EMPTY_BYTES = 16
"""More than this is no empty body, however it is spaced."""
_PERSONAL = frozenset({400, 401, 403, 407, 431})
"""Refusals that may be about the credentials shown."""


@dataclass(frozen=True, slots=True)
class TapeFacts:
    """What was known when a request was sent: only that may be held against its answer, since the tape moves on."""

    tail: str | None
    closed_at: str | None
    has_seen: bool
    """Whether the asked offset was one that the origin had named."""
    is_origins_own: bool
    """The same, for offsets that are no sentinel and no place of the gateway's own."""
    identity: str | None
    stale_marks: int
    acks: int

    @classmethod
    def of(cls, stream: Stream, start: str) -> TapeFacts:
        """What is known now of what is asked after `start`."""
        tape, has_seen = stream.tape, stream.tape.has_seen(start)
        is_token = start not in (METADATA, NOW, START)
        return cls(
            tape.tail, tape.closed_at, has_seen, has_seen and is_token, stream.identity, stream.stale_marks, stream.acks
        )


class ReplyClassifier:
    """Judges answers and records what they teach.  Has no state of its own."""

    def __init__(
        self,
        store: TapeStore,
        metrics: MetricsRecorder,
        on_end: Callable[[Stream, End], None],
        on_stale: Callable[[Stream], None],
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._on_end = on_end
        self._on_stale = on_stale

    async def head(
        self, stream: Stream, flight: Flight, route: Route, source: Source, reply: Reply, known: TapeFacts
    ) -> Head:
        """What a reply is to those who share it, before its body is read; what it says of the stream is recorded.

        UpstreamBroken where the protocol does not allow it, TailMovedBack where it is of another stream than the one
        that is known.
        """
        headers = reply.headers
        if reply.status >= 400:
            if flight.start == METADATA and reply.status in NO_HEAD:
                return NotShareable("no HEAD")
            refusal = await _refusal(reply, route, source)
            mode = Mode.HEAD if flight.start == METADATA else Mode.CATCHUP
            self._metrics.upstream_bytes(len(refusal.body), mode, route.config.name)
            flight.fetched += len(refusal.body)
            return refusal
        if reply.status == 304:
            raise UpstreamBroken
        if reply.status != 200:
            return NotShareable(f"status {reply.status}")
        offset = headers.get(STREAM_NEXT_OFFSET)
        if offset is None:
            return NotShareable("no Stream-Next-Offset")
        if not is_well_formed(offset) or is_sentinel(offset):
            raise UpstreamBroken
        if why := _why_not_delimited(reply):
            return NotShareable(why)
        if flight.start not in (METADATA, NOW) and (why := _why_not_shared(route, reply)):
            return NotShareable(why, is_personal=True)
        tape = stream.tape
        content_type = headers.get("Content-Type")
        if content_type is None and flight.start != METADATA:
            # Bytes need a type to be laid by; metadata that names none teaches none.
            content_type = stream.content_type or DEFAULT_TYPE
        is_closed = is_true(headers.get(STREAM_CLOSED))
        is_fetch = flight.start not in (METADATA, NOW)
        place = flight.start if is_fetch else START
        # Where the tail itself was asked for, one before what was reached is another stream's.
        is_beyond = is_fetch and not known.has_seen and is_before(offset, flight.start)
        if is_beyond and not await _is_empty(reply):
            # A client's own idea of an offset, and bytes that lead nowhere: that answer is for the client alone.
            return NotShareable("offset beyond the tail", is_lasting=False)
        up_to_date = is_closed or not is_fetch or is_true(headers.get(STREAM_UP_TO_DATE))
        if is_overtaken(stream, flight):
            if content_type is not None and not stream.learn_type(content_type):
                raise TailMovedBack
            return Beyond(offset, up_to_date, is_closed) if is_beyond else StreamHead(offset, up_to_date, is_closed)
        if not is_beyond:
            tape.check(flight.start if is_fetch else known.tail or START, offset, has_bytes=False)
        if up_to_date and known.tail is not None:
            tape.check(known.tail, offset, has_bytes=False)
        has_reopened = not is_closed and known.closed_at is not None and (not is_fetch or known.closed_at == offset)
        if has_reopened or (content_type is not None and not stream.learn_type(content_type)):
            raise TailMovedBack
        if not stream.learn_identity(stream_identity(headers, place, offset)):
            raise TailMovedBack
        if is_closed and tape.closed_at is None:
            stream.lost_tail()
        tape.reached(offset, is_short=not up_to_date, is_closed=is_closed)
        if up_to_date:
            stream.saw_acknowledged(known.acks, offset)
        stream.record_headers(headers)
        self._store.tag(stream, surrogate_keys(headers))
        if flight.start == METADATA:
            stream.record_head(headers)
        else:
            stream.record_caching(headers, up_to_date=up_to_date)
        if is_beyond:
            stream.took_for_beyond(flight.start)
            return Beyond(offset, up_to_date, is_closed)
        return StreamHead(offset, up_to_date, is_closed)

    def apply(self, stream: Stream, flight: Flight, head: Head, known: TapeFacts) -> None:
        """What an answer without bytes does to the stream."""
        match head:
            case OriginError(status=404 | 410) if is_outdated(stream, flight):
                # The write that was acknowledged since found the stream there: the next look tells what is true now.
                stream.mark_stale()
                self._on_stale(stream)
            case OriginError(status=404):
                if self._store.drop(stream, End.DELETED):
                    self._on_end(stream, End.DELETED)
            case OriginError(status=410) if flight.start in (METADATA, NOW, known.tail):
                # Nobody trims the tail: it is the stream that is gone.
                if self._store.drop(stream, End.GONE):
                    self._on_end(stream, End.GONE)
            case OriginError(status=410):
                # Trimmed, or softly deleted: the next look at the tail tells which.
                stream.mark_stale()
            case NotShareable(is_personal=True):
                stream.mark_stale()
            case NotShareable() if flight.start == METADATA:
                stream.record_lifetime({})
            case OriginError(status=status, request_headers=None) if (
                flight.start == METADATA and status < 500 and status != 429
            ):
                # An origin that refuses HEAD for good is not asked before every read.
                stream.record_lifetime({})
            case _:
                pass


def is_overtaken(stream: Stream, flight: Flight) -> bool:
    """Whether bytes of the stream were forgotten since the flight was sent, so that it may bring those very ones."""
    return stream.tape.incarnation != flight.incarnation


def is_outdated(stream: Stream, flight: Flight) -> bool:
    """Whether a write was acknowledged, or may have been done, since the flight was sent, so that what it did not find
    may be there now."""
    return stream.write_turn != flight.write_turn


async def _is_empty(reply: Reply) -> bool:
    try:
        return (await reply.read(_EMPTY_BYTES)).strip() in (b"", b"[]")
    except UpstreamBroken:
        return False


def _why_not_delimited(reply: Reply) -> str | None:
    """Why a body is not the stream's own bytes to their end."""
    if not reply.is_delimited:
        return "no length"
    if reply.headers.get("Content-Encoding", "identity").lower() != "identity":
        return "encoded"
    return None


def _why_not_shared(route: Route, reply: Reply) -> str | None:
    """Why a reply is for its asker alone."""
    headers = reply.headers
    if "Set-Cookie" in headers:
        return "cookie"
    cache_control = parse_cache_control(", ".join(headers.getall("Cache-Control", [])) or None)
    if forbids_storing(cache_control):
        return "Cache-Control"
    vary = ", ".join(headers.getall("Vary", [])) or None
    allow_origin = None if route.config.cors is not None else headers.get("Access-Control-Allow-Origin")
    if not vary_allows_sharing(vary, route.config.credential_headers, allow_origin):
        return "Vary"
    return None


async def _refusal(reply: Reply, route: Route, source: Source) -> OriginError:
    headers = response_headers_for_client(reply.headers, node=route.node, http_version="1.1")
    for name in ("Content-Length", "Content-Encoding", "ETag", "Set-Cookie"):
        headers.popall(name, None)
    body = b""
    if "Content-Encoding" not in reply.headers:
        try:
            body = await reply.read(_REFUSAL_BYTES)
        except UpstreamBroken:
            body = b""
    # Elsewhere all who share show the same credentials.
    is_personal = route.config.credentials == "shared" and reply.status in _PERSONAL
    return OriginError(reply.status, headers, body, source.headers if is_personal else None)

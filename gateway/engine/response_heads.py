"""Response heads: builds the headers of every answer to a read, for all read modes.

`Stream-Up-To-Date` and `Stream-Closed` are never stored: the caller states them for each answer.  The gateway makes its
own ETags: `"<incarnation>:<start>:<end>[:c]"`.  The ETags of origins are not used, because their formats differ.  An
ETag without an incarnation (a name for one life of the stream) could validate the bytes of another stream with the same
name.

If the client's If-None-Match has the answer's ETag, the answer is a 304 without a body (RFC 9110 sections 13.1.2 and
15.4.5).  `gateway.protocol.etag` makes and compares ETags.  `gateway.server.remembered` repeats the 304 of a catch-up
read like any other answer.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from multidict import CIMultiDict, istr

from gateway.engine.answer import Answer, BodyRun, Parts
from gateway.engine.read import Read
from gateway.engine.route import Route
from gateway.errors import Fault, GatewayError
from gateway.protocol.cache_status import Outcome, cache_status
from gateway.protocol.etag import matches, mint, not_modified
from gateway.protocol.names import (
    ACCEL_BUFFERING,
    DEFAULT_TYPE,
    START,
    STREAM_CLOSED,
    STREAM_CURSOR,
    STREAM_NEXT_OFFSET,
    STREAM_UP_TO_DATE,
    is_before,
)
from gateway.tape.stream import Stream
from gateway.upstream.flight import OriginError

# These names are `istr` objects, because multidict converts other names to lower case at each use.
_CONTENT_TYPE: Final = istr("Content-Type")
_NEXT_OFFSET: Final = istr(STREAM_NEXT_OFFSET)
_UP_TO_DATE: Final = istr(STREAM_UP_TO_DATE)
_CLOSED: Final = istr(STREAM_CLOSED)
_ETAG: Final = istr("ETag")
_CACHE_CONTROL: Final = istr("Cache-Control")
_CACHE_STATUS: Final = istr("Cache-Status")
_IMMUTABLE_S = 60
_STALE_WHILE_REVALIDATE_S = 300


def _cache_control(read: Read, stream: Stream, *, must_revalidate: bool) -> str:
    """Return the Cache-Control of an answer.

    Bytes before the tail get the origin's directives, or the directives of section 8.1 if the origin has sent none.
    `must_revalidate`: the answer states the tail, or moves the reader back to the tail.
    """
    scope = "private" if read.is_private else "public"
    if must_revalidate:
        return f"{scope}, no-cache" if read.is_private else "no-cache"
    if stream.caching.cache_control is not None and not read.is_private:
        return stream.caching.cache_control
    life = stream.expiry.lifetime
    ttl_s = life.ttl_s if life is not None else None
    if life is not None and life.expires_at is not None:
        return f"{scope}, no-cache" if read.is_private else "no-cache"
    if ttl_s is not None and ttl_s < _IMMUTABLE_S + _STALE_WHILE_REVALIDATE_S:
        return f"{scope}, max-age={min(_IMMUTABLE_S, ttl_s)}"
    # The gateway sends bytes up to `trust_s` after their confirmation, so downstream caches may do the same.
    fresh_s = max(_IMMUTABLE_S, math.ceil(read.route.trust_s))
    return f"{scope}, max-age={fresh_s}, stale-while-revalidate={_STALE_WHILE_REVALIDATE_S}"


def _tagged_start(start: str, size: int | str) -> str:
    """Return the part of a read's ETag that identifies the start.

    After the origin has trimmed a stream, the start sentinel (`-1`) means a later position of the same incarnation.  No
    reply states that the position has changed, and not all workers have the same bytes.  The size of the body
    distinguishes the two positions.
    """
    return f"{START}+{size}" if start == START else start


class Said(NamedTuple):
    """The statements of an answer about the stream, in addition to its bytes."""

    outcome: Outcome
    up_to_date: bool
    is_closed: bool
    age_s: float | None = None
    """Seconds since the origin last confirmed the answer; None if the answer states no age."""
    cursor: str | None = None
    fwd_status: int | None = None
    """The status of the origin's reply; None if the origin was not asked."""
    stored: bool = False
    stale_s: float | None = None
    """For an answer that is sent while the tail is revalidated (`stale-while-revalidate`), the seconds since the tail
    became stale; otherwise None."""


def stream_headers(read: Read, run: BodyRun, size: int | str, said: Said) -> CIMultiDict[str]:
    """Return the headers of a 200 with this range of the stream.

    `size` is the size of the body, or a string that is unique to this representation.
    """
    stream, end, cursor = run.stream, run.end, said.cursor
    headers = stream.headers.copy()
    add = headers.add
    add(_CONTENT_TYPE, stream.content_type or DEFAULT_TYPE)
    add(_NEXT_OFFSET, end)
    if said.up_to_date:
        add(_UP_TO_DATE, "true")
    if said.is_closed:
        add(_CLOSED, "true")
    if cursor is not None and not said.is_closed:
        headers[STREAM_CURSOR] = cursor
    name = stream.tag_name(run.edition.incarnation)
    if isinstance(size, str):
        # The string is unique only in this process, and other workers use the same `name` in their ETags.
        size = f"{size}~{run.edition.incarnation}"
    add(_ETAG, mint(name, _tagged_start(run.start, size), end, said.is_closed))
    must_revalidate = said.up_to_date or cursor is not None or is_before(end, run.start)
    cache_control = _cache_control(read, stream, must_revalidate=must_revalidate)
    if stream.caching.is_verbatim and "no-transform" not in cache_control:
        cache_control += ", no-transform"
    add(_CACHE_CONTROL, cache_control)
    if cursor is not None:
        # `no-transform` is not needed.  The answer is complete, so compression by a proxy does not delay any bytes.
        headers[ACCEL_BUFFERING] = "no"
    if said.age_s is not None:
        headers["Age"] = str(max(0, int(said.age_s)))
    if said.stale_s is None:
        add(_CACHE_STATUS, cache_status(read.route.node, said.outcome, fwd_status=said.fwd_status, stored=said.stored))
    else:
        headers["Cache-Status"] = cache_status(
            read.route.node, said.outcome, ttl_s=-int(said.stale_s) - 1, detail="stale-while-revalidate"
        )
    return headers


def part_answer(read: Read, run: BodyRun, said: Said, parts: Parts) -> Answer:
    """Return the answer with this range of the stream.  `parts` has the bytes of the range.  The answer is a 304 if the
    client already has these bytes."""
    is_json = run.stream.tape.is_json
    headers = stream_headers(read, run, parts.tag_size(is_json) if run.start == START else 0, said)
    if read.if_none_match is not None and matches(read.if_none_match, headers["ETag"]):
        parts.close()
        return Answer(304, not_modified(headers), said.outcome, run=run)
    return Answer(200, headers, said.outcome, parts, is_json, run=run)


def now_answer(
    read: Read, stream: Stream, tail: str, outcome: Outcome, *, is_closed: bool, fwd_status: int | None = None
) -> Answer:
    """Return an empty answer that states the tail; caches must not store it (section 6)."""
    headers = CIMultiDict(stream.headers)
    headers["Content-Type"] = stream.content_type or DEFAULT_TYPE
    headers[STREAM_NEXT_OFFSET] = tail
    headers[STREAM_UP_TO_DATE] = "true"
    if is_closed:
        headers[STREAM_CLOSED] = "true"
    headers["Cache-Control"] = "no-store"
    headers["Cache-Status"] = cache_status(read.route.node, outcome, fwd_status=fwd_status)
    return Answer(200, headers, outcome, body=b"[]" if stream.tape.is_json else b"")


def head_answer(read: Read, stream: Stream, tail: str) -> Answer:
    """Return the answer to a HEAD (section 5.5); caches must not store it."""
    headers = CIMultiDict(stream.headers)
    headers.extend(stream.head_headers or {})
    headers["Content-Type"] = stream.content_type or DEFAULT_TYPE
    headers[STREAM_NEXT_OFFSET] = tail
    is_closed = stream.tape.is_closed_at(tail)
    if is_closed:
        headers[STREAM_CLOSED] = "true"
    name = stream.tag_name(stream.version.incarnation)
    headers["ETag"] = mint(name, _tagged_start(START, "head"), tail, is_closed)
    headers["Cache-Control"] = "no-store"
    headers["Cache-Status"] = cache_status(read.route.node, Outcome.HIT)
    if matches(read.if_none_match, headers["ETag"]):
        return Answer(304, not_modified(headers), Outcome.HIT)
    return Answer(200, headers, Outcome.HIT)


def timed_out(read: Read, stream: Stream, end: str, is_closed: bool, cursor: str, outcome: Outcome) -> Answer:
    """Return the 204 of a long-poll that timed out (section 5.7)."""
    headers = CIMultiDict(stream.headers)
    headers[STREAM_NEXT_OFFSET] = end
    headers[STREAM_UP_TO_DATE] = "true"
    if is_closed:
        headers[STREAM_CLOSED] = "true"
    else:
        headers[STREAM_CURSOR] = cursor
    headers["Cache-Control"] = "no-store"
    headers[ACCEL_BUFFERING] = "no"
    headers["Cache-Status"] = cache_status(read.route.node, outcome)
    return Answer(204, headers, outcome)


def origin_error_answer(route: Route, error: OriginError, outcome: Outcome) -> Answer:
    """Return the origin's error as a response, with `no-store` unless the origin states a Cache-Control."""
    headers = CIMultiDict(error.headers)
    if "Cache-Control" not in headers:
        headers["Cache-Control"] = "no-store"
    headers["Cache-Status"] = cache_status(route.node, outcome, fwd_status=error.status)
    return Answer(error.status, headers, outcome, body=error.body)


def failure_answer(node: str, error: GatewayError) -> Answer:
    """Return an error of the gateway as a response: a status and one line of text."""
    outcome = Outcome.REFUSED if error.fault is Fault.CLIENT else Outcome.FAILED
    headers = CIMultiDict({"Content-Type": "text/plain; charset=utf-8", "Cache-Control": "no-store"})
    headers["X-Content-Type-Options"] = "nosniff"
    headers["Cache-Status"] = cache_status(node, outcome)
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    if error.challenge is not None:
        headers["WWW-Authenticate"] = error.challenge
    return Answer(error.status, headers, outcome, body=f"{error}\n".encode())

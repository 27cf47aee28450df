"""Creating, appending to, closing and deleting a stream.

An append is one atomic S2 append.  Each append states the empty fencing token, which a stream has until it is fenced.
So S2 refuses the append if the bridge has closed the stream, or if an S2 writer has fenced the stream.  The close
marker (`content.py`) is appended atomically with the last messages.

Features that S2 cannot provide are refused with 501: `Stream-Seq`, idempotent producers, lifetimes and forks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from multidict import CIMultiDict

from gateway.bridge.content import CLOSE_RECORD, CLOSE_TOKEN, OPEN_TOKEN, BadContent, TooMuchContent
from gateway.bridge.reads import Tail, tail_of
from gateway.bridge.replies import BridgedRequest, Made, position_headers, refusal, text
from gateway.bridge.streams import offset_at
from gateway.errors import BodyTooLarge, GatewayError, RequestTimeout, UpstreamBroken
from gateway.protocol.names import (
    PRODUCER_EPOCH,
    PRODUCER_ID,
    PRODUCER_SEQ,
    STREAM_CLOSED,
    STREAM_EXPIRES_AT,
    STREAM_FORK_OFFSET,
    STREAM_FORK_SUB_OFFSET,
    STREAM_FORKED_FROM,
    STREAM_NEXT_OFFSET,
    STREAM_SEQ,
    STREAM_TTL,
    STREAM_UP_TO_DATE,
    is_true,
)
from gateway.s2.errors import FencingTokenMismatch, Other, SeqNumMismatch, parse_error
from gateway.s2.records import (
    MAX_BATCH_METERED_BYTES,
    MAX_BATCH_RECORDS,
    AppendInput,
    AppendRecord,
    total_metered_bytes,
)
from gateway.upstream.origin_call import Body
from gateway.upstream.s2_client import S2Refused

MOST_BODY_BYTES: Final = 2 * 1024 * 1024
"""The largest body of an append, in bytes.  The records of a body have at most 1 MiB; the rest is for JSON and
base64."""

_NOT_KEPT: Final = {
    PRODUCER_ID: "Idempotent producers are not supported on this stream",
    PRODUCER_EPOCH: "Idempotent producers are not supported on this stream",
    PRODUCER_SEQ: "Idempotent producers are not supported on this stream",
    STREAM_SEQ: "Stream-Seq is not supported on this stream",
    STREAM_TTL: "Lifetimes are not supported on this stream: its basin's retention applies",
    STREAM_EXPIRES_AT: "Lifetimes are not supported on this stream: its basin's retention applies",
    STREAM_FORKED_FROM: "Forks are not supported on this stream",
    STREAM_FORK_OFFSET: "Forks are not supported on this stream",
    STREAM_FORK_SUB_OFFSET: "Forks are not supported on this stream",
}


async def create(asked: BridgedRequest, headers: CIMultiDict[str], body: Body) -> Made:
    """Create the stream, with its first content if there is a body.  Raises a GatewayError.

    Creating and appending are two S2 requests.  If the first attempt fails between the two requests, the client can
    repeat the attempt, because the body is also appended to an existing stream that is empty.
    """
    if (refused := _not_kept(headers)) is not None:
        return refused
    content_type = headers.get("Content-Type")
    data = await _whole(body, asked)
    if content_type is not None and not asked.content.accepts(content_type):
        return _other_type(asked)
    closes = is_true(headers.get(STREAM_CLOSED))
    records = _records(asked, data, closes=closes)
    if isinstance(records, Made):
        return records
    refusal_ = await asked.call.create()
    if refusal_ is not None and not _is_there(refusal_):
        return refusal(refusal_, creates=True)
    is_new = refusal_ is None
    if records:
        done = await _append_first(asked, records, is_new=is_new)
        if isinstance(done, Made):
            return done
        if done is not None:
            return _created(asked, done - closes, is_new=True, is_closed=closes)
        if is_new:
            return text(409, "Another writer has appended to the new stream first, so the body was not appended")
    if is_new:
        return _created(asked, 0, is_new=True, is_closed=False)
    tail = await tail_of(asked)
    if isinstance(tail, S2Refused):
        return refusal(tail)
    if tail.is_closed is not closes:
        return text(409, "Stream already exists with different configuration", _position(tail))
    return _created(asked, tail.seq_num, is_new=False, is_closed=tail.is_closed)


async def _append_first(asked: BridgedRequest, records: tuple[AppendRecord, ...], *, is_new: bool) -> int | Made | None:
    """Append to a stream that is new or empty; return its tail, or None if it is not empty after all."""
    try:
        done = await asked.call.append(AppendInput(records, match_seq_num=0, fencing_token=OPEN_TOKEN))
    except GatewayError as error:
        # The error must not count as unsent, because the request that created the stream was sent.
        error.is_unsent = error.is_unsent and not is_new
        raise
    if not isinstance(done, S2Refused):
        return done.end.seq_num
    mismatch = parse_error(done.status, done.body)
    return None if isinstance(mismatch, SeqNumMismatch | FencingTokenMismatch) else refusal(done)


async def append(asked: BridgedRequest, headers: CIMultiDict[str], body: Body) -> Made:
    """Append, close, or both.  Raises a GatewayError."""
    if (refused := _not_kept(headers)) is not None:
        return refused
    data = await _whole(body, asked)
    closes = is_true(headers.get(STREAM_CLOSED))
    if data:
        content_type = headers.get("Content-Type")
        if content_type is None:
            return text(400, "Content-Type header is required")
        if not asked.content.accepts(content_type):
            return await _unless_closed(asked, _other_type(asked))
    elif not closes:
        return text(400, "Empty body")
    records = _records(asked, data, closes=closes)
    if isinstance(records, Made):
        return records
    if len(records) == closes and data:
        return text(400, "Empty arrays are not allowed")
    if asked.call.sighting.closed_at is not None:
        # An S2 writer may have removed the fence since, so S2 might accept the append.  But readers still stop at the
        # close marker.
        tail = await tail_of(asked)
        if isinstance(tail, S2Refused):
            return refusal(tail)
        if tail.is_closed:
            return _closed(tail, data)
    done = await asked.call.append(AppendInput(records, fencing_token=OPEN_TOKEN))
    if not isinstance(done, S2Refused):
        headers_ = position_headers(done.end.seq_num - closes, is_closed=closes)
        headers_.pop(STREAM_UP_TO_DATE, None)
        return Made(204, headers_)
    error = parse_error(done.status, done.body)
    if not isinstance(error, FencingTokenMismatch):
        return refusal(done)
    if error.expected != CLOSE_TOKEN:
        return text(409, "The stream is fenced by another writer")
    tail = await tail_of(asked)
    if isinstance(tail, S2Refused):
        return refusal(tail)
    # The fencing token shows that the stream is closed, even if the close marker has been trimmed.
    return _closed(Tail(tail.seq_num, True), data)


async def delete(asked: BridgedRequest) -> Made:
    """Delete the stream.  Raises a GatewayError."""
    refused = await asked.call.delete()
    return Made(204, {}) if refused is None else refusal(refused)


def _closed(tail: Tail, data: bytes) -> Made:
    """Return the answer to an append to a closed stream.  Without data, the stream is just closed again (section
    5.3)."""
    return text(409, "Stream is closed", _position(tail)) if data else Made(204, _position(tail))


async def _unless_closed(asked: BridgedRequest, otherwise: Made) -> Made:
    """Return the refusal of an append.  If the stream is closed, the refusal states this (section 5.2).  Otherwise it
    is `otherwise`."""
    tail = await tail_of(asked)
    if isinstance(tail, S2Refused):
        return refusal(tail)
    return text(409, "Stream is closed", _position(tail)) if tail.is_closed else otherwise


def _records(asked: BridgedRequest, data: bytes, *, closes: bool) -> tuple[AppendRecord, ...] | Made:
    """Return the records for a body, followed by the close marker if `closes`."""
    try:
        records = asked.content.records(data) if data else ()
    except BadContent as error:
        return text(413 if isinstance(error, TooMuchContent) else 400, str(error))
    if closes:
        records += (CLOSE_RECORD,)
    if len(records) > MAX_BATCH_RECORDS:
        return text(413, f"An append has at most {MAX_BATCH_RECORDS - closes} messages on this stream")
    if total_metered_bytes(records) > MAX_BATCH_METERED_BYTES:
        return text(413, "An append is larger than S2 takes in one step, which is 1 MiB")
    return records


async def _whole(body: Body, asked: BridgedRequest) -> bytes:
    """Read the request's body.  Raises BodyTooLarge, RequestTimeout, or an error of the body."""
    if body is None or isinstance(body, bytes):
        return body or b""
    try:
        async with asyncio.timeout(asked.call.client.bounds.total_s):
            return await _gathered(body)
    except GatewayError:
        raise
    except TimeoutError:
        raise RequestTimeout(is_unsent=True) from None
    except Exception as error:
        raise UpstreamBroken(is_unsent=True) from error


async def _gathered(body: AsyncIterator[bytes]) -> bytes:
    data = bytearray()
    async for chunk in body:
        data += chunk
        if len(data) > MOST_BODY_BYTES:
            raise BodyTooLarge(is_unsent=True)
    return bytes(data)


def _not_kept(headers: CIMultiDict[str]) -> Made | None:
    return next((text(501, why) for name, why in _NOT_KEPT.items() if name in headers), None)


def _other_type(asked: BridgedRequest) -> Made:
    return text(409, f"Content-type mismatch: streams here are {asked.content.content_type}")


def _is_there(refused: S2Refused) -> bool:
    error = parse_error(refused.status, refused.body)
    return refused.status == 409 and isinstance(error, Other) and error.code == "resource_already_exists"


def _position(tail: Tail) -> dict[str, str]:
    headers = {STREAM_NEXT_OFFSET: offset_at(tail.seq_num)}
    return {**headers, STREAM_CLOSED: "true"} if tail.is_closed else headers


def _created(asked: BridgedRequest, seq_num: int, *, is_new: bool, is_closed: bool) -> Made:
    headers = {"Content-Type": asked.content.content_type, **_position(Tail(seq_num, is_closed))}
    if is_new:
        headers["Location"] = asked.location
    return Made(201 if is_new else 200, headers)

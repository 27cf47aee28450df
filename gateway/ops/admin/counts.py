"""Counts between a stream's offsets: how many messages, how many bytes, and their checksum.

Offsets are opaque, so a client that wants to divide a stream among several readers would have to read all of it first.
The gateway holds the bytes and counts them once, in a thread.  A count stays true as long as the stream holds the same
bytes, and is remembered by the offsets on both sides.

One path may name several streams (of different origins or partitions, or before and after a re-creation), and an offset
of one may mean something else in another.  So a request names the ETag of a reply that its client received; it gets the
counts of the tape which made that reply, or none.

The messages of a JSON stream are counted, measured and summed as lines: the text of each as it is, except that its own
line breaks become spaces, followed by a line feed.  A reader that frames messages this way gets the same checksum.  The
bytes of any other stream are measured and summed as they are.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Final, NamedTuple

from cachetools import LRUCache
from pydantic import Field, with_config

from gateway.ops.admin.directory import Directory, TargetText
from gateway.ops.admin.endpoint import API_TYPE, ApiRequest, Endpoint, Nothing, Refused
from gateway.protocol.etag import names
from gateway.protocol.stream_version import Edition

MOST_BYTES: Final = 16 << 20
"""The longest run.  An answer stops at the first run that reaches it in all, so it covers less than twice as much."""
MOST_RUNS: Final = 1_000
_SLICE_BYTES: Final = 1 << 17
"""Bytes counted in one go.  A slice of plain numbers holds many messages, and listing them holds the GIL: at this size
for 10 ms."""
_MOST_MESSAGE_BYTES: Final = 1 << 20
"""A run with a longer message is not counted: counting takes 25 times its memory, outside the cache's budget."""
_REMEMBERED: Final = 1 << 14
"""Remembered runs: some ten megabytes."""


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class CountedRun:
    """One run of a stream: the counts between two offsets."""

    offset: str
    """The offset at which reading begins."""
    next: str
    """The offset after the run."""
    messages: int | None
    """Null where the stream is not JSON."""
    bytes: int
    """Length of the run; of a JSON stream, of its messages as lines."""
    crc32: int
    """CRC-32 of the same bytes (that of gzip, RFC 1952)."""


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class Counts:
    """Consecutive runs from the requested offset, as far as the gateway holds the stream; more may follow the last."""

    runs: list[CountedRun]


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class CountsQuery:
    """The stream, and the offset to start from."""

    stream: Annotated[TargetText, Field(max_length=1_500)]
    etag: Annotated[str, Field(max_length=600)]
    """ETag of any reply with a part of the stream."""
    offset: Annotated[str, Field(max_length=300)] = "-1"
    """An offset that the origin or the gateway has sent."""
    run_bytes: Annotated[int, Field(ge=1 << 10, le=MOST_BYTES)] = 1 << 20
    """The longest run, as far as there are offsets to end a run at."""


class _Sum(NamedTuple):
    messages: int | None
    size: int
    crc32: int


class _Span(NamedTuple):
    """Key of a count: an edition and the offsets on both sides.  The bytes between them never change."""

    edition: Edition
    offset: str
    end: str


def counts_endpoints(directory: Directory) -> list[Endpoint]:
    """`GET /api/counts`."""
    counted: MutableMapping[_Span, _Sum | None] = LRUCache(_REMEMBERED)
    # One at a time: counting faster would take the time from the clients.
    counting = asyncio.Lock()

    async def counts(request: ApiRequest[CountsQuery, Nothing]) -> Counts:
        query = request.query
        runs: list[CountedRun] = []
        stream = next(
            (one for one in directory.by_target(query.stream) if names(query.etag, one.version.incarnation)), None
        )
        if stream is None or stream.needs_revalidation:
            return Counts(runs)
        seen, at, size = stream.version, query.offset, 0
        while size < MOST_BYTES and len(runs) < MOST_RUNS:
            async with counting:
                if stream.ended is not None or not seen.same_bytes_as(stream.version):
                    break
                reading = stream.tape.read(at, query.run_bytes)
                if not 0 < reading.size <= MOST_BYTES:
                    break
                span = _Span(seen.edition, at, reading.end)
                if span in counted:
                    await asyncio.sleep(0)
                else:
                    counted[span] = await asyncio.to_thread(
                        _counted if stream.tape.is_json else _measured, reading.pieces
                    )
            found = counted.get(span)
            if found is None:
                break
            runs.append(CountedRun(at, reading.end, *found))
            at, size = reading.end, size + reading.size
        # Re-created or revoked meanwhile: the counts describe a stream that is gone.
        return Counts(runs if stream.ended is None and seen.same_bytes_as(stream.version) else [])

    return [
        Endpoint(
            "GET",
            "/api/counts",
            "Messages, bytes and checksums between a stream's offsets",
            counts,
            Counts,
            CountsQuery,
            refusals={501: "JSON messages cannot be counted here: the extra `pipeline` is not installed."},
        )
    ]


def _measured(pieces: tuple[bytes, ...]) -> _Sum:
    data = b"".join(pieces)
    return _Sum(None, len(data), zlib.crc32(data))


def _counted(pieces: tuple[bytes, ...]) -> _Sum | None:
    """None if the pieces are not the inside of a JSON array, or hold a message too long to count."""
    try:
        # Needs numpy, which comes with an extra.
        from pyspark_durable_streams.errors import BadReply
        from pyspark_durable_streams.framing import Checksum, Elements
    except ImportError as error:
        raise Refused(501, "counting JSON messages needs the extra durable-gateway[pipeline]") from error
    framer = Elements(_SLICE_BYTES, _MOST_MESSAGE_BYTES)
    checksum = Checksum()
    fed = chain.from_iterable(map(framer.feed, chain((b"[",), _slices(pieces), (b"]",))))
    try:
        for piece in chain(fed, framer.end()):
            checksum.add(piece)
    except BadReply:
        return None
    return _Sum(checksum.units, checksum.size, checksum.crc)


def _slices(pieces: tuple[bytes, ...]) -> Iterator[bytes]:
    for piece in pieces:
        if len(piece) <= _SLICE_BYTES:
            yield piece
        else:
            yield from (piece[at : at + _SLICE_BYTES] for at in range(0, len(piece), _SLICE_BYTES))

"""Counts between a stream's offsets: the number of messages and bytes, and their checksum.

Offsets are opaque.  Without counts, a client that wants to divide a stream among several readers would have to read the
whole stream first.  The gateway counts the bytes that it holds, once and in a thread.  A count is valid while the
stream has the same bytes, and is remembered under the offsets at both ends.

Several streams may have the same path: streams of different origins or partitions, or a stream before and after its
re-creation.  An offset may mean a different position in each of these streams.  A request therefore contains the ETag
of a reply that its client has received.  The answer has counts of the tape (the stream's bytes in memory) from which
this reply came, or no counts.

In a JSON stream, messages are counted, measured and summed as lines.  A line is the message's text, with spaces in
place of line breaks, and a line feed at the end.  A reader that splits messages in the same way gets the same checksum.
The bytes of other streams are measured and summed unchanged.
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
"""The longest run, in bytes.  An answer ends with the first run at which the total reaches this size, so the answer
covers less than twice this size.
"""
MOST_RUNS: Final = 1_000
_SLICE_BYTES: Final = 1 << 17
"""Bytes counted in one call.  Listing the messages of a slice holds the interpreter lock.  With many small numbers,
this size takes 10 ms."""
_MOST_MESSAGE_BYTES: Final = 1 << 20
"""A run with a longer message is not counted, because counting a message takes 25 times the memory of its text, outside
the cache's budget."""
_REMEMBERED: Final = 1 << 14
"""The most remembered runs, which take some ten megabytes."""


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class CountedRun:
    """The counts of one run of a stream, between two offsets."""

    offset: str
    """The offset at which the run begins."""
    next: str
    """The offset after the run."""
    messages: int | None
    """The number of messages in the run; null unless the stream is JSON."""
    bytes: int
    """The length of the run.  For a JSON stream, the length of its messages as lines."""
    crc32: int
    """The CRC-32 of the same bytes, as in gzip (RFC 1952)."""


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class Counts:
    """Consecutive runs from the requested offset, as far as the gateway holds the stream.  More runs may follow the
    last one.
    """

    runs: list[CountedRun]


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class CountsQuery:
    """The stream, and the offset of the first run."""

    stream: Annotated[TargetText, Field(max_length=1_500)]
    etag: Annotated[str, Field(max_length=600)]
    """The ETag of any reply with a part of the stream."""
    offset: Annotated[str, Field(max_length=300)] = "-1"
    """An offset that the origin or the gateway has sent."""
    run_bytes: Annotated[int, Field(ge=1 << 10, le=MOST_BYTES)] = 1 << 20
    """The most bytes of a run.  A run is longer only if no offset lies within this length."""


class _Sum(NamedTuple):
    messages: int | None
    size: int
    crc32: int


class _Span(NamedTuple):
    """The key of a count: the edition of the stream's bytes, and the offsets at both ends.  In one edition, the bytes
    between two offsets never change.
    """

    edition: Edition
    offset: str
    end: str


def counts_endpoints(directory: Directory) -> list[Endpoint]:
    """Make the endpoint `GET /api/counts`."""
    counted: MutableMapping[_Span, _Sum | None] = LRUCache(_REMEMBERED)
    # Count one run at a time, because faster counting would take the processor from clients.
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
        # If the stream has ended or has dropped bytes meanwhile, the counts may belong to other bytes.  Return no
        # counts then.
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
    """Count the messages of a JSON array's content.  Returns None if the pieces are not the content of a JSON array, or
    if a message is too long.
    """
    try:
        # Import it here, because it needs numpy, which only an extra installs.
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

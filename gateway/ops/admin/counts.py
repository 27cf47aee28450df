"""What lies between a stream's offsets: how many messages, how many bytes, and their checksum.

Offsets are opaque, so whoever wants to divide a stream among several readers has to read it first and count.  The
gateway holds the bytes and counts them once, beside its loop; what it has counted stays true for as long as the bytes
are the stream's, and is remembered by the offsets on both sides.

The messages of a JSON stream are counted, measured and summed as lines: the text of each as it is, but for its own line
breaks, which become spaces, and a line feed behind it.  A reader that frames them so has the same checksum.  Of any
other stream the bytes are measured and summed as they are.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple

from cachetools import LRUCache
from pydantic import Field, with_config

from gateway.ops.admin.directory import Directory, TargetText
from gateway.ops.admin.endpoint import SHOWN, Asked, Endpoint, Nothing, Refused
from gateway.ops.admin.subject import Subject
from gateway.ops.admin.tails import latest
from gateway.tape.stream import Edition
from gateway.tape.tape import Reading

MOST_BYTES: Final = 64 << 20
"""An answer speaks of no more than so many bytes and one run: a fifth of a second of counting."""
_REMEMBERED: Final = 1 << 16
"""Runs whose counts are remembered: some ten megabytes."""


@with_config(SHOWN)
@dataclass(frozen=True, slots=True)
class CountedRun:
    """What lies between two offsets."""

    offset: str
    """Reading begins here."""
    next: str
    """The offset behind it."""
    messages: int | None
    """Null where the stream is not JSON."""
    bytes: int
    """Of JSON: of its messages as lines."""
    crc32: int
    """Of the same bytes (that of gzip, RFC 1952)."""


@with_config(SHOWN)
@dataclass(frozen=True, slots=True)
class Counts:
    """Runs that follow each other from the offset that was asked for, as far as the gateway holds the stream; more may
    follow behind the last."""

    runs: list[CountedRun]


@with_config(SHOWN)
@dataclass(frozen=True, slots=True)
class CountsQuery:
    """Which stream, from where."""

    stream: TargetText
    offset: str = "-1"
    """One that the origin or the gateway has named."""
    run_bytes: Annotated[int, Field(ge=0, le=MOST_BYTES)] = 0
    """Runs are at most so long, as far as there are offsets to end them at; 0: as long as replies are, so that each run
    is what a reader is given at once."""


class _Sum(NamedTuple):
    messages: int | None
    size: int
    crc32: int


class _Span(NamedTuple):
    """Bytes that stay what they are."""

    edition: Edition
    offset: str
    end: str


def counts_endpoints(subject: Subject, directory: Directory) -> list[Endpoint]:
    """`GET /api/counts`."""
    known: MutableMapping[_Span, _Sum | None] = LRUCache(_REMEMBERED)
    counting = asyncio.Lock()

    async def sum_of(span: _Span, reading: Reading, is_json: bool) -> _Sum | None:
        if span not in known:
            # One at a time: what is counted twice as fast is taken from the readers.
            async with counting:
                if span not in known:
                    known[span] = await asyncio.to_thread(_counted if is_json else _measured, reading.pieces)
        return known[span]

    async def counts(asked: Asked[CountsQuery, Nothing]) -> Counts:
        query = asked.query
        streams = [stream for stream in directory.at(query.stream) if stream.content_type is not None]
        runs: list[CountedRun] = []
        if not streams or (stream := latest(streams)).is_doubted:
            return Counts(runs)
        edition, at, size = stream.edition, query.offset, 0
        limit = query.run_bytes or subject.config.limits.max_reply_bytes
        while size < MOST_BYTES:
            reading = stream.tape.read(at, limit)
            if not 0 < reading.size <= MOST_BYTES:
                break
            found = await sum_of(_Span(edition, at, reading.end), reading, stream.tape.is_json)
            if stream.ended is not None or stream.edition != edition:
                # Made anew or called back meanwhile: what was counted is of a stream that is not there.
                return Counts([])
            if found is None:
                break
            runs.append(CountedRun(at, reading.end, *found))
            at, size = reading.end, size + reading.size
        return Counts(runs)

    return [
        Endpoint(
            "GET",
            "/api/counts",
            "What lies between a stream's offsets",
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
    """None where they are not the inside of a JSON array."""
    try:
        # It needs numpy, which comes with an extra.
        from pyspark_durable_streams.errors import BadReply
        from pyspark_durable_streams.framing import Elements
    except ImportError as error:
        raise Refused(501, "counting JSON messages needs the extra durable-gateway[pipeline]") from error
    framer = Elements()
    messages = size = crc32 = 0
    try:
        for piece in (*framer.feed(b"".join((b"[", *pieces, b"]"))), *framer.end()):
            messages += piece.count
            size += len(piece.data)
            crc32 = zlib.crc32(piece.data, crc32)
    except BadReply:
        return None
    return _Sum(messages, size, crc32)

"""What lies between a stream's offsets: how many messages, how many bytes, and their checksum.

Offsets are opaque, so whoever wants to divide a stream among several readers has to read it first and count.  The
gateway holds the bytes and counts them once, beside its loop; what it has counted stays true for as long as the bytes
are the stream's, and is remembered by the offsets on both sides.

One path may be several streams (of other origins, for other readers, before and after it was made anew), and an offset
of one may mean something else in another.  So whoever asks shows the ETag of a reply that he was given: what is told is
of the tape that it was made from, or nothing.

The messages of a JSON stream are counted, measured and summed as lines: the text of each as it is, but for its own line
breaks, which become spaces, and a line feed behind it.  A reader that frames them so has the same checksum.  Of any
other stream the bytes are measured and summed as they are.
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
from gateway.ops.admin.endpoint import SHOWN, ApiRequest, Endpoint, Nothing, Refused
from gateway.protocol.etag import names
from gateway.tape.stream import Edition

MOST_BYTES: Final = 16 << 20
"""The longest run, and what an answer speaks of: no more than so many bytes and one run."""
MOST_RUNS: Final = 1_000
_SLICE_BYTES: Final = 1 << 17
"""What is looked at in one go.  Of messages that are plain numbers there are many, and whoever lists them keeps all
other threads waiting: with these for 10 ms."""
_MOST_MESSAGE_BYTES: Final = 1 << 20
"""A run with a longer one is not counted: it takes 25 times as much memory to look at, whatever the cache may have."""
_REMEMBERED: Final = 1 << 14
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

    stream: Annotated[TargetText, Field(max_length=1_500)]
    etag: Annotated[str, Field(max_length=600)]
    """Of any reply with a part of the stream."""
    offset: Annotated[str, Field(max_length=300)] = "-1"
    """One that the origin or the gateway has named."""
    run_bytes: Annotated[int, Field(ge=1 << 10, le=MOST_BYTES)] = 1 << 20
    """Runs are at most so long, as far as there are offsets to end them at."""


class _Sum(NamedTuple):
    messages: int | None
    size: int
    crc32: int


class _Span(NamedTuple):
    """Bytes that stay what they are."""

    edition: Edition
    offset: str
    end: str


def counts_endpoints(directory: Directory) -> list[Endpoint]:
    """`GET /api/counts`."""
    known: MutableMapping[_Span, _Sum | None] = LRUCache(_REMEMBERED)
    # One at a time: what is counted twice as fast is taken from the readers.
    counting = asyncio.Lock()

    async def counts(asked: ApiRequest[CountsQuery, Nothing]) -> Counts:
        query = asked.query
        runs: list[CountedRun] = []
        stream = next((one for one in directory.at(query.stream) if names(query.etag, one.tape.incarnation)), None)
        if stream is None or stream.needs_revalidation:
            return Counts(runs)
        edition, at, size = stream.edition, query.offset, 0
        while size < MOST_BYTES and len(runs) < MOST_RUNS:
            async with counting:
                if stream.ended is not None or stream.edition != edition:
                    break
                reading = stream.tape.read(at, query.run_bytes)
                if not 0 < reading.size <= MOST_BYTES:
                    break
                span = _Span(edition, at, reading.end)
                if span in known:
                    await asyncio.sleep(0)
                else:
                    known[span] = await asyncio.to_thread(
                        _counted if stream.tape.is_json else _measured, reading.pieces
                    )
            found = known.get(span)
            if found is None:
                break
            runs.append(CountedRun(at, reading.end, *found))
            at, size = reading.end, size + reading.size
        # Made anew or called back meanwhile: what was counted is of a stream that is not there.
        return Counts(runs if stream.ended is None and stream.edition == edition else [])

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
    """None where they are not the inside of a JSON array, or too much to look at."""
    try:
        # It needs numpy, which comes with an extra.
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

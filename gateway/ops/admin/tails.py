"""Bulk tails: the tails of many streams in one answer.

A tail is the furthest offset that the origin has sent.  The tail of a followed stream (with a live request to the
origin) is current.  The tail of any other stream dates from the last contact with the origin.  A path may have several
copies, from different origins or for different partitions (readers with equal credentials).  The answer has the tail of
the copy with the latest contact, among copies with a tail.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field, with_config

from gateway.ops.admin.directory import Directory, PrefixText, TargetText, in_turns, read_prefix
from gateway.ops.admin.endpoint import API_TYPE, MOST_BODY_BYTES, ApiRequest, Endpoint, Nothing
from gateway.tape.stream import Stream

MOST_TAILS: Final = 10_000
_KEPT: Final = 2
"""After this number of pages of names is collected, all pages but the first are dropped.  Sorting after each slice
would take seconds.
"""


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class Tails:
    """Tails by path, with the query if there is one.  Null for an unknown tail."""

    tails: dict[str, str | None]
    next: str | None
    """The `after` of the next page; null on the last page."""


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class TailsQuery:
    """A page of the streams with a prefix."""

    prefix: PrefixText = ""
    """Prefix of the path."""
    limit: Annotated[int, Field(ge=1, le=MOST_TAILS)] = MOST_TAILS
    after: str = ""
    """`next` of the previous page, or a path."""


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class TailsBody:
    """The requested streams, by path and query."""

    streams: Annotated[list[TargetText], Field(max_length=MOST_TAILS)]


def tails_endpoints(directory: Directory) -> list[Endpoint]:
    """Make the endpoints `GET` and `POST /api/tails`."""

    async def page(request: ApiRequest[TailsQuery, Nothing]) -> Tails:
        query, prefix = request.query, read_prefix(request.query.prefix)
        found: dict[str, Stream] = {}
        async for streams in directory.slices():
            for stream in streams:
                name = directory.name(stream).target
                if name > query.after and name.startswith(prefix):
                    found[name] = _latest([stream, found[name]]) if name in found else stream
            if len(found) > _KEPT * query.limit:
                found = {name: found[name] for name in sorted(found)[: query.limit + 1]}
        names = sorted(found)[: query.limit + 1]
        is_last = len(names) <= query.limit
        names = names[: query.limit]
        return Tails({name: found[name].furthest for name in names}, None if is_last else names[-1])

    async def named(request: ApiRequest[Nothing, TailsBody]) -> Tails:
        tails: dict[str, str | None] = {}
        async for target in in_turns(request.body.streams):
            streams = directory.by_target(target)
            tails[target] = _latest(streams).furthest if streams else None
        return Tails(tails, None)

    return [
        Endpoint("GET", "/api/tails", "The tails of the streams held", page, Tails, TailsQuery),
        Endpoint(
            "POST",
            "/api/tails",
            "The tails of the named streams",
            named,
            Tails,
            body=TailsBody,
            most_bytes=MOST_BODY_BYTES,
        ),
    ]


def _latest(streams: Iterable[Stream]) -> Stream:
    """Return the copy with the latest contact with its origin.  Among several such copies, return the copy with the
    greatest tail.

    A copy without a tail comes last, because its readers may not even be allowed to read.
    """
    return max(streams, key=lambda stream: (stream.furthest is not None, stream.contacted_at, stream.furthest or ""))

"""Purging by stream, by prefix, or by surrogate key; soft keeps the bytes and has the origin looked at first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, with_config

from gateway.ops.admin.directory import Directory, read_target
from gateway.ops.admin.endpoint import SHOWN, Asked, Endpoint, Nothing, Refused
from gateway.ops.admin.subject import Subject
from gateway.tape.stream import Stream

_Text = Annotated[str, Field(min_length=1, max_length=8_192)]


@with_config(SHOWN)
@dataclass(frozen=True, slots=True)
class PurgeBody:
    """One of `stream`, `prefix` and `key`."""

    stream: _Text | None = None
    """The path as the origin is asked for it; every query of it, and every partition, unless it has a query."""
    prefix: _Text | None = None
    """What the path begins with."""
    key: _Text | None = None
    """A key of the origin's `Surrogate-Key` or `Cache-Tag`."""
    soft: bool = False
    """Keep the bytes, and look at the origin before the next hit."""


@with_config(SHOWN)
@dataclass(frozen=True, slots=True)
class Purged:
    """How many streams were concerned."""

    purged: int


def purge_endpoints(subject: Subject, directory: Directory) -> list[Endpoint]:
    """`POST /api/purge`."""
    engine = subject.engine

    async def purge(asked: Asked[Nothing, PurgeBody]) -> Purged:
        body = asked.body
        act = engine.purge.doubt if body.soft else engine.purge.drop

        def purged(streams: list[Stream]) -> int:
            return sum([act(stream) for stream in streams])

        match body:
            case PurgeBody(stream=str(target), prefix=None, key=None):
                path, query = read_target(target)
                return Purged(purged(directory.at(target) if query else directory.on(path)))
            case PurgeBody(stream=None, prefix=str(prefix), key=None):
                # Not in the one spelling of keys: where a prefix ends inside an escape it has none.
                if not prefix.startswith("/"):
                    raise Refused(422, "prefix: a path begins with a slash")
                count = 0
                async for streams in directory.slices():
                    count += purged([one for one in streams if one.key.group.path.startswith(prefix)])
                return Purged(count)
            case PurgeBody(stream=None, prefix=None, key=str(key)):
                return Purged(purged(engine.library.tagged(key)))
        raise Refused(422, "name one of stream, prefix and key")

    return [Endpoint("POST", "/api/purge", "Drop streams, or doubt them (soft)", purge, Purged, body=PurgeBody)]

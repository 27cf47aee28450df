"""Purging by stream, by prefix, or by surrogate key; soft keeps the bytes and has the origin looked at first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, with_config

from gateway.ops.admin.directory import Directory, TargetText, read_target
from gateway.ops.admin.endpoint import SHOWN, Asked, Endpoint, Nothing
from gateway.ops.admin.subject import Subject
from gateway.tape.stream import Stream


@with_config(SHOWN)
@dataclass(frozen=True, slots=True)
class PurgeStream:
    """One path, with everybody's streams of it."""

    stream: TargetText
    """The path as the origin is asked for it; without a query it is every query of it."""
    soft: bool = False
    """Keep the bytes, and look at the origin before the next hit."""


@with_config(SHOWN)
@dataclass(frozen=True, slots=True)
class PurgePrefix:
    """Every path that begins so."""

    prefix: Annotated[str, Field(max_length=8_192, pattern="^/")]
    """Not only in whole segments."""
    soft: bool = False
    """Keep the bytes, and look at the origin before the next hit."""


@with_config(SHOWN)
@dataclass(frozen=True, slots=True)
class PurgeKey:
    """Everything that the origin put into a group."""

    key: Annotated[str, Field(min_length=1, max_length=8_192)]
    """A key of the origin's `Surrogate-Key` or `Cache-Tag`."""
    soft: bool = False
    """Keep the bytes, and look at the origin before the next hit."""


PurgeBody = PurgeStream | PurgePrefix | PurgeKey


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
            case PurgeStream(target):
                path, query = read_target(target)
                return Purged(purged(directory.at(target) if query else directory.on(path)))
            case PurgePrefix(prefix):
                count = 0
                async for streams in directory.slices():
                    count += purged([one for one in streams if one.key.group.path.startswith(prefix)])
                return Purged(count)
            case PurgeKey(key):
                return Purged(purged(engine.library.tagged(key)))

    return [
        Endpoint(
            "POST",
            "/api/purge",
            "Drop streams, or doubt them (soft)",
            purge,
            Purged,
            body=PurgeBody,
            expects="one of stream, prefix and key, and soft where that is wanted",
        )
    ]

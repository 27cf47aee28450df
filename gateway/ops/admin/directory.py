"""The streams as the admin port names them, and the ways to find one.

An `id` is made of what tells streams apart and stays the same when the stream is made anew, so a page may keep it.  The
partition in it is the one that the access log names: what readers showed as credentials can be neither read nor guessed
from it.

A tape store may hold a hundred thousand streams and its loop has clients to serve, so whoever goes through all of them
does it in slices, with a turn for everybody else between any two.
"""

from __future__ import annotations

import asyncio
import base64
from binascii import Error as NotBase64
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Annotated, Final, NamedTuple, TypeVar

import orjson
from pydantic import Field

from gateway.engine.core import Engine
from gateway.ops.admin.endpoint import Refused
from gateway.ops.partition_ids import PartitionIds
from gateway.protocol.target import BadTarget, parse_target
from gateway.tape.stream import Group, Stream

_SLICE: Final = 500
"""Streams in one turn: 5 ms at most, on a small core."""

TargetText = Annotated[
    str,
    Field(
        max_length=8_192,
        pattern=r"^/(?:[^\x00-\x20\x7f#%?]|%(?:[2-689A-Fa-f][0-9A-Fa-f]|7[0-9A-Ea-e]))*"
        r"(?:\?(?:[^\x00-\x20\x7f#%]|%[0-9A-Fa-f]{2})*)?$",
    ),
]
"""A path as the origin is asked for it and, where there is one, a query."""

PrefixText = Annotated[
    str,
    Field(max_length=8_192, pattern=r"^(?:/(?:[^\x00-\x20\x7f#%?]|%(?:[2-689A-Fa-f][0-9A-Fa-f]|7[0-9A-Ea-e]))*)?$"),
]
"""What a path begins with, in any of its spellings; empty for all."""

T = TypeVar("T")


class Name(NamedTuple):
    """What tells one stream from another, in the order in which they are listed."""

    path: str
    query: str
    origin: str
    partition: str
    """Who shares it, by an id that does not lead back to what they showed."""

    @property
    def cursor(self) -> str:
        """The name as one line, for `after`; none of its parts holds a space."""
        return " ".join(self)

    @property
    def target(self) -> str:
        """Path and query as the origin is asked for them."""
        return f"{self.path}?{self.query}" if self.query else self.path


class Directory:
    """Finds streams."""

    def __init__(self, engine: Engine, partitions: PartitionIds) -> None:
        self._engine = engine
        self._partitions = partitions

    def name(self, stream: Stream) -> Name:
        """The stream's name."""
        key = stream.key
        return Name(key.group.path, key.query, key.group.origin, self._partitions.of(key.partition))

    async def slices(self) -> AsyncIterator[Sequence[Stream]]:
        """Every stream of a path that was held when this began, as long as it is."""
        found: list[Stream] = []
        for group in self._engine.store.groups():
            for stream in list(group.values()):
                if stream.ended is None:
                    found.append(stream)
                if len(found) == _SLICE:
                    yield found
                    found = []
                    await asyncio.sleep(0)
        yield found

    async def find(self, id_: str) -> Stream:
        """The stream of an id; Refused (404) where there is none."""
        name = name_of(id_)
        if name is not None:
            async for stream in in_turns(self._engine.store.group(Group(name.origin, name.path))):
                if stream.key.query == name.query and self.name(stream) == name and stream.ended is None:
                    return stream
        raise Refused(404, "no such stream is held")

    def at(self, target: str, origin: str | None = None) -> list[Stream]:
        """Every stream of a path and query, of all partitions and of all origins or one; Refused (422) where it is
        none."""
        path, query = read_target(target)
        return [stream for stream in self.on(path, origin) if stream.key.query == query]

    def on(self, path: str, origin: str | None = None) -> list[Stream]:
        """Every stream of a path, of all queries and partitions and of all origins or one."""
        store = self._engine.store
        origins = store.origins if origin is None else [origin]
        return [stream for one in origins for stream in store.group(Group(one, path))]


async def in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """The items, with a turn of the loop for everybody else after so many of them."""
    for number, item in enumerate(items, 1):
        yield item
        if number % _SLICE == 0:
            await asyncio.sleep(0)


def named_by(cursor: str) -> Name:
    """The name of a cursor.  Any text is one, so that a path alone leads to what comes after it."""
    parts = [*cursor.split(" ", 3), "", "", ""]
    return Name(*parts[:4])


def id_of(name: Name) -> str:
    """The id of a name: fit for a path as it stands."""
    return base64.urlsafe_b64encode(orjson.dumps(list(name))).rstrip(b"=").decode()


def name_of(id_: str) -> Name | None:
    """The name of an id, None where it is none."""
    try:
        parts = orjson.loads(base64.b64decode(id_ + "=" * (-len(id_) % 4), b"-_", validate=True))
    except (NotBase64, ValueError):
        return None
    if isinstance(parts, list) and len(parts) == len(Name._fields) and all(isinstance(part, str) for part in parts):
        return Name(*parts)
    return None


def read_prefix(text: str) -> str:
    """What a path begins with, in the one spelling that keys have; Refused (422) with what is wrong."""
    if not text:
        return ""
    try:
        # Its last segment may go on: two dots at the end are no segment yet.
        return parse_target(text + "x").path[:-1]
    except BadTarget as error:
        raise Refused(422, str(error)) from None


def read_target(text: str) -> tuple[str, str]:
    """Path and query of a stream in the one spelling that keys have; Refused (422) with what is wrong."""
    try:
        target = parse_target(text)
    except BadTarget as error:
        raise Refused(422, str(error)) from None
    if (target.offset, target.live, target.cursor) != (None, None, None):
        raise Refused(422, "offset, live and cursor are no part of a stream's name")
    return target.path, target.query

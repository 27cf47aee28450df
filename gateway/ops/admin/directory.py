"""Names, ids and look-up of streams for the admin port.

An `id` encodes a stream's name and stays the same when the stream is re-created, so a page may keep the id.  The id
contains the same partition id (the id of readers with equal credentials) as the access log.  The readers' credentials
can be neither read nor guessed from the id.

The gateway may hold a hundred thousand streams in memory, and the event loop has to serve clients.  A walk over all
streams is therefore made in slices, with turns of the loop between them.
"""

from __future__ import annotations

import asyncio
import base64
from binascii import Error as NotBase64
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Annotated, Final, NamedTuple, TypeVar

import orjson
from pydantic import Field

from gateway.disk.runs import StoredStream
from gateway.engine.core import Engine
from gateway.ops.admin.endpoint import Refused
from gateway.ops.partition_ids import PartitionIds
from gateway.protocol.sharing import Group, Partition
from gateway.protocol.target import BadTarget, parse_target, unescaped_delimiters
from gateway.tape.record_stream import RecordStream
from gateway.tape.stream import Stream

_SLICE: Final = 500
"""Streams visited in one turn of the loop, in at most 5 ms on a small core."""

TargetText = Annotated[
    str,
    Field(
        max_length=8_192,
        pattern=r"^/(?:[^\x00-\x20\x7f#%?]|%(?:[2-689A-Fa-f][0-9A-Fa-f]|7[0-9A-Ea-e]))*"
        r"(?:\?(?:[^\x00-\x20\x7f#%]|%[0-9A-Fa-f]{2})*)?$",
    ),
]
"""A path as requested from the origin, with an optional query."""

PrefixText = Annotated[
    str,
    Field(max_length=8_192, pattern=r"^(?:/(?:[^\x00-\x20\x7f#%?]|%(?:[2-689A-Fa-f][0-9A-Fa-f]|7[0-9A-Ea-e]))*)?$"),
]
"""A prefix of paths, in any spelling.  Empty for all paths."""

T = TypeVar("T")


class Name(NamedTuple):
    """A stream's key.  Streams are listed in the order of their names."""

    path: str
    query: str
    origin: str
    partition: str
    """The id of the readers that share the stream, from which their credentials cannot be recovered."""

    @property
    def cursor(self) -> str:
        """The name as one line, for the parameter `after` of a list.  No part of the name contains a space."""
        return " ".join(self)

    @property
    def target(self) -> str:
        """The path and query as requested from the origin."""
        return f"{self.path}?{self.query}" if self.query else self.path


class Directory:
    """Finds streams by id, path and query."""

    def __init__(self, engine: Engine, partitions: PartitionIds) -> None:
        self._engine = engine
        self._partitions = partitions

    def name(self, stream: Stream) -> Name:
        """Return the stream's name."""
        key = stream.key
        return Name(key.group.path, key.query, key.group.origin, self._partitions.of(key.partition))

    def stored_name(self, stored: StoredStream, partition: Partition) -> Name:
        """Return the name of a stream on disk, whose readers are of this partition."""
        key = stored.key
        return Name(key.path, key.query, key.origin, self._partitions.of(partition))

    async def slices(self) -> AsyncIterator[Sequence[Stream]]:
        """Yield slices of all streams that were in memory when the walk began and are still in memory."""
        found: list[Stream] = []
        for group in self._engine.store.paths.groups():
            for stream in list(group.values()):
                if stream.ended is None:
                    found.append(stream)
                if len(found) == _SLICE:
                    yield found
                    found = []
                    await asyncio.sleep(0)
        yield found

    async def find(self, id_: str) -> Stream:
        """Find a stream by its id.  Raises Refused (404) without such a stream."""
        name = name_of_id(id_)
        if name is not None:
            async for stream in in_turns(self._engine.store.group(Group(name.origin, name.path))):
                if stream.key.query == name.query and self.name(stream) == name and stream.ended is None:
                    return stream
        raise Refused(404, "no such stream is held")

    def by_target(self, target: str, origin: str | None = None) -> list[Stream]:
        """Return all streams with this path and query, in all partitions, of one origin or of all origins.

        Raises Refused (422) if `target` is not a path and query.
        """
        path, query = read_target(target)
        return [stream for stream in self.by_path(path, origin) if stream.key.query == query]

    def by_path(self, path: str, origin: str | None = None) -> list[Stream]:
        """Return all streams with this path, with any query, in all partitions, of one origin or of all origins.

        S2 streams are stored under one spelling of their names.
        """
        store, spelled = self._engine.store, unescaped_delimiters(path)
        origins = store.paths.origins() if origin is None else [origin]
        found = [stream for one in origins for stream in store.group(Group(one, path))]
        if spelled != path:
            streams = (stream for one in origins for stream in store.group(Group(one, spelled)))
            found += (stream for stream in streams if isinstance(stream, RecordStream))
        return found


async def in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the items, with a turn of the loop after each slice."""
    for number, item in enumerate(items, 1):
        yield item
        if number % _SLICE == 0:
            await asyncio.sleep(0)


def name_of_cursor(cursor: str) -> Name:
    """Return the name that a cursor represents.  Any text is a valid cursor.  A path, for example, represents the
    position just after this path.
    """
    parts = [*cursor.split(" ", 3), "", "", ""]
    return Name(*parts[:4])


def id_of(name: Name) -> str:
    """Return the id of a name, which needs no escaping in a path."""
    return base64.urlsafe_b64encode(orjson.dumps(list(name))).rstrip(b"=").decode()


def name_of_id(id_: str) -> Name | None:
    """Return the name that an id represents.  None if the text is no id."""
    try:
        parts = orjson.loads(base64.b64decode(id_ + "=" * (-len(id_) % 4), b"-_", validate=True))
    except (NotBase64, ValueError):
        return None
    if isinstance(parts, list) and len(parts) == len(Name._fields) and all(isinstance(part, str) for part in parts):
        return Name(*parts)
    return None


def read_prefix(text: str) -> str:
    """Return the prefix in the canonical spelling of paths.  Raises Refused (422) with the reason if the prefix has no
    such spelling.
    """
    if not text:
        return ""
    try:
        # The last segment may be incomplete, so two dots at the end are not a parent segment.
        return parse_target(text + "x").path[:-1]
    except BadTarget as error:
        raise Refused(422, str(error)) from None


def read_target(text: str) -> tuple[str, str]:
    """Return the path and the query of a stream in their canonical spelling.  Raises Refused (422) with the reason."""
    try:
        target = parse_target(text)
    except BadTarget as error:
        raise Refused(422, str(error)) from None
    if (target.offset, target.live, target.cursor) != (None, None, None):
        raise Refused(422, "offset, live and cursor are not part of a stream's name")
    return target.path, target.query

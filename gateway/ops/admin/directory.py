"""Names, ids and lookup of streams for the admin port.

An `id` encodes what identifies a stream and stays the same when the stream is re-created, so a page may keep it.  The
partition in it is the one that the access log names: the readers' credentials can be neither read nor guessed from it.

A tape store may hold a hundred thousand streams and its loop serves clients, so a walk over all streams goes in slices
and yields to the loop between them.
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
from gateway.protocol.sharing import Group
from gateway.protocol.target import BadTarget, parse_target, unescaped_delimiters
from gateway.tape.record_stream import RecordStream
from gateway.tape.stream import Stream

_SLICE: Final = 500
"""Streams looked at before yielding to the loop: 5 ms at most on a small core."""

TargetText = Annotated[
    str,
    Field(
        max_length=8_192,
        pattern=r"^/(?:[^\x00-\x20\x7f#%?]|%(?:[2-689A-Fa-f][0-9A-Fa-f]|7[0-9A-Ea-e]))*"
        r"(?:\?(?:[^\x00-\x20\x7f#%]|%[0-9A-Fa-f]{2})*)?$",
    ),
]
"""A path as it is requested from the origin, with an optional query."""

PrefixText = Annotated[
    str,
    Field(max_length=8_192, pattern=r"^(?:/(?:[^\x00-\x20\x7f#%?]|%(?:[2-689A-Fa-f][0-9A-Fa-f]|7[0-9A-Ea-e]))*)?$"),
]
"""A prefix of paths, in any spelling; empty for all."""

T = TypeVar("T")


class Name(NamedTuple):
    """The key of a stream, in the order in which streams are listed."""

    path: str
    query: str
    origin: str
    partition: str
    """Id of the readers who share the stream; their credentials cannot be recovered from it."""

    @property
    def cursor(self) -> str:
        """The name as one line, for `after`; none of its parts holds a space."""
        return " ".join(self)

    @property
    def target(self) -> str:
        """Path and query as they are requested from the origin."""
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
        """All streams held when the walk began and still held, in slices."""
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
        """The stream of an id; Refused (404) if there is none."""
        name = name_of_id(id_)
        if name is not None:
            async for stream in in_turns(self._engine.store.group(Group(name.origin, name.path))):
                if stream.key.query == name.query and self.name(stream) == name and stream.ended is None:
                    return stream
        raise Refused(404, "no such stream is held")

    def by_target(self, target: str, origin: str | None = None) -> list[Stream]:
        """Every stream of a path and query, of all partitions, and of all origins or one.

        Refused (422) if `target` is not a path and query.
        """
        path, query = read_target(target)
        return [stream for stream in self.by_path(path, origin) if stream.key.query == query]

    def by_path(self, path: str, origin: str | None = None) -> list[Stream]:
        """Every stream of a path, of all queries and partitions, and of all origins or one.

        S2 streams are held by one spelling of their names.
        """
        store, spelled = self._engine.store, unescaped_delimiters(path)
        origins = store.origins() if origin is None else [origin]
        found = [stream for one in origins for stream in store.group(Group(one, path))]
        if spelled != path:
            streams = (stream for one in origins for stream in store.group(Group(one, spelled)))
            found += (stream for stream in streams if isinstance(stream, RecordStream))
        return found


async def in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """The items, yielding to the loop after each slice of them."""
    for number, item in enumerate(items, 1):
        yield item
        if number % _SLICE == 0:
            await asyncio.sleep(0)


def name_of_cursor(cursor: str) -> Name:
    """The name of a cursor.  Any text is a cursor, so a path alone stands for the streams that follow it."""
    parts = [*cursor.split(" ", 3), "", "", ""]
    return Name(*parts[:4])


def id_of(name: Name) -> str:
    """The id of a name, safe in a path without escaping."""
    return base64.urlsafe_b64encode(orjson.dumps(list(name))).rstrip(b"=").decode()


def name_of_id(id_: str) -> Name | None:
    """The name of an id; None if the text is not an id."""
    try:
        parts = orjson.loads(base64.b64decode(id_ + "=" * (-len(id_) % 4), b"-_", validate=True))
    except (NotBase64, ValueError):
        return None
    if isinstance(parts, list) and len(parts) == len(Name._fields) and all(isinstance(part, str) for part in parts):
        return Name(*parts)
    return None


def read_prefix(text: str) -> str:
    """A prefix of paths in the canonical spelling of keys; Refused (422) with the reason if it has none."""
    if not text:
        return ""
    try:
        # The last segment may continue: two dots at the end are not a segment yet.
        return parse_target(text + "x").path[:-1]
    except BadTarget as error:
        raise Refused(422, str(error)) from None


def read_target(text: str) -> tuple[str, str]:
    """Path and query of a stream in the canonical spelling of keys; Refused (422) with the reason."""
    try:
        target = parse_target(text)
    except BadTarget as error:
        raise Refused(422, str(error)) from None
    if (target.offset, target.live, target.cursor) != (None, None, None):
        raise Refused(422, "offset, live and cursor are not part of a stream's name")
    return target.path, target.query

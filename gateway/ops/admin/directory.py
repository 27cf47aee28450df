"""The streams as the admin port names them, and the ways to find one.

An `id` is made of what tells streams apart and stays the same when the stream is made anew, so a page may keep it.  The
partition in it is the one that the access log names: what readers showed as credentials can be neither read nor guessed
from it.

A library may hold a hundred thousand streams and its loop has clients to serve, so whoever goes through all of them
does it in slices, with a turn for everybody else between any two.
"""

from __future__ import annotations

import asyncio
import base64
from binascii import Error as NotBase64
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Final, NamedTuple

import orjson
from pydantic import Field

from gateway.engine.core import Engine
from gateway.engine.route import RouteTable
from gateway.ops.admin.endpoint import Refused
from gateway.ops.partition_ids import PartitionIds
from gateway.protocol.target import BadTarget, parse_target
from gateway.tape.stream import Group, Stream

_SLICE: Final = 500
"""Groups in one turn: 5 ms at most, on a small core."""

TargetText = Annotated[
    str,
    Field(
        max_length=8_192,
        pattern=r"^/(?:[^\x00-\x20\x7f#%?]|%(?:[2-689A-Fa-f][0-9A-Fa-f]|7[0-9A-Ea-e]))*"
        r"(?:\?(?:[^\x00-\x20\x7f#%]|%[0-9A-Fa-f]{2})*)?$",
    ),
]
"""A path as the origin is asked for it and, where there is one, a query."""


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

    def __init__(self, engine: Engine, routes: RouteTable, partitions: PartitionIds) -> None:
        self._engine = engine
        self._routes = routes
        self._partitions = partitions

    def name(self, stream: Stream) -> Name:
        """The stream's name."""
        key = stream.key
        return Name(key.group.path, key.query, key.group.origin, self._partitions.of(key.partition))

    async def slices(self) -> AsyncIterator[Sequence[Stream]]:
        """Every stream of a path that was held when this began, as long as it is."""
        groups = self._engine.library.groups()
        for first in range(0, len(groups), _SLICE):
            yield [stream for group in groups[first : first + _SLICE] for stream in group.values()]
            await asyncio.sleep(0)

    def find(self, id_: str) -> Stream:
        """The stream of an id; Refused (404) where there is none."""
        name = name_of(id_)
        if name is not None:
            for stream in self._engine.library.group(Group(name.origin, name.path)):
                if self.name(stream) == name:
                    return stream
        raise Refused(404, "no such stream is held")

    def at(self, target: str) -> list[Stream]:
        """Every stream of a path and query, of all origins and partitions; Refused (422) where it is none."""
        path, query = read_target(target)
        return [stream for stream in self.on(path) if stream.key.query == query]

    def on(self, path: str) -> list[Stream]:
        """Every stream of a path, of all origins, queries and partitions."""
        origins = {route.authority for route in self._routes.routes}
        return [stream for origin in origins for stream in self._engine.library.group(Group(origin, path))]


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


def read_target(text: str) -> tuple[str, str]:
    """Path and query of a stream in the one spelling that keys have; Refused (422) with what is wrong."""
    try:
        target = parse_target(text)
    except BadTarget as error:
        raise Refused(422, str(error)) from None
    if (target.offset, target.live, target.cursor) != (None, None, None):
        raise Refused(422, "offset, live and cursor are no part of a stream's name")
    return target.path, target.query

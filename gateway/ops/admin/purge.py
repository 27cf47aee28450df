"""Purges streams by path, prefix, surrogate key or id, or all of them.  A soft purge keeps the bytes, but they are
revalidated before the next hit.

An empty selector is refused, because it usually comes from a variable that was never set.  This module selects the
streams, and `gateway.engine.path_events` purges them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from typing import Annotated, Final, Literal

from pydantic import Field, with_config

from gateway.disk.runs import StoredStream
from gateway.engine.core import Engine
from gateway.ops.admin.directory import (
    Directory,
    Name,
    PrefixText,
    TargetText,
    in_turns,
    name_of_id,
    read_prefix,
    read_target,
)
from gateway.ops.admin.endpoint import API_TYPE, ApiRequest, Endpoint, MemberOutcome, Nothing, Refused
from gateway.ops.admin.subject import Subject
from gateway.protocol.sharing import StreamKey
from gateway.tape.stream import Stream
from gateway.telemetry.audit import shortened


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class PurgeStream:
    """Select the streams of one path, of every partition (readers with equal credentials)."""

    stream: TargetText
    """The path as requested from the origin.  Without a query, it selects every query of the path."""
    origin: Annotated[str, Field(max_length=8_192)] | None = None
    """Select only streams of this origin, as `/api/streams` names it."""
    soft: bool = False
    """Keep the bytes, and revalidate with the origin before the next hit."""


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class PurgePrefix:
    """Select every path with this prefix."""

    prefix: Annotated[PrefixText, Field(json_schema_extra={"minLength": 2})]
    """The prefix may end within a segment.  An empty prefix and `/` are refused; use `all` for every stream."""
    soft: bool = False
    """Keep the bytes, and revalidate with the origin before the next hit."""


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class PurgeKey:
    """Select every stream that the origin has tagged with a key."""

    key: Annotated[str, Field(min_length=1, max_length=8_192)]
    """A key of the origin's `Surrogate-Key` or `Cache-Tag`."""
    soft: bool = False
    """Keep the bytes, and revalidate with the origin before the next hit."""


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class PurgeId:
    """Select one stream of one partition of readers."""

    id: Annotated[str, Field(min_length=1, max_length=32_768)]
    """The stream's id in `/api/streams`.  If there is no such stream, nothing is purged."""
    soft: bool = False
    """Keep the bytes, and revalidate with the origin before the next hit."""


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class PurgeAll:
    """Select every stream."""

    all: Literal[True]
    soft: bool = False
    """Keep the bytes, and revalidate with the origin before the next hit."""


_NOT_ON_DISK: Final = (
    "the streams are purged, but the store on disk has not recorded it: after a crash they might be there again; "
    "send the request again until it succeeds"
)

PurgeBody = PurgeStream | PurgePrefix | PurgeKey | PurgeId | PurgeAll


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class Purged:
    """The number of purged streams."""

    purged: int


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class PurgedOverFleet:
    """The answer of a member of a fleet."""

    purged: int
    """The number of streams that this member has purged."""
    members: list[MemberOutcome]
    """The other members of the fleet, and this one if another worker of it has not confirmed, or if
    it has not found the others yet."""


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class PurgedOverRedis:
    """The answer of a member of a fleet with Redis."""

    purged: int
    """The number of streams that this member has purged."""
    members: list[MemberOutcome]
    """The other members of the fleet, and this one if another worker of it has not confirmed, or if
    it has not found the others yet."""
    in_redis: bool
    """Whether Redis has the purge. If not, this member adds it once Redis can be used again."""


class Purger:
    """Selects streams, and purges them."""

    def __init__(self, engine: Engine, directory: Directory) -> None:
        self._engine = engine
        self._directory = directory

    def __repr__(self) -> str:
        return f"<Purger {self._directory!r}>"

    async def purge(self, body: PurgeBody) -> list[Name]:
        """Purge the selected streams, or mark them for revalidation.  Return their names.  Raises Refused."""
        disk = self._engine.disk
        before = () if disk is None else tuple(disk.streams())
        try:
            names = await self._purge_memory(body)
        except Refused:
            # The request selects no streams, neither in memory nor on disk.
            self._note_purge()
            raise
        # A soft purge need not change streams that are only on disk, because these are always revalidated.
        if self._engine.has_disk and not body.soft:
            names += await self._purge_disk(body, before, set(names))
        return names

    async def _purge_disk(self, body: PurgeBody, before: Collection[StoredStream], purged: set[Name]) -> list[Name]:
        """Drop the selected streams that are on disk, and wait until that will outlast a restart.  Raises Refused if
        the disk does not take it.

        `before` are the streams that were on disk when the purge began, and `purged` are the names of the streams that
        it has dropped from memory.  Meanwhile, reads may have brought other streams from disk to memory, where they
        stay even if the disk drops them.  So such a stream is dropped from both.
        """
        names: list[Name] = []
        disk, worker_store = self._engine.disk, self._engine.worker_store
        if disk is not None:
            left = (one for one in before if one.is_withdrawn)
            async for stored in in_turns(chain(left, disk.streams())):
                partition = disk.partition_of(stored)
                name = self._directory.stored_name(stored, partition)
                if not _is_selected(body, stored, name):
                    continue
                is_dropped = disk.drop(stored)
                if is_dropped or name not in purged:
                    stream = self._engine.store.find(StreamKey(stored.group, stored.key.query, partition))
                    is_dropped |= stream is not None and self._engine.purge.drop_stream(stream)
                if is_dropped and name not in purged:
                    purged.add(name)
                    names.append(name)
        self._note_purge()
        is_marked = worker_store is None or await worker_store.mark_absent()
        if not is_marked or (disk is not None and not await disk.settled()):
            raise Refused(503, _NOT_ON_DISK, {"Retry-After": "1"})
        return names

    def _note_purge(self) -> None:
        if (worker_store := self._engine.worker_store) is not None:
            worker_store.purged()

    async def _purge_memory(self, body: PurgeBody) -> list[Name]:
        act = self._engine.purge.revalidate if body.soft else self._engine.purge.drop_stream
        directory, name = self._directory, self._directory.name

        async def purged(streams: list[Stream]) -> list[Name]:
            return [name(stream) async for stream in in_turns(streams) if act(stream)]

        async def below(prefix: str) -> list[Name]:
            names: list[Name] = []
            async for streams in directory.slices():
                names += [name(one) for one in streams if one.key.group.path.startswith(prefix) and act(one)]
            return names

        match body:
            case PurgeStream(target, origin):
                path, query = read_target(target)
                return await purged(directory.by_target(target, origin) if query else directory.by_path(path, origin))
            case PurgePrefix(text):
                prefix = read_prefix(text)
                if prefix in ("", "/"):
                    raise Refused(422, f"prefix: {text or 'an empty one'} is every stream: send all")
                return await below(prefix)
            case PurgeAll():
                return await below("/")
            case PurgeKey(key):
                return await purged(self._engine.store.tagged(key))
            case PurgeId(id_):
                try:
                    return await purged([await directory.find(id_)])
                except Refused:
                    return []


def _is_selected(body: PurgeBody, stored: StoredStream, name: Name) -> bool:
    """Return whether a purge selects a stream on disk."""
    match body:
        case PurgeStream(target, origin):
            path, query = read_target(target)
            return name.path == path and origin in (None, name.origin) and query in ("", name.query)
        case PurgePrefix(text):
            return name.path.startswith(read_prefix(text))
        case PurgeAll():
            return True
        case PurgeKey(key):
            return key in stored.facts.surrogate_keys
        case PurgeId(id_):
            return name == name_of_id(id_)


def name_hash(name: Name) -> int:
    """Return a hash of a stream's name.  The hash is the same at all workers."""
    text = " ".join(name).encode("utf-8", "surrogateescape")
    return int.from_bytes(blake2b(text, digest_size=7).digest())


def purge_endpoints(subject: Subject, directory: Directory) -> list[Endpoint]:
    """Make the endpoint `POST /api/purge`."""
    purger = Purger(subject.engine, directory)

    async def purge(request: ApiRequest[Nothing, PurgeBody]) -> Purged:
        purged = await purger.purge(request.body)
        subject.metrics.operations.purge(is_soft=request.body.soft)
        return Purged(len(purged))

    return [
        Endpoint(
            "POST",
            "/api/purge",
            "Purge streams, or mark them for revalidation (soft)",
            purge,
            Purged | PurgedOverFleet | PurgedOverRedis,
            body=PurgeBody,
            audited=_audited,
            expects="one of stream, prefix, key, id and all, with or without soft",
            refusals={503: "The store on disk has not recorded the purge. Send it again until it succeeds."},
        )
    ]


def _audited(body: PurgeBody, done: Purged | PurgedOverFleet | PurgedOverRedis) -> str:
    """Return the selection and the number of streams, for the audit log."""
    return f"{'marked stale' if body.soft else 'purged'} {shortened(_selection(body))}: {done.purged}"


def _selection(body: PurgeBody) -> str:
    match body:
        case PurgeStream(target):
            return f"stream {_without_query(target)}"
        case PurgePrefix(prefix):
            return f"prefix {prefix}"
        case PurgeKey(key):
            return f"key {key}"
        case PurgeId(id_):
            name = name_of_id(id_)
            return f"stream {_without_query(name.target)}" if name is not None else "no stream: the id is none"
        case PurgeAll():
            return "every stream"


def _without_query(target: str) -> str:
    path, mark, _ = target.partition("?")
    return f"{path}?…" if mark else path

"""All streams of one in-memory origin.

The store owns every stream.  It is synchronous, so nothing can happen between a decision and its effect.  `now` (Unix
seconds) is an argument, because the protocol defines both kinds of expiry by wall-clock time.  Streams expire lazily,
at the next access.

A stream with forks that is deleted, or expires, is only hidden (soft delete).  Reads are answered with 410, and the
path stays in use until the last fork is gone.  Forks have copies of the list of records, so a read never follows a
chain of streams.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.origin.positions import Position, parse_token
from gateway.origin.producers import Claim
from gateway.origin.refusals import (
    BadOffset,
    BadRequest,
    Conflict,
    DifferentConfiguration,
    Gone,
    InvalidBody,
    NotFound,
    PathHeld,
    SequenceConflict,
    StreamClosed,
    Trimmed,
    TypeMismatch,
)
from gateway.origin.streams import Fork, Lifetime, Stream
from gateway.protocol import names


@dataclass(frozen=True, slots=True)
class ForkParams:
    """The fork headers of a PUT: source path, offset token (None: the source's tail), sub-offset."""

    source: str
    offset: str | None = None
    sub_offset: int = 0


@dataclass(frozen=True, slots=True)
class CreateParams:
    """The parameters of a PUT.

    `content_type` None means the source's type for a fork, else the protocol's default.
    """

    content_type: str | None = None
    lifetime: Lifetime = field(default_factory=Lifetime)
    is_closed: bool = False
    fork: ForkParams | None = None
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class AppendParams:
    """The parameters of a POST.  An empty body only closes the stream."""

    body: bytes = b""
    content_type: str | None = None
    close: bool = False
    seq: str | None = None
    claim: Claim | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """The result of a write: the end of the stream, and facts to report to the producer."""

    tail: Position
    is_closed: bool
    is_duplicate: bool = False
    highest_seq: int | None = None


class Store:
    """Streams by path."""

    def __init__(self, new_instance: Callable[[], str] = lambda: secrets.token_hex(6)) -> None:
        self._streams: dict[str, Stream] = {}
        self._new_instance = new_instance

    def __repr__(self) -> str:
        return f"<Store {len(self._streams)} streams>"

    def __len__(self) -> int:
        """The number of streams, with soft-deleted streams, and with expired streams that were not accessed since."""
        return len(self._streams)

    def paths(self) -> list[str]:
        """Return every path in use."""
        return list(self._streams)

    # -- reading

    def get(self, path: str, now: float) -> Stream:
        """Return the stream at a path, without renewing its lifetime.  Raises NotFound, Gone."""
        stream = self._find(path, now)
        if stream is None:
            raise NotFound
        if stream.is_soft_deleted:
            raise Gone
        return stream

    def _find(self, path: str, now: float) -> Stream | None:
        stream = self._streams.get(path)
        if stream is not None and not stream.is_soft_deleted and stream.is_expired(now):
            self._remove(stream)
            stream = self._streams.get(path)
        return stream

    # -- creating

    def create(self, path: str, params: CreateParams, now: float) -> tuple[Stream, bool]:
        """Create a stream unless it exists; return it, and whether it is new.

        Raises DifferentConfiguration, PathHeld, InvalidBody; for forks also NotFound, BadRequest and Conflict.
        """
        existing = self._find(path, now)
        if existing is not None:
            if existing.is_soft_deleted:
                raise PathHeld
            if not self._matches(existing, params):
                raise DifferentConfiguration
            return existing, False
        stream = self._new_stream(path, params, now) if params.fork is None else self._new_fork(path, params, now)
        if params.body:
            record = stream.record_of(params.body)
            if record is not None:
                stream.add(record)
        stream.is_closed = params.is_closed
        self._streams[path] = stream
        if stream.fork is not None:
            stream.fork.source.forks += 1
        return stream, True

    def _new_stream(self, path: str, params: CreateParams, now: float) -> Stream:
        return Stream(path, self._new_instance(), params.content_type or names.DEFAULT_TYPE, params.lifetime, now)

    def _new_fork(self, path: str, params: CreateParams, now: float) -> Stream:
        wanted = params.fork
        assert wanted is not None
        source = self._find(wanted.source, now)
        if source is None:
            raise NotFound("Source stream not found")
        if source.is_soft_deleted:
            raise Conflict("Source stream was deleted but still has active forks")
        if params.content_type is not None and names.media_type(params.content_type) != names.media_type(
            source.content_type
        ):
            raise Conflict("Content type mismatch with source stream")
        upto = self._fork_position(source, wanted.offset)
        prefix = None
        if wanted.sub_offset:
            prefix = source.prefix_record(upto, wanted.sub_offset)
            if prefix is None:
                raise BadRequest("Invalid fork sub-offset")
        stream = Stream(
            path,
            self._new_instance(),
            params.content_type or source.content_type,
            params.lifetime if params.lifetime.is_given else source.lifetime,
            now,
            fork=Fork(source, upto.token, wanted.sub_offset),
        )
        stream.inherit(source, upto)
        if prefix is not None:
            stream.add(prefix)
        return stream

    @staticmethod
    def _fork_position(source: Stream, offset: str | None) -> Position:
        if offset is None:
            return source.tail
        upto = parse_token(offset)
        if upto is None:
            raise BadRequest("Invalid Stream-Fork-Offset format")
        if upto > source.tail:
            raise BadRequest("Fork offset beyond source stream length")
        try:
            source.locate(upto)
        except (BadOffset, Trimmed) as error:
            raise BadRequest("Invalid Stream-Fork-Offset") from error
        return upto

    @staticmethod
    def _matches(existing: Stream, params: CreateParams) -> bool:
        """Return whether a PUT on an existing stream matches it (section 5.1)."""
        if params.is_closed != existing.is_closed:
            return False
        if params.fork is None:
            return (
                existing.fork is None
                and names.media_type(params.content_type) == names.media_type(existing.content_type)
                and params.lifetime.agrees_with(existing.lifetime)
            )
        # A PUT that repeats a fork's PUT leaves out the same headers, which therefore count as equal.
        fork = existing.fork
        return (
            fork is not None
            and params.fork.source == fork.source.path
            and params.fork.offset in (None, fork.offset)
            and params.fork.sub_offset == fork.sub_offset
            and (
                params.content_type is None
                or names.media_type(params.content_type) == names.media_type(existing.content_type)
            )
            and (not params.lifetime.is_given or params.lifetime.agrees_with(existing.lifetime))
        )

    # -- writing

    def append(self, path: str, params: AppendParams, now: float) -> Accepted:
        """Append, append and close, or only close.

        The checks are made in this order: closed, content type, producer, Stream-Seq, body (sections 5.2 and 5.2.1).
        Raises NotFound, Gone, InvalidBody, StreamClosed, TypeMismatch, SequenceConflict, StaleEpoch, SequenceGap.
        """
        stream = self.get(path, now)
        claim = params.claim
        if not params.body and not params.close:
            raise InvalidBody("Empty body")
        if stream.is_closed:
            return self._append_to_closed(stream, params, now)
        if params.body:
            if params.content_type is None:
                raise BadRequest("Content-Type header is required")
            if names.media_type(params.content_type) != names.media_type(stream.content_type):
                raise TypeMismatch
        if claim is not None:
            highest = stream.producers.judge(claim, now)
            if highest is not None:
                stream.renew(now)
                return Accepted(stream.tail, is_closed=False, is_duplicate=True, highest_seq=highest)
        if params.seq is not None and stream.last_seq is not None and params.seq <= stream.last_seq:
            raise SequenceConflict
        if params.body:
            record = stream.record_of(params.body)
            if record is None:
                raise InvalidBody("Empty arrays are not allowed")
            stream.add(record)
        # Nothing below can fail, so producer, sequence and closure change together with the bytes.
        if claim is not None:
            stream.producers.commit(claim, now)
        if params.seq is not None:
            stream.last_seq = params.seq
        if params.close:
            stream.is_closed = True
            stream.closed_by = claim
        stream.renew(now)
        stream.wake()
        return Accepted(stream.tail, stream.is_closed, highest_seq=claim.seq if claim else None)

    @staticmethod
    def _append_to_closed(stream: Stream, params: AppendParams, now: float) -> Accepted:
        claim = params.claim
        is_same_close = claim is not None and claim == stream.closed_by
        if not is_same_close and (params.body or claim is not None):
            raise StreamClosed(stream.tail.token)
        stream.renew(now)
        return Accepted(stream.tail, is_closed=True, is_duplicate=True, highest_seq=claim.seq if claim else None)

    # -- ending

    def delete(self, path: str, now: float) -> None:
        """Delete a stream, or hide it while forks need it.  Raises NotFound, Gone."""
        self._remove(self.get(path, now))

    def trim(self, path: str, before: str, now: float, *, hides_start: bool = False) -> None:
        """Drop everything before the offset token, as retention would; used by tests.

        With `hides_start`, reads from `-1` fail afterwards, as at origins that cannot name an earliest offset.  Raises
        NotFound, Gone, BadOffset.
        """
        stream = self.get(path, now)
        upto = parse_token(before)
        if upto is None or upto > stream.tail:
            raise BadOffset
        stream.trim(upto, hides_start=hides_start)

    def _remove(self, stream: Stream) -> None:
        if stream.forks:
            stream.is_soft_deleted = True
            stream.wake()
            return
        del self._streams[stream.path]
        stream.has_ended = True
        stream.wake()
        if stream.fork is not None:
            source = stream.fork.source
            source.forks -= 1
            if not source.forks and source.is_soft_deleted:
                self._remove(source)

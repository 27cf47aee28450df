"""All streams of one in-memory origin.

The store is the one owner of every stream.  It is plain and synchronous, so nothing can come between a decision and
its record; `now` (Unix seconds) is an argument, because both ways to expire are told on the wire in wall time.
Streams expire lazily, when somebody next asks for them.

Deleting or outliving a stream that has forks only hides it (soft delete): reads answer 410 and the path stays taken
until the last fork goes.  Forks hold the source's records themselves, so nothing is read through a chain.
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
class ForkOrder:
    """The fork headers of a PUT: source path, offset token (None: the source's tail), sub-offset."""

    source: str
    offset: str | None = None
    sub_offset: int = 0


@dataclass(frozen=True, slots=True)
class CreateOrder:
    """What a PUT asks for; `content_type` None means the source's for a fork, else the protocol's default."""

    content_type: str | None = None
    lifetime: Lifetime = field(default_factory=Lifetime)
    is_closed: bool = False
    fork: ForkOrder | None = None
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class AppendOrder:
    """What a POST asks for; an empty body closes."""

    body: bytes = b""
    content_type: str | None = None
    close: bool = False
    seq: str | None = None
    claim: Claim | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """A write that was taken: where the stream ends now, and what the producer is told."""

    tail: Position
    is_closed: bool
    is_duplicate: bool = False
    highest_seq: int | None = None


class Store:
    """Streams by path."""

    def __init__(self, new_instance: Callable[[], str] = lambda: secrets.token_hex(6)) -> None:
        self._streams: dict[str, Stream] = {}
        self._new_instance = new_instance

    def __len__(self) -> int:
        """Streams held, including soft-deleted ones and expired ones that nobody has asked for."""
        return len(self._streams)

    def paths(self) -> list[str]:
        """Every path that is taken."""
        return list(self._streams)

    # -- looking

    def get(self, path: str, now: float) -> Stream:
        """The stream at a path.  Raises NotFound, Gone.  Renews nothing."""
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

    def create(self, path: str, order: CreateOrder, now: float) -> tuple[Stream, bool]:
        """The stream and whether it is new.

        Raises DifferentConfiguration, PathHeld, InvalidBody; for forks also NotFound, BadRequest and Conflict.
        """
        existing = self._find(path, now)
        if existing is not None:
            if existing.is_soft_deleted:
                raise PathHeld
            if not self._matches(existing, order):
                raise DifferentConfiguration
            return existing, False
        stream = self._new_stream(path, order, now) if order.fork is None else self._new_fork(path, order, now)
        if order.body:
            record = stream.record_of(order.body)
            if record is not None:
                stream.add(record)
        stream.is_closed = order.is_closed
        self._streams[path] = stream
        if stream.fork is not None:
            stream.fork.source.forks += 1
        return stream, True

    def _new_stream(self, path: str, order: CreateOrder, now: float) -> Stream:
        return Stream(path, self._new_instance(), order.content_type or names.DEFAULT_TYPE, order.lifetime, now)

    def _new_fork(self, path: str, order: CreateOrder, now: float) -> Stream:
        wanted = order.fork
        assert wanted is not None
        source = self._find(wanted.source, now)
        if source is None:
            raise NotFound("Source stream not found")
        if source.is_soft_deleted:
            raise Conflict("Source stream was deleted but still has active forks")
        if order.content_type is not None and names.media_type(order.content_type) != names.media_type(
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
            order.content_type or source.content_type,
            order.lifetime if order.lifetime.is_given else source.lifetime,
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
    def _matches(existing: Stream, order: CreateOrder) -> bool:
        """Whether a PUT on an existing stream asks for what is there (section 5.1)."""
        if order.is_closed != existing.is_closed:
            return False
        if order.fork is None:
            return (
                existing.fork is None
                and names.media_type(order.content_type) == names.media_type(existing.content_type)
                and order.lifetime.agrees_with(existing.lifetime)
            )
        # What a fork left out it inherited or was given, so leaving it out again asks for the same.
        fork = existing.fork
        return (
            fork is not None
            and order.fork.source == fork.source.path
            and order.fork.offset in (None, fork.offset)
            and order.fork.sub_offset == fork.sub_offset
            and (
                order.content_type is None
                or names.media_type(order.content_type) == names.media_type(existing.content_type)
            )
            and (not order.lifetime.is_given or order.lifetime.agrees_with(existing.lifetime))
        )

    # -- writing

    def append(self, path: str, order: AppendOrder, now: float) -> Accepted:
        """Append, append and close, or only close.

        Precedence: closed, content type, producer, Stream-Seq, body (sections 5.2 and 5.2.1).
        Raises NotFound, Gone, InvalidBody, StreamClosed, TypeMismatch, SequenceConflict, StaleEpoch, SequenceGap.
        """
        stream = self.get(path, now)
        claim = order.claim
        if not order.body and not order.close:
            raise InvalidBody("Empty body")
        if stream.is_closed:
            return self._append_to_closed(stream, order, now)
        if order.body:
            if order.content_type is None:
                raise BadRequest("Content-Type header is required")
            if names.media_type(order.content_type) != names.media_type(stream.content_type):
                raise TypeMismatch
        if claim is not None:
            highest = stream.producers.judge(claim, now)
            if highest is not None:
                stream.renew(now)
                return Accepted(stream.tail, is_closed=False, is_duplicate=True, highest_seq=highest)
        if order.seq is not None and stream.last_seq is not None and order.seq <= stream.last_seq:
            raise SequenceConflict
        if order.body:
            record = stream.record_of(order.body)
            if record is None:
                raise InvalidBody("Empty arrays are not allowed")
            stream.add(record)
        # Nothing below can fail: producer, sequence and closure change together with the bytes or not at all.
        if claim is not None:
            stream.producers.commit(claim, now)
        if order.seq is not None:
            stream.last_seq = order.seq
        if order.close:
            stream.is_closed = True
            stream.closed_by = claim
        stream.renew(now)
        stream.wake()
        return Accepted(stream.tail, stream.is_closed, highest_seq=claim.seq if claim else None)

    @staticmethod
    def _append_to_closed(stream: Stream, order: AppendOrder, now: float) -> Accepted:
        claim = order.claim
        is_same_close = claim is not None and claim == stream.closed_by
        if not is_same_close and (order.body or claim is not None):
            raise StreamClosed(stream.tail.token)
        stream.renew(now)
        return Accepted(stream.tail, is_closed=True, is_duplicate=True, highest_seq=claim.seq if claim else None)

    # -- ending

    def delete(self, path: str, now: float) -> None:
        """Delete a stream, or hide it while forks need it.  Raises NotFound, Gone."""
        self._remove(self.get(path, now))

    def trim(self, path: str, before: str, now: float) -> None:
        """Test hook for retention: forget everything before the offset token.  Raises NotFound, Gone, BadOffset."""
        stream = self.get(path, now)
        upto = parse_token(before)
        if upto is None or upto > stream.tail:
            raise BadOffset
        stream.trim(upto)

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

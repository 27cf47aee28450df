"""Runs a read on the stream in memory.  If the stream proves to have been replaced at the origin, restarts the read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from gateway.aio.clock import Clock
from gateway.engine.answer import Answer
from gateway.engine.cold_reads import ColdReadLimit, FirstRead
from gateway.engine.negative_cache import NegativeCache
from gateway.engine.read import MOST_CHANGES, Closeable, Read, Uncacheable
from gateway.engine.response_heads import origin_error_answer
from gateway.errors import TailMovedBack
from gateway.live.topics import LiveTopics
from gateway.protocol.cache_status import Outcome
from gateway.protocol.names import NOW, START
from gateway.tape.store import TapeStore
from gateway.tape.stream import End, Stream
from gateway.upstream.flight import CHANGES_TOO_FAST, METADATA, VARIES_BY_ORIGIN, OriginError

_HIT = Outcome.HIT


T = TypeVar("T", bound=Closeable)


def is_known_kept(read: Read, stream: Stream) -> bool:
    """Return whether the stream's shared answers are already known to be invalid for the read's Origin header.

    If the origin has sent `Vary: Origin`, the result stays true while the stream is in memory.  If the shared reply
    only lacks permission for this web origin, the result is true only for a while, because the origin may grant
    permission later.
    """
    if not read.is_kept_from(stream):
        return False
    return stream.varies_by_origin or read.route.is_denial_recent(stream.origins_named_at)


def is_kept(read: Read, stream: Stream, found: object) -> bool:
    """Return whether a shared answer, or a live subscription, is invalid for the read's Origin header."""
    if stream.varies_by_origin or not isinstance(found, Answer) or found.status < 400:
        return read.is_kept_from(stream)
    # Failures of the origin are the same for all readers.
    return found.status < 500 and found.status != 429 and not read.is_origin_met(found.headers)


class ReadRunner:
    """Opens the stream of a read and runs the read on it.  Keeps no state of its own."""

    def __init__(
        self,
        store: TapeStore,
        negative_cache: NegativeCache,
        cold_read_limit: ColdReadLimit,
        live: LiveTopics,
        clock: Clock,
    ) -> None:
        self._store = store
        self._negative_cache = negative_cache
        self._cold_read_limit = cold_read_limit
        self._live = live
        self._clock = clock

    def is_first(self, read: Read) -> bool:
        """Return whether the origin must answer this read, because nothing in memory affects the answer."""
        if read.start == NOW or read.web_origin is not None or self._store.find(read.key) is not None:
            return False
        unshared = read.route.unshared
        return self._absence(read) is None and not (
            unshared.may_have_any and unshared.reason(read.key, read.shape) is not None
        )

    def admit_first(self, read: Read) -> None:
        """Count a read of a stream that is not in memory.  Raises TooManyAbsent or TooManyRequests."""
        self._cold_read_limit.admit_read(read.route, read.source.client)

    def start_first_read(self, read: Read, work: Callable[[Read, Stream], FirstRead]) -> FirstRead | None:
        """Call `work` on a new stream record if nothing in memory affects the answer.  The origin must then answer the
        read.  Return None for any other read.

        Raises TooManyAbsent or TooManyRequests.
        """
        if not self.is_first(read):
            return None
        if not read.is_handed:
            self.admit_first(read)
        stream = self._store.create(Stream, read.key, now := self._clock.now())
        stream.tail_read_at = now
        stream.hold()
        try:
            return work(read, stream)
        except BaseException:
            self._store.release(stream)
            raise

    def landed(self, first: FirstRead) -> Answer | None:
        """Return the answer to a read whose fetch has received the whole body; None if the caller must use `run`."""
        answer = first.at_hand()
        if answer is not None:
            first.stream.reads += 1
            self._store.release(first.stream)
        return answer

    async def run(
        self, read: Read, work: Callable[[Read, Stream], Awaitable[T]], first: FirstRead | None = None
    ) -> T | Answer:
        """Return the result of `work` on the read's stream, or the remembered error of an absent stream.

        If `first` is given, this first read is continued, and `work` is not called.  Raises Uncacheable or a
        GatewayError.
        """
        if first is None and (absence := self._absence(read)) is not None:
            if read.web_origin is not None and (absence.varies_by_origin or not read.is_origin_met(absence.headers)):
                raise Uncacheable(VARIES_BY_ORIGIN)
            return origin_error_answer(read.route, absence, Outcome.HIT)
        # Limit the attempts, because clients can create and delete a stream again and again.
        left = MOST_CHANGES
        while left:
            if first is None:
                stream = self.open(read)
                stream.hold()
            else:
                stream = first.stream
            try:
                if read.web_origin is not None and is_known_kept(read, stream):
                    raise Uncacheable(VARIES_BY_ORIGIN)
                found: T | Answer
                if first is None:
                    found = await work(read, stream)
                else:
                    going, first = first, None
                    found = await going.answer()
                if read.web_origin is not None and is_kept(read, stream, found):
                    # A reply that arrived during the read has shown that the answer is invalid for the Origin header.
                    found.close()
                    raise Uncacheable(VARIES_BY_ORIGIN)
                stream.reads += 1
                if isinstance(found, Answer) and found.outcome is _HIT:
                    stream.hits += 1
                return found
            except TailMovedBack:
                # Do not count a purge.  The stream may be the same, and operators may purge as often as they like.
                if stream.ended is not End.PURGED:
                    left -= 1
            except Uncacheable as error:
                if error.why.is_lasting:
                    read.remember_unshared(error.why)
                    # The server searches for a remembered answer before it checks `unshared`, so drop the stream's
                    # remembered answers too.
                    self._store.withdraw(stream)
                raise
            finally:
                self._store.release(stream)
        raise Uncacheable(CHANGES_TOO_FAST)

    def _absence(self, read: Read) -> OriginError | None:
        """Return the remembered error that answers this read, or None."""
        found = self._negative_cache.find(read.key, read.start, read.source.headers)
        if found is None and read.is_live and read.start != START:
            # A live read from an offset begins with a HEAD, so the remembered error of a HEAD answers the read.
            found = self._negative_cache.find(read.key, METADATA, read.source.headers)
        return found

    def open(self, read: Read) -> Stream:
        """Return the read's stream.  If the known stream may have expired, create a new record.

        Raises TooManyAbsent or TooManyRequests.
        """
        now = self._clock.now()
        existing = self._store.find(read.key)
        if existing is not None and existing.has_expired(now, self._clock.wall()):
            # Only the origin knows whether the stream was re-created, or its sliding TTL was renewed by another
            # request.  Live readers must therefore ask the origin, too.
            is_over = existing.expiry.has_passed(self._clock.wall())
            self._live.drop_stream(existing, End.EXPIRED if is_over else End.PURGED)
        elif existing is None and not read.is_handed:
            self._cold_read_limit.admit_read(read.route, read.source.client)
        return self._store.open(read.key, now)

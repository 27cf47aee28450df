"""The run of a read on one incarnation of its stream: it starts again if the stream proves to be another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from gateway.aio.clock import Clock
from gateway.engine.answer import Answer
from gateway.engine.cold_read_limit import ColdReadLimit
from gateway.engine.first_read import FirstRead
from gateway.engine.negative_cache import NegativeCache
from gateway.engine.read import MOST_CHANGES, Read, Uncacheable
from gateway.engine.response_heads import origin_error_answer
from gateway.errors import TailMovedBack
from gateway.live.topics import LiveTopics
from gateway.protocol.cache_status import Outcome
from gateway.protocol.names import NOW, START
from gateway.tape.store import TapeStore
from gateway.tape.stream import End, Stream
from gateway.upstream.flight import CHANGES_TOO_FAST, METADATA, VARIES_BY_ORIGIN, OriginError

_HIT = Outcome.HIT


class Closing(Protocol):
    """A result that holds something until it is closed."""

    def close(self) -> None: ...


T = TypeVar("T", bound=Closing)


def is_known_kept(read: Read, stream: Stream) -> bool:
    """Whether the stream is known not to suit a read's Origin header, so that the read is relayed without a try.

    An origin that says `Vary: Origin` has made that clear for as long as anything of its reply may be held.  One that
    allowed no web origin may allow any by now, which another shared reply would show.
    """
    if not read.is_kept_from(stream):
        return False
    return stream.varies_by_origin or read.route.is_denial_recent(stream.origins_named_at)


def is_kept(read: Read, stream: Stream, found: object) -> bool:
    """Whether a shared answer, or a place among live readers, does not suit the read's Origin header."""
    if stream.varies_by_origin or not isinstance(found, Answer) or found.status < 400:
        return read.is_kept_from(stream)
    # A failure of the origin concerns all readers.
    return found.status < 500 and found.status != 429 and not read.is_origin_met(found.headers)


class ReadRunner:
    """Opens a read's stream and runs the read on it.  Keeps no state of its own."""

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

    def start_first_read(self, read: Read, work: Callable[[Read, Stream], FirstRead]) -> FirstRead | None:
        """Begin `work` on the read's stream if nothing of it is in memory, and nothing else is known that could decide
        the answer; else None.  Raises TooManyAbsent or TooManyRequests."""
        if read.start == NOW or read.web_origin is not None or self._store.find(read.key) is not None:
            return None
        unshared = read.route.unshared
        if self._absence(read) is not None or (unshared.may_have_any and unshared.reason(read.key, read.shape)):
            return None
        self._cold_read_limit.admit_read(read.route, read.source.client)
        stream = self._store.create(Stream, read.key, self._clock.now())
        stream.hold()
        try:
            return work(read, stream)
        except BaseException:
            self._store.release(stream)
            raise

    def landed(self, first: FirstRead) -> Answer | None:
        """The answer to a read whose fetch has brought all of it; None if `run` is needed."""
        answer = first.at_hand()
        if answer is not None:
            first.stream.reads += 1
            self._store.release(first.stream)
        return answer

    async def run(
        self, read: Read, work: Callable[[Read, Stream], Awaitable[T]], first: FirstRead | None = None
    ) -> T | Answer:
        """The result of `work` on the read's stream, or the remembered error of an absent stream.  A read that has
        begun as `first` goes on with that.  Raises Uncacheable or a GatewayError."""
        if first is None and (absence := self._absence(read)) is not None:
            if read.web_origin is not None and (absence.varies_by_origin or not read.is_origin_met(absence.headers)):
                raise Uncacheable(VARIES_BY_ORIGIN)
            return origin_error_answer(read.route, absence, Outcome.HIT)
        # Clients that create and delete the stream in turns cause as many incarnations as they like.
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
                    # A reply that came meanwhile has shown it.
                    found.close()
                    raise Uncacheable(VARIES_BY_ORIGIN)
                stream.reads += 1
                if isinstance(found, Answer) and found.outcome is _HIT:
                    stream.hits += 1
                return found
            except TailMovedBack:
                # A purge says nothing about the stream, and operators may purge as often as they like.
                if stream.ended is not End.PURGED:
                    left -= 1
            except Uncacheable as error:
                if error.why.is_lasting:
                    read.route.unshared.remember(read.key, read.shape, error.why.reason)
                    # Remembered answers are consulted before the route is, so withdraw them as well.
                    self._store.withdraw(stream)
                raise
            finally:
                self._store.release(stream)
        raise Uncacheable(CHANGES_TOO_FAST)

    def _absence(self, read: Read) -> OriginError | None:
        """The remembered error that answers this read."""
        found = self._negative_cache.find(read.key, read.start, read.source.headers)
        if found is None and read.is_live and read.start != START:
            # Such a read begins with a HEAD, so the error of an earlier HEAD is what it would be given.
            found = self._negative_cache.find(read.key, METADATA, read.source.headers)
        return found

    def open(self, read: Read) -> Stream:
        """The read's stream; a new record if the known one may have expired, because only the origin knows what exists
        now.  Raises TooManyAbsent or TooManyRequests."""
        now = self._clock.now()
        existing = self._store.find(read.key)
        if existing is not None and existing.has_expired(now, self._clock.wall()):
            # An expired stream may have been replaced.  A sliding TTL may have been renewed elsewhere: live readers ask
            # the origin too.
            is_over = existing.expiry.has_passed(self._clock.wall())
            self._live.drop_stream(existing, End.EXPIRED if is_over else End.PURGED)
        elif existing is None:
            self._cold_read_limit.admit_read(read.route, read.source.client)
        return self._store.open(read.key, now)

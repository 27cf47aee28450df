"""Incarnations: a read works on one life of its stream, and begins again where that proves to be another one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from gateway.aio.clock import Clock
from gateway.engine.absences import Absences
from gateway.engine.answer import Answer
from gateway.engine.read import Read, Uncacheable
from gateway.engine.response_heads import refusal_answer
from gateway.errors import TailMovedBack, TooManyAbsent, UpstreamBroken
from gateway.live.topics import LiveTopics
from gateway.protocol.cache_status import Outcome
from gateway.tape.store import TapeStore
from gateway.tape.stream import End, Stream

_INCARNATIONS = 3
"""How often a read begins again because its stream proved to be another one, before that is an error."""

T = TypeVar("T")


class Incarnations:
    """Opens the stream of a read and runs the read on it.  Keeps no state of its own."""

    def __init__(self, store: TapeStore, absences: Absences, live: LiveTopics, clock: Clock) -> None:
        self._store = store
        self._absences = absences
        self._live = live
        self._clock = clock

    async def run(self, read: Read, work: Callable[[Stream], Awaitable[T]]) -> T | Answer:
        if (refusal := self._absences.find(read.key, read.start, read.source.headers)) is not None:
            return refusal_answer(read.route, refusal, Outcome.HIT)
        left = _INCARNATIONS
        while left:
            stream = self.open(read)
            stream.pin()
            try:
                found = await work(stream)
                stream.count_reads(1, isinstance(found, Answer) and found.outcome is Outcome.HIT)
                return found
            except TailMovedBack:
                # A purge says nothing of the stream, and an operator may purge as often as he likes.
                if stream.ended is not End.PURGED:
                    left -= 1
            except Uncacheable as error:
                if error.why.is_lasting:
                    read.route.unshared.add(read.key, read.shape, error.why.reason)
                    # Nor may it be shared by those who remember answers, and are asked before the route is.
                    self._store.call_back(stream)
                raise
            finally:
                self._store.release(stream)
        raise UpstreamBroken("Stream changes faster than it can be read")

    def open(self, read: Read) -> Stream:
        """The read's stream, begun anew where its life may be over: only the origin knows what is there now.  Raises
        TooManyAbsent."""
        now = self._clock.now()
        known = self._store.find(read.key)
        if known is not None and known.has_expired(now, self._clock.wall()):
            # A sliding TTL may have been renewed by others, and another stream may be where one has ended.
            self._live.drop(known, End.EXPIRED)
        elif known is None and not self._absences.may_ask(read.route):
            raise TooManyAbsent
        return self._store.open(read.key, now)

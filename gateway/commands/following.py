"""Follows a stream across disconnects: the common part of the readers for Durable Streams and for S2.

Before the first answer all failures are final, so that a wrong URL is not retried for ever.  After it, `Transient`
failures are retried.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import aiohttp

from gateway.aio.clock import Clock
from gateway.commands.exchange import Backoff, Transient
from gateway.commands.failure import CommandFailed

_SHORT_LIFE_S: Final = 1.0
"""After a live request that ends sooner than this (in seconds) without data, the reader pauses."""


class Follow(StrEnum):
    """The live mode for following a stream after catching up."""

    BY_TYPE = "by-type"
    SSE = "sse"
    LONG_POLL = "long-poll"


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive pieces of the stream, and the offset after them."""

    pieces: tuple[bytes, ...]
    next_offset: str


class Following(ABC):
    """One reader of one stream.  It passes each batch to `take` exactly once, in order."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        offset: str,
        *,
        follow: Follow,
        clock: Clock,
        rng: random.Random,
        take: Callable[[Batch], None],
        notice: Callable[[str], None],
    ) -> None:
        self.offset = offset
        """The offset of the next request."""
        self.content_type = ""
        """The content type of the pieces; known from the first batch on."""
        self.is_closed = False
        self._session = session
        self._url = url
        self._follow = follow
        self._clock = clock
        self._backoff = Backoff(clock, rng)
        self._take = take
        self._notice = notice
        self._has_answered = False
        self._is_lost = False

    @abstractmethod
    async def _once(self) -> None:
        """Send one request, and deliver the batches of its answer.  Raises Transient or CommandFailed."""

    def _may_be_quiet(self) -> bool:
        """Whether a request may rightly get no data, because the stream is idle."""
        return False

    async def read(self) -> None:
        """Read until the stream is closed and completely delivered.  Raises CommandFailed."""
        while not self.is_closed:
            try:
                await self._once()
            except Transient as error:
                if not self._has_answered:
                    raise CommandFailed(str(error)) from None
                if error.is_silence and self._may_be_quiet():
                    continue  # no pause is needed, because the request has waited for SILENCE_S
                if not self._is_lost:
                    self._notice(f"{error}; trying again from offset {self.offset}")
                self._is_lost = True
                await self._backoff.pause(error.floor_s)

    def _answered(self) -> None:
        """Record that the server has given a valid answer."""
        self._has_answered = True
        if self._is_lost:
            self._notice("connected again")
            self._is_lost = False

    async def _after_nothing(self, began: float) -> None:
        """Pause after a live read that has ended early without data, to avoid a tight loop."""
        if self._clock.now() - began < _SHORT_LIFE_S:
            await self._backoff.pause()
        else:
            self._backoff.reset()

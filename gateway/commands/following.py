"""Follow a stream across disconnects: what readers of Durable Streams and of S2 streams have in common.

Before the first answer every failure is final, so that a wrong URL is not retried for ever.  After it, only failures
that a retry cannot cure are final.
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
"""Seconds; a live request that ends sooner without data is followed by a pause."""


class Follow(StrEnum):
    """Live mode in which a stream is followed once it is up to date."""

    BY_TYPE = "by-type"
    SSE = "sse"
    LONG_POLL = "long-poll"


@dataclass(frozen=True, slots=True)
class Batch:
    """Complete pieces of the stream, in order, and the offset after them."""

    pieces: tuple[bytes, ...]
    next_offset: str


class Following(ABC):
    """One reader of one stream.  It passes every batch to `take`, in order, once."""

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
        """The offset from which it reads on."""
        self.content_type = ""
        """How the pieces are to be printed; known once the first batch has come."""
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
        """Send one request and deliver what it brings.  Raises Transient or CommandFailed."""

    def _may_be_quiet(self) -> bool:
        """Whether a request on which no byte came may be of a stream that is quiet."""
        return False

    async def read(self) -> None:
        """Read until the stream is closed and all of it has been delivered.  Raises CommandFailed."""
        while not self.is_closed:
            try:
                await self._once()
            except Transient as error:
                if not self._has_answered:
                    raise CommandFailed(str(error)) from None
                if error.is_silence and self._may_be_quiet():
                    continue  # the request has already taken its time
                if not self._is_lost:
                    self._notice(f"{error}; trying again from offset {self.offset}")
                self._is_lost = True
                await self._backoff.pause(error.floor_s)

    def _answered(self) -> None:
        """The server has answered as it should."""
        self._has_answered = True
        if self._is_lost:
            self._notice("connected again")
            self._is_lost = False

    async def _after_nothing(self, began: float) -> None:
        """Pause after a live read that ended early without data, so that requests do not form a tight loop."""
        if self._clock.now() - began < _SHORT_LIFE_S:
            await self._backoff.pause()
        else:
            self._backoff.reset()

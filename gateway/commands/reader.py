"""Read a stream from an offset and follow it, across disconnects, without loss or repeats.

The position moves in one method only, once a piece of the stream and the offset after it have both arrived: a reply
with its complete body, or an SSE data event with its control event.  A truncated piece is discarded and requested again
from the same offset, so no byte is delivered twice and none is skipped.

The reader catches up without `live` until the stream is up to date, then follows it by SSE or long-poll.  The default
is SSE, except for text: SSE cannot carry a CR, so only long-poll is exact for text.

Before the first answer every failure is final, so that a wrong URL is not retried for ever.  After it, only permanent
failures are final: the stream was deleted, or was re-created (its tail moved back).
"""

from __future__ import annotations

import binascii
import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import aiohttp

from gateway.aio.clock import Clock
from gateway.commands.exchange import Backoff, Transient, origin_error, request
from gateway.commands.failure import CommandFailed
from gateway.commands.target import with_query
from gateway.protocol import names, offsets
from gateway.protocol.sse import SseParser, SseTooLarge, parse_control

_MAX_EVENT_BYTES: Final = 256 * 1024 * 1024
_SHORT_LIFE_S: Final = 1.0
"""Seconds; a live connection that ends sooner without data is followed by a pause."""


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


class StreamReader:
    """One reader of one stream.  Owns its position; passes every batch to `take`, in order, once."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        *,
        offset: str,
        follow: Follow,
        clock: Clock,
        rng: random.Random,
        take: Callable[[Batch], None],
        notice: Callable[[str], None],
    ) -> None:
        self.offset = offset
        self.content_type = ""
        self.is_closed = False
        self._session = session
        self._url = url
        self._follow = follow
        self._clock = clock
        self._backoff = Backoff(clock, rng)
        self._take = take
        self._notice = notice
        self._cursor: str | None = None
        self._up_to_date = False
        self._has_answered = False
        self._is_lost = False

    def __repr__(self) -> str:
        return f"<StreamReader at {self.offset}{', closed' if self.is_closed else ''}>"

    async def read(self) -> None:
        """Read until the stream is closed and all of it has been delivered.  Raises CommandFailed."""
        while not self.is_closed:
            try:
                await self._once()
            except Transient as error:
                if not self._has_answered:
                    raise CommandFailed(str(error)) from None
                if error.is_silence and self._up_to_date:
                    continue  # a quiet stream; the request has already taken `SILENCE_S`
                if not self._is_lost:
                    self._notice(f"{error}; trying again from offset {self.offset}")
                self._is_lost = True
                await self._backoff.pause(error.floor_s)

    async def _once(self) -> None:
        """Send one request: catch-up until the stream is up to date, then live."""
        if not self._up_to_date:
            await self._catch_up()
        elif self._follow is Follow.SSE:
            await self._events()
        else:
            await self._long_poll()

    async def _catch_up(self) -> None:
        async with request(self._session, "GET", self._target()) as response:
            await self._check(response)
            body = await response.read()
        self.content_type = response.headers.get("Content-Type", names.DEFAULT_TYPE)
        if self._follow is Follow.BY_TYPE:
            is_text = names.media_type(self.content_type).startswith("text/")
            self._follow = Follow.LONG_POLL if is_text else Follow.SSE
        before = self.offset
        self._arrived(response, body)
        # An empty answer without Stream-Up-To-Date would repeat in a tight loop; a live request waits for data.
        self._up_to_date = names.is_true(response.headers.get(names.STREAM_UP_TO_DATE)) or self.offset == before

    async def _long_poll(self) -> None:
        began = self._clock.now()
        async with request(self._session, "GET", self._target(names.LIVE_LONG_POLL)) as response:
            await self._check(response)
            body = await response.read()
        before = self.offset
        self._cursor = response.headers.get(names.STREAM_CURSOR, self._cursor)
        self._arrived(response, b"" if response.status == 204 else body)
        if self.offset == before and not self.is_closed:
            await self._after_nothing(began)

    async def _events(self) -> None:
        began, before = self._clock.now(), self.offset
        accept = {"Accept": names.SSE_TYPE, "Accept-Encoding": "identity"}
        async with request(self._session, "GET", self._target(names.LIVE_SSE), accept) as response:
            await self._check(response, needs_offset=False)
            if names.media_type(response.headers.get("Content-Type")) != names.SSE_TYPE:
                raise CommandFailed(f"{self._url}: the answer is not SSE; try --long-poll")
            is_base64 = response.headers.get(names.SSE_DATA_ENCODING, "").strip().lower() == "base64"
            parser = SseParser(_MAX_EVENT_BYTES)
            held: list[bytes] = []
            async for data in response.content.iter_any():
                try:
                    for event in parser.feed(data):
                        if event.name == names.EVENT_DATA:
                            held.append(_decoded(event.data) if is_base64 else event.data)
                        elif event.name == names.EVENT_CONTROL:
                            control = parse_control(event.data)
                            self._cursor = control.cursor or self._cursor
                            self._advance(held, control.next_offset)
                            held = []
                            if control.is_closed:
                                self.is_closed = True
                                return
                except (SseTooLarge, ValueError) as error:
                    raise CommandFailed(f"{self._url}: {error}") from None
        if self.offset == before:
            await self._after_nothing(began)

    async def _after_nothing(self, began: float) -> None:
        """Pause after a live read that ended early without data, so that requests do not form a tight loop."""
        if self._clock.now() - began < _SHORT_LIFE_S:
            await self._backoff.pause()
        else:
            self._backoff.reset()

    def _target(self, live: str | None = None) -> str:
        query = {names.QUERY_OFFSET: self.offset}
        if live is not None:
            query[names.QUERY_LIVE] = live
            if self._cursor is not None:
                query[names.QUERY_CURSOR] = self._cursor
        return with_query(self._url, query)

    async def _check(self, response: aiohttp.ClientResponse, *, needs_offset: bool = True) -> None:
        """Check that the answer is a stream's.  Raises Transient or CommandFailed."""
        if response.status in (404, 410) and self._has_answered:
            raise CommandFailed(f"{self._url}: the stream was deleted, or no longer keeps offset {self.offset}")
        if response.status not in (200, 204):
            raise await origin_error(response)
        if needs_offset and not offsets.is_well_formed(response.headers.get(names.STREAM_NEXT_OFFSET, "")):
            raise CommandFailed(f"{self._url}: not a durable stream: no {names.STREAM_NEXT_OFFSET} in the answer")
        self._has_answered = True
        if self._is_lost:
            self._notice("connected again")
            self._is_lost = False

    def _arrived(self, response: aiohttp.ClientResponse, body: bytes) -> None:
        self._advance([body], response.headers[names.STREAM_NEXT_OFFSET])
        self.is_closed = names.is_true(response.headers.get(names.STREAM_CLOSED))

    def _advance(self, pieces: list[bytes], next_offset: str) -> None:
        """Deliver `pieces` and move the position to `next_offset`.  No other method moves it."""
        if self.offset != offsets.NOW and offsets.is_before(next_offset, self.offset):
            raise CommandFailed(
                f"{self._url}: its tail is before {self.offset}: it was re-created, or never reached this offset"
            )
        moved = next_offset != self.offset
        self.offset = next_offset
        if moved:
            self._backoff.reset()
            self._take(Batch(tuple(piece for piece in pieces if piece), next_offset))


def _decoded(data: bytes) -> bytes:
    """Decode base64, with line breaks removed.  Raises ValueError."""
    return binascii.a2b_base64(data.replace(b"\n", b""), strict_mode=True)

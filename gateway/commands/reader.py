"""Reads a Durable Stream from an offset and follows it across disconnects, without loss or duplicates.

The position advances only when a piece of the stream and the offset after it have both arrived: a reply with its
complete body, or an SSE data event with its control event.  A truncated piece is discarded and requested again.

The reader first catches up, then follows the stream by SSE or long-poll.  The default is SSE, except for text: SSE
cannot transmit a CR, so only long-poll is exact for text.

After the first answer, two failures are final: the stream was deleted, or it was re-created, so that its tail is before
the position.
"""

from __future__ import annotations

import binascii
import random
from collections.abc import Callable
from typing import Final

import aiohttp

from gateway.aio.clock import Clock
from gateway.commands.exchange import origin_error, request
from gateway.commands.failure import CommandFailed
from gateway.commands.following import Batch, Follow, Following
from gateway.commands.target import with_query
from gateway.protocol import names
from gateway.protocol.sse import SseParser, SseTooLarge, parse_control

_MAX_EVENT_BYTES: Final = 256 * 1024 * 1024


class StreamReader(Following):
    """One reader of one Durable Stream."""

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
        super().__init__(session, url, offset, follow=follow, clock=clock, rng=rng, take=take, notice=notice)
        self._cursor: str | None = None
        self._up_to_date = False

    def __repr__(self) -> str:
        return f"<StreamReader at {self.offset}{', closed' if self.is_closed else ''}>"

    def _may_be_quiet(self) -> bool:
        return self._up_to_date

    async def _once(self) -> None:
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
        # An empty answer without Stream-Up-To-Date would cause a tight loop.  A live request waits for data instead.
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

    def _target(self, live: str | None = None) -> str:
        query = {names.QUERY_OFFSET: self.offset}
        if live is not None:
            query[names.QUERY_LIVE] = live
            if self._cursor is not None:
                query[names.QUERY_CURSOR] = self._cursor
        return with_query(self._url, query)

    async def _check(self, response: aiohttp.ClientResponse, *, needs_offset: bool = True) -> None:
        """Check that the answer is a stream's answer.  Raises Transient or CommandFailed."""
        if response.status in (404, 410) and self._has_answered:
            raise CommandFailed(f"{self._url}: the stream was deleted, or no longer keeps offset {self.offset}")
        if response.status not in (200, 204):
            raise await origin_error(response)
        if needs_offset and not names.is_well_formed(response.headers.get(names.STREAM_NEXT_OFFSET, "")):
            raise CommandFailed(f"{self._url}: not a durable stream: no {names.STREAM_NEXT_OFFSET} in the answer")
        self._answered()

    def _arrived(self, response: aiohttp.ClientResponse, body: bytes) -> None:
        self._advance([body], response.headers[names.STREAM_NEXT_OFFSET])
        self.is_closed = names.is_true(response.headers.get(names.STREAM_CLOSED))

    def _advance(self, pieces: list[bytes], next_offset: str) -> None:
        """Deliver `pieces`, and move the position to `next_offset`.  Only this method moves the position."""
        if self.offset != names.NOW and names.is_before(next_offset, self.offset):
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

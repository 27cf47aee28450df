"""An idempotent producer (Durable Streams section 5.2.1).

Each append has a producer id, an epoch and a sequence number.  One append is in progress at a time.  Without an answer,
the same request is sent again with the same number, which the origin accepts only once.  The time for retries is
bounded, so that a pipeline does not hang for ever if its origin is lost.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import aiohttp

from gateway.aio.clock import Clock
from gateway.commands.exchange import Backoff, Transient, origin_error, request
from gateway.commands.failure import CommandFailed
from gateway.protocol import names


class Producer:
    """Appends to one stream, in order, without duplicates."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        content_type: str,
        *,
        clock: Clock,
        rng: random.Random,
        retry_for_s: float,
        notice: Callable[[str], None],
    ) -> None:
        self.tail: str | None = None
        """The offset after the last append, from the origin's answer."""
        self._session = session
        self._url = url
        self._content_type = content_type
        self._id = f"durable-gateway-{rng.getrandbits(96):024x}"
        self._seq = 0
        self._clock = clock
        self._rng = rng
        self._retry_for_s = retry_for_s
        self._notice = notice

    def __repr__(self) -> str:
        return f"<Producer {self._seq} appends, tail {self.tail}>"

    async def append(self, body: bytes) -> None:
        """Return once the origin has acknowledged `body`.  Raises CommandFailed."""
        await self._send(body, {"Content-Type": self._content_type})

    async def close(self) -> None:
        """Close the stream after the last append.  Raises CommandFailed."""
        await self._send(b"", {names.STREAM_CLOSED: "true"})

    async def _send(self, body: bytes, more: dict[str, str]) -> None:
        headers = {
            **more,
            names.PRODUCER_ID: self._id,
            names.PRODUCER_EPOCH: "0",
            names.PRODUCER_SEQ: str(self._seq),
        }
        backoff = Backoff(self._clock, self._rng)
        failing_since: float | None = None
        while True:
            try:
                await self._post(body, headers)
            except Transient as error:
                now = self._clock.now()
                if failing_since is None:
                    failing_since = now
                    self._notice(f"{error}; trying again")
                if now + error.floor_s - failing_since >= self._retry_for_s:
                    raise CommandFailed(f"{error}; gave up after {self._retry_for_s:g} s") from None
                await backoff.pause(error.floor_s)
            else:
                self._seq += 1
                return

    async def _post(self, body: bytes, headers: dict[str, str]) -> None:
        async with request(self._session, "POST", self._url, headers, body) as response:
            if response.status not in (200, 204):
                if response.status == 409 and names.is_true(response.headers.get(names.STREAM_CLOSED)):
                    raise CommandFailed(f"{self._url}: the stream is closed")
                raise await origin_error(response)
            self.tail = response.headers.get(names.STREAM_NEXT_OFFSET, self.tail)

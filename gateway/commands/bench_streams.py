"""The streams of `bench`, for Durable Streams and for S2: creating, reading, appending and deleting them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

import aiohttp
import orjson

from gateway.commands.bench_delay import message
from gateway.commands.exchange import Transient, origin_error, request
from gateway.commands.failure import CommandFailed
from gateway.commands.s2_exchange import body_error
from gateway.commands.target import Target
from gateway.protocol import names
from gateway.s2 import json_format

READ_BYTES: Final = 1024
"""The size of the stream for reads."""

_LEFTOVER_TTL_S: Final = 600
"""The streams' TTL in seconds, so that they expire if the bench is killed."""

_BODY: Final = b"." * READ_BYTES


@dataclass(frozen=True, slots=True)
class Cached:
    """A read whose answer does not change."""

    url: str
    size_bytes: int
    """The size of the answer's body."""
    what: str
    """A description for the report."""


class Followed(Protocol):
    """A stream for live delivery."""

    @property
    def url(self) -> str:
        """The URL for an SSE read from the start."""

    @property
    def event(self) -> str:
        """The name of the SSE events with data."""

    async def append(self, number: int) -> None:
        """Append `message(number)`.  Raises CommandFailed."""


class BenchStreams(Protocol):
    """Creates streams, and deletes them at the end of a block.  Creation and deletion raise CommandFailed."""

    def cached(self, name: str) -> AbstractAsyncContextManager[Cached]:
        """Create a stream that a gateway can serve from memory."""

    def followed(self, name: str) -> AbstractAsyncContextManager[Followed]:
        """Create a stream with `message(0)`."""


def bench_streams(session: aiohttp.ClientSession, target: Target) -> BenchStreams:
    """Return the creator of streams below `target`."""
    return S2Streams(session, target) if target.is_s2 else DurableStreams(session, target)


class DurableStreams:
    """Durable Streams."""

    def __init__(self, session: aiohttp.ClientSession, target: Target) -> None:
        self._session = session
        self._base = target.url

    @asynccontextmanager
    async def cached(self, name: str) -> AsyncIterator[Cached]:
        # Close the stream, because only for a closed stream can a gateway answer all reads without the origin.
        async with self._stream(name, "text/plain", _BODY, is_closed=True) as url:
            yield Cached(f"{url}?offset=-1", READ_BYTES, "1 KiB, closed stream")

    @asynccontextmanager
    async def followed(self, name: str) -> AsyncIterator[Followed]:
        async with self._stream(name, names.JSON_TYPE, b"[%s]" % message(0)) as url:
            yield _DurableFollowed(self._session, url)

    @asynccontextmanager
    async def _stream(
        self, name: str, content_type: str, body: bytes, *, is_closed: bool = False
    ) -> AsyncIterator[str]:
        url = f"{self._base}/{name}"
        closed = {names.STREAM_CLOSED: "true"} if is_closed else {}
        headers = {"Content-Type": content_type, names.STREAM_TTL: str(_LEFTOVER_TTL_S), **closed}
        await _require(self._session, "PUT", url, headers, body)
        try:
            yield url
        finally:
            await _require(self._session, "DELETE", url, {}, None)


class _DurableFollowed:
    event = names.EVENT_DATA

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url
        self.url = f"{url}?offset=-1&live=sse"

    async def append(self, number: int) -> None:
        await _require(self._session, "POST", self._url, {"Content-Type": names.JSON_TYPE}, message(number))


class S2Streams:
    """S2 streams of one basin."""

    def __init__(self, session: aiohttp.ClientSession, target: Target) -> None:
        self._session = session
        self._base = target.url

    @asynccontextmanager
    async def cached(self, name: str) -> AsyncIterator[Cached]:
        # Read with a limit of one record: an answer that ends at a limit does not change when the stream grows.
        async with self._stream(name, _BODY) as url:
            read = f"{url}/records?seq_num=0&count=1"
            answer = await _require(self._session, "GET", read, {}, None, is_s2=True)
            yield Cached(read, len(answer), "a record of 1 KiB, closed range")

    @asynccontextmanager
    async def followed(self, name: str) -> AsyncIterator[Followed]:
        async with self._stream(name, message(0)) as url:
            yield _S2Followed(self._session, url)

    @asynccontextmanager
    async def _stream(self, name: str, body: bytes) -> AsyncIterator[str]:
        url = f"{self._base}/{name}"
        await _require(self._session, "PUT", url, _JSON, b"{}", is_s2=True)
        try:
            await _append(self._session, url, body)
            yield url
        finally:
            await _require(self._session, "DELETE", url, {}, None, is_s2=True)


class _S2Followed:
    event = "batch"

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url
        self.url = f"{url}/records?seq_num=0"

    async def append(self, number: int) -> None:
        await _append(self._session, self._url, message(number))


_JSON: Final = {"Content-Type": json_format.CONTENT_TYPE}


async def _append(session: aiohttp.ClientSession, url: str, body: bytes) -> None:
    data = orjson.dumps({"records": [{"body": body.decode()}]})
    await _require(session, "POST", f"{url}/records", _JSON, data, is_s2=True)


async def _require(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes | None,
    *,
    is_s2: bool = False,
) -> bytes:
    """Send a request; return the body of its answer.  Raises CommandFailed if the request fails."""
    try:
        async with request(session, method, url, headers, body) as response:
            if response.status in (200, 201, 202, 204):
                return await response.read()
            raise body_error(response, await response.read()) if is_s2 else await origin_error(response)
    except Transient as error:
        raise CommandFailed(f"{method} {url}: {error}") from None

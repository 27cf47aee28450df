"""The client towards origins.

Every await is bounded: connecting, the first byte, each pause in a body, the whole.  Foreign exceptions end here and
become the tree of `errors.py`.  Bodies come raw: nothing is decompressed, no redirect is followed, no cookie is kept,
and a `101` is refused.  A body that ends before its announced end raises; a caller that saw no exception holds every
byte.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from weakref import WeakKeyDictionary

import aiohttp
from aiohttp.http import HttpVersion11
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from gateway.errors import GatewayError, UpstreamBroken, UpstreamTimeout, UpstreamUnreachable
from gateway.tracing import NO_TRACER, ExchangeSpan, Tracer

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.connector import Connection

_READ_BYTES = 1 << 18
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""What no field value and no reason phrase may hold (RFC 9110 section 5.5)."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long an exchange may take, in seconds, phase by phase."""

    connect_s: float = 5.0
    first_byte_s: float = 30.0
    idle_s: float = 30.0
    total_s: float | None = 600.0


class Connections(NamedTuple):
    """Connections of one pool: how many are in use, how many wait for a request, and their ages in seconds."""

    busy: int
    idle: int
    oldest_s: float
    mean_s: float


class _Connector(aiohttp.TCPConnector):
    """A pool that never reuses a connection with unread bytes on it, and knows how old its connections are.

    aiohttp 3.14 takes an idle connection although an origin has sent an unsolicited reply on it; the next request
    would be answered with that, and every later one be off by one: stream A's bytes under stream B.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._made_at: WeakKeyDictionary[ResponseHandler, float] = WeakKeyDictionary()

    async def _create_connection(self, *asked: Any) -> ResponseHandler:
        protocol = await super()._create_connection(*asked)
        self._made_at[protocol] = self._loop.time()
        return protocol

    def look(self) -> Connections:
        """The connections as they are now."""
        now = self._loop.time()
        # What is being connected has a place among the busy already, and no age.
        busy = [protocol for protocol in self._acquired if protocol in self._made_at]
        idle = [protocol for waiting in self._conns.values() for protocol, _ in waiting if protocol.is_connected()]
        ages = [now - self._made_at[protocol] for protocol in (*busy, *idle)]
        return Connections(len(busy), len(idle), max(ages, default=0.0), sum(ages) / max(1, len(ages)))

    async def _get(self, key: Any, traces: Any) -> Connection | None:
        while (connection := await super()._get(key, traces)) is not None:
            protocol: ResponseHandler | None = connection.protocol
            if protocol is not None and not protocol.should_close:
                return connection
            connection.close()
        return None


class Reply:
    """An origin's answer: the head is here, the body comes by `chunks`.  Use as an async context manager."""

    def __init__(self, response: aiohttp.ClientResponse, bounds: Bounds, deadline: float | None) -> None:
        self._response = response
        self._bounds = bounds
        self._deadline = deadline
        self._whole = False
        self.span: ExchangeSpan | None = None
        self.status = response.status
        self.reason = response.reason
        self.headers: CIMultiDictProxy[str] = response.headers

    @property
    def content_length(self) -> int | None:
        """The announced length in bytes, None for a chunked body."""
        return self._response.content_length

    @property
    def is_delimited(self) -> bool:
        """Whether the body's end can be told from a lost connection (RFC 9112 §6.3, all cases but the last)."""
        return (
            self._response.method == "HEAD"
            or self.status in (204, 304)
            or self._response.content_length is not None
            or "chunked" in self.headers.get("Transfer-Encoding", "").lower()
        )

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives.  Raises UpstreamBroken when it ends early, UpstreamTimeout when it stalls."""
        content = self._response.content
        loop = asyncio.get_running_loop()
        try:
            while True:
                limit = loop.time() + self._bounds.idle_s
                if self._deadline is not None:
                    limit = min(limit, self._deadline)
                if self._deadline is not None and loop.time() >= self._deadline:
                    # A buffer that never runs dry is a slow reader's, who would hold the connection for ever.
                    raise TimeoutError
                if content.is_eof() or content._buffer:
                    chunk = await content.readany()
                else:
                    async with asyncio.timeout_at(limit):
                        chunk = await content.readany()
                if not chunk:
                    self._whole = True
                    return
                yield chunk
        except TimeoutError as error:
            raise self._failed(UpstreamTimeout()) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._failed(UpstreamBroken("Origin's answer ended early")) from error

    def _failed(self, error: GatewayError) -> GatewayError:
        if self.span is not None:
            self.span.failed(error)
        return error

    async def hold(self, until: Awaitable[None]) -> None:
        """Leave the body alone meanwhile; UpstreamTimeout when the time for the whole of it runs out."""
        try:
            async with asyncio.timeout_at(self._deadline):
                await until
        except TimeoutError as error:
            raise UpstreamTimeout from error

    async def read(self, limit: int) -> bytes:
        """The whole body; UpstreamBroken when it is longer than `limit` bytes."""
        body = bytearray()
        async for chunk in self.chunks():
            body += chunk
            if len(body) > limit:
                raise UpstreamBroken("Origin's answer is too large")
        return bytes(body)

    def close(self) -> None:
        """Give the connection back when the body was read whole, else drop it."""
        if self._whole:
            self._response.release()
        else:
            self._response.close()
        if self.span is not None:
            self.span.end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Client:
    """Connections to all origins.  `close` ends them.

    Live requests have a pool of their own, bounded by the number of clients rather than by `connections`: held for
    minutes each, they would leave none for the requests that everybody waits for.
    """

    def __init__(self, connections: int = 512, tracer: Tracer = NO_TRACER) -> None:
        if aiohttp.http.HttpResponseParser is aiohttp.http_parser.HttpResponseParserPy:
            raise RuntimeError("aiohttp runs without its C parser: reinstall it from a wheel")
        self._tracer = tracer
        self._brief = _session(connections)
        self._live = _session(0)

    @property
    def open_connections(self) -> int:
        """Connections in use now."""
        connectors = (session.connector for session in (self._brief, self._live))
        return sum(len(connector._acquired) for connector in connectors if connector is not None)

    def connections(self) -> dict[str, Connections]:
        """What is open: `shared` for requests of all kinds, `live` for followed streams and live reads relayed."""
        pools = {"shared": self._brief.connector, "live": self._live.connector}
        return {name: pool.look() for name, pool in pools.items() if isinstance(pool, _Connector)}

    async def send(
        self,
        method: str,
        url: URL,
        headers: CIMultiDict[str],
        bounds: Bounds,
        body: AsyncIterator[bytes] | bytes | None = None,
        *,
        is_live: bool = False,
    ) -> Reply:
        """Send one request and wait for the head of its answer.

        A failing body iterator aborts the connection, so that the origin never takes a part for the whole.
        Raises UpstreamUnreachable, UpstreamTimeout, UpstreamBroken.
        """
        span = self._tracer.exchange(method, url, headers)
        if span is None:
            return await self._exchange(method, url, headers, bounds, body, is_live=is_live)
        try:
            reply = await self._exchange(method, url, span.headers, bounds, body, is_live=is_live)
        except BaseException as error:
            span.failed(error)
            span.end()
            raise
        span.answered(reply.status)
        reply.span = span
        return reply

    async def _exchange(
        self,
        method: str,
        url: URL,
        headers: CIMultiDict[str],
        bounds: Bounds,
        body: AsyncIterator[bytes] | bytes | None,
        *,
        is_live: bool,
    ) -> Reply:
        loop = asyncio.get_running_loop()
        deadline = None if bounds.total_s is None else loop.time() + bounds.total_s
        # While a body is being sent the first byte may lawfully be long in coming: only `total` bounds that phase.
        is_streamed = body is not None and not isinstance(body, bytes)
        bound = asyncio.timeout(bounds.total_s if is_streamed else bounds.first_byte_s)
        is_waiting = True

        def await_first_byte() -> None:
            # An answer may come before the body's end; there is nothing left to bound then.
            if is_waiting:
                limit = loop.time() + bounds.first_byte_s
                bound.reschedule(limit if deadline is None else min(limit, deadline))

        if body is not None and not isinstance(body, bytes):
            body = _then(body, await_first_byte)
        try:
            async with bound:
                session = self._live if is_live else self._brief
                response = await session.request(
                    method,
                    url,
                    headers=headers,
                    data=body,
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=bounds.connect_s, connect=None),
                )
        except aiohttp.ServerTimeoutError as error:
            raise UpstreamTimeout from error
        except TimeoutError as error:
            raise UpstreamTimeout from error
        except (aiohttp.ClientConnectorError, aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
            raise UpstreamUnreachable from error
        except (aiohttp.ClientError, ValueError, OSError) as error:
            raise UpstreamBroken from error
        finally:
            is_waiting = False
        if response.status < 200 or _has_control_characters(response):
            response.close()
            raise UpstreamBroken
        return Reply(response, bounds, deadline)

    async def close(self) -> None:
        await self._brief.close()
        await self._live.close()


def _has_control_characters(response: aiohttp.ClientResponse) -> bool:
    """Whether the head could not be handed on: aiohttp takes in what it refuses to write."""
    values = (response.reason or "", *response.headers.values())
    return any(_CONTROL.search(value) is not None for value in values)


def _session(connections: int) -> aiohttp.ClientSession:
    session = aiohttp.ClientSession(
        connector=_Connector(limit=connections, keepalive_timeout=15.0, ttl_dns_cache=30),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        timeout=aiohttp.ClientTimeout(total=None),
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        read_bufsize=_READ_BYTES,
        max_line_size=16_384,
        max_field_size=16_384,
        version=HttpVersion11,
    )
    # By itself aiohttp sends every idempotent method again when a connection is lost, be it a DELETE that was done.
    # What may be repeated is decided where it is known to be a read.
    if not hasattr(session, "_retry_connection"):
        raise RuntimeError("this aiohttp cannot be kept from repeating requests: install the locked version")
    session._retry_connection = False
    return session


async def _then(body: AsyncIterator[bytes], do: Callable[[], object]) -> AsyncIterator[bytes]:
    """The body, and `do` once all of it has been taken."""
    async for chunk in body:
        yield chunk
    do()

"""One request to one host, and its answer.

Every await is bounded: connecting, the first byte, each pause in a body, the whole.  Foreign exceptions end here and
become the tree of `errors.py`.  Bodies come raw: nothing is decompressed, no redirect is followed, no cookie is kept,
and a `101` is refused.  A body that ends before its announced end raises; a caller that saw no exception holds every
byte.

What becomes of a request is told to the books of the origin that it was sent to, where it has one (`Sending`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import aiohttp
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from gateway.errors import GatewayError, UpstreamBroken, UpstreamTimeout, UpstreamUnreachable
from gateway.tracing import NO_TRACER, ExchangeSpan, Tracer
from gateway.upstream.connections import Connections, Connector, open_session
from gateway.upstream.origins import Sent
from gateway.upstream.reasons import is_own_fault, is_unsent, reason_of

_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""What no field value and no reason phrase may hold (RFC 9110 section 5.5)."""

Body = AsyncIterator[bytes] | bytes | None


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long an exchange may take, in seconds, phase by phase."""

    connect_s: float = 5.0
    first_byte_s: float = 30.0
    idle_s: float = 30.0
    total_s: float | None = 600.0


class Sending:
    """A request to an origin, as its books are told of it."""

    __slots__ = ("_now", "_sent")

    def __init__(self, sent: Sent, now: Callable[[], float]) -> None:
        self._sent = sent
        self._now = now

    def answered(self, reply: Reply) -> None:
        """The head has come; from here on an end that the origin's books call for cuts the body off."""
        self._sent.on_end = reply.cut
        self._sent.answered(reply.status, self._now())

    def failed(self, error: BaseException, *, by_client: bool) -> bool:
        """No head has come; whether that is because the books called for an end."""
        if by_client or is_own_fault(error):
            self._sent.abandoned()
        else:
            self._sent.failed(reason_of(error), self._now())
        self._sent.close()
        return self._sent.has_ended

    def heard(self) -> None:
        """A part of the body has come."""
        self._sent.heard(self._now())

    def broke(self) -> bool:
        """The body ended early; whether that is because the books called for it."""
        self._sent.broke(self._now())
        return self._sent.has_ended

    def may_end(self, end: Callable[[], None]) -> None:
        """`end` is how the books can have the request fail while its head is awaited."""
        self._sent.on_end = end

    def close(self) -> None:
        """All of it is over."""
        self._sent.on_end = None
        self._sent.close()


class Reply:
    """An origin's answer: the head is here, the body comes by `chunks`.  Use as an async context manager."""

    def __init__(
        self, response: aiohttp.ClientResponse, bounds: Bounds, deadline: float | None, sending: Sending | None = None
    ) -> None:
        self._response = response
        self._bounds = bounds
        self._deadline = deadline
        self._sending = sending
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
                if self._sending is not None:
                    self._sending.heard()
                yield chunk
        except TimeoutError as error:
            raise self._failed(UpstreamTimeout()) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if self._sending is not None and self._sending.broke():
                raise self._failed(UpstreamUnreachable()) from error
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
        if self._sending is not None:
            self._sending.close()
        if self.span is not None:
            self.span.end()

    def cut(self) -> None:
        """Have the body end here, by an error."""
        self._response.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Exchanges:
    """Connections to all hosts.  `close` ends them.

    Live requests have a pool of their own, bounded by the number of clients rather than by `connections`: held for
    minutes each, they would leave none for the requests that everybody waits for.
    """

    def __init__(self, connections: int, tracer: Tracer = NO_TRACER) -> None:
        if aiohttp.http.HttpResponseParser is aiohttp.http_parser.HttpResponseParserPy:
            raise RuntimeError("aiohttp runs without its C parser: reinstall it from a wheel")
        self._tracer = tracer
        self._brief = open_session(connections)
        self._live = open_session(0)

    def leave_room(self, hosts: int) -> None:
        """Spread connections over so many hosts, so that one that hangs does not take them all."""
        if isinstance(self._brief.connector, Connector):
            self._brief.connector.leave_room(hosts)

    @property
    def open_connections(self) -> int:
        """Connections in use now."""
        connectors = (session.connector for session in (self._brief, self._live))
        return sum(len(connector._acquired) for connector in connectors if connector is not None)

    def connections(self) -> dict[str, Connections]:
        """What is open: `shared` for requests of all kinds, `live` for followed streams and live reads relayed."""
        pools = {"shared": self._brief.connector, "live": self._live.connector}
        return {name: pool.look() for name, pool in pools.items() if isinstance(pool, Connector)}

    async def send(
        self,
        method: str,
        url: URL,
        headers: CIMultiDict[str],
        bounds: Bounds,
        body: Body = None,
        sending: Sending | None = None,
        *,
        is_live: bool = False,
    ) -> Reply:
        """Send one request and wait for the head of its answer.

        A failing body iterator aborts the connection, so that the origin never takes a part for the whole.
        Raises UpstreamUnreachable, UpstreamTimeout, UpstreamBroken.
        """
        span = self._tracer.exchange(method, url, headers)
        if span is None:
            return await self._exchange(method, url, headers, bounds, body, sending, is_live=is_live)
        try:
            reply = await self._exchange(method, url, span.headers, bounds, body, sending, is_live=is_live)
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
        body: Body,
        sending: Sending | None,
        *,
        is_live: bool,
    ) -> Reply:
        data = body if body is None or isinstance(body, bytes) else _Upload(body)
        try:
            reply = await self._answered(method, url, headers, bounds, data, sending, is_live=is_live)
        except BaseException as error:
            has_ended = False
            if sending is not None:
                by_client = not isinstance(error, GatewayError) or (
                    isinstance(data, _Upload) and data.is_to_blame(error)
                )
                has_ended = sending.failed(error.__cause__ or error, by_client=by_client)
            if has_ended and isinstance(error, GatewayError):
                raise UpstreamUnreachable from error
            raise
        if sending is not None:
            sending.answered(reply)
        return reply

    async def _answered(
        self,
        method: str,
        url: URL,
        headers: CIMultiDict[str],
        bounds: Bounds,
        body: _Upload | bytes | None,
        sending: Sending | None,
        *,
        is_live: bool,
    ) -> Reply:
        loop = asyncio.get_running_loop()
        deadline = None if bounds.total_s is None else loop.time() + bounds.total_s
        # While a body is being sent the first byte may lawfully be long in coming: only `total` bounds that phase.
        bound = asyncio.timeout(bounds.total_s if isinstance(body, _Upload) else bounds.first_byte_s)
        is_waiting = True

        def await_first_byte() -> None:
            # An answer may come before the body's end; there is nothing left to bound then.
            if is_waiting:
                limit = loop.time() + bounds.first_byte_s
                bound.reschedule(limit if deadline is None else min(limit, deadline))

        def end() -> None:
            if is_waiting:
                bound.reschedule(loop.time())

        try:
            async with bound:
                if sending is not None:
                    sending.may_end(end)
                session = self._live if is_live else self._brief
                response = await session.request(
                    method,
                    url,
                    headers=headers,
                    data=body.chunks(await_first_byte) if isinstance(body, _Upload) else body,
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=bounds.connect_s, connect=None),
                )
        except TimeoutError as error:
            # aiohttp's own are among them.
            raise UpstreamTimeout(is_unsent=is_unsent(error)) from error
        except (aiohttp.ClientConnectorError, aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
            raise UpstreamUnreachable(is_unsent=is_unsent(error)) from error
        except (aiohttp.ClientError, ValueError, OSError) as error:
            raise UpstreamBroken from error
        finally:
            is_waiting = False
        if response.status < 200 or _has_control_characters(response):
            response.close()
            raise UpstreamBroken
        return Reply(response, bounds, deadline, sending)

    async def close(self) -> None:
        await self._brief.close()
        await self._live.close()


class _Upload:
    """A request body on its way, which may fail by its client's doing."""

    def __init__(self, body: AsyncIterator[bytes]) -> None:
        self._body = body
        self._has_begun = False
        self._has_ended = False
        self._is_cut = False

    def is_to_blame(self, error: GatewayError) -> bool:
        """Whether a request failed because its client did not bring the body, or not in time."""
        return self._is_cut or (isinstance(error, UpstreamTimeout) and self._has_begun and not self._has_ended)

    async def chunks(self, at_end: Callable[[], object]) -> AsyncIterator[bytes]:
        """The body, and `at_end` once all of it has been taken."""
        self._has_begun = True
        try:
            async for chunk in self._body:
                yield chunk
        except Exception:
            self._is_cut = True
            raise
        self._has_ended = True
        at_end()


def _has_control_characters(response: aiohttp.ClientResponse) -> bool:
    """Whether the head could not be handed on: aiohttp takes in what it refuses to write."""
    values = (response.reason or "", *response.headers.values())
    return any(_CONTROL.search(value) is not None for value in values)

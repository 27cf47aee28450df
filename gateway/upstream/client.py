"""The client for requests to origins; every request of the gateway passes through it.

A request names a route, and `pool` knows the route's origins.  If no byte of a request was sent, because no connection
could be made, it goes to the next origin.  This holds for writes too, since the first origin received nothing.  A
request that was sent is not sent again here, except after a redirect to a leader: the redirect states that the origin
did not process it.  `exchange` repeats one that met a dead connection, and `gateway.engine.fetch_table` a fetch.

A streamed body is buffered, up to 64 KiB, if a redirect may have to be followed.  For a larger body the client follows
the redirect itself; its next request goes to the leader directly.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextvars import Context, copy_context
from typing import Final

from multidict import CIMultiDict

from gateway.errors import GatewayError, RequestTimeout, UpstreamBroken, UpstreamCongested
from gateway.limits.askers import Askers
from gateway.telemetry.tracing import NO_TRACER, Tracer
from gateway.upstream.asking import PendingRequest, Requester, answer_to
from gateway.upstream.connection_pool import Connections
from gateway.upstream.endpoint import split_url
from gateway.upstream.exchange import Exchange
from gateway.upstream.exchanges import Exchanges
from gateway.upstream.origin_pool import ROUTE_URL, OriginPool, Origins
from gateway.upstream.origins import Origin, OriginRequest
from gateway.upstream.reply import Body, Bounds, OutcomeReport, Reply
from gateway.upstream.slots import SlotLimits, SlotUse

_REDIRECTS: Final = frozenset({307, 308})
_MOST_HOPS: Final = 2
"""The most leader redirects followed for one request."""
_BUFFERED_BYTES: Final = 1 << 16


class OriginClient:
    """Sends requests.  `close` ends all connections.

    A URL with the scheme `route` goes to one of that route's origins, as `origins` knows them; any other URL is used
    as it is.
    """

    def __init__(
        self, limits: SlotLimits | None = None, tracer: Tracer = NO_TRACER, origins: Origins | None = None
    ) -> None:
        self.exchanges = Exchanges(limits or SlotLimits(), tracer)
        self._origins = origins

    @property
    def open_connections(self) -> int:
        """Connections in use now."""
        return self.exchanges.open_connections

    def connections(self) -> dict[str, Connections]:
        """The open connections by pool."""
        return self.exchanges.connections()

    def slot_use(self) -> SlotUse:
        """The use of the connection slots now."""
        return self.exchanges.slot_use()

    def ask(
        self,
        requester: Requester,
        method: str,
        url: str,
        headers: CIMultiDict[str],
        bounds: Bounds,
        body: Body = None,
        *,
        is_live: bool = False,
        client: str | Askers = "",
    ) -> PendingRequest:
        """Send one request.  `requester` is notified of its outcome, possibly before this returns.

        A body iterator that fails aborts the connection, so that the origin never takes a part for the whole.
        """
        if self._origins is None or not url.startswith(ROUTE_URL):
            return self.exchanges.ask(requester, method, url, headers, bounds, body, is_live=is_live, client=client)
        pending = _RoutedRequest(
            self.exchanges, self._origins, requester, method, *split_url(url), headers, bounds, body, is_live, client
        )
        pending.begin()
        return pending

    async def send(
        self,
        method: str,
        url: str,
        headers: CIMultiDict[str],
        bounds: Bounds,
        body: Body = None,
        *,
        is_live: bool = False,
        client: str | Askers = "",
        on_sent: Callable[[], object] = lambda: None,
    ) -> Reply:
        """Send one request and wait for the head of its reply; `on_sent` is called for each attempt.

        Raises UpstreamUnreachable, UpstreamTimeout, UpstreamBroken; CircuitOpen, at once, if no origin may be used;
        UpstreamCongested if no connection is free in time.
        """
        return await answer_to(
            lambda requester: self.ask(requester, method, url, headers, bounds, body, is_live=is_live, client=client),
            on_sent,
        )

    async def close(self) -> None:
        await self.exchanges.close()


class _RoutedRequest:
    """One request as it moves from origin to origin; the requester of each exchange."""

    __slots__ = (
        "_body",
        "_bounds",
        "_buffering",
        "_client",
        "_context",
        "_exchange",
        "_exchanges",
        "_headers",
        "_hops",
        "_is_abandoned",
        "_is_live",
        "_leader",
        "_method",
        "_origins",
        "_path",
        "_pool",
        "_requester",
        "_route_url",
        "_sent",
        "_target",
        "_tried",
        "informed",
        "sent",
    )

    def __init__(
        self,
        exchanges: Exchanges,
        origins: Origins,
        requester: Requester,
        method: str,
        route_url: str,
        target: str,
        headers: CIMultiDict[str],
        bounds: Bounds,
        body: Body,
        is_live: bool,
        client: str | Askers,
    ) -> None:
        self._exchanges = exchanges
        self._origins = origins
        self._requester = requester
        self.sent = requester.sent
        self.informed = requester.informed
        self._method = method
        self._route_url = route_url
        self._headers = headers
        self._bounds = bounds
        self._body = body
        self._is_live = is_live
        self._client = client
        self._target = target
        self._path = target.partition("?")[0]
        self._pool: OriginPool | None = None
        self._sent: OriginRequest | None = None
        """The current attempt, as its origin tracks it."""
        self._tried: list[Origin] = []
        self._leader: Origin | None = None
        self._hops = 0
        self._exchange: Exchange | None = None
        self._buffering: asyncio.Task[None] | None = None
        self._is_abandoned = False
        self._context: Context | None = None
        """The caller's context, kept if redirects may be followed: connections run in the context they were made in."""

    def begin(self) -> None:
        try:
            pool = self._pool = self._origins.pool(self._route_url)
        except GatewayError as error:
            self._requester.failed(error)
            return
        if pool.credentials is not None:
            self._headers = pool.with_credentials(self._headers)
        if pool.follows_redirects:
            self._context = copy_context()
            body = self._body
            if body is not None and not isinstance(body, bytes):
                self._buffering = self._exchanges.tasks.start(self._buffer(body), f"buffer {self._path}")
                return
        self._send_next()

    async def _buffer(self, body: AsyncIterator[bytes]) -> None:
        try:
            self._body = await _buffered(body, self._bounds.total_s)
        except GatewayError as error:
            self._buffering = None
            self._requester.failed(error)
        else:
            self._buffering = None
            self._send_next()

    def _send_next(self) -> None:
        """Send the request to the next origin."""
        assert self._pool is not None
        is_upload = not (self._body is None or isinstance(self._body, bytes))
        try:
            sent = self._sent = self._pool.admit(
                self._method,
                self._path,
                is_live=self._is_live,
                is_upload=is_upload,
                tried=self._tried,
                leader=self._leader,
            )
        except GatewayError as error:
            self._requester.failed(error)
            return
        exchange = self._exchanges.ask_at(
            self,
            self._method,
            sent.origin.authority,
            self._target,
            self._headers,
            self._bounds,
            self._body,
            OutcomeReport(sent, self._origins.clock.now, may_drain=self._pool.may_drain),
            self._is_live,
            self._client,
            self._pool.route,
        )
        # If the exchange failed at once, `failed` may have started another one by now.
        if self._sent is sent and not exchange.is_over:
            self._exchange = exchange

    def leave(self) -> None:
        self._is_abandoned = True
        if self._buffering is not None:
            self._buffering.cancel()
        if self._exchange is not None:
            exchange, self._exchange = self._exchange, None
            exchange.leave()

    # -- from the exchange

    def answered(self, reply: Reply) -> None:
        self._exchange = None
        if reply.status not in _REDIRECTS:
            self._requester.answered(reply)
            return
        assert self._pool is not None
        assert self._sent is not None
        leader = self._pool.leader(self._sent, self._method, self._target, reply.headers.get("Location"))
        if leader is None or self._hops == _MOST_HOPS or not (self._body is None or isinstance(self._body, bytes)):
            self._requester.answered(reply)
            return
        reply.close()
        leader.redirects += 1
        self._hops += 1
        self._leader = leader
        if self._context is not None:
            self._context.run(self._send_next)
        else:
            self._send_next()

    def failed(self, error: GatewayError) -> None:
        assert self._pool is not None
        assert self._sent is not None
        self._exchange = None
        if isinstance(error, UpstreamCongested):
            # Not for the next origin: the streams would lose their places whenever many clients come at once.
            self._requester.failed(error)
            return
        self._pool.forget_leader(self._method, self._path)
        self._tried.append(self._sent.origin)
        self._leader = None
        if self._is_abandoned:
            return
        if error.is_unsent and self._pool.has_untried(self._tried):
            self._send_next()
        else:
            self._requester.failed(error)


async def _buffered(body: AsyncIterator[bytes], within_s: float | None) -> Body:
    """The body as bytes if it is small enough to be buffered; else an iterator over all of it.

    RequestTimeout if the client does not send it in time, UpstreamBroken if reading it fails.
    """
    buffered = bytearray()
    try:
        async with asyncio.timeout(within_s):
            async for chunk in body:
                buffered += chunk
                if len(buffered) > _BUFFERED_BYTES:
                    return _with_rest(bytes(buffered), body)
    except GatewayError:
        raise
    except TimeoutError:
        raise RequestTimeout(is_unsent=True) from None
    except Exception as error:
        raise UpstreamBroken(is_unsent=True) from error
    return bytes(buffered)


async def _with_rest(buffered: bytes, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield buffered
    async for chunk in body:
        yield chunk

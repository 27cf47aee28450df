"""The client towards origins: every request of the gateway goes through it.

A request names a route, and `pool` has its origins.  A request of which no byte was sent, because no connection could
be made, goes to the next origin, a write too, since the first has had nothing of it.  What was sent is not sent again
here, except after a redirect to a leader: by that the origin has said that it did not do it.

A body that comes piece by piece is held, up to 64 KiB, where a redirect may have to be followed; of a larger one the
redirect is the client's to follow, and its next request goes to the leader at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextvars import Context, copy_context
from typing import Final

from multidict import CIMultiDict

from gateway.errors import GatewayError, RequestTimeout, UpstreamBroken
from gateway.telemetry.tracing import NO_TRACER, Tracer
from gateway.upstream.asking import Asker, Asking, answer_to
from gateway.upstream.connections import Connections
from gateway.upstream.endpoint import split_url
from gateway.upstream.exchange import Exchange, Exchanges
from gateway.upstream.origins import Origin, Sent
from gateway.upstream.pool import ROUTE_URL, Origins, Pool
from gateway.upstream.reply import Body, Bounds, Reply, Sending

_LED: Final = frozenset({307, 308})
_MOST_HOPS: Final = 2
"""Redirects to leaders that are followed for one request."""
_HELD_BYTES: Final = 1 << 16


class OriginClient:
    """Sends requests.  `close` ends all connections.

    A URL of the scheme `route` is sent to one of that route's origins, as `origins` has them; any other as it is.
    """

    def __init__(self, connections: int = 512, tracer: Tracer = NO_TRACER, origins: Origins | None = None) -> None:
        self.exchanges = Exchanges(connections, tracer)
        self._origins = origins

    @property
    def open_connections(self) -> int:
        """Connections in use now."""
        return self.exchanges.open_connections

    def connections(self) -> dict[str, Connections]:
        """What is open, by what it is for."""
        return self.exchanges.connections()

    def ask(
        self,
        asker: Asker,
        method: str,
        url: str,
        headers: CIMultiDict[str],
        bounds: Bounds,
        body: Body = None,
        *,
        is_live: bool = False,
    ) -> Asking:
        """Send one request.  `asker` is told what becomes of it, maybe before this returns.

        A failing body iterator aborts the connection, so that the origin never takes a part for the whole.
        """
        if self._origins is None or not url.startswith(ROUTE_URL):
            return self.exchanges.ask(asker, method, url, headers, bounds, body, is_live=is_live)
        asking = _Asking(self.exchanges, self._origins, asker, method, url, headers, bounds, body, is_live)
        asking.begin()
        return asking

    async def send(
        self,
        method: str,
        url: str,
        headers: CIMultiDict[str],
        bounds: Bounds,
        body: Body = None,
        *,
        is_live: bool = False,
        on_sent: Callable[[], object] = lambda: None,
    ) -> Reply:
        """Send one request and wait for the head of its answer; `on_sent` is called for each time that it is sent.

        Raises UpstreamUnreachable, UpstreamTimeout, UpstreamBroken; CircuitOpen, at once, where no origin may be asked.
        """
        return await answer_to(
            lambda asker: self.ask(asker, method, url, headers, bounds, body, is_live=is_live), on_sent
        )

    async def close(self) -> None:
        await self.exchanges.close()


class _Asking:
    """One request on its way from origin to origin.  An `Asker` of each of them."""

    __slots__ = (
        "_asker",
        "_body",
        "_bounds",
        "_context",
        "_exchange",
        "_exchanges",
        "_has_left",
        "_headers",
        "_holding",
        "_hops",
        "_is_live",
        "_leader",
        "_method",
        "_origins",
        "_path",
        "_pool",
        "_sent",
        "_target",
        "_tried",
        "_url",
    )

    def __init__(
        self,
        exchanges: Exchanges,
        origins: Origins,
        asker: Asker,
        method: str,
        url: str,
        headers: CIMultiDict[str],
        bounds: Bounds,
        body: Body,
        is_live: bool,
    ) -> None:
        self._exchanges = exchanges
        self._origins = origins
        self._asker = asker
        self._method = method
        self._url = url
        self._headers = headers
        self._bounds = bounds
        self._body = body
        self._is_live = is_live
        self._target = split_url(url)[1]
        self._path = self._target.partition("?")[0]
        self._pool: Pool | None = None
        self._sent: Sent | None = None
        """As the books have it that is on its way now."""
        self._tried: list[Origin] = []
        self._leader: Origin | None = None
        self._hops = 0
        self._exchange: Exchange | None = None
        self._holding: asyncio.Task[None] | None = None
        self._has_left = False
        self._context: Context | None = None
        """That of whoever asks, where it may be needed: connections call in that of whoever they were made for."""

    def begin(self) -> None:
        try:
            pool = self._pool = self._origins.pool(self._url)
        except GatewayError as error:
            self._asker.failed(error)
            return
        self._headers = pool.dressed(self._headers)
        if pool.follows_redirects:
            self._context = copy_context()
        body = self._body
        if pool.follows_redirects and body is not None and not isinstance(body, bytes):
            self._holding = self._exchanges.tasks.start(self._hold(body), f"hold {self._path}")
        else:
            self._go()

    async def _hold(self, body: AsyncIterator[bytes]) -> None:
        try:
            self._body = await _held(body, self._bounds.total_s)
        except GatewayError as error:
            self._holding = None
            self._asker.failed(error)
        else:
            self._holding = None
            self._go()

    def _go(self) -> None:
        """Send it to the next origin."""
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
            self._asker.failed(error)
            return
        exchange = self._exchanges.ask(
            self,
            self._method,
            sent.origin.authority + self._target,
            self._headers,
            self._bounds,
            self._body,
            Sending(sent, self._origins.clock.now),
            is_live=self._is_live,
        )
        # Where it has failed at once, another may be on its way by now.
        if self._sent is sent and not exchange.is_over:
            self._exchange = exchange

    def leave(self) -> None:
        self._has_left = True
        if self._holding is not None:
            self._holding.cancel()
        if self._exchange is not None:
            exchange, self._exchange = self._exchange, None
            exchange.leave()

    # -- from the exchange

    def sent(self) -> None:
        self._asker.sent()

    def answered(self, reply: Reply) -> None:
        self._exchange = None
        if reply.status not in _LED:
            self._asker.answered(reply)
            return
        assert self._pool is not None
        assert self._sent is not None
        leader = self._pool.leader(self._sent, self._method, self._target, reply.headers.get("Location"))
        if leader is None or self._hops == _MOST_HOPS or not (self._body is None or isinstance(self._body, bytes)):
            self._asker.answered(reply)
            return
        reply.close()
        leader.redirects += 1
        self._hops += 1
        self._leader = leader
        if self._context is not None:
            self._context.run(self._go)
        else:
            self._go()

    def failed(self, error: GatewayError) -> None:
        assert self._pool is not None
        assert self._sent is not None
        self._exchange = None
        self._pool.forget_leader(self._method, self._path)
        self._tried.append(self._sent.origin)
        self._leader = None
        if self._has_left:
            return
        if error.is_unsent and self._pool.has_untried(self._tried):
            self._go()
        else:
            self._asker.failed(error)


async def _held(body: AsyncIterator[bytes], within_s: float | None) -> Body:
    """The body as one piece, where it is small enough to be held; else as it comes.

    RequestTimeout where its client does not bring it in time, UpstreamBroken where the client does not at all.
    """
    held = bytearray()
    try:
        async with asyncio.timeout(within_s):
            async for chunk in body:
                held += chunk
                if len(held) > _HELD_BYTES:
                    return _behind(bytes(held), body)
    except GatewayError:
        raise
    except TimeoutError:
        raise RequestTimeout(is_unsent=True) from None
    except Exception as error:
        raise UpstreamBroken(is_unsent=True) from error
    return bytes(held)


async def _behind(held: bytes, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield held
    async for chunk in body:
        yield chunk

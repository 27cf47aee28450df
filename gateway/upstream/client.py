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
from typing import Final

from multidict import CIMultiDict

from gateway.errors import GatewayError, RequestTimeout, UpstreamBroken
from gateway.tracing import NO_TRACER, Tracer
from gateway.upstream.connections import Connections
from gateway.upstream.endpoint import split_url
from gateway.upstream.exchange import Exchanges
from gateway.upstream.origins import Origin
from gateway.upstream.pool import ROUTE_URL, Origins, Pool
from gateway.upstream.reply import Body, Bounds, Reply, Sending

_LED: Final = frozenset({307, 308})
_MOST_HOPS: Final = 2
"""Redirects to leaders that are followed for one request."""
_HELD_BYTES: Final = 1 << 16


class Client:
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

        A failing body iterator aborts the connection, so that the origin never takes a part for the whole.
        Raises UpstreamUnreachable, UpstreamTimeout, UpstreamBroken; CircuitOpen, at once, where no origin may be asked.
        """
        if self._origins is None or not url.startswith(ROUTE_URL):
            on_sent()
            return await self.exchanges.send(method, url, headers, bounds, body, is_live=is_live, on_repeat=on_sent)
        pool = self._origins.pool(url)
        if pool.follows_redirects and body is not None and not isinstance(body, bytes):
            body = await _held(body, bounds.total_s)
        return await self._send_to(pool, self._origins.clock.now, method, url, headers, bounds, body, is_live, on_sent)

    async def _send_to(
        self,
        pool: Pool,
        now: Callable[[], float],
        method: str,
        url: str,
        headers: CIMultiDict[str],
        bounds: Bounds,
        body: Body,
        is_live: bool,
        on_sent: Callable[[], object],
    ) -> Reply:
        headers = pool.dressed(headers)
        _, target = split_url(url)
        path = target.partition("?")[0]
        tried: list[Origin] = []
        leader: Origin | None = None
        hops = 0
        while True:
            sent = pool.admit(method, path, is_live=is_live, tried=tried, leader=leader)
            on_sent()
            try:
                reply = await self.exchanges.send(
                    method,
                    sent.origin.authority + target,
                    headers,
                    bounds,
                    body,
                    Sending(sent, now),
                    is_live=is_live,
                    on_repeat=on_sent,
                )
            except GatewayError as error:
                pool.forget_leader(method, path)
                tried.append(sent.origin)
                leader = None
                if not error.is_unsent or not pool.has_untried(tried):
                    raise
                continue
            if reply.status not in _LED:
                return reply
            leader = pool.leader(sent, method, target, reply.headers.get("Location"))
            if leader is None or hops == _MOST_HOPS or not (body is None or isinstance(body, bytes)):
                return reply
            reply.close()
            leader.redirects += 1
            hops += 1

    async def close(self) -> None:
        await self.exchanges.close()


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

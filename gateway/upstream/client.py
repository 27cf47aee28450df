"""The client that sends all requests to origins.

`Exchanges` sends requests to any host.  It owns the connection pools, the TLS settings, and the list of HTTP/2 hosts.

`OriginClient` sends requests that name a route, and chooses an origin of the route.  If no connection to this origin
can be made, the request goes to the next origin.  Trying the next origin is safe for writes too, because no byte was
sent.

The client also follows a redirect to the leader of a stream, which is another origin of the route.  Sending the request
again is safe, because a redirect shows that the first origin did not process the request.  To be able to follow a
redirect, the client buffers a streamed body of up to 64 KiB.  With a larger body, the redirect is passed on to the
gateway's client.  Later requests for the stream go directly to the leader.

Other modules retry requests that were sent: `gateway.upstream.exchange` after a dead connection, and
`gateway.engine.fetch` after the failure of a shared fetch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextvars import Context, copy_context
from typing import Final

from gateway.aio.tasks import Tasks
from gateway.config.origin_tls import OriginTls
from gateway.errors import GatewayError, RequestTimeout, UpstreamBroken, UpstreamCongested
from gateway.http.http2.flood_limits import SessionCounts
from gateway.protocol.member_session import MemberKey
from gateway.telemetry.tracing import NO_TRACER, Tracer
from gateway.upstream.connection_pool import UNBOUNDED, ConnectionPool, Connections
from gateway.upstream.dialer import Dialer, HopDialer, Http2Dials, MemberDialer
from gateway.upstream.exchange import Exchange
from gateway.upstream.incoming import Intake, no_op
from gateway.upstream.kept_connections import KeepAlive
from gateway.upstream.origin_call import Body, Endpoint, OriginCall, endpoint_of, split_url
from gateway.upstream.origin_pool import ROUTE_URL, OriginPool, Origins
from gateway.upstream.origin_state import Origin, OriginRequest
from gateway.upstream.reply import PendingRequest, Reply, Requester, answer_to
from gateway.upstream.resolver import LookUp, look_up
from gateway.upstream.slots import Purpose, SlotLimits, SlotUse

_MOST_HOPS: Final = 2
"""The most leader redirects followed for one request."""
_BUFFERED_BYTES: Final = 1 << 16


class Exchanges:
    """Sends requests to any host.  `close` ends all connections.

    Live requests have a separate pool, because they last for minutes and would use up the connection slots of other
    requests.  `limits` does not bound that pool; `gateway.live.followed_streams` bounds the number of live requests.
    """

    def __init__(self, limits: SlotLimits, tracer: Tracer = NO_TRACER, look_up: LookUp = look_up) -> None:
        self.tracer = tracer
        self.time: Callable[[], float] = self._first_time
        """The loop's clock, in seconds."""
        self.tasks = Tasks()
        self.dialer = Dialer(self.tasks, look_up, self._resolved)
        self.http2 = SessionCounts()
        intake = Intake()
        self.shared = ConnectionPool(limits, intake)
        self.live = ConnectionPool(UNBOUNDED, intake)
        self._http2_hosts: frozenset[Endpoint] = frozenset()
        self.http2_dials = Http2Dials(self.tasks, self.dialer, self.http2)

    def _first_time(self) -> float:
        # Keep the loop's method, because `get_running_loop` makes a system call.
        self.time = asyncio.get_running_loop().time
        return self.time()

    def share_among(self, hosts: int, routes: int) -> None:
        """Divide the slots (`gateway.upstream.slots`) among this many hosts and routes, so that a host that hangs does
        not use up all slots."""
        self.shared.share_among(hosts, routes)
        self.live.share_among(hosts, routes)

    def keep(self, keep_alive: KeepAlive) -> None:
        """Set how long connections are kept."""
        self.shared.keep_alive = self.live.keep_alive = keep_alive

    def _resolved(self, host: str, port: int, addresses: list[str]) -> None:
        self.shared.resolved(host, port, addresses)
        self.live.resolved(host, port, addresses)

    def renew(self) -> None:
        """Resolve all names again, and let new requests open new connections."""
        self.dialer.forget_names()
        self._renew()

    def configure_tls(self, tls: Mapping[str, OriginTls]) -> None:
        """Use these TLS settings for new requests, which open new connections."""
        if tls or self.dialer.tls:
            self.dialer.tls = dict(tls)
            self._renew()

    def configure_http2(self, origins: Iterable[str]) -> None:
        """Use HTTP/2 for these origins, given as `scheme://host:port`, and use HTTP/1.1 for all other origins."""
        hosts = frozenset(map(endpoint_of, origins))
        if hosts != self._http2_hosts:
            self._http2_hosts = hosts
            self._renew()

    def _renew(self) -> None:
        now = asyncio.get_running_loop().time()
        self.shared.renew(now)
        self.live.renew(now)

    def retire_host(self, endpoint: Endpoint) -> None:
        """Close the connections to the host once their exchanges have ended."""
        self.shared.retire_host(endpoint)
        self.live.retire_host(endpoint)

    def uses_http2(self, endpoint: Endpoint) -> bool:
        """Return whether requests to the host are sent over HTTP/2."""
        return endpoint in self._http2_hosts

    @property
    def open_connections(self) -> int:
        """The number of connections in use."""
        return len(self.shared) + len(self.live)

    def connections(self) -> dict[str, Connections]:
        """Return the figures of both pools.  The pool `live` carries the live requests: one for each followed stream,
        and the relayed live reads.  The pool `shared` carries all other requests.
        """
        now = asyncio.get_running_loop().time()
        return {"shared": self.shared.snapshot(now), "live": self.live.snapshot(now)}

    def slot_use(self) -> SlotUse:
        """Return the figures of the shared pool's slots, with the number of live requests."""
        shared, live = self.shared.slot_use(), self.live.slot_use()
        return shared._replace(taken={**shared.taken, Purpose.LIVE: live.taken[Purpose.LIVE]})

    def ask(self, requester: Requester, call: OriginCall, sent: OriginRequest | None = None) -> Exchange:
        """Send one request.  `requester` and `sent` are notified of its outcome, possibly before this call returns."""
        exchange = Exchange(self, requester, call, sent)
        exchange.send_request(*split_url(call.url))
        return exchange

    async def send(
        self, call: OriginCall, on_sent: Callable[[], object] = no_op, sent: OriginRequest | None = None
    ) -> Reply:
        """Send one request and wait for the head of its reply.  `on_sent` is called for each attempt.

        Raises UpstreamUnreachable, UpstreamTimeout, UpstreamBroken, UpstreamCongested.
        """
        return await answer_to(lambda requester, call: self.ask(requester, call, sent), call, on_sent)

    async def close(self) -> None:
        self.shared.close()
        self.live.close()
        await self.tasks.close()


class OriginClient:
    """Sends requests.  `close` ends all connections.

    If the URL of a request has the scheme `route`, the request goes to one of the route's origins, as listed in
    `origins`.  Any other URL is used as it is.
    """

    def __init__(
        self, limits: SlotLimits | None = None, tracer: Tracer = NO_TRACER, origins: Origins | None = None
    ) -> None:
        self.exchanges = Exchanges(limits or SlotLimits(), tracer)
        self._origins = origins

    @property
    def open_connections(self) -> int:
        """The number of connections in use."""
        return self.exchanges.open_connections

    def connections(self) -> dict[str, Connections]:
        """Return the figures of the open connections, by pool."""
        return self.exchanges.connections()

    def slot_use(self) -> SlotUse:
        """Return the figures of the connection slots."""
        return self.exchanges.slot_use()

    def ask(self, requester: Requester, call: OriginCall) -> PendingRequest:
        """Send one request.  `requester` is notified of its outcome, possibly before this method returns."""
        origins = self._origins
        if origins is None or not call.url.startswith(ROUTE_URL):
            return self.exchanges.ask(requester, call)
        exchange = _RoutedExchange(self.exchanges, requester, call)
        exchange.begin_routed(origins)
        return exchange

    async def send(self, call: OriginCall, on_sent: Callable[[], object] = no_op) -> Reply:
        """Send one request and wait for the head of its reply; `on_sent` is called for each attempt.

        Raises UpstreamUnreachable, UpstreamTimeout or UpstreamBroken.  Raises CircuitOpen at once if no origin may be
        used, and UpstreamCongested if no connection is free in time.
        """
        return await answer_to(self.ask, call, on_sent)

    async def close(self) -> None:
        await self.exchanges.close()


class HopClient:
    """Sends requests to the other workers of this gateway.  The host of a request's URL is `worker-<slot>`.

    `close` ends all connections.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        """`paths` are the Unix sockets of the workers in all slots."""
        self._exchanges = Exchanges(UNBOUNDED)
        self._exchanges.dialer = HopDialer(self._exchanges.tasks, paths)

    def __repr__(self) -> str:
        return f"<HopClient {self._exchanges.open_connections} connections>"

    def ask(self, requester: Requester, call: OriginCall) -> Exchange:
        """Send one request.  The requester is notified of its outcome, possibly before this method returns."""
        return self._exchanges.ask(requester, call)

    async def send(self, call: OriginCall, on_sent: Callable[[], object] = no_op) -> Reply:
        """Send one request and wait for the head of its reply."""
        return await answer_to(self.ask, call, on_sent)

    async def close(self) -> None:
        await self._exchanges.close()


class MemberClient(HopClient):
    """Sends requests to the other members of a fleet.  `close` ends all connections."""

    def __init__(self, key: MemberKey, urls: Mapping[str, str], workers: int = 1) -> None:
        """`urls` are the members' URLs by name, and `workers` is the number of this gateway's workers."""
        super().__init__(())
        self._exchanges.dialer = self._dialer = MemberDialer(self._exchanges.tasks, key, _names(urls), workers)

    def use_members(self, urls: Mapping[str, str]) -> None:
        """Send requests to these members only from now on.  Connections to other members are closed once their
        exchanges have ended."""
        for endpoint in self._dialer.use_names(_names(urls)):
            self._exchanges.retire_host(endpoint)
        # This also forgets the hosts that are not in use.
        self._exchanges.share_among(len(urls), 1)


def _names(urls: Mapping[str, str]) -> dict[Endpoint, str]:
    """Return the names of members by endpoint, from their URLs by name."""
    return {endpoint_of(url): name for name, url in urls.items()}


class _RoutedExchange(Exchange):
    """A call to a route, which may be sent to several origins one after the other."""

    __slots__ = ("_buffering", "_context", "_hops", "_leader", "_path", "_route", "_target", "_tried")

    def __init__(self, exchanges: Exchanges, requester: Requester, call: OriginCall) -> None:
        # Do not call through `super()`, which would double the cost of the call.
        Exchange.__init__(self, exchanges, requester, call)
        self._route: OriginPool
        self._target: str
        """The request target in origin form."""
        self._path: str
        """The path of the request target."""
        self._tried: tuple[Origin, ...] = ()
        self._leader: Origin | None = None
        self._hops = 0
        self._buffering: asyncio.Task[None] | None = None
        self._context: Context | None = None
        """The caller's context, in which a redirected request is sent: connections have contexts of their own."""

    def begin_routed(self, origins: Origins) -> None:
        """Send the request to an origin of its route."""
        call = self._call
        if (repeated := call.repeated) is not None:
            route_url, self._target, self._path = repeated.parts
        else:
            route_url, target = split_url(call.url)
            self._target, self._path = target, target.partition("?")[0] if "?" in target else target
        try:
            route = self._route = origins.pool(route_url)
        except GatewayError as error:
            self._end(error)
            return
        if route.credentials is not None and not call.has_own_credentials:
            self._call = call._replace(headers=route.with_credentials(call.headers))
        if route.follows_redirects:
            self._context = copy_context()
            body = call.body
            if body is not None and not isinstance(body, bytes):
                self._buffering = self._hosts.tasks.start(self._buffer(body), f"buffer {self._path}")
                return
        self._send_next()

    async def _buffer(self, body: AsyncIterator[bytes]) -> None:
        try:
            buffered = await _buffered(body, self._call.bounds.total_s)
        except GatewayError as error:
            self._buffering = None
            self._end(error)
        else:
            self._buffering = None
            self._call = self._call._replace(body=buffered)
            self._send_next()

    def _send_next(self) -> None:
        """Send the request to the leader or the next origin."""
        call, route = self._call, self._route
        try:
            body = call.body
            sent = route.admit(
                call.method,
                self._path,
                self._tried,
                self._leader,
                is_live=call.is_live,
                is_upload=not (body is None or isinstance(body, bytes)),
            )
        except GatewayError as error:
            self._end(error)
            return
        self._sent = sent
        self.send_request(sent.origin.authority, self._target, route.route)

    def _end(self, error: GatewayError) -> None:
        self.is_over = True
        self._requester.failed(error)

    def give_up(self) -> None:
        if self._buffering is not None:
            self._buffering.cancel()
            self._buffering = None
        super().give_up()

    # -- overrides of `Exchange`

    def _again(self) -> None:
        """Reset the state of the exchange and send the request to another origin."""
        self._connection = self._incoming = self._upload = self._span = None
        self.is_over = False
        self._send_next()

    def _redirected(self, reply: Reply) -> None:
        call, sent = self._call, self._sent
        assert sent is not None
        leader = self._route.leader(sent, call.method, self._target, reply.headers.get("Location"))
        if leader is None or self._hops == _MOST_HOPS or call.is_upload:
            self._requester.head_arrived(reply)
            return
        reply.close()
        leader.redirects += 1
        self._hops += 1
        self._leader = leader
        if self._context is not None:
            self._context.run(self._again)
        else:
            self._again()

    def _failed(self, error: GatewayError) -> None:
        if isinstance(error, UpstreamCongested):
            # Do not try the next origin if no slot was free in time.  Otherwise, all streams would move between the
            # origins whenever many requests arrive together.
            self._requester.failed(error)
            return
        assert self._sent is not None
        self._route.forget_leader(self._call.method, self._path)
        self._tried = (*self._tried, self._sent.origin)
        self._leader = None
        if error.is_unsent and self._route.has_untried(self._tried):
            self._again()
        else:
            self._requester.failed(error)


async def _buffered(body: AsyncIterator[bytes], within_s: float | None) -> Body:
    """Return the body as bytes if it is small enough to be buffered, otherwise as an iterator over the whole body.

    Raises RequestTimeout if the client does not send the body in time, and UpstreamBroken if reading the body fails.
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

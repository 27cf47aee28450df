"""Sends requests to any host.  Owner of the connection pools, the TLS settings, and the list of HTTP/2 hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from gateway.aio.tasks import Tasks
from gateway.config.origin_tls import OriginTls
from gateway.http.http2.flood_limits import SessionCounts
from gateway.telemetry.tracing import NO_TRACER, Tracer
from gateway.upstream.asking import Requester, answer_to
from gateway.upstream.call import Endpoint, OriginCall, endpoint_of, split_url
from gateway.upstream.connection_pool import UNBOUNDED, ConnectionPool, Connections
from gateway.upstream.dialer import Dialer, Http2Dials
from gateway.upstream.exchange import Exchange
from gateway.upstream.incoming import no_op
from gateway.upstream.intake import Intake
from gateway.upstream.keep_alive import KeepAlive
from gateway.upstream.origin_state import OriginRequest
from gateway.upstream.reply import Reply
from gateway.upstream.resolver import LookUp, look_up
from gateway.upstream.slots import Purpose, SlotLimits, SlotUse


class Exchanges:
    """Sends requests to any host.  `close` ends all connections.

    Live requests have a separate pool, because they last for minutes and would use up the slots of other requests.
    `limits` does not bound that pool; `gateway.live.table` bounds the number of live requests.
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

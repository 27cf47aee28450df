"""The exchanges with all hosts, and what they share: connections, TLS settings, and the hosts that speak HTTP/2."""

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
from gateway.upstream.keep_alive import KeepAlive
from gateway.upstream.origin_state import OriginRequest
from gateway.upstream.reply import Reply
from gateway.upstream.resolver import LookUp, look_up
from gateway.upstream.slots import Purpose, SlotLimits, SlotUse


class Exchanges:
    """Connections to all hosts.  `close` ends them.

    Live requests have a pool of their own, bounded where they begin (`gateway.live.table`) rather than by
    `limits`.  They last for minutes, and in a shared pool would leave no slots for other requests.
    """

    def __init__(self, limits: SlotLimits, tracer: Tracer = NO_TRACER, look_up: LookUp = look_up) -> None:
        self.tracer = tracer
        self.time: Callable[[], float] = self._first_time
        """The loop's clock, in seconds."""
        self.tasks = Tasks()
        self.dialer = Dialer(self.tasks, look_up, self._resolved)
        self.http2 = SessionCounts()
        self.shared = ConnectionPool(limits)
        self.live = ConnectionPool(UNBOUNDED)
        self._http2_hosts: frozenset[Endpoint] = frozenset()
        self.http2_dials = Http2Dials(self.tasks, self.dialer, self.http2)

    def _first_time(self) -> float:
        # To ask for the running loop takes a system call.
        self.time = asyncio.get_running_loop().time
        return self.time()

    def share_among(self, hosts: int, routes: int) -> None:
        """Share the connections among this many hosts and routes, so that one that hangs does not take them all."""
        self.shared.share_among(hosts, routes)
        self.live.share_among(hosts, routes)

    def keep(self, keep_alive: KeepAlive) -> None:
        """Keep connections like this from now on."""
        self.shared.keep_alive = self.live.keep_alive = keep_alive

    def _resolved(self, host: str, port: int, addresses: list[str]) -> None:
        self.shared.resolved(host, port, addresses)
        self.live.resolved(host, port, addresses)

    def renew(self) -> None:
        """Resolve all names again, and let new requests open new connections."""
        self.dialer.forget_names()
        self._renew()

    def configure_tls(self, tls: Mapping[str, OriginTls]) -> None:
        """Use these TLS settings from now on; new requests open new connections."""
        if tls or self.dialer.tls:
            self.dialer.tls = dict(tls)
            self._renew()

    def configure_http2(self, origins: Iterable[str]) -> None:
        """Ask these origins, by scheme, host and port, over HTTP/2 from now on, and all others over HTTP/1.1."""
        hosts = frozenset(map(endpoint_of, origins))
        if hosts != self._http2_hosts:
            self._http2_hosts = hosts
            self._renew()

    def _renew(self) -> None:
        now = asyncio.get_running_loop().time()
        self.shared.renew(now)
        self.live.renew(now)

    def uses_http2(self, endpoint: Endpoint) -> bool:
        """Whether the host is asked over HTTP/2."""
        return endpoint in self._http2_hosts

    @property
    def open_connections(self) -> int:
        """Connections in use now."""
        return len(self.shared) + len(self.live)

    def connections(self) -> dict[str, Connections]:
        """The open connections: `shared` for all brief requests, `live` for followed streams and relayed live reads."""
        now = asyncio.get_running_loop().time()
        return {"shared": self.shared.snapshot(now), "live": self.live.snapshot(now)}

    def slot_use(self) -> SlotUse:
        """The slots of the shared pool, and the live connections."""
        shared, live = self.shared.slot_use(), self.live.slot_use()
        return shared._replace(taken={**shared.taken, Purpose.LIVE: live.taken[Purpose.LIVE]})

    def ask(self, requester: Requester, call: OriginCall, sent: OriginRequest | None = None) -> Exchange:
        """Send one request.  `requester` is notified of its outcome, possibly before this returns, and so is `sent`, if
        the host has a state."""
        exchange = Exchange(self, requester, call, sent)
        exchange.send_request(*split_url(call.url))
        return exchange

    async def send(
        self, call: OriginCall, on_sent: Callable[[], object] = no_op, sent: OriginRequest | None = None
    ) -> Reply:
        """Send one request and wait for the head of its reply; `on_sent` is called for each attempt.

        Raises UpstreamUnreachable, UpstreamTimeout, UpstreamBroken, UpstreamCongested.
        """
        return await answer_to(lambda requester, call: self.ask(requester, call, sent), call, on_sent)

    async def close(self) -> None:
        self.shared.close()
        self.live.close()
        await self.tasks.close()

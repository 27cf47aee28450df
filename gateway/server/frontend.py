"""The frontend: how requests come in, as one piece that a new configuration replaces between two of them.

It makes the request handler, the connections and the ready answers.  `take` has all later requests go by another
configuration: what is under way ends as it began, and no connection is touched.  Ready answers are begun anew with the
routes, because what a request's bytes mean, and which of its lines are credentials, is the routes' to say.
"""

from __future__ import annotations

import logging

from gateway.config.gateway import GatewayConfig
from gateway.engine.core import Engine
from gateway.engine.route import RouteTable
from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode
from gateway.protocol.proxies import Proxies
from gateway.server.access_logging import AccessLogHandler
from gateway.server.clients import AsyncHandler, Clients, ConnectionRefusal, Handler, Peer, Work
from gateway.server.connection import Connection, SecureConnection
from gateway.server.handler import RequestHandler
from gateway.server.handshake import HTTP_1, HTTP_2, Connect
from gateway.server.http2.connection import Http2Connection
from gateway.server.joins import Join, Joins
from gateway.server.listeners import Certificates, ListenerRecorder, Listeners
from gateway.server.redirect import redirect
from gateway.server.remembered import RememberedAnswer, RememberedAnswers
from gateway.server.request import Channel, Request
from gateway.server.tracing import TracingHandler
from gateway.telemetry.access_record import AccessLog, Record
from gateway.telemetry.metrics import MetricsRecorder
from gateway.telemetry.tracing import NO_TRACER, Tracer

_log = logging.getLogger("gateway.listeners")


def _proxies(config: GatewayConfig) -> Proxies | None:
    """Those that are trusted; None where there are none."""
    trusted = config.server.trusted_proxies
    return Proxies(trusted, config.server.forwarded_by) if trusted else None


class Frontend:
    """The way into one engine.  Owner of the route table and of the clients' connections."""

    def __init__(
        self,
        config: GatewayConfig,
        engine: Engine,
        metrics: MetricsRecorder,
        tracer: Tracer,
        access_log: AccessLog,
        told: ListenerRecorder,
    ) -> None:
        self._config = config
        self._engine = engine
        self._metrics = metrics
        self._tracer = tracer
        self._access_log = access_log
        self.routes = RouteTable(config.routes, config.server.node_name, engine.clock)
        self._joins = Joins()
        self._handler = self._make_front()
        remembered = self._make_ready()
        self.clients = Clients(
            self._answer, config.limits, remembered, engine.clock, metrics, self._note_bad, self._joins
        )
        self.every_clients = [self.clients]
        """Those, and the ones of listeners that only redirect."""
        self.clients.counted = self.connections
        if access_log.is_kept or tracer is not NO_TRACER:
            self.clients.on_hit = self._note_hit
        else:
            # What is noted one by one is so by the handlers around the request handler.
            self.clients.join = self._join if config.server.fast_path else None
        self.clients.proxies = proxies = _proxies(config)
        # By their names in ALPN, the best first: they are offered in this order.
        protocols: dict[str, Connect] = {HTTP_2: self._connect_http2, HTTP_1: self._connect}
        self.listeners = Listeners(config, self.clients, protocols, self._redirecting, told, proxies)

    def connections(self) -> int:
        """Client connections that are open now, at whichever listener."""
        return sum(map(len, self.every_clients))

    def refused(self) -> dict[str, int]:
        """Connections that were refused, by why."""
        return {why.value: sum(clients.refused[why] for clients in self.every_clients) for why in ConnectionRefusal}

    def unsent(self) -> tuple[int, int]:
        """Bytes that clients have left in their connections' buffers: of all of them, and the most of one."""
        sums, most = zip(*(clients.unsent() for clients in self.every_clients), strict=True)
        return sum(sums), max(most)

    def _connect(self, told: str | None, *, is_secure: bool, is_local: bool = False) -> Connection:
        """A protocol for a connection that has been accepted."""
        kind = SecureConnection if is_secure else Connection
        return kind(self.clients, told, is_local=is_local)

    def _connect_http2(self, told: str | None, *, is_secure: bool, is_local: bool = False) -> Http2Connection:
        """The same where HTTP/2 was agreed on."""
        return Http2Connection(self.clients, told, is_secure=is_secure, is_local=is_local)

    def _redirecting(self, port: int) -> Connect:
        """The same where requests are sent to https at a port."""
        limits, clock = self.clients.limits, self._engine.clock
        clients = Clients(redirect(port), limits, None, clock, self._metrics, self._note_bad)
        clients.counted = self.connections
        self.every_clients.append(clients)

        def connect(told: str | None, *, is_secure: bool, is_local: bool = False) -> Connection:
            return Connection(clients, told, is_local=is_local)

        return connect

    def show(self, certificates: Certificates) -> None:
        """Have listeners show these from here on."""
        for loaded in certificates.values():
            for line in loaded.kept:
                _log.warning("a certificate stays as it was: %s", line)
        self.listeners.take(certificates)

    def _answer(self, request: Request) -> Work | None:
        return self._handler(request)

    def _join(self, channel: Channel, join: Join) -> bool:
        return self._plain_front.join(channel, join)

    def _make_front(self) -> Handler:
        plain = self._plain_front = RequestHandler(
            self._config, self._engine, self.routes.routes, self._metrics, self._access_log, self._joins
        )
        handler: AsyncHandler | None = None
        if self._access_log.is_kept:
            handler = AccessLogHandler(plain, self._access_log, self._engine.clock)
        if self._tracer is not NO_TRACER:
            # Around the log, whose lines name the trace.
            handler = TracingHandler(handler or plain, self._tracer)
        return handler or plain.begin

    def _make_ready(self) -> RememberedAnswers | None:
        if not self._config.server.fast_path:
            return None
        engine = self._engine
        remembered = RememberedAnswers(engine.clock, engine.store, self._metrics, self._credentials(), engine.touch)
        engine.on_forget = remembered.forget
        return remembered

    def _credentials(self) -> list[tuple[str, ...]]:
        return [route.config.credential_headers for route in self.routes.routes]

    def _note_hit(self, answer: RememberedAnswer, peer: Peer, request: bytes) -> None:
        """A ready answer was given: to be known one by one, where there is a log or a trace."""
        if answer.repeated is not None:
            client, proxies = peer.client, peer.proxies
            if proxies is not None:
                client = proxies.client_of(client, request)
            self._access_log.repeat(answer.repeated, self._engine.clock.now(), client, request)
        if self._tracer is not NO_TRACER:
            self._tracer.hit(request, answer.mode, answer.outcome)

    def _note_bad(self, status: int, sent_bytes: int, client: str | None) -> None:
        """What could not be parsed was refused: nothing is known of what it asked."""
        self._metrics.request(Mode.OTHER, Outcome.REFUSED, 0.0, sent_bytes=sent_bytes)
        if self._access_log.is_kept:
            ended_at = self._engine.clock.wall()
            self._access_log.record(Record(status=status, ended_at=ended_at, sent_bytes=sent_bytes, client=client))

    def take(self, config: GatewayConfig) -> None:
        """Have every request from here on go by `config`."""
        self._config = config
        for clients in self.every_clients:
            clients.limits = config.limits
        self.clients.header_cache.clear()
        if self.routes.replace(config.routes):
            if self.clients.remembered is not None:
                self.clients.remembered.take(self._credentials())
            self._joins.clear()
            self._engine.purge.drop_others(self.routes.public_partitions)
        self._handler = self._make_front()

"""The frontend: the whole client side, which adopts a new configuration between two requests.

It makes the request handler, the connections and the store of remembered answers.  `reconfigure` applies a new
configuration to all later requests, and `use_certificates` applies new certificates to all later handshakes.  Requests
in progress end under the old configuration, and no connection is closed.  When the routes change, remembered answers
are dropped, because the routes decide which header lines matter.

`redirect` makes the handler of a listener that only redirects to https.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Literal

from multidict import CIMultiDict

from gateway.auth.rules import Rules
from gateway.config.gateway import GatewayConfig
from gateway.engine.core import Engine
from gateway.engine.route import HeaderRules, Route
from gateway.engine.route_table import RouteTable, newly_guarded
from gateway.limits.accounts import NO_PARTIES, client_nets
from gateway.limits.rate_limits import RateLimits
from gateway.protocol.cache_status import Outcome
from gateway.protocol.client_address import Proxies
from gateway.protocol.mode import Mode
from gateway.protocol.target import BadHost, host_of, without_authority
from gateway.server.authorising import Authoriser
from gateway.server.certificates import Certificates
from gateway.server.client_connections import ClientConnection, Clients, ConnectionRefusal
from gateway.server.connection import Connection
from gateway.server.fleet import MemberHopHandler, member_clients
from gateway.server.guarded_live_reads import SPREAD_S, GuardedReads
from gateway.server.handler import RequestHandler
from gateway.server.handshake import HTTP_1, HTTP_2, Connect
from gateway.server.header_meanings import Section, Sections
from gateway.server.hop import HopHandler, HopServer
from gateway.server.http2.connection import Http2Connection
from gateway.server.joins import Joins
from gateway.server.listeners import ListenerRecorder, Listeners
from gateway.server.query_credentials import VerdictKey
from gateway.server.remembered import RememberedAnswer, RememberedAnswers
from gateway.server.request import Answered, Handler, Peer, Request
from gateway.server.request_admission import Admission
from gateway.server.request_records import Observers
from gateway.telemetry.access_record import Client, Record
from gateway.telemetry.metrics import Sent
from gateway.telemetry.tracing import NO_TRACER
from gateway.upstream.auth_services import AuthServices

_TARGET: Final = re.compile(r"/[!-~]*")


def redirect(port: int) -> Handler:
    """Make a handler that redirects every request to the same URL with https, at `port`.

    The status 308 keeps the method (RFC 9110 section 15.4.9).  A host or a target that cannot be part of a URL gets a
    400.
    """
    suffix = "" if port == 443 else f":{port}"

    async def answer(request: Request) -> Answered:
        headers = CIMultiDict({"Cache-Control": "no-store", "Content-Type": "text/plain; charset=utf-8"})
        hosts = request.headers.getall("Host", ())
        try:
            host = host_of(hosts[0]) if len(hosts) == 1 else None
        except BadHost:
            host = None
        target = without_authority(request.target)
        if host is None or not _TARGET.fullmatch(target):
            request.keeps_alive = False
            request.channel.respond(request, 400, headers, b"Bad request\n")
            return Answered(400, headers)
        headers["Location"] = f"https://{host}{suffix}{target}"
        request.channel.respond(request, 308, headers, b"This is served over https\n")
        return Answered(308, headers)

    return answer


_log = logging.getLogger("gateway.listeners")


def _proxies(config: GatewayConfig) -> Proxies | None:
    """Return the trusted proxies; None if none are configured."""
    trusted = config.server.trusted_proxies
    return Proxies(trusted, config.server.forwarded_by) if trusted else None


def _shown_address(form: Literal["full", "masked", "none"]) -> Callable[[str | None], str]:
    """Make a function that writes an address in the form of `log.client_address`.  The result is empty without an
    address.
    """
    match form:
        case "full":
            return lambda address: address or ""
        case "masked":
            return client_nets(24, 48)
        case "none":
            return lambda address: ""


class SecureConnection(Connection):
    """An HTTP/1.1 connection over TLS."""

    __slots__ = ()

    scheme = "https"

    @property
    def held_bytes(self) -> int:
        """The bytes of memory that this client alone costs.  Encrypted bytes count in full: each client has its own
        encrypted bytes, even if other clients get the same answer.
        """
        if self.cut_reason is not None:
            return 0
        held = super().held_bytes
        return max(held, min(self.unsent_bytes, self._clients.limits.send_buffer_bytes))


class Frontend:
    """The client side of one engine.  It owns the route table and the client connections."""

    def __init__(
        self,
        config: GatewayConfig,
        engine: Engine,
        listener_metrics: ListenerRecorder,
        rules: Mapping[str, Rules] | None = None,
    ) -> None:
        """`rules` maps the names of routes with `[[route.auth]]` to their rules."""
        self._config = config
        self._engine = engine
        self._now = engine.clock.now
        _, rng, _, metrics, access_log, tracer = engine.surroundings
        self._metrics = metrics
        self._tracer = tracer
        self._access_log = access_log
        self.routes = RouteTable(config.routes, config.server.node_name, engine.clock, rules)
        engine.take_routes(self.routes)
        self._sections = Sections(self._header_rules(), self._query_credentials())
        self._joins = Joins(self._sections)
        self._observers = Observers(access_log, tracer, engine.clock)
        limits, accounts = config.limits, engine.accounts
        self._rates = RateLimits(accounts, config.rate_limits)
        self._admission = Admission(limits, accounts, self._rates, metrics, rng, engine.clock.now)
        self._admission.on_ban = engine.suspend_client
        remembered = self._make_remembered()
        self.auth_services = AuthServices(self.routes.verdicts, engine.clock, rng, limits.auth_requests)
        self._authoriser = Authoriser(
            GuardedReads(self.auth_services, rng, lambda: self.clients),
            self._sections,
            remembered,
            self._admission,
            rng,
            self.auth_services,
            _shown_address(config.log.client_address),
        )
        self.clients = Clients(self._make_handler(), limits, remembered, engine.clock, metrics, self._joins, accounts)
        self.clients.turns.backlog = engine.fetches.backlog
        self.clients.on_bad_request = self._note_bad_request
        self.clients.speaks_s2 = self._speaks_s2()
        # With several workers, each remembered answer has to be checked (`RememberedAnswers.is_current`).
        self.clients.refusals = engine.negative_cache.groups if engine.others is None else (None,)
        if engine.others is not None:
            engine.others.routes = self._route_named
        self.every_clients = [self.clients]
        """The registry of the main connections, followed by the registry for listeners that only redirect.
        """
        if self._observers.is_on:
            self.clients.on_hit = self._note_hit
        self._choose_shortcuts()
        self.clients.proxies = proxies = _proxies(config)
        # The protocol factories by ALPN name, in order of preference.
        protocols: dict[str, Connect] = {HTTP_2: self._connect_http2, HTTP_1: self._connect}
        self.listeners = Listeners(config, self.clients, protocols, self._redirect_factory, listener_metrics, proxies)

        node, routes = config.server.node_name, self._route_named
        self.members = member_clients(node, limits, engine, routes, self._authoriser)
        """The connections of other members of the fleet; None without a fleet."""
        self.listeners.members = self.members

        self.others_are_empty: Callable[[float], Awaitable[None]] | None = None
        """Waits, for some seconds at most, until no worker has connections.  None if there is one worker."""

    def __repr__(self) -> str:
        return f"<Frontend {self.connections()} connections, {len(self.listeners)} listeners>"

    def hop_server(self, owner: str) -> HopServer:
        """Make the server for other workers.  `owner` is the name of this process."""
        config, engine = self._config, self._engine
        kind = HopHandler if engine.fleet is None else MemberHopHandler
        return HopServer(
            config.server.node_name, config.limits, engine, self._route_named, self._authoriser, owner, kind
        )

    def _route_named(self, name: str) -> Route | None:
        return next((route for route in self.routes.routes if route.name == name), None)

    def connections(self) -> int:
        """Return the number of open client connections at all listeners."""
        return self.clients.accounts.open_connections

    def refused(self) -> dict[str, int]:
        """Refused connections by reason."""
        return {why.value: sum(clients.refused[why] for clients in self.every_clients) for why in ConnectionRefusal}

    def waited(self) -> int:
        """Return the number of requests that have waited for their turn since the start."""
        return sum(clients.turns.waited for clients in self.every_clients)

    def unsent(self) -> tuple[int, int]:
        """Return the bytes that clients have not read: the sum over all connections, and the largest number of one
        connection.
        """
        sums, most = zip(*(clients.unsent() for clients in self.every_clients), strict=True)
        return sum(sums), max(most)

    def _connect(self, client: str | None, *, is_secure: bool, is_local: bool = False) -> Connection:
        """Make the protocol of an accepted HTTP/1.1 connection."""
        kind = SecureConnection if is_secure else Connection
        return kind(self.clients, client, is_local=is_local)

    def _connect_http2(self, client: str | None, *, is_secure: bool, is_local: bool = False) -> Http2Connection:
        """Make the protocol of an accepted HTTP/2 connection."""
        return Http2Connection(self.clients, client, is_secure=is_secure, is_local=is_local)

    def _redirect_factory(self, port: int) -> Connect:
        """Make a factory of connections that redirect every request to https at `port`."""
        limits, clock = self.clients.limits, self._engine.clock
        clients = Clients(redirect(port), limits, None, clock, self._metrics, accounts=self.clients.accounts)
        clients.on_bad_request = self._note_bad_request
        clients.proxies = self.clients.proxies
        self.every_clients.append(clients)

        def connect(client: str | None, *, is_secure: bool, is_local: bool = False) -> Connection:
            return Connection(clients, client, is_local=is_local)

        return connect

    def use_certificates(self, certificates: Certificates) -> None:
        """Use new certificates for all later handshakes."""
        for loaded in certificates.values():
            for line in loaded.kept:
                _log.warning("keeping the previous version of a certificate: %s", line)
        self.listeners.use_certificates(certificates)

    def _choose_shortcuts(self) -> None:
        """Choose which requests may skip the request handler.

        During a drain (the orderly end of all connections) every request goes to the handler, because each answer has
        to announce the end of its connection.  With rate limits, each remembered answer needs a check.  Without rate
        limits, only answers on routes with authorisation rules need a check.
        """
        clients = self.clients
        clients.limits_hits, clients.admits = bool(self._rates.limits), self._admits
        has_shortcuts = clients.remembered is not None and not clients.is_draining
        clients.find = self._sections.find if has_shortcuts else None
        clients.join = self._join

    def begin_drain(self) -> None:
        """Let every connection end after its next answer."""
        for clients in self.every_clients:
            clients.begin_drain()
        self._joins.clear()
        self._choose_shortcuts()

    def undo_drain(self) -> None:
        """End the drain, and keep connections open again."""
        for clients in self.every_clients:
            clients.undo_drain()
        self._authoriser.reads.end_all_at_expiry()
        # Forget the live answers that were remembered during the drain, because they announce the end of their
        # connection.
        self._joins.clear()
        self._choose_shortcuts()

    def notice_clock_step(self) -> None:
        """End live reads whose credentials expired because the wall clock has made a step.  Must be called every few
        seconds.
        """
        self._authoriser.reads.notice_clock_step()

    async def close_connections(self, accepts_until: float, idle_at: float, gone_at: float) -> None:
        """Wait until every connection has ended.  No connection is accepted after `accepts_until`.  Idle connections
        are closed at `idle_at`, and all others are cut at `gone_at`.  All times are in seconds of the event loop's
        clock.

        A worker also waits until no other worker has connections, because the others ask this worker for the tails of
        its streams.
        """
        now = asyncio.get_running_loop().time
        are_empty = [await clients.emptied(accepts_until - now()) for clients in self.every_clients]
        if self.others_are_empty is not None and all(are_empty):
            await self.others_are_empty(accepts_until - now())
        if (fleet := self._engine.fleet) is not None:
            # Wait until the other members know that this member leaves.  Without this notice, a refused member would
            # not wait for the answers that are on their way.
            await fleet.until_told(accepts_until - now())
        await self.listeners.stop_accepting()
        for clients in self.every_clients:
            await clients.emptied(idle_at - now())
            clients.close_idle()
        for clients in self.every_clients:
            await clients.emptied(gone_at - now())
            await clients.abort()
        if self.others_are_empty is not None:
            await self.others_are_empty(gone_at - now())
        if self.members is not None:
            await self.members.finish(gone_at - now())
            await self.members.abort()

    def _admits(self, answer: RememberedAnswer, peer: Peer, section: Section, key: VerdictKey | None) -> bool:
        """Return whether authorisation and rate limits permit a remembered answer to be sent to this peer.  `key` is
        the key of the verdict on the peer's request; None without a verdict."""
        parties, usage = NO_PARTIES, None
        if answer.is_guarded:
            # This repeats the code of `Verdicts.holds`, because every remembered answer on a route with rules passes
            # here, and a call costs time.
            verdicts = self.routes.verdicts
            allowed = section.allowed.get(key) if key is not None else None
            if allowed is None or allowed.edition != verdicts.edition or verdicts.wall() >= allowed.until:
                return False
            if (scheme := allowed.scheme) is not None:
                own, behind = peer.scheme, peer.proxies
                if scheme != (own if behind is None else section.client_scheme(behind, peer.client, own)):
                    return False
            parties, usage = allowed.parties, allowed.usage
        if self._rates.limits:
            if (account := peer.use) is None:
                accounts, address, proxies = self.clients.accounts, peer.client, peer.proxies
                if proxies is not None:
                    address = section.client_address(proxies, address)
                account = accounts.open_account(accounts.net_of(address))
            if not self._admission.admit_remembered(account, answer.route, answer.body_bytes, parties):
                return False
        if usage is not None:
            usage.requests += 1
            usage.sent_bytes += answer.body_bytes
        return True

    def _make_handler(self) -> Handler:
        request_handler = RequestHandler(
            self._config,
            self._engine,
            self.routes.routes,
            self._observers,
            self._joins,
            self._admission,
            self._authoriser,
        )
        self._join = request_handler.live_requests.join
        return request_handler.handle

    def _make_remembered(self) -> RememberedAnswers | None:
        if not self._config.server.fast_path:
            return None
        engine = self._engine
        remembered = RememberedAnswers(
            engine.clock,
            engine.store,
            self._metrics,
            self._sections,
            engine.touch_stream,
            engine.negative_cache.has_any,
            engine.look,
        )
        engine.on_forget = remembered.forget_stream
        return remembered

    def _header_rules(self) -> list[HeaderRules]:
        return [route.header_rules for route in self.routes.routes]

    def _query_credentials(self) -> frozenset[str]:
        """Return the names of query parameters that are credentials on some route."""
        guards = (route.guard for route in self.routes.routes)
        return frozenset(name for guard in guards if guard is not None for name in guard.parameters)

    def _note_hit(
        self,
        answer: RememberedAnswer,
        peer: Peer,
        request: bytes,
        section: Section,
        began: float,
        key: VerdictKey | None,
    ) -> None:
        """Log and trace a remembered answer.  Its request was read at `began`, in monotonic seconds.  `key` is the key
        of the verdict on the request."""
        if answer.repeated is not None:
            address, proxies = peer.client, peer.proxies
            if proxies is not None:
                address = section.client_address(proxies, address)
            client: Client = address
            if answer.is_guarded and key is not None:
                allowed = section.allowed.get(key)
                client = allowed.caller(address) if allowed is not None else address
            self._access_log.repeat(answer.repeated, began, self._now(), client, section.text)
        if self._tracer is not NO_TRACER:
            self._tracer.hit(request, answer.mode, answer.outcome)

    def _note_bad_request(self, status: int, sent_bytes: int, connection: ClientConnection) -> None:
        """Count and log a request that cannot be parsed.  Only its client is known."""
        self._admission.refused(connection.use)
        self._metrics.request(Mode.OTHER, Outcome.REFUSED, 0.0, sent=Sent(body_bytes=sent_bytes))
        if self._access_log.is_kept:
            ended_at = self._engine.clock.wall()
            client = connection.client
            self._access_log.record(Record(status=status, ended_at=ended_at, sent_bytes=sent_bytes, client=client))

    def reconfigure(self, config: GatewayConfig, rules: Mapping[str, Rules] | None = None) -> None:
        """Apply a new configuration, and these rules of authorisation, to every later request."""
        self._config = config
        for clients in self.every_clients:
            clients.use_limits(config.limits)
        self._admission.use_limits(config.limits)
        self._rates.replace(config.rate_limits)
        self.clients.header_cache.clear()
        before = self.routes.routes
        is_other = self.routes.replace(config.routes, rules)
        if closed := newly_guarded(before, self.routes.routes):
            # These routes had no rules before, so their live reads began without authorisation and have to end.  A read
            # that still waits for the origin ends `ends_live_in_s` seconds after its answer begins.
            for route in closed:
                route.ends_live_in_s = SPREAD_S
            names = {route.name for route in closed}
            self._engine.live.drain_routes(names, SPREAD_S)
            self._engine.live_table.end_relayed_of(names)
        self.auth_services.configure((rules or {}).values())
        if is_other:
            if self.clients.remembered is not None:
                self.clients.remembered.reset()
            self._joins.clear()
            self._sections.reset(self._header_rules(), self._query_credentials())
            self._engine.purge.drop_others(self.routes.public_partitions)
            self._engine.take_routes(self.routes)
        self.clients.handler = self._make_handler()
        self._choose_shortcuts()
        self.clients.speaks_s2 = self._speaks_s2()

    def _speaks_s2(self) -> bool:
        return bool(self.routes.routes) and all(route.is_s2 for route in self.routes.routes)

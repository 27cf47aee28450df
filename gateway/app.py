"""The composition root: the only module that knows all parts of the gateway.

It builds the engine and the other parts, opens the listeners, applies reloads, and shuts the process down.  The
shutdown (the drain) has four steps.  First, live readers end, spread over the first part of the drain.  Requests are
still answered, and each answer announces the end of its connection.  Then no more connections are accepted.  Finally,
the remaining connections are cut.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final, Self

from aiohttp import web

from gateway.aio.clock import Clock, SystemClock
from gateway.aio.tasks import Tasks
from gateway.aio.timers import TICK_S
from gateway.auth.rules import Rules, load_rules
from gateway.config.addresses import Address
from gateway.config.cache_plan import CachePlan
from gateway.config.change import Change
from gateway.config.change import change as config_change
from gateway.config.credentials import load_credentials
from gateway.config.file import load_plan
from gateway.config.gateway import GatewayConfig
from gateway.config.origin_tls import OriginTls, load_auth_tls, load_tls, tls_files
from gateway.config.reader import ConfigReader, Load
from gateway.config.watched_files import Stamp, stamp
from gateway.engine.core import Engine
from gateway.ops.access_log.setup import open_access_log
from gateway.ops.access_log.writer import LogWriter
from gateway.ops.admin import admin_application
from gateway.ops.admin.app import MOST_LINE_BYTES
from gateway.ops.admin.connections import IDLE_S, AdminConnections
from gateway.ops.admin.guard import Guard, admin_token
from gateway.ops.admin.subject import NothingToRead
from gateway.ops.console.wiring import add_console
from gateway.ops.history import History, Sample, Sampling, sampled
from gateway.ops.loop_delay import LoopDelay
from gateway.ops.memory_watch import MemoryLimits, MemoryWatch
from gateway.ops.metrics import Metrics
from gateway.ops.partition_ids import PartitionIds
from gateway.ops.plan_figures import PlanFigures
from gateway.ops.process_memory import container_limit_bytes, resident_bytes, return_freed_memory
from gateway.ops.state import Unsent, look_at
from gateway.ops.tracing_extra import check_tracing
from gateway.plan.applier import PlanApplier
from gateway.plan.entries import budget_bytes, is_too_short
from gateway.server.certificate_reloader import CertificateReloader, certificate_files, load_certificates
from gateway.server.frontend import Frontend
from gateway.server.listeners import Certificates
from gateway.server.shedding import Shedding
from gateway.server.sockets import listen_at
from gateway.telemetry.access_record import NO_ACCESS_LOG, AccessLog
from gateway.telemetry.surroundings import Surroundings
from gateway.telemetry.tracing import NO_TRACER, Tracer, current
from gateway.upstream.origin_pool import Credentials

_log = logging.getLogger("gateway.app")

_LAST_ACCEPTED_S: Final = 1.0
"""Seconds between the end of accepting and the closing of idle connections, in which the last accepted connections can
send a request."""

_CONTAINER_SHARE: Final = 0.9
"""The share of the container's memory limit that the process may use if `memory_max_bytes` is 0."""


class RunningGateway:
    """A gateway that accepts connections.  The caller must call `stop`."""

    def __init__(
        self,
        config: GatewayConfig,
        engine: Engine,
        metrics: Metrics,
        frontend: Frontend,
        load: Load | None,
        log: LogWriter | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._environ = environ
        self.config = config
        """The configuration in effect."""
        self.engine = engine
        self.metrics = metrics
        self.access_log: AccessLog = log or NO_ACCESS_LOG
        """The access log; `NO_ACCESS_LOG` if it is off."""
        self._log = log
        self.routes = frontend.routes
        self.clients = frontend.clients
        self.started_at = engine.clock.now()
        self.auth_services = frontend.auth_services
        self._frontend = frontend
        self.listeners = frontend.listeners
        self._reader = ConfigReader(self._loaded, engine.clock)
        self._load = load
        self.has_file = True
        """Whether `reload` reads a configuration file.  Without one, the configuration consists of flags and the
        environment."""
        self.planned = PlanApplier(engine, engine.surroundings.rng)
        self.plan_figures = PlanFigures(self.planned, engine, metrics)
        self._reloading = asyncio.Lock()
        self._certificate_reloader = CertificateReloader(
            lambda: self.config.every_listener,
            self.listeners,
            frontend.use_certificates,
            self._reloading,
            engine.clock,
        )
        self._tasks = Tasks()
        """Background tasks outside the engine, from the first connection until `stop`."""
        self._admin: web.AppRunner | None = None
        self._admin_servers: list[asyncio.Server] = []
        self.memory = MemoryWatch(
            engine.store,
            Shedding(frontend.every_clients),
            _memory_limits(config),
            lambda: metrics.cache_limit_bytes,
            resident_bytes,
            return_freed_memory,
            SystemClock(),
            engine.fetches.inflow,
        )
        metrics.memory.look = self.memory.figures
        self.admin_connections = AdminConnections(self._serve_admin, config.server.admin_connections)
        metrics.listeners.admin = self.admin_connections.figures
        # Always the system's clock: it measures the event loop itself.
        self._loop_delay = LoopDelay(SystemClock())
        metrics.loop_delays = self._loop_delay.delays
        self.history = History()
        self._sampling = Sampling(engine.clock, self._take_sample)
        self._is_open = False
        self.gateway_url = ""
        """URL of the first listener."""
        self.admin_url = ""

    @property
    def is_ready(self) -> bool:
        return self._is_open and not self.engine.drain.is_set

    @property
    def connections(self) -> int:
        """The number of open client connections."""
        return self._frontend.connections()

    def _take_sample(self) -> None:
        self.history.take(self.sample())
        self._frontend.notice_clock_step()

    def sample(self) -> Sample:
        """Return the counters at this moment."""
        return sampled(self.metrics, self.engine.clock.now(), self.engine.clock.wall())

    async def listen(self, admin: web.Application, certificates: Stamp) -> Self:
        """Accept at all listeners, and serve `admin` on the admin port.  `certificates` is the stamp of the loaded
        certificate files.  Raises OSError if a port is taken."""
        self.admin_connections.watch(admin)
        # Handlers are cancelled with their connection, so that a closed console page leaves no live reader behind.
        self._admin = web.AppRunner(
            admin,
            access_log=None,
            shutdown_timeout=1.0,
            handler_cancellation=True,
            max_line_size=MOST_LINE_BYTES,
            keepalive_timeout=2 * IDLE_S,
        )
        self._loop_delay.start()
        self._sampling.start()
        if self._log is not None:
            self._log.start()
        private = self.config.server.admin_address
        try:
            await self._admin.setup()
            self._admin_servers = await listen_at(private, self.admin_connections)
            self.admin_url = _url(private, self._admin_servers[0].sockets[0].getsockname()[1])
            await self.listeners.open(self._environ)
            self._tasks.start(self.memory.run(), "memory")
            self._is_open = True
            self.gateway_url = self.listeners.urls[0]
            if certificate_files(self.config.every_listener):
                self._tasks.start(self._certificate_reloader.run(certificates), "certificates")
        except BaseException:
            self.planned.stop()
            self._loop_delay.close()
            self._sampling.close()
            await self._close_admin()
            await self._tasks.close()
            await self.auth_services.close()
            await self.engine.close()
            if self._log is not None:
                await self._log.close(0.0)
            await self.engine.tracer.close(0.0)
            raise
        return self

    def drain(self, within_s: float | None = None) -> None:
        """Begin a drain: the gateway is no longer ready, and ends live reads properly within `within_s`, by default
        `shutdown_timeout_s`.

        New requests are still answered until `stop`, because a load balancer needs time to notice that the gateway is
        not ready.  Each answer over HTTP/1.1 announces the end of its connection, and connections over HTTP/2 get a
        GOAWAY.
        """
        within_s = self.config.server.shutdown_timeout_s if within_s is None else within_s
        self.planned.stop()
        self.engine.begin_drain(within_s * 0.8, within_s)
        self._frontend.begin_drain()

    def undo_drain(self) -> bool:
        """End a drain: the gateway is ready again, and live readers that have not ended yet stay.  Returns False if the
        gateway is already stopping."""
        if not self._is_open:
            return False
        if self.engine.drain.is_set:
            self.engine.undo_drain()
            self._frontend.undo_drain()
            self.planned.resume()
        return True

    async def reload(self) -> Change:
        """Read the configuration again, and apply every setting that can change while connections are open.

        Raises ConfigError if the configuration or a file that it names cannot be used, and NothingToRead if the gateway
        has no configuration to read.  In both cases, nothing changes.
        """
        if self._load is None:
            raise NothingToRead("this gateway was started without a configuration to read again")
        try:
            change = await self._take_anew()
        except Exception:
            self.metrics.operations.reload(is_taken=False)
            raise
        self.metrics.operations.reload(is_taken=True)
        return change

    async def _take_anew(self) -> Change:
        async with self._reloading:
            wanted, plan, credentials, tls, certificates, rules, auth_tls = await self._reader.read()
            change = config_change(self.config, wanted)
            self._frontend.use_certificates(certificates)
            self.config = change.config
            if anew := self.engine.take_origins(change.config, credentials, tls):
                # The content of a credential's file may change, although the configuration stays the same.
                names = (f"route.{route}.origin_credentials" for route in anew)
                change = replace(change, changed=(*change.changed, *names))
            # Resolve the names of origins again: an origin may have moved, even if its URL has not changed.
            self.engine.client.exchanges.renew()
            self.engine.limit_clients(change.config.limits)
            self.auth_services.configure_tls(auth_tls)
            self._frontend.reconfigure(change.config, rules)
            self.memory.limits = _memory_limits(change.config)
            if self.take_plan(plan, is_budget_set=_is_budget_set(wanted)):
                # The file of the plan may have new content, although its name stays the same.
                change = replace(change, changed=(*change.changed, "cache.plan"))
            return change

    def _loaded(self) -> _Loaded:
        """Load the configuration, and all files that it names: the plan, credentials, TLS settings, certificates and
        rules.  Runs in the thread of the `ConfigReader`."""
        assert self._load is not None
        config = self._load()
        shown = config_change(self.config, config).config.every_listener
        certificates = load_certificates(shown, self.listeners.alpn, self.listeners.certificates)
        credentials = _origin_credentials(config, self._environ)
        tls, auth_tls = load_tls(config), load_auth_tls(config)
        return config, load_plan(config), credentials, tls, certificates, load_rules(config), auth_tls

    def take_plan(self, plan: CachePlan | None, *, is_budget_set: bool) -> bool:
        """Apply this plan under the current configuration; return whether it differs from the previous one."""
        grants, limits = self.config.cache.plan, self.config.limits
        budget = budget_bytes(limits.cache_bytes, is_set=is_budget_set, plan=plan, grants=grants)
        _configure(self.metrics, self.config, budget)
        is_new = self.planned.apply(plan, grants, self.routes.routes, budget)
        if is_new:
            self.plan_figures.begin()
            if plan is not None and grants.take_memory and not is_budget_set and is_too_short(plan, grants):
                _log.warning(
                    "%s: made from %.0f s of traffic, too little to set the memory by: the cache keeps %d bytes, not "
                    "%d; cache.plan.take_short_memory = true takes the plan's",
                    grants.file,
                    plan.made_from.span_s,
                    budget,
                    plan.memory.cache_bytes,
                )
        return is_new

    async def stop(self) -> None:
        """Drain, and stop within `shutdown_timeout_s`.  Connections that are still open at the end are cut.

        Ports that other processes share are closed at once.  All other ports stay open until the last connection is
        closed, or the drain is over.  A restart therefore refuses connections only while the next process starts.
        """
        timeout_s = self.config.server.shutdown_timeout_s
        self.planned.stop()
        gone_at = asyncio.get_running_loop().time() + timeout_s
        self._is_open = False
        await self.listeners.stop_accepting(only_shared=True)
        # Live readers must end before idle connections are closed, and the timer wheel may end them up to one tick
        # late.  Therefore end them a tick earlier.
        self.engine.begin_drain(timeout_s * 0.4, max(timeout_s * 0.4, timeout_s * 0.8 - TICK_S))
        self._frontend.begin_drain()
        idle_at = gone_at - timeout_s * 0.2
        await self._frontend.close_connections(
            idle_at - min(_LAST_ACCEPTED_S, timeout_s * 0.1), idle_at, gone_at - timeout_s * 0.1
        )
        await self.listeners.wait_closed()
        await self._tasks.close()
        await self.auth_services.close()
        await self.engine.close()
        if self._log is not None:
            # All requests have ended, so the log may use the rest of the time.
            await self._log.close(max(timeout_s * 0.05, gone_at - asyncio.get_running_loop().time()))
        await self.engine.tracer.close(max(timeout_s * 0.05, gone_at - asyncio.get_running_loop().time()))
        await self._close_admin()
        self._sampling.close()
        self._loop_delay.close()

    async def _close_admin(self) -> None:
        for server in self._admin_servers:
            server.close()
        if self._admin is not None:
            await self._admin.cleanup()

    def _serve_admin(self) -> web.RequestHandler:
        """Make a protocol of the admin port's HTTP server."""
        assert self._admin is not None
        assert self._admin.server is not None
        return self._admin.server()


async def start_gateway(
    config: GatewayConfig,
    *,
    clock: Clock | None = None,
    rng: random.Random | None = None,
    tracer: Tracer | None = None,
    load: Load | None = None,
    environ: Mapping[str, str] | None = None,
) -> RunningGateway:
    """Start a gateway on the running loop.

    `load` reads the configuration again.  It runs in a thread and may raise ConfigError.  Without `load` there are no
    reloads.  `environ` has the admin port's token and the credentials for origins; the default is the process's
    environment.  `clock` and `rng` are for tests; the defaults are the system's clock and an unseeded generator.
    `tracer` replaces the tracer of `config.tracing`.

    Raises OSError if a port is taken.  Raises ConfigError if a file that the configuration names cannot be used, if a
    token or credential is missing, or if tracing needs an extra that is not installed.
    """
    clock = clock or SystemClock()
    environ = os.environ if environ is None else environ
    plan = load_plan(config)
    known = stamp(tls_files(config))
    credentials, tls, rules = _origin_credentials(config, environ), load_tls(config), load_rules(config)
    auth_tls = load_auth_tls(config)
    address = config.server.admin_address
    guard = Guard(address, admin_token(environ, address))
    rng = rng or random.Random()
    tracer = tracer or _tracer(config, clock, rng)
    metrics = Metrics(wall=clock.wall, trace_now=_sampled_trace if tracer is not NO_TRACER else None)
    _configure(metrics, config, config.limits.cache_bytes)
    partitions = PartitionIds(config.log.partition_key.get_secret_value())
    log = open_access_log(config, clock, metrics, rng, partitions)
    engine = Engine(
        config, Surroundings(clock, rng, Tasks(), metrics, log or NO_ACCESS_LOG, tracer), credentials, tls=tls
    )
    frontend = Frontend(config, engine, metrics.listeners, rules)
    metrics.auth_services = auth_services = frontend.auth_services
    auth_services.configure_tls(auth_tls)
    auth_services.configure(rules.values())
    certificate_stamp = stamp(certificate_files(config.every_listener))
    frontend.use_certificates(load_certificates(config.every_listener, frontend.listeners.alpn))
    clients = frontend.clients
    metrics.before_collect = clients.count
    metrics.http2 = clients.http2
    metrics.upstream_http2 = engine.client.exchanges.http2
    metrics.listeners.refused = frontend.refused
    metrics.listeners.waited = frontend.waited
    metrics.listeners.expiries = frontend.listeners.expiries
    gateway = RunningGateway(config, engine, metrics, frontend, load, log, environ)
    metrics.plan = gateway.plan_figures.look
    metrics.tenants = frontend.routes.verdicts.tenants.items
    metrics.look = partial(
        look_at, engine, frontend.connections, lambda: Unsent(*frontend.unsent()), lambda: gateway.is_ready
    )
    application = admin_application(gateway, guard, partitions)
    places = (lambda: gateway.gateway_url, lambda: frontend.listeners.inside_url)
    add_console(application, lambda: gateway.config, *places)
    gateway.take_plan(plan, is_budget_set=_is_budget_set(config))
    engine.tls_reloader.start(known)
    return await gateway.listen(application, certificate_stamp)


def _memory_limits(config: GatewayConfig) -> MemoryLimits:
    limits = config.limits
    container = container_limit_bytes() if not limits.memory_max_bytes else None
    most = limits.memory_max_bytes if container is None else int(_CONTAINER_SHARE * container)
    return MemoryLimits(most, limits.most_client_bytes)


_Loaded = tuple[
    GatewayConfig,
    CachePlan | None,
    Credentials,
    dict[str, OriginTls],
    Certificates,
    dict[str, Rules],
    dict[str, OriginTls],
]


def _origin_credentials(config: GatewayConfig, environ: Mapping[str, str]) -> Credentials:
    found = load_credentials(config, environ).items()
    return {route: (one.header, one.value.get_secret_value()) for route, one in found}


def _is_budget_set(config: GatewayConfig) -> bool:
    """Whether the operator has set `limits.cache_bytes`, even to its default."""
    return "cache_bytes" in config.limits.model_fields_set


def _configure(metrics: Metrics, config: GatewayConfig, budget: int) -> None:
    limits = {"connections": config.limits.max_connections, "followed_streams": config.limits.followed_streams}
    routes = [route.name for route in config.routes]
    metrics.configure(routes, budget, limits)
    metrics.protocols = {one.name: "durable-streams" if one.is_bridged else one.protocol for one in config.routes}
    metrics.limit_figures.configure(config.rate_limits, routes)
    metrics.guarded_routes = tuple(route.name for route in config.routes if route.auth)


def _sampled_trace() -> str | None:
    """Return the trace id of the current request if the trace is sampled, for exemplars in the metrics; else None."""
    span = current()
    return span.trace_id if span.is_sampled else None


def _tracer(config: GatewayConfig, clock: Clock, rng: random.Random) -> Tracer:
    if not config.tracing.endpoint:
        return NO_TRACER
    check_tracing(config.tracing)
    from gateway.ops.opentelemetry_tracer import OpenTelemetryTracer

    return OpenTelemetryTracer(config.tracing, clock, rng)


def _url(address: Address, port: int) -> str:
    host = address.hosts[0]
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{port}"

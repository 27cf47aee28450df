"""The composition root: the only module that knows all parts of the gateway.

It builds the engine and the other parts, opens the listeners, applies reloads, and shuts the process down.  The
shutdown (the drain) has four steps.  First, live readers end, spread over the first part of the drain.  Requests are
still answered, and each answer announces the end of its connection.  Then no more connections are accepted.  Finally,
the remaining connections are cut.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, Self

from aiohttp import web

from gateway.aio.clock import Clock, SystemClock
from gateway.aio.tasks import Tasks
from gateway.aio.timers import TICK_S
from gateway.config.addresses import http_url
from gateway.config.cache_plan import CachePlan
from gateway.config.change import Change
from gateway.config.change import change as config_change
from gateway.config.gateway import GatewayConfig
from gateway.config.origin_tls import tls_files
from gateway.config.reader import ConfigReader, Load
from gateway.config.watched_files import Stamp, stamp
from gateway.configured_files import ConfiguredFiles, load_files
from gateway.engine.core import Engine
from gateway.ops.access_log.setup import open_access_log
from gateway.ops.access_log.writer import LogWriter
from gateway.ops.admin import admin_application
from gateway.ops.admin.app import MOST_LINE_BYTES
from gateway.ops.admin.connections import IDLE_S, AdminConnections
from gateway.ops.admin.guard import Guard, admin_token
from gateway.ops.admin.readiness import is_process_ready
from gateway.ops.admin.subject import NothingToRead, NotUpgraded
from gateway.ops.console.wiring import add_console
from gateway.ops.disk_families import DiskState
from gateway.ops.gathering.worker_admin import WorkerAdmin
from gateway.ops.history import History, Sample, Sampling, sampled
from gateway.ops.loop_delay import LoopDelay
from gateway.ops.memory_watch import MemoryWatch, memory_limits
from gateway.ops.metrics import Metrics
from gateway.ops.metrics_setup import configure_metrics
from gateway.ops.partition_ids import PartitionIds
from gateway.ops.plan_figures import PlanFigures
from gateway.ops.process_memory import resident_bytes, return_freed_memory
from gateway.ops.state import Unsent, look_at
from gateway.ops.tracing_extra import open_tracer, sampled_trace
from gateway.plan.applier import PlanApplier
from gateway.plan.entries import budget_bytes, warn_of_short_plan
from gateway.server.certificates import CertificateReloader, Certificates, certificate_files, load_certificates
from gateway.server.connection_passing import Balancer
from gateway.server.frontend import Frontend
from gateway.server.hop import HopServer
from gateway.server.listeners import Inherited
from gateway.server.shedding import Shedding
from gateway.server.sockets import listen_at, serve_each
from gateway.telemetry.access_record import NO_ACCESS_LOG, AccessLog
from gateway.telemetry.surroundings import Surroundings
from gateway.telemetry.tracing import NO_TRACER, Tracer
from gateway.workers.portions import portion, share

_LAST_ACCEPTED_S: Final = 1.0
"""Seconds in which the last accepted connections can send a request, before idle connections are closed."""


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
        handed: Inherited | None = None,
    ) -> None:
        self._environ = environ
        self.handed = handed
        """A worker's sockets and place, from its supervisor; None if the process is the whole gateway."""
        self.workers = 1 if handed is None else handed.place.workers
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
            lambda: self.config.every_listener, self.listeners, frontend.use_certificates, self._reloading, engine.clock
        )
        self._tasks = Tasks()
        """Background tasks outside the engine, from the first connection until `stop`."""
        self._admin: web.AppRunner | None = None
        self.worker_admin: WorkerAdmin | None = None
        """The admin port's part for several workers; None if the process is the whole gateway."""
        self._admin_servers: list[asyncio.Server] = []
        self.memory = MemoryWatch(
            engine.store,
            Shedding(frontend.every_clients),
            memory_limits(config, self.workers),
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
        self._hop_server: HopServer | None = None
        """Answers the requests of other workers; None if the process is the whole gateway."""
        self.is_replaced = self._is_open = self._is_stopping = False
        self.drain_changes = self.level_changes = 0
        self.gateway_url = ""
        """URL of the first listener."""
        self.admin_url = ""

    @property
    def is_ready(self) -> bool:
        return is_process_ready(is_open=self._is_open, is_draining=self.engine.drain.is_set)

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
            if self.handed is not None:
                self.listeners.handed = self.handed.listening
                self.listeners.balancer = Balancer(self.handed.place)
                await self._join_workers(self.handed)
                self._admin_servers = await serve_each(self.handed.admin, self.admin_connections)
            else:
                self._admin_servers = await listen_at(private, self.admin_connections)
            self.admin_url = http_url(private, self._admin_servers[0].sockets[0].getsockname()[1])
            if self.handed is None:
                await self.engine.join_fleet()
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

    async def _join_workers(self, handed: Inherited) -> None:
        """Answer the other workers, and wait until this worker may accept connections."""
        assert self.worker_admin is not None
        await self.worker_admin.open()
        self._hop_server = self._frontend.hop_server((place := handed.place).process_name)
        await self._hop_server.open(place.hop_socket)
        assert self.engine.hop is not None
        self.engine.hop.watch(self.engine.live, self.engine.s2.streams)
        await self.engine.join_fleet()
        # The sockets of the ports are open, and keep connections until they are accepted.  A probe that reaches another
        # worker need not fail because this worker accepts a moment later.
        self._is_open = True
        if handed.until_accepting is not None:
            count_refusal = partial(self.metrics.operations.reload, is_taken=False)
            await handed.until_accepting(self.take_configuration, count_refusal)

    def wait_for_others(self, others_are_empty: Callable[[float], Awaitable[None]]) -> None:
        """Accept connections in a drain until `others_are_empty` returns."""
        self._frontend.others_are_empty = others_are_empty

    def drain(self, within_s: float | None = None) -> None:
        """Begin a drain: the gateway is no longer ready, and ends live reads properly within `within_s`, by default
        `shutdown_timeout_s`.

        New requests are still answered until `stop`, because a load balancer needs time to notice that the gateway is
        not ready.  Each HTTP/1.1 answer announces the end of its connection, and HTTP/2 connections get a GOAWAY.
        """
        within_s = self.config.server.shutdown_timeout_s if within_s is None else within_s
        self.drain_changes += 1
        self.planned.stop()
        self.engine.begin_drain(within_s * 0.8, within_s)
        self._frontend.begin_drain()

    def undo_drain(self) -> bool:
        """End a drain: the gateway is ready again, and live readers that have not ended yet stay.  Returns False if the
        gateway is already stopping."""
        if self._is_stopping:
            return False
        self.drain_changes += 1
        if self.engine.drain.is_set:
            self.engine.undo_drain()
            self._frontend.undo_drain()
            self.planned.resume()
        return True

    async def reload(self) -> Change:
        """Read the configuration again, and apply every setting that can change while connections are open.

        With several workers, all of them do.  Raises ConfigError if the configuration or a file that it names cannot be
        used, and NothingToRead if the gateway has no configuration to read.  In both cases, nothing changes.  Raises
        NotReloaded if not all workers have taken the configuration.
        """
        return await (self.take_configuration() if self.worker_admin is None else self.worker_admin.reload())

    async def take_configuration(self) -> Change:
        """Take the configuration that `load` returns; see `reload`."""
        if self._load is None:
            raise NothingToRead("this gateway was started without a configuration to read again")
        try:
            change = await self._take_anew()
        except Exception:
            self.metrics.operations.reload(is_taken=False)
            raise
        self.metrics.operations.reload(is_taken=True)
        return change

    async def upgrade(self) -> str:
        """Start the next version of the gateway on the same sockets, and return one line once it serves.

        Raises NotUpgraded.
        """
        if self.worker_admin is None:
            raise NotUpgraded("a gateway of one process is not upgraded in place: set server.workers above 1")
        return await self.worker_admin.upgrade()

    async def _take_anew(self) -> Change:
        async with self._reloading:
            wanted, files, certificates = await self._reader.read()
            change = config_change(self.config, wanted)
            self._frontend.use_certificates(certificates)
            self.config = change.config
            if anew := self.engine.take_origins(change.config, files.credentials, files.tls):
                # The content of a credential's file may change, although the configuration stays the same.
                names = (f"route.{route}.origin_credentials" for route in anew)
                change = replace(change, changed=(*change.changed, *names))
            self.engine.take_members(change.config.fleet)
            # Resolve the names of origins again: an origin may have moved, even if its URL has not changed.
            self.engine.client.exchanges.renew()
            self.engine.limit_clients(portion(change.config, self.workers).limits)
            self.auth_services.configure_tls(files.auth_tls)
            self._frontend.reconfigure(change.config, files.rules)
            self.memory.limits = memory_limits(change.config, self.workers)
            if self.take_plan(files.plan, is_budget_set=wanted.limits.is_budget_set):
                # The file of the plan may have new content, although its name stays the same.
                change = replace(change, changed=(*change.changed, "cache.plan"))
            return change

    def _loaded(self) -> tuple[GatewayConfig, ConfiguredFiles, Certificates]:
        """Load the configuration and all files that it names.  Runs in the thread of the `ConfigReader`."""
        assert self._load is not None
        config = self._load()
        shown = config_change(self.config, config).config.every_listener
        certificates = load_certificates(shown, self.listeners.alpn, self.listeners.certificates)
        return config, load_files(config, self._environ), certificates

    def take_plan(self, plan: CachePlan | None, *, is_budget_set: bool) -> bool:
        """Apply this plan under the current configuration; return whether it differs from the previous one."""
        grants, limits = self.config.cache.plan, self.config.limits
        budget = share(budget_bytes(limits.cache_bytes, is_set=is_budget_set, plan=plan, grants=grants), self.workers)
        configure_metrics(self.metrics, portion(self.config, self.workers), budget)
        is_new = self.planned.apply(plan, grants, self.routes.routes, budget)
        if is_new:
            self.plan_figures.begin()
            if not is_budget_set:
                warn_of_short_plan(plan, grants, budget)
        return is_new

    def refuse_changes(self) -> None:
        """Close the admin port, and refuse changes there, because another version of the gateway replaces this one."""
        if not self.is_replaced and self.worker_admin is not None:
            self.worker_admin.begin_last_answers()
        self.is_replaced = True
        if self.engine.fleet is not None:
            self.engine.fleet.is_replaced = True
        for server in self._admin_servers:
            server.close()

    async def stop(self, inherited: Iterable[int] = (), *, is_replaced: bool = False) -> None:
        """Drain, and stop within `shutdown_timeout_s`.  Connections that are still open at the end are cut.

        `inherited` has the indexes of listeners whose queues another process takes over, so this process accepts
        nothing more there.  If another version of the gateway replaces this one, this one closes its admin port too.

        Ports that other processes share are closed at once.  All other ports stay open until the last connection is
        closed, or the drain is over.  A restart therefore refuses connections only while the next process starts.
        """
        timeout_s = self.config.server.shutdown_timeout_s
        self.planned.stop()
        gone_at = asyncio.get_running_loop().time() + timeout_s
        self._is_open, self._is_stopping = False, True
        self.listeners.inherited = frozenset(inherited)
        if is_replaced:
            self.refuse_changes()
        await self.listeners.stop_accepting(only_shared=True)
        # Live readers must end before idle connections are closed, and the timer wheel may end them up to one tick
        # late.  Therefore end them a tick earlier.
        self.engine.begin_drain(timeout_s * 0.4, max(timeout_s * 0.4, timeout_s * 0.8 - TICK_S), is_final=True)
        self._frontend.begin_drain()
        idle_at = gone_at - timeout_s * 0.2
        await self._frontend.close_connections(
            idle_at - min(_LAST_ACCEPTED_S, timeout_s * 0.1), idle_at, gone_at - timeout_s * 0.1
        )
        await self.listeners.wait_closed()
        if self.worker_admin is not None:
            await self.worker_admin.finish_answers()
        if self._hop_server is not None:
            await self._hop_server.close()
        await self._tasks.close()
        await self.auth_services.close()
        await self.engine.close(max(timeout_s * 0.05, gone_at - asyncio.get_running_loop().time()))
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
        if self.worker_admin is not None:
            await self.worker_admin.close()

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
    handed: Inherited | None = None,
) -> RunningGateway:
    """Start a gateway on the running loop.

    `load` reads the configuration again.  It runs in a thread and may raise ConfigError.  Without `load` there are no
    reloads.  `environ` has the admin port's token and the credentials for origins; the default is the process's
    environment.  `clock` and `rng` are for tests; the defaults are the system's clock and an unseeded generator.
    `tracer` replaces the tracer of `config.tracing`.  `handed` comes from a worker's supervisor.

    Raises OSError if a port is taken.  Raises ConfigError if a file that the configuration names cannot be used, if a
    token or credential is missing, or if tracing needs an extra that is not installed.
    """
    clock = clock or SystemClock()
    environ = os.environ if environ is None else environ
    known = stamp(tls_files(config))
    files = load_files(config, environ)
    address = config.server.admin_address
    guard = Guard(address, admin_token(environ, address))
    rng = rng or random.Random()
    tracer = tracer or open_tracer(config, clock, rng)
    metrics = Metrics(wall=clock.wall, trace_now=sampled_trace if tracer is not NO_TRACER else None)
    configure_metrics(metrics, config, config.limits.cache_bytes)
    place = None if handed is None else handed.place
    divided = config if place is None else portion(config, place.workers)
    # All workers give a partition the same id, and so do all members of a fleet: a purge by id reaches all of them.
    secret = config.fleet.secret.get_secret_value() if place is None else place.secret.hex()
    partitions = PartitionIds(config.log.partition_key.get_secret_value() or secret)
    log = open_access_log(config, clock, metrics, rng, partitions, place.folder if place is not None else None)
    surroundings = Surroundings(clock, rng, Tasks(), metrics, log or NO_ACCESS_LOG, tracer)
    engine = Engine(divided, surroundings, files.credentials, tls=files.tls, crew=place)
    frontend = Frontend(divided, engine, metrics.listeners, files.rules)
    metrics.auth_services = auth_services = frontend.auth_services
    auth_services.configure_tls(files.auth_tls)
    auth_services.configure(files.rules.values())
    certificate_stamp = stamp(certificate_files(config.every_listener))
    frontend.use_certificates(
        load_certificates(config.every_listener, frontend.listeners.alpn) if handed is None else handed.certificates
    )
    clients = frontend.clients
    metrics.before_collect = clients.count
    metrics.http2 = clients.http2
    metrics.upstream_http2 = engine.client.exchanges.http2
    metrics.listeners.refused = frontend.refused
    metrics.listeners.waited = frontend.waited
    metrics.listeners.expiries = frontend.listeners.expiries
    gateway = RunningGateway(config, engine, metrics, frontend, load, log, environ, handed)
    metrics.plan = gateway.plan_figures.look
    if engine.has_disk:
        metrics.disk = lambda: DiskState.of(engine.disk)
    metrics.tenants = frontend.routes.verdicts.tenants.items
    metrics.look = partial(
        look_at, engine, frontend.connections, lambda: Unsent(*frontend.unsent()), lambda: gateway.is_ready
    )
    if place is not None:
        gateway.worker_admin = WorkerAdmin(place, gateway, partitions)
    answering = gateway.worker_admin.answering if gateway.worker_admin is not None else None
    application = admin_application(gateway, guard, partitions, answering)
    places = (lambda: gateway.gateway_url, lambda: frontend.listeners.inside_url)
    add_console(application, lambda: gateway.config, *places)
    gateway.take_plan(files.plan, is_budget_set=config.limits.is_budget_set)
    if engine.worker_store is not None:
        await engine.worker_store.open()
    engine.tls_reloader.start(known)
    return await gateway.listen(application, certificate_stamp)

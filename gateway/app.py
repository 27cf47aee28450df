"""The composition root: the only file that knows everything.

It builds the engine and its parts, listens, and takes everything down in order: stop accepting, end live readers spread
over the first half of the time, let what is in flight finish, drop the rest.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Self

from aiohttp import web

from gateway.clock import Clock, SystemClock
from gateway.config import GatewayConfig
from gateway.config_file import ConfigError
from gateway.config_values import Address
from gateway.engine.core import Engine
from gateway.engine.route import Route
from gateway.ops.admin import admin_application
from gateway.ops.console.wiring import add_console
from gateway.ops.metrics import Metrics
from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode
from gateway.server.connection import ClientServer
from gateway.server.door import Doorkeeper
from gateway.server.front import Front
from gateway.server.ready import ReadyAnswers
from gateway.server.traced import TracedFront, TracedReadyAnswers
from gateway.tracing import NO_TRACER, Tracer

_BACKLOG = 4_096


class RunningGateway:
    """A gateway that accepts.  `stop` is owed."""

    def __init__(
        self,
        config: GatewayConfig,
        engine: Engine,
        metrics: Metrics,
        server: ClientServer,
        doors: Doorkeeper,
        admin: web.AppRunner,
    ) -> None:
        self.config = config
        self.engine = engine
        self.metrics = metrics
        self.doors = doors
        self._server = server
        self._admin = admin
        self._listener: asyncio.Server | None = None
        self.gateway_url = ""
        self.admin_url = ""

    @property
    def is_ready(self) -> bool:
        return self._listener is not None and not self.engine.drain.is_set

    @property
    def strict_connections(self) -> int:
        """Client connections for which an aiohttp protocol exists."""
        return len(self._server.connections)

    async def listen(self) -> Self:
        """Accept on both ports; OSError when one is taken."""
        loop = asyncio.get_running_loop()
        public, private = self.config.server.listen_address, self.config.server.admin_address
        try:
            await self._admin.setup()
            site = web.TCPSite(self._admin, private.host, private.port)
            await site.start()
            self.admin_url = _url(private, self._admin.addresses[0][1])
            self._listener = await loop.create_server(
                self.doors, public.host, public.port, backlog=_BACKLOG, reuse_address=True
            )
            self.gateway_url = _url(public, self._listener.sockets[0].getsockname()[1])
        except BaseException:
            await self._admin.cleanup()
            await self.engine.close()
            raise
        return self

    async def stop(self) -> None:
        """Leave in order, within `shutdown_timeout_s`; what has not ended by then is dropped."""
        timeout_s = self.config.server.shutdown_timeout_s
        if self._listener is not None:
            self._listener.close()
        self.engine.begin_drain(timeout_s * 0.4, timeout_s * 0.8)
        self.doors.leave_in_order()
        self._server.pre_shutdown()
        ends_at = asyncio.get_running_loop().time() + timeout_s * 0.9
        # aiohttp would wait its own time twice: once for what is in flight, and again after it has asked it to stop.
        with suppress(TimeoutError):
            async with asyncio.timeout_at(ends_at):
                await self._server.shutdown(timeout_s)
        await self.doors.emptied(max(0.0, ends_at - asyncio.get_running_loop().time()))
        await self.doors.abort()
        if self._listener is not None:
            await self._listener.wait_closed()
            self._listener = None
        await self.engine.close()
        await self._admin.cleanup()


async def start_gateway(
    config: GatewayConfig,
    *,
    clock: Clock | None = None,
    rng: random.Random | None = None,
    tracer: Tracer | None = None,
) -> RunningGateway:
    """Start a gateway on the running loop.  OSError when a port is taken.

    `clock` and `rng` are for tests; the defaults are the machine's clock and an unseeded generator.  `tracer` stands in
    for what `config.tracing` asks for.  ConfigError where that needs an extra that is not installed.
    """
    clock = clock or SystemClock()
    tracer = tracer or _tracer(config, clock)
    metrics = Metrics(cache_limit_bytes=config.limits.cache_bytes)
    engine = Engine(config, clock, metrics, rng or random.Random(), tracer)
    routes = [Route(route, config.server.node_name, clock) for route in config.routes]
    front = Front(config, engine, routes, metrics)
    handler = front if tracer is NO_TRACER else TracedFront(front, tracer)
    server = ClientServer(handler, config.limits, lambda: metrics.request(Mode.OTHER, Outcome.REFUSED, 0.0))
    ready = None
    if config.server.fast_path:
        credentials = {name for route in config.routes for name in route.credential_headers}
        if tracer is NO_TRACER:
            ready = ReadyAnswers(clock, credentials, engine.touch)
        else:
            ready = TracedReadyAnswers(tracer, clock, credentials, engine.touch)
        engine.on_forget = ready.forget
    doors = Doorkeeper(server, config.limits, ready, metrics)
    gateway: RunningGateway | None = None
    application = admin_application(metrics, lambda: gateway is not None and gateway.is_ready)
    add_console(application, lambda: config, lambda: gateway.gateway_url if gateway is not None else "")
    # A page that closes a live tail leaves no reader behind on the public port.
    admin = web.AppRunner(application, access_log=None, shutdown_timeout=1.0, handler_cancellation=True)
    gateway = RunningGateway(config, engine, metrics, server, doors, admin)
    return await gateway.listen()


def _tracer(config: GatewayConfig, clock: Clock) -> Tracer:
    if not config.tracing.endpoint:
        return NO_TRACER
    try:
        from gateway.ops.tracing import OpenTelemetryTracer
    except ImportError as error:
        raise ConfigError(
            f"tracing.endpoint is set and {error.name} is not installed: pip install 'durable-gateway[opentelemetry]'"
        ) from None
    return OpenTelemetryTracer(config.tracing, clock)


def _url(address: Address, port: int) -> str:
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"http://{host}:{port}"

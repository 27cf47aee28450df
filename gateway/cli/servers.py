"""The processes behind `serve`, `dev` and `origin`: start servers, print READY lines, wait for a signal, drain.

SIGTERM and SIGINT begin a drain.  A second signal ends the process without waiting for the drain.  SIGHUP makes `serve`
read its configuration again.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import uvloop

from gateway.aio.clock import SystemClock
from gateway.cli.early_process import was_hung_up
from gateway.cli.errors import FailedToRunError
from gateway.cli.messages import print_message, print_ready
from gateway.cli.reloading import reloaded
from gateway.cli.sd_notify import ServiceManager
from gateway.cli.starting import bind_addresses, fit_open_files, started
from gateway.commands.dev_lines import print_lines_to_paste
from gateway.commands.run import allow_many_connections, collect_rarely
from gateway.config.addresses import Address
from gateway.config.file import Flag, load_config
from gateway.config.gateway import GatewayConfig
from gateway.config.server import ServerConfig
from gateway.config.variables import HANDED_VARIABLE

if TYPE_CHECKING:
    from gateway.app import RunningGateway
    from gateway.commands.dev_auth import LocalRules
    from gateway.commands.dev_tls import LocalCertificate
    from gateway.origin.app import RunningOrigin
    from gateway.origin.s2.app import RunningS2Origin

_ORIGIN_GRACE_S: Final = 2.0
"""Seconds for the origin of `dev` to stop.  Its only reader, the gateway, stops before."""

_DEV_DRAIN_S: Final = 1.0
"""Seconds for the gateway of `dev` to drain, because a browser's idle connections would delay its end."""


class Shutdown:
    """SIGTERM and SIGINT as an event.  The first signal makes the main task drain, and the second cancels the task."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self._main = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)

    def _signalled(self) -> None:
        if self._requested.is_set() and self._main is not None:
            self._main.cancel()
        self._requested.set()

    async def requested(self) -> None:
        """Wait for the first signal."""
        await self._requested.wait()


def serve(load: Callable[[], GatewayConfig], *, has_file: bool) -> None:
    """Run the gateway with the configuration that `load` reads, at the start and at each SIGHUP.

    Without a configuration file, other files are still read again: certificates, credentials, and a plan.
    """

    def load_fitting() -> GatewayConfig:
        return fit_open_files(load())

    allow_many_connections()
    if HANDED_VARIABLE not in os.environ and (config := load()).worker_count == 1:
        run(_serve_alone(fit_open_files(config), load_fitting, has_file=has_file))
    else:
        from gateway.cli.supervisor.process import supervise

        supervise(load_fitting, has_file=has_file)


async def _serve_alone(config: GatewayConfig, load: Callable[[], GatewayConfig], *, has_file: bool) -> None:
    """Run a gateway of one process."""
    from gateway.app import start_gateway

    shutdown, manager = Shutdown(), ServiceManager(os.environ)
    sighup = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, sighup.set)
    if was_hung_up():
        sighup.set()
    async with AsyncExitStack() as stack:
        gateway = await started(start_gateway(config, load=load), *bind_addresses(config))
        gateway.has_file = has_file
        stack.push_async_callback(gateway.stop)
        gateway.engine.tasks.start(_reload_when(sighup, gateway, manager), "SIGHUP")
        for url in gateway.listeners.urls:
            print_ready("gateway", url)
        print_ready("admin", gateway.admin_url)
        manager.ready()
        gateway.engine.health.probe_all()
        await shutdown.requested()
        manager.stopping()


async def _reload_when(sighup: asyncio.Event, gateway: RunningGateway, manager: ServiceManager) -> None:
    """Read the configuration again at each SIGHUP.  Print the outcome in one line, and report it to the manager."""
    while True:
        await sighup.wait()
        sighup.clear()
        manager.reloading()
        outcome = await reloaded(gateway)
        print_message(outcome)
        manager.ready(outcome)


async def run_origin(address: Address, long_poll_timeout_s: float, sse_lifetime_s: float, max_chunk_bytes: int) -> None:
    """Run the in-memory origin."""
    from gateway.origin.app import OriginSettings, start_origin

    shutdown = Shutdown()
    settings = OriginSettings(
        host=address.hosts[0],
        port=address.port,
        long_poll_timeout_s=long_poll_timeout_s,
        sse_lifetime_s=sse_lifetime_s,
        max_chunk_bytes=max_chunk_bytes,
    )
    async with AsyncExitStack() as stack:
        running = await started(start_origin(settings), address)
        stack.push_async_callback(running.stop, grace_s=ServerConfig().shutdown_timeout_s)
        print_ready("origin", running.url)
        await shutdown.requested()


async def run_s2_origin(address: Address) -> None:
    """Run the in-memory S2 origin."""
    from gateway.origin.s2.app import S2OriginSettings, start_s2_origin

    shutdown = Shutdown()
    settings = S2OriginSettings(host=address.hosts[0], port=address.port)
    async with AsyncExitStack() as stack:
        running = await started(start_s2_origin(settings), address)
        stack.push_async_callback(running.stop, grace_s=ServerConfig().shutdown_timeout_s)
        print_ready("origin", running.url)
        await shutdown.requested()


def load_local_certificate() -> LocalCertificate:
    """The certificate for `dev --tls`, which is made if there is none.  Raises FailedToRunError."""
    from gateway.commands.dev_tls import local_certificate, state_folder

    folder = state_folder(os.environ, Path.home()) / "tls"
    try:
        return local_certificate(folder, SystemClock.wall())
    except OSError as error:
        raise FailedToRunError(f"cannot keep a certificate in {folder}: {error.strerror or error}") from None


def _over_tls(config: GatewayConfig, local: LocalCertificate) -> GatewayConfig:
    """The configuration with TLS at `server.listen`."""
    pair = {"certificate": str(local.certificate), "key": str(local.key)}
    listener = {"address": config.server.listen, "tls": {"certificates": [pair]}}
    server = config.server.model_dump(exclude={"listen"}, exclude_unset=True)
    tree = {**config.model_dump(exclude_unset=True), "server": server, "listeners": [listener]}
    return GatewayConfig.model_validate(tree)


def _with_rules(config: GatewayConfig, rules: LocalRules) -> GatewayConfig:
    """The configuration with these rules on each route, and one tape for all readers."""
    tree = config.model_dump(exclude_unset=True)
    more = {"auth": rules.auth, "credentials": "shared"}
    return GatewayConfig.model_validate({**tree, "routes": [{**route, **more} for route in tree["routes"]]})


async def run_dev(
    flags: list[Flag],
    origin_address: Address,
    local: LocalCertificate | None,
    *,
    is_s2: bool = False,
    has_auth: bool = False,
) -> None:
    """Run an in-memory origin and a gateway in front of it.  With `local`, clients connect over TLS.  With `has_auth`,
    the gateway authorises requests, and tokens are printed."""
    from gateway.app import start_gateway

    shutdown = Shutdown()
    host, port = origin_address.hosts[0], origin_address.port
    async with AsyncExitStack() as stack:
        running: RunningOrigin | RunningS2Origin
        if is_s2:
            from gateway.origin.s2.app import S2OriginSettings, start_s2_origin

            running = await started(start_s2_origin(S2OriginSettings(host=host, port=port)), origin_address)
        else:
            from gateway.origin.app import OriginSettings, start_origin

            running = await started(start_origin(OriginSettings(host=host, port=port)), origin_address)
        stack.push_async_callback(running.stop, grace_s=_ORIGIN_GRACE_S)
        dev_flags = [
            Flag("route.*.origin", running.url, "dev"),
            Flag("server.console_writes", True, "dev"),
            Flag("server.shutdown_timeout_s", _DEV_DRAIN_S, "dev"),
        ]
        if is_s2:
            # Append sessions need HTTP/2 on both sides.
            dev_flags += [Flag("route.*.protocol", "s2", "dev"), Flag("route.*.origin_http", "2", "dev")]
        config = load_config(environ=os.environ, flags=[*flags, *dev_flags]).config
        rules = None
        if has_auth:
            from gateway.commands.dev_auth import local_rules

            folder = stack.enter_context(TemporaryDirectory(prefix="durable-gateway-"))
            rules = local_rules(Path(folder), running.url, SystemClock.wall())
            config = _with_rules(config, rules)
        if local is not None:
            config = _over_tls(config, local)
        gateway = await started(start_gateway(config), *bind_addresses(config))
        stack.push_async_callback(gateway.stop)
        print_ready("origin", running.url)
        print_ready("gateway", gateway.gateway_url)
        print_ready("admin", gateway.admin_url)
        authority = local.authority if local is not None else None
        print_lines_to_paste(gateway.gateway_url, authority, rules, is_s2=is_s2)
        await shutdown.requested()


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a server's coroutine on uvloop, with the process set up for many connections."""
    allow_many_connections()
    collect_rarely()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)

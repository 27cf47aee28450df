"""The processes behind `serve`, `dev` and `origin`: start servers, print READY lines, wait for a signal, drain.

SIGTERM and SIGINT begin a drain.  A second signal ends the process without waiting for the drain.  SIGHUP makes `serve`
read its configuration again.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, TypeVar

import uvloop

from gateway.aio.clock import SystemClock
from gateway.cli.early_process import was_hung_up
from gateway.cli.errors import FailedToRunError
from gateway.cli.messages import print_message, print_ready
from gateway.cli.sd_notify import Supervisor
from gateway.commands.dev_lines import print_lines_to_paste
from gateway.commands.run import allow_many_connections, collect_rarely
from gateway.config.addresses import Address
from gateway.config.errors import ConfigError
from gateway.config.file import Flag, load_config
from gateway.config.gateway import GatewayConfig
from gateway.config.listener import BindAddress
from gateway.config.server import ServerConfig
from gateway.limits.memory import Descriptors, fit

NO_FILE: Final = "this gateway was started without a configuration file"

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

_MUCH_LOWER: Final = 4
"""A message is printed if the limit of open files reduces a default bound to less than the default divided by this
number."""

T = TypeVar("T")


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


async def run_serve(load: Callable[[], GatewayConfig], *, has_file: bool) -> None:
    """Run the gateway with the configuration that `load` reads, at the start and at each SIGHUP.

    Without a configuration file, other files are still read again: certificates, credentials, and a plan.
    """
    from gateway.app import start_gateway

    def load_fitting() -> GatewayConfig:
        return _fit_open_files(load())

    shutdown, supervisor = Shutdown(), Supervisor(os.environ)
    sighup = asyncio.Event()
    config = load_fitting()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, sighup.set)
    if was_hung_up():
        sighup.set()
    async with AsyncExitStack() as stack:
        gateway = await _started(start_gateway(config, load=load_fitting), *_bind_addresses(config))
        gateway.has_file = has_file
        stack.push_async_callback(gateway.stop)
        gateway.engine.tasks.start(_reload_when(sighup, gateway, supervisor), "SIGHUP")
        for url in gateway.listeners.urls:
            print_ready("gateway", url)
        print_ready("admin", gateway.admin_url)
        supervisor.ready()
        gateway.engine.health.probe_all()
        await shutdown.requested()
        supervisor.stopping()


async def _reload_when(sighup: asyncio.Event, gateway: RunningGateway, supervisor: Supervisor) -> None:
    """Read the configuration again at each SIGHUP.  Print the outcome in one line, and report it to the supervisor."""
    while True:
        await sighup.wait()
        sighup.clear()
        supervisor.reloading()
        outcome = await _reloaded(gateway)
        print_message(outcome)
        supervisor.ready(outcome)


async def _reloaded(gateway: RunningGateway) -> str:
    """Read the configuration again.  Returns the outcome in one line."""
    try:
        change = await gateway.reload()
    except ConfigError as error:
        return f"not reloaded, all stays as it was: {error}"
    except Exception as error:
        # Keep serving, because the next file may be valid.
        return f"not reloaded, all stays as it was: {type(error).__name__}: {error}"
    waiting = f"; needs a restart: {', '.join(change.needs_restart)}" if change.needs_restart else ""
    nothing = "nothing has changed" if gateway.has_file else f"nothing has changed: {NO_FILE}"
    return f"reloaded: {', '.join(change.changed) or nothing}{waiting}"


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
        running = await _started(start_origin(settings), address)
        stack.push_async_callback(running.stop, grace_s=ServerConfig().shutdown_timeout_s)
        print_ready("origin", running.url)
        await shutdown.requested()


async def run_s2_origin(address: Address) -> None:
    """Run the in-memory S2 origin."""
    from gateway.origin.s2.app import S2OriginSettings, start_s2_origin

    shutdown = Shutdown()
    settings = S2OriginSettings(host=address.hosts[0], port=address.port)
    async with AsyncExitStack() as stack:
        running = await _started(start_s2_origin(settings), address)
        stack.push_async_callback(running.stop, grace_s=ServerConfig().shutdown_timeout_s)
        print_ready("origin", running.url)
        await shutdown.requested()


def _fit_open_files(config: GatewayConfig) -> GatewayConfig:
    """Reduce the bounds on connections to the process's limit of open files.  Prints a message if configured bounds are
    reduced."""
    limits = config.limits
    wanted = Descriptors(
        limits.max_connections,
        limits.upstream_connections,
        limits.followed_streams,
        config.server.admin_connections,
    )
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if open_files == resource.RLIM_INFINITY:
        return config
    found = fit(wanted, open_files)
    if found == wanted:
        return config
    lowered = [one for one in zip(Descriptors._fields, found, wanted, strict=True) if one[1] != one[2]]
    # The defaults are high, so a small reduction of them needs no message.
    chosen = limits.model_fields_set | config.server.model_fields_set
    if any(name in chosen or new < old // _MUCH_LOWER for name, new, old in lowered):
        names = ", ".join(f"{name} {new} instead of {old}" for name, new, old in lowered)
        print_message(f"only {open_files} open files are allowed (ulimit -n), so limits are lower: {names}")
    bounds = found._asdict()
    server = config.server.model_copy(update={"admin_connections": bounds.pop("admin_connections")})
    return config.model_copy(update={"limits": limits.model_copy(update=bounds), "server": server})


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

            running = await _started(start_s2_origin(S2OriginSettings(host=host, port=port)), origin_address)
        else:
            from gateway.origin.app import OriginSettings, start_origin

            running = await _started(start_origin(OriginSettings(host=host, port=port)), origin_address)
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
        gateway = await _started(start_gateway(config), *_bind_addresses(config))
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


def _bind_addresses(config: GatewayConfig) -> list[BindAddress]:
    """All addresses at which a gateway listens."""
    return [*(one.bind_address for one in config.every_listener), config.server.admin_address]


async def _started(start: Awaitable[T], *addresses: BindAddress) -> T:
    """Wait for `start` and return its result.  If a port cannot be bound, raises FailedToRunError with the address."""
    try:
        return await start
    except OSError as error:
        # The loop's message usually contains the address as ('host', port).  Otherwise, report every candidate.
        text = str(error)
        blamed = [address for address in addresses if _is_in(address, text)] or addresses
        if error.errno is None or isinstance(error, socket.gaierror):
            reason = error.strerror or text
        else:
            reason = os.strerror(error.errno)
        where = " or ".join(str(address) for address in blamed)
        raise FailedToRunError(f"cannot listen on {where}: {reason}") from None


def _is_in(address: BindAddress, text: str) -> bool:
    if isinstance(address, Address):
        return any(f"'{host}', {address.port}" in text for host in address.hosts)
    return str(address) in text

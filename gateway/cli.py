"""The command line: `dev`, `serve` and `origin` here, the commands of `gateway/commands/`, and the pipeline.

Each command here turns its flags into a configuration, starts what it names, says `READY <name> <url>` on stdout for
every port that accepts, and stays until SIGTERM or SIGINT, which drain.  A second signal does not wait for the drain.

Exit statuses: 0 done or drained; 1 it could not run (a port is taken) or was cut short; 2 the command line or the
configuration is wrong.  Every refusal is one line on stderr.  Servers are imported inside the commands that need
them, so that `--help` and `check` answer at once.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer
import uvloop
from typer.exceptions import Abort, TyperException

from gateway import __version__
from gateway.aio.clock import SystemClock
from gateway.commands.append import append
from gateway.commands.bench import bench
from gateway.commands.check import check
from gateway.commands.dev_lines import print_lines_to_paste
from gateway.commands.drain import drain
from gateway.commands.failure import CommandFailed
from gateway.commands.output import CANNOT_WRITE, abandon_stdout
from gateway.commands.purge import purge
from gateway.commands.reload import reload
from gateway.commands.run import allow_many_connections, collect_rarely
from gateway.commands.streams import streams
from gateway.commands.tail import tail
from gateway.commands.top import top
from gateway.config.errors import ConfigError
from gateway.config.file import ENV_PREFIX, Flag, load_config
from gateway.config.gateway import GatewayConfig
from gateway.config.listener import BindAddress
from gateway.config.server import ServerConfig
from gateway.config.values import Address, parse_address, parse_bytes
from gateway.pipeline.cli import pipeline
from gateway.pipeline.errors import PipelineFailed

if TYPE_CHECKING:
    from gateway.app import RunningGateway
    from gateway.commands.dev_tls import LocalCertificate

PROGRAM: Final = "durable-gateway"
FAILED: Final = 1
MISUSED: Final = 2

_ORIGIN_GRACE_S: Final = 2.0
"""How long the origin beside a gateway may take to leave: its one reader has left before."""

_ORIGIN_VARIABLES: Final = frozenset(f"{ENV_PREFIX}ROUTE__DEFAULT__{name}" for name in ("ORIGIN", "ORIGINS"))
_ORIGIN_LISTEN: Final = "127.0.0.1:4438"
_MAX_CHUNK_BYTES: Final = "1048576"

T = TypeVar("T")


class FailedToRunError(Exception):
    """What was asked for is right but cannot be done here and now; its text is one line."""


app = typer.Typer(
    name=PROGRAM,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_Listen = Annotated[
    str | None,
    typer.Option(
        "--listen", metavar="HOST:PORT", show_default="127.0.0.1:4437", help="Address for clients; port 0 picks one."
    ),
]
_Admin = Annotated[
    str | None,
    typer.Option(
        "--admin", metavar="HOST:PORT", show_default="127.0.0.1:9437", help="Address of admin API, console, /metrics."
    ),
]


def main() -> int:
    """Run the command line and give the exit status."""
    status = 0
    try:
        status = _exit_status()
        print(end="", flush=True)  # noqa: T201 - unlike stdout's own flush, it bears that there is no stdout
    except OSError as error:
        if error.errno not in CANNOT_WRITE:
            raise
        abandon_stdout()
        if status == 0 and error.errno != errno.EPIPE:
            _complain(f"cannot write: {os.strerror(error.errno or 0)}")
        return status or FAILED
    return status


def _exit_status() -> int:
    try:
        status = app(prog_name=PROGRAM, standalone_mode=False)
    except (TyperException, ConfigError) as error:
        _complain(_with_hint(error) if isinstance(error, TyperException) else str(error))
        return MISUSED
    except (FailedToRunError, CommandFailed, PipelineFailed) as error:
        _complain(str(error))
        return FAILED
    except (Abort, KeyboardInterrupt, asyncio.CancelledError):
        _complain("stopped at once, without draining")
        return FAILED
    return status if isinstance(status, int) else 0


def _with_hint(error: TyperException) -> str:
    """What is wrong with the command line, and where something is missing or unknown, which help to ask for."""
    text = error.format_message()
    context = getattr(error, "ctx", None)
    if context is None or not text.startswith(("Missing", "No such")):
        return text
    dot = "" if text.endswith((".", "?")) else "."
    try_dev = f"'{PROGRAM} dev' runs a gateway to try; " if context.parent is None and "command" in text else ""
    return f"{text}{dot} {try_dev}'{context.command_path} --help' tells more."


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"{PROGRAM} {__version__}")
        raise typer.Exit


@app.callback()
def program(
    _version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and leave."),
    ] = False,
) -> None:
    """A reverse proxy that understands Durable Streams: the number of readers stops mattering to the origin."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


@app.command()
def dev(
    listen: _Listen = None,
    admin: _Admin = None,
    origin_listen: Annotated[
        str, typer.Option("--origin-listen", metavar="HOST:PORT", help="Address of the in-memory origin.")
    ] = _ORIGIN_LISTEN,
    tls: Annotated[
        bool, typer.Option("--tls", help="Listen over TLS, with a certificate of your own that is made for it.")
    ] = False,
) -> None:
    """Run the in-memory origin and the gateway in front of it, with lines to paste."""
    flags = _flags(listen, admin)
    # Judged before anything listens, with a stand-in for the origin's port, which is known only afterwards.
    load_config(environ=os.environ, flags=[*flags, Flag("route.*.origin", f"http://{_ORIGIN_LISTEN}", "dev")])
    _run(_dev(flags, _address("--origin-listen", origin_listen), _local_certificate() if tls else None))


@app.command()
def serve(
    origin: Annotated[
        str | None, typer.Option("--origin", metavar="URL", help="The Durable Streams server to stand in front of.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="A TOML file, in place of --origin.")
    ] = None,
    listen: _Listen = None,
    admin: _Admin = None,
    long_poll_timeout: Annotated[
        float | None,
        typer.Option(
            "--long-poll-timeout",
            metavar="SECONDS",
            show_default="25",
            help="Longest wait of a long-poll, every route.",
        ),
    ] = None,
    sse_lifetime: Annotated[
        float | None,
        typer.Option(
            "--sse-lifetime",
            metavar="SECONDS",
            show_default="60",
            help="Age at which SSE connections end, every route.",
        ),
    ] = None,
    cache_bytes: Annotated[
        str | None,
        typer.Option("--cache-bytes", metavar="SIZE", show_default="256MiB", help="Most stream bytes kept in memory."),
    ] = None,
) -> None:
    """Run the gateway in front of an origin."""
    if origin is not None and config is not None:
        raise ConfigError("serve takes --origin or --config, not both")
    if origin is None and config is None and os.environ.keys().isdisjoint(_ORIGIN_VARIABLES):
        raise ConfigError("serve needs --origin URL or --config FILE")
    flags = _flags(listen, admin)
    for key, value, name in (
        ("route.*.origin", origin, "--origin"),
        ("route.*.long_poll_timeout_s", long_poll_timeout, "--long-poll-timeout"),
        ("route.*.sse_lifetime_s", sse_lifetime, "--sse-lifetime"),
        ("limits.cache_bytes", cache_bytes, "--cache-bytes"),
    ):
        if value is not None:
            flags.append(Flag(key, value, name))
    _run(_serve(lambda: load_config(config, environ=os.environ, flags=flags).config))


@app.command()
def origin(
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Address to listen on; port 0 picks one.")
    ] = _ORIGIN_LISTEN,
    long_poll_timeout: Annotated[
        float, typer.Option("--long-poll-timeout", metavar="SECONDS", min=0.05, max=300, help="Longest long-poll.")
    ] = 30,
    sse_lifetime: Annotated[
        float, typer.Option("--sse-lifetime", metavar="SECONDS", min=0.05, max=86_400, help="Age at which SSE ends.")
    ] = 60,
    max_chunk_bytes: Annotated[
        str, typer.Option("--max-chunk-bytes", metavar="SIZE", help="Largest catch-up reply; longer ones are partial.")
    ] = _MAX_CHUNK_BYTES,
) -> None:
    """Run the in-memory origin alone: the whole protocol, nothing on disk."""
    address = _address("--listen", listen)
    chunk_bytes = _size("--max-chunk-bytes", max_chunk_bytes)
    _run(_origin(address, long_poll_timeout, sse_lifetime, chunk_bytes))


for _command in (check, tail, append, bench, top, streams, purge, drain, reload):
    app.command()(_command)
app.add_typer(pipeline)


# -- what runs ---------------------------------------------------------------------------------------------------------


class Departure:
    """SIGTERM and SIGINT as an event: the first asks the main task to leave in order, the second cancels it."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._main = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)

    def _signalled(self) -> None:
        if self._asked.is_set() and self._main is not None:
            self._main.cancel()
        self._asked.set()

    async def asked(self) -> None:
        await self._asked.wait()


async def _serve(load: Callable[[], GatewayConfig]) -> None:
    from gateway.app import start_gateway

    departure = Departure()
    hung_up = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hung_up.set)
    config = load()
    async with AsyncExitStack() as stack:
        gateway = await _listening(start_gateway(config, load=load), *_places(config))
        stack.push_async_callback(gateway.stop)
        gateway.engine.tasks.start(_reload_when(hung_up, gateway), "SIGHUP")
        for url in gateway.listeners.urls:
            _ready("gateway", url)
        _ready("admin", gateway.admin_url)
        gateway.engine.health.greet()
        await departure.asked()


async def _reload_when(hung_up: asyncio.Event, gateway: RunningGateway) -> None:
    """Read the configuration again at each SIGHUP, and say in one line what came of it."""
    while True:
        await hung_up.wait()
        hung_up.clear()
        try:
            change = await gateway.reload()
        except ConfigError as error:
            _complain(f"not reloaded, all stays as it was: {error}")
        except Exception as error:
            # The next file may do.
            _complain(f"not reloaded, all stays as it was: {type(error).__name__}: {error}")
        else:
            waiting = f"; needs a restart: {', '.join(change.needs_restart)}" if change.needs_restart else ""
            _complain(f"reloaded: {', '.join(change.changed) or 'nothing has changed'}{waiting}")


async def _origin(address: Address, long_poll_timeout_s: float, sse_lifetime_s: float, max_chunk_bytes: int) -> None:
    from gateway.origin.app import OriginSettings, start_origin

    departure = Departure()
    settings = OriginSettings(
        host=address.host,
        port=address.port,
        long_poll_timeout_s=long_poll_timeout_s,
        sse_lifetime_s=sse_lifetime_s,
        max_chunk_bytes=max_chunk_bytes,
    )
    async with AsyncExitStack() as stack:
        running = await _listening(start_origin(settings), address)
        stack.push_async_callback(running.stop, grace_s=ServerConfig().shutdown_timeout_s)
        _ready("origin", running.url)
        await departure.asked()


def _local_certificate() -> LocalCertificate:
    from gateway.commands.dev_tls import local_certificate, state_folder

    folder = state_folder(os.environ, Path.home()) / "tls"
    try:
        return local_certificate(folder, SystemClock.wall())
    except OSError as error:
        raise FailedToRunError(f"cannot keep a certificate in {folder}: {error.strerror or error}") from None


def _over_tls(config: GatewayConfig, local: LocalCertificate) -> GatewayConfig:
    """The same, with TLS where it would listen without."""
    shown = {"certificate": str(local.certificate), "key": str(local.key)}
    listener = {"address": config.server.listen, "tls": {"certificates": [shown]}}
    server = config.server.model_dump(exclude={"listen"}, exclude_unset=True)
    tree = {**config.model_dump(exclude_unset=True), "server": server, "listeners": [listener]}
    return GatewayConfig.model_validate(tree)


async def _dev(flags: list[Flag], origin_address: Address, local: LocalCertificate | None) -> None:
    from gateway.app import start_gateway
    from gateway.origin.app import OriginSettings, start_origin

    departure = Departure()
    settings = OriginSettings(host=origin_address.host, port=origin_address.port)
    async with AsyncExitStack() as stack:
        running = await _listening(start_origin(settings), origin_address)
        stack.push_async_callback(running.stop, grace_s=_ORIGIN_GRACE_S)
        own = [Flag("route.*.origin", running.url, "dev"), Flag("server.console_writes", True, "dev")]
        config = load_config(environ=os.environ, flags=[*flags, *own]).config
        if local is not None:
            config = _over_tls(config, local)
        gateway = await _listening(start_gateway(config), *_places(config))
        stack.push_async_callback(gateway.stop)
        _ready("origin", running.url)
        _ready("gateway", gateway.gateway_url)
        _ready("admin", gateway.admin_url)
        print_lines_to_paste(gateway.gateway_url, local.authority if local is not None else None)
        await departure.asked()


def _run(work: Coroutine[Any, Any, None]) -> None:
    allow_many_connections()
    collect_rarely()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


def _places(config: GatewayConfig) -> list[BindAddress]:
    """Everywhere that a gateway listens."""
    return [*(one.bind_address for one in config.every_listener), config.server.admin_address]


async def _listening(start: Awaitable[T], *places: BindAddress) -> T:
    """What `start` gives; FailedToRunError naming the address when a port cannot be had."""
    try:
        return await start
    except OSError as error:
        # The loop's message holds the address as ('host', port); without it all candidates are named.
        text = str(error)
        blamed = [place for place in places if _is_in(place, text)] or places
        if error.errno is None or isinstance(error, socket.gaierror):
            reason = error.strerror or text
        else:
            reason = os.strerror(error.errno)
        where = " or ".join(str(place) for place in blamed)
        raise FailedToRunError(f"cannot listen on {where}: {reason}") from None


def _is_in(place: BindAddress, text: str) -> bool:
    return f"'{place.host}', {place.port}" in text if isinstance(place, Address) else str(place) in text


# -- what is read and said ---------------------------------------------------------------------------------------------


def _flags(listen: str | None, admin: str | None) -> list[Flag]:
    named = (("server.listen", listen, "--listen"), ("server.admin", admin, "--admin"))
    return [Flag(key, value, name) for key, value, name in named if value is not None]


def _address(flag: str, text: str) -> Address:
    try:
        return parse_address(text)
    except ValueError as error:
        raise ConfigError(f"{flag}: {error}") from None


def _size(flag: str, text: str) -> int:
    try:
        size = parse_bytes(text)
    except ValueError as error:
        raise ConfigError(f"{flag}: {error}") from None
    if not isinstance(size, int) or size < 1:
        raise ConfigError(f"{flag}: should be at least 1, got {text}")
    return size


def _complain(text: str) -> None:
    print(f"{PROGRAM}: {' '.join(text.split())}", file=sys.stderr)  # noqa: T201


def _ready(name: str, url: str) -> None:
    """Say that a port accepts, at once even into a pipe: whoever started us waits for this line."""
    print(f"READY {name} {url}", flush=True)  # noqa: T201

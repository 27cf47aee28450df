"""The command line: `serve`, `dev` and `origin`, the commands of `gateway/commands/`, and the pipeline.

`serve`, `dev` and `origin` turn their flags into a configuration and start servers.  They print `READY <name> <url>` on
stdout for each port that accepts connections, and run until SIGTERM or SIGINT.

Exit statuses: 0 means done or drained.  1 means that the command could not run, for example because a port is taken, or
was interrupted.  2 means that the command line or the configuration is wrong.  Every error is one line on stderr.
Heavy modules are imported only when a command runs, so that `--help` and `check` answer at once.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from typer.exceptions import Abort, TyperException

from gateway import __version__
from gateway.cli.errors import FailedToRunError, StoppedAtOnce
from gateway.cli.messages import PROGRAM, print_message
from gateway.commands.append import append
from gateway.commands.bench import bench
from gateway.commands.check import check
from gateway.commands.drain import drain
from gateway.commands.failure import CommandFailed
from gateway.commands.output import CANNOT_WRITE, abandon_stdout
from gateway.commands.purge import purge
from gateway.commands.reload import reload
from gateway.commands.sign import sign
from gateway.commands.streams import streams
from gateway.commands.tail import tail
from gateway.commands.top import top
from gateway.commands.upgrade import upgrade
from gateway.config.addresses import Address, parse_address
from gateway.config.errors import ConfigError
from gateway.config.sizes import parse_bytes
from gateway.config.variables import ENV_PREFIX
from gateway.pipeline.cli import pipeline
from gateway.pipeline.errors import PipelineFailed

if TYPE_CHECKING:
    from gateway.config.file import Flag

FAILED: Final = 1
MISUSED: Final = 2

_ORIGIN_VARIABLES: Final = frozenset(f"{ENV_PREFIX}ROUTE__DEFAULT__{name}" for name in ("ORIGIN", "ORIGINS"))
_ORIGIN_LISTEN: Final = "127.0.0.1:4438"
_MAX_CHUNK_BYTES: Final = "1048576"

app = typer.Typer(
    name=PROGRAM,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_Listen = Annotated[
    str | None,
    typer.Option(
        "--listen", metavar="HOST:PORT", show_default="127.0.0.1:4437", help="Address for clients; port 0 picks a port."
    ),
]
_Admin = Annotated[
    str | None,
    typer.Option(
        "--admin",
        metavar="HOST:PORT",
        show_default="127.0.0.1:9437",
        help="Address of admin API, console and /metrics.",
    ),
]


def main() -> int:
    """Run the command line.  Returns the exit status."""
    status = 0
    try:
        status = _exit_status()
        print(end="", flush=True)  # noqa: T201 - unlike sys.stdout.flush(), this works without a stdout
    except OSError as error:
        if error.errno not in CANNOT_WRITE:
            raise
        abandon_stdout()
        if status == 0 and error.errno != errno.EPIPE:
            print_message(f"cannot write: {os.strerror(error.errno or 0)}")
        return status or FAILED
    return status


def _exit_status() -> int:
    try:
        status = app(prog_name=PROGRAM, standalone_mode=False)
    except (TyperException, ConfigError) as error:
        print_message(_with_hint(error) if isinstance(error, TyperException) else str(error))
        return MISUSED
    except (FailedToRunError, CommandFailed, PipelineFailed) as error:
        print_message(str(error))
        return FAILED
    except (Abort, KeyboardInterrupt, asyncio.CancelledError, StoppedAtOnce):
        print_message("stopped at once, without draining")
        return FAILED
    return status if isinstance(status, int) else 0


def _with_hint(error: TyperException) -> str:
    """The error's text.  For a missing or unknown argument, it also names the command's `--help`."""
    text = error.format_message()
    context = getattr(error, "ctx", None)
    if context is None or not text.startswith(("Missing", "No such")):
        return text
    dot = "" if text.endswith((".", "?")) else "."
    try_dev = f"'{PROGRAM} dev' runs a gateway to try; " if context.parent is None and "command" in text else ""
    return f"{text}{dot} {try_dev}'{context.command_path} --help' tells more."


def _print_version(is_set: bool) -> None:
    if is_set:
        typer.echo(f"{PROGRAM} {__version__}")
        raise typer.Exit


@app.callback()
def program(
    _version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit."),
    ] = False,
) -> None:
    """A reverse proxy for Durable Streams: the origin's load does not grow with the number of readers."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


class _OriginProtocol(StrEnum):
    """The protocol that the in-memory origin speaks."""

    DURABLE_STREAMS = "durable-streams"
    S2 = "s2"


@app.command()
def dev(
    listen: _Listen = None,
    admin: _Admin = None,
    origin_listen: Annotated[
        str, typer.Option("--origin-listen", metavar="HOST:PORT", help="Address of the in-memory origin.")
    ] = _ORIGIN_LISTEN,
    protocol: Annotated[
        _OriginProtocol,
        typer.Option("--protocol", metavar="NAME", help="Protocol of the origin: durable-streams or s2."),
    ] = _OriginProtocol.DURABLE_STREAMS,
    tls: Annotated[
        bool, typer.Option("--tls", help="Listen over TLS, with a certificate made for this machine.")
    ] = False,
    auth: Annotated[
        bool, typer.Option("--auth", help="Authorise requests, with a key made for this run; print tokens.")
    ] = False,
) -> None:
    """Run an in-memory origin and a gateway in front of it, and print commands to try."""
    from gateway.cli import servers
    from gateway.config.file import Flag, load_config

    flags = _flags(listen, admin)
    # Validate before any port opens.  The origin's port is known only afterwards, so a placeholder stands for it.
    load_config(environ=os.environ, flags=[*flags, Flag("route.*.origin", f"http://{_ORIGIN_LISTEN}", "dev")])
    address, is_s2 = _address("--origin-listen", origin_listen), protocol is _OriginProtocol.S2
    if auth and is_s2:
        raise ConfigError("--auth is not for --protocol s2")
    local = servers.load_local_certificate() if tls else None
    servers.run(servers.run_dev(flags, address, local, is_s2=is_s2, has_auth=auth))


@app.command()
def serve(
    origin: Annotated[
        str | None,
        typer.Option("--origin", metavar="URL", help="URL of the Durable Streams origin."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="A TOML configuration file, in place of --origin.")
    ] = None,
    listen: _Listen = None,
    admin: _Admin = None,
    long_poll_timeout: Annotated[
        float | None,
        typer.Option(
            "--long-poll-timeout",
            metavar="SECONDS",
            show_default="25",
            help="Longest wait of a long-poll, on every route.",
        ),
    ] = None,
    sse_lifetime: Annotated[
        float | None,
        typer.Option(
            "--sse-lifetime",
            metavar="SECONDS",
            show_default="60",
            help="Age at which SSE connections end, on every route.",
        ),
    ] = None,
    cache_bytes: Annotated[
        str | None,
        typer.Option("--cache-bytes", metavar="SIZE", show_default="256MiB", help="Most stream bytes kept in memory."),
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(
            "--workers",
            metavar="N",
            show_default="auto",
            help="Processes that serve; auto: one per processor, fewer with little memory or cache.",
        ),
    ] = None,
) -> None:
    """Run the gateway in front of an origin."""
    from gateway.cli import servers
    from gateway.config.file import Flag, load_config

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
        ("server.workers", workers, "--workers"),
    ):
        if value is not None:
            flags.append(Flag(key, value, name))
    servers.serve(lambda: load_config(config, environ=os.environ, flags=flags).config, has_file=config is not None)


@app.command()
def origin(
    context: typer.Context,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Address to listen at; port 0 picks a port.")
    ] = _ORIGIN_LISTEN,
    protocol: Annotated[
        _OriginProtocol,
        typer.Option("--protocol", metavar="NAME", help="durable-streams, or s2, which takes --listen alone."),
    ] = _OriginProtocol.DURABLE_STREAMS,
    long_poll_timeout: Annotated[
        float, typer.Option("--long-poll-timeout", metavar="SECONDS", min=0.05, max=300, help="Longest wait.")
    ] = 30,
    sse_lifetime: Annotated[
        float, typer.Option("--sse-lifetime", metavar="SECONDS", min=0.05, max=86_400, help="Age at which SSE ends.")
    ] = 60,
    max_chunk_bytes: Annotated[
        str,
        typer.Option("--max-chunk-bytes", metavar="SIZE", help="Largest catch-up reply; longer reads take several."),
    ] = _MAX_CHUNK_BYTES,
) -> None:
    """Run the in-memory origin alone: the whole protocol, without persistence."""
    from gateway.cli import servers

    address = _address("--listen", listen)
    if protocol is _OriginProtocol.S2:
        for option in ("long_poll_timeout", "sse_lifetime", "max_chunk_bytes"):
            source = context.get_parameter_source(option)
            if source is not None and source.name != "DEFAULT":
                raise ConfigError(f"--{option.replace('_', '-')} is not for --protocol s2")
        servers.run(servers.run_s2_origin(address))
        return
    chunk_bytes = _size("--max-chunk-bytes", max_chunk_bytes)
    servers.run(servers.run_origin(address, long_poll_timeout, sse_lifetime, chunk_bytes))


for _command in (check, tail, append, bench, top, streams, purge, sign, drain, reload, upgrade):
    app.command()(_command)
app.add_typer(pipeline)


def _flags(listen: str | None, admin: str | None) -> list[Flag]:
    from gateway.config.file import Flag

    flags = (("server.listen", listen, "--listen"), ("server.admin", admin, "--admin"))
    return [Flag(key, value, name) for key, value, name in flags if value is not None]


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

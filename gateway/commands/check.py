"""`check CONFIG`: validate a configuration and the files that it names.

The command reads everything that `serve` reads at its start: the file and the environment, the cache plan, credentials,
certificates, and the admin port's token.  It also checks that the log can be written, and that tracing is installed.
It prints all mistakes, one a line, and warnings about settings that have no effect, or probably another effect than
intended.  Checks that depend on invalid values are skipped.

With a URL, the command explains instead which rule of the route decides a request (`gateway.commands.check_request`).

The exit status is 0 if the configuration is valid and the request is allowed.  It is 1 if an origin does not answer
(`--probe`) or the request is refused, and 2 if there are mistakes.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from gateway.aio.clock import SystemClock
from gateway.commands.failure import CommandFailed
from gateway.commands.run import run
from gateway.config.errors import ConfigError, Mistakes

if TYPE_CHECKING:
    from gateway.config.gateway import GatewayConfig
    from gateway.config.listener import ListenerConfig
    from gateway.config.origin_tls import OriginTls
    from gateway.config.routes import RouteConfig
    from gateway.config.settings import LoadedConfig, Setting
    from gateway.protocol.header_forwarding import Headers

_MOST_ALIGNED: Final = 80
"""The sources of values are printed in one column, after at most this many characters.  A longer value moves its own
source to the right."""
_PROBE_S: Final = 3.0
"""The timeout for connecting to an origin, and for its answer, in seconds."""


@dataclass(frozen=True, slots=True)
class Probe:
    """The result of one request to an origin, or to a URL of `[[route.auth]]`."""

    origin: str
    """Scheme, host and port of an origin, or a URL of `[[route.auth]]`."""
    status: int | None
    """The status of the answer; None without an answer."""
    problem: str | None
    """The problem; None if the status is below 500."""
    unshared: tuple[str, ...] = ()
    """One line for each route that cannot share such answers: why, and how to change that."""

    kind: Literal["origin", "keys", "service"] = "origin"

    def __str__(self) -> str:
        return f"{self.kind} {self.origin}: {self.problem or f'answers ({self.status})'}"


def check(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The TOML file to validate.")],
    url: Annotated[
        str | None,
        typer.Argument(metavar="URL", help="Explain instead how a request for this URL is authorised."),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option("--as", metavar="TOKEN", help="The request's bearer token; - reads it from standard input."),
    ] = None,
    cookie: Annotated[str, typer.Option("--cookie", metavar="NAME=VALUE", help="The request's Cookie field.")] = "",
    action: Annotated[
        str,
        typer.Option(
            "--action", metavar="ACTIONS", show_default="read", help="Actions of the request: append, delete, …"
        ),
    ] = "",
    client: Annotated[
        str, typer.Option("--client", metavar="ADDRESS", help="The request's client, for signatures of one network.")
    ] = "",
    everything: Annotated[bool, typer.Option("--all", help="Print every value in effect, including defaults.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but mistakes and warnings.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object: ok, mistakes, warnings, settings.")
    ] = False,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe",
            help="Ask each origin, and each URL of [[route.auth]], whether it answers, within 3 s, and warn if such "
            "answers cannot be shared. With a URL, ask for the keys and the verdict that its request needs.",
        ),
    ] = False,
) -> None:
    """Validate a configuration and the files that it names; print the values it sets with their sources, and "ok".

    Print all mistakes and warnings, one a line.  With a URL, explain how its request is authorised.  Exit status 2 if
    there are mistakes, 1 if an origin does not answer or the request is refused.
    """
    from gateway.config import advice

    if url is None and (token is not None or cookie or action or client):
        raise typer.BadParameter("--as, --cookie, --action and --client need a URL")
    if quiet and (everything or as_json):
        raise typer.BadParameter("cannot be combined with --all or --json", param_hint="'--quiet'")
    try:
        loaded, tls, shadowed = _loaded(config, os.environ)
    except ConfigError as error:
        if as_json:
            _print_json({"ok": False, "mistakes": error.mistakes, "warnings": [], "settings": []})
        else:
            for mistake in error.mistakes:
                typer.echo(f"durable-gateway: {mistake}", err=True)
        raise typer.Exit(2) from None
    if url is not None:
        from gateway.commands.check_request import Request, explain_request, token_from

        known = token_from(token) if token is not None else ""
        request = Request(url, known, action, client, cookie)
        raise typer.Exit(explain_request(loaded.config, request, asks=probe))
    probes = _probed(loaded.config, tls) if probe else []
    bad = [one for one in probes if one.problem is not None]
    settings = list(loaded.settings())
    warnings = [
        *advice.warnings(loaded, os.environ, SystemClock().wall()),
        *shadowed,
        *(f"origin {one.origin}: {line}" for one in probes for line in one.unshared),
    ]
    if as_json:
        answer: dict[str, Any] = {
            "ok": not bad,
            "mistakes": [],
            "warnings": warnings,
            "settings": [_shown(one) for one in settings],
        }
        if probe:
            of = [(one.kind, {one.kind: one.origin, "status": one.status, "problem": one.problem}) for one in probes]
            answer["origins"] = [shown for kind, shown in of if kind == "origin"]
            answer["services"] = [shown for kind, shown in of if kind != "origin"]
        _print_json(answer)
    else:
        for warning in warnings:
            typer.echo(f"durable-gateway: warning: {warning}", err=True)
    if not (quiet or as_json):
        _print_settings(settings if everything else [one for one in settings if not one.is_default])
        for one in probes:
            if one.problem is None:
                typer.echo(str(one))
    if bad:
        for one in bad if not as_json else ():
            typer.echo(f"durable-gateway: {one}", err=True)
        raise typer.Exit(1)
    if not (quiet or as_json):
        left_out = sum(one.is_default for one in settings)
        typer.echo("ok" if everything else f"ok ({left_out} more values are the defaults: --all prints them)")


def _loaded(path: Path, environ: Mapping[str, str]) -> tuple[LoadedConfig, dict[str, OriginTls], list[str]]:
    """Load the configuration and all files that it names.

    Returns the configuration, the TLS settings of its origins, and a line for each certificate that is never used.
    Raises ConfigError with all mistakes.
    """
    from gateway.auth.rules import load_rules
    from gateway.config.credentials import load_credentials
    from gateway.config.file import load_config, load_plan
    from gateway.config.origin_tls import load_auth_tls, load_tls
    from gateway.ops.access_log.sinks import check_log
    from gateway.ops.admin.guard import admin_token
    from gateway.ops.tracing_extra import check_tracing
    from gateway.server.certificates import load_certificates

    loaded = load_config(path, environ=environ)
    tls: dict[str, OriginTls] = {}
    shadowed: list[str] = []
    mistakes = Mistakes()
    with mistakes.collected():
        load_plan(loaded.config)
    with mistakes.collected():
        load_credentials(loaded.config, environ)
    with mistakes.collected():
        load_rules(loaded.config)
    with mistakes.collected():
        tls = load_tls(loaded.config)
    with mistakes.collected():
        load_auth_tls(loaded.config)
    with mistakes.collected():
        for certificates in load_certificates(loaded.config.every_listener, ()).values():
            shadowed += certificates.shadowed
    for index, listener in enumerate(loaded.config.every_listener):
        with mistakes.collected():
            _check_socket(index, listener)
    with mistakes.collected():
        admin_token(environ, loaded.config.server.admin_address)
    with mistakes.collected():
        check_log(loaded.config.log)
    with mistakes.collected():
        check_tracing(loaded.config.tracing)
    mistakes.raise_any()
    return loaded, tls, shadowed


def _check_socket(index: int, listener: ListenerConfig) -> None:
    from gateway.config.listener import UnixAddress
    from gateway.server.sockets import check_socket_path

    address = listener.bind_address
    if isinstance(address, UnixAddress):
        try:
            check_socket_path(address.path)
        except OSError as error:
            raise ConfigError(f"listener[{index}].address: {address}: {error.strerror or error}") from None


def _probed(config: GatewayConfig, tls: Mapping[str, OriginTls]) -> list[Probe]:
    """Send a request to each origin and leader, and to each URL of `[[route.auth]]`; return the results."""
    found: list[Probe] = []
    if not run(_probe(config, tls, found)):
        raise CommandFailed("stopped before all had answered")
    return found


async def _probe(config: GatewayConfig, tls: Mapping[str, OriginTls], found: list[Probe]) -> None:
    from gateway.config.origin_tls import load_auth_tls
    from gateway.upstream.client import Exchanges
    from gateway.upstream.origin_pool import authority_of
    from gateway.upstream.slots import SlotLimits

    routes: dict[str, list[RouteConfig]] = {}
    for route in config.routes:
        for url in (*(one.url for one in route.members), *route.leaders):
            routes.setdefault(authority_of(url), []).append(route)
    exchanges = Exchanges(SlotLimits(config.limits.upstream_connections))
    exchanges.configure_tls(tls)
    exchanges.configure_http2(config.http2_origins)
    services = Exchanges(SlotLimits(config.limits.upstream_connections))
    services.configure_tls(load_auth_tls(config))
    urls = {url: rule.by == "jwt" for route in config.routes for rule in route.auth for url in rule.urls}
    try:
        found += await asyncio.gather(
            *(_probe_one(exchanges, "origin", one, f"{one}/", of) for one, of in routes.items()),
            *(
                # Report the URL without its query, which may hold a secret.
                _probe_one(services, "keys" if is_keys else "service", url.partition("?")[0], url)
                for url, is_keys in urls.items()
            ),
        )
    finally:
        await exchanges.close()
        await services.close()


async def _probe_one(
    exchanges: Any, kind: Literal["origin", "keys", "service"], name: str, url: str, routes: Sequence[RouteConfig] = ()
) -> Probe:
    """Send a `HEAD` to an origin, or a `GET` to another server.

    A status below 500 is a success, but key sets need a 200.  The headers of an origin's answer also show whether its
    answers can be shared: a load balancer's cookie, for example, is probably in all of them.
    """
    from multidict import CIMultiDict

    from gateway.errors import GatewayError
    from gateway.upstream.failures import reason_of
    from gateway.upstream.origin_call import Bounds, OriginCall

    bounds = Bounds(_PROBE_S, _PROBE_S, _PROBE_S, _PROBE_S)
    try:
        reply = await exchanges.send(OriginCall("HEAD" if kind == "origin" else "GET", url, CIMultiDict(), bounds))
    except GatewayError as error:
        return Probe(name, None, f"does not answer: {reason_of(error.__cause__ or error)}", kind=kind)
    reply.close()
    unshared = tuple(
        f"route {route.name} will not share answers like that to HEAD /: the origin {why}"
        for route in routes
        if (why := _why_not_shared(route, reply.headers)) is not None
    )
    is_bad = reply.status >= 500 or (kind == "keys" and reply.status != 200)
    return Probe(name, reply.status, f"answers {reply.status}" if is_bad else None, unshared, kind)


def _why_not_shared(route: RouteConfig, headers: Headers) -> str | None:
    """Return why a route does not share replies with these headers, and how to change that; None if it does."""
    from gateway.protocol.sharing import Ground, cure, rules_of

    rules = rules_of(route)
    if not route.cache or route.protocol == "s2":
        return None
    ground = rules.why_alone(headers, is_stored=False)
    if ground is None and rules.varies_by_origin(headers):
        ground = Ground.ORIGIN
    return cure(ground, headers, rules) if ground is not None else None


def _shown(setting: Setting) -> dict[str, object]:
    return {
        "key": setting.key,
        "value": setting.text,
        "source": setting.source,
        "is_default": setting.is_default,
    }


def _print_json(answer: Mapping[str, object]) -> None:
    import orjson

    typer.echo(orjson.dumps(answer, option=orjson.OPT_INDENT_2 if sys.stdout.isatty() else 0))


def _print_settings(settings: list[Setting]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True, highlight=False)
    lines = [(f"{setting.key} = {setting.text}", setting.source) for setting in settings]
    width = min(_MOST_ALIGNED, max((len(line) for line, _ in lines), default=0))
    for line, source in lines:
        console.print(Text(f"{line:<{width}}  # {source}", "dim" if source == "default" else ""))

"""`check CONFIG --as TOKEN URL`: explain which rule of a route decides a request."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

import typer

from gateway.aio.clock import Clock, SystemClock
from gateway.commands.failure import CommandFailed
from gateway.commands.run import run

if TYPE_CHECKING:
    from gateway.auth.asked import Asked
    from gateway.auth.check_explanation import Explanation
    from gateway.auth.guard import Guard
    from gateway.auth.questions import Heard
    from gateway.auth.verdict import Principal
    from gateway.config.authorisation import AuthRuleConfig
    from gateway.config.gateway import GatewayConfig
    from gateway.engine.route import Route
    from gateway.protocol.target import Target

_MOST_QUESTIONS: Final = 4
"""The most questions that the rules may ask for one request.  One request causes at most three: a key set may be
fetched twice, and a service is asked."""
_LAST: Final = 253_402_300_800.0
"""The Unix time from which on dates cannot be formatted."""


def token_from(text: str) -> str:
    """Return the token of `--as`.  `-` reads it from stdin, so that it is not in the list of processes."""
    return (sys.stdin.readline() if text == "-" else text).strip()


class Request(NamedTuple):
    """The request to explain, as the command's options describe it."""

    url: str
    token: str = ""
    actions: str = ""
    client: str = ""
    cookie: str = ""


def explain_request(config: GatewayConfig, request: Request, *, asks: bool = False) -> int:
    """Print how the request is authorised; return the exit status: 0 if it is allowed, 1 if it is refused.  With
    `asks`, the rules' URLs are asked for keys and verdicts, as a gateway would ask them."""
    from gateway.auth.check_explanation import explain
    from gateway.auth.rules import load_rules
    from gateway.engine.route import route_for
    from gateway.engine.route_table import RouteTable
    from gateway.protocol.target import BadTarget, host_of, parse_target
    from gateway.server.authorising import is_of_the_origin
    from gateway.server.interpreting import take_credentials

    clock = SystemClock()
    try:
        parts = urlsplit(request.url)
        target = parse_target((parts.path or "/") + (f"?{parts.query}" if parts.query else ""))
        host = host_of(parts.netloc) if parts.netloc else ""
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'URL'") from None
    table = RouteTable(config.routes, config.server.node_name, clock, load_rules(config))
    route = route_for(sorted(table.routes, key=lambda one: one.precedence, reverse=True), host, target.path)
    if route is None:
        typer.echo("404: no route serves this host and path")
        return 1
    typer.echo(f"route {route.name}")
    guard = route.guard
    if guard is None:
        typer.echo("200: the route has no [[route.auth]], so each request is served")
        return 0
    if not request.actions and is_of_the_origin("GET", target.path, route):
        typer.echo("200: the origin alone decides who may have its public keys")
        return 0
    if is_of_the_origin("POST", target.path, route):
        typer.echo("a POST is passed on: only the origin authorises it, by a token of its own")
    try:
        target, parameters = take_credentials(target, guard)
    except BadTarget as error:
        typer.echo(f"400: {error}")
        return 1
    asked = _asked(target, parameters or {}, request)._replace(scheme=parts.scheme or "https", host=parts.netloc)
    heard: list[Heard] = []
    if asks and not run(_ask_urls(config, guard, asked, clock, heard)):
        raise CommandFailed("stopped before the rules' URLs had answered")
    judged = partial(explain, guard, heard=heard[-1] if heard else None, has_asked=asks)
    found = judged(asked)
    origins = route.config.cors.allow_origins if route.config.cors is not None else ()
    needs_origin = judged(asked._replace(is_from_site=False)).status != found.status
    if needs_origin and (not origins or "*" in origins):
        # No Origin header would help, because the route names no web origins, or `*`.  Explain the request without an
        # allowed Origin.
        needs_origin, found = False, judged(asked._replace(is_from_site=False))
    for line in _lines(route, found, asked, clock):
        typer.echo(line)
    if needs_origin:
        typer.echo(f"only with the Origin {' or '.join(origins)}")
    return 0 if found.status == 200 else 1


async def _ask_urls(config: GatewayConfig, guard: Guard, asked: Asked, clock: Clock, heard: list[Heard]) -> None:
    """Have the guard's rules ask for the keys and the verdict that the request needs.  Add the answers of services to
    `heard`."""
    from gateway.auth.questions import Undecided
    from gateway.auth.verdict import AuthRefused
    from gateway.config.origin_tls import load_auth_tls
    from gateway.upstream.auth_services import AuthServices

    services = AuthServices(guard.verdicts, clock, Random())
    services.configure_tls(load_auth_tls(config))
    services.configure([guard.rules])
    try:
        for _ in range(_MOST_QUESTIONS):
            try:
                guard.judge(asked, heard=heard[-1] if heard else None)
                return
            except Undecided as error:
                if error.question is None:
                    return
                answered = asyncio.Event()
                waiting = services.await_answer(error.question, "", answered.set)
            except AuthRefused:
                return
            await answered.wait()
            if waiting.heard is not None:
                heard.append(waiting.heard)
    finally:
        await services.close()


def _asked(target: Target, parameters: Mapping[str, str], request: Request) -> Asked:
    from gateway.auth.asked import Asked
    from gateway.auth.permissions import Action, BadPermission, parse_actions
    from gateway.protocol.mode import Mode
    from gateway.server.authorising import action_of
    from gateway.server.interpreting import mode_of

    methods = {Action.READ: "GET", Action.CREATE: "PUT", Action.DELETE: "DELETE"}
    wanted: tuple[Action, ...] = (action_of(mode_of("GET", target), target.path),)
    # Ignore `--action` below the protocol's reserved path, where all requests have the same action.
    if request.actions and mode_of("PUT", target) is not Mode.OTHER:
        try:
            wanted = tuple(sorted(parse_actions(request.actions.split(","))))
        except BadPermission as error:
            raise typer.BadParameter(str(error), param_hint="'--action'") from None
    return Asked(
        target.path,
        wanted,
        authorization=(f"Bearer {request.token}",) if request.token else (),
        cookies=(request.cookie,) if request.cookie else (),
        parameters=parameters,
        others=target.query,
        client=request.client or None,
        method=methods.get(wanted[0], "POST"),
    )


def _lines(route: Route, found: Explanation, asked: Asked, clock: Clock) -> Iterable[str]:
    rules = route.config.auth
    for index, why in enumerate(found.passed):
        yield f"auth[{index}] {_named(rules[index])}: {why}"
    if found.rule is not None:
        yield f"auth[{found.rule}] {_named(rules[found.rule])}: decides"
    if found.principal is not None:
        yield from _of_principal(found.principal, clock)
    if found.granted_by:
        yield f"granted by: {found.granted_by}"
    yield f"{found.status}: {found.text} ({', '.join(asked.actions)} {asked.path})"


def _named(rule: AuthRuleConfig) -> str:
    # The query of a service's URL may hold a secret.
    return f"{rule.by} {rule.issuer or rule.url.partition('?')[0]}".rstrip()


def _of_principal(principal: Principal, clock: Clock) -> Iterable[str]:
    names = (
        ("principal", principal.name),
        ("tenant", principal.tenant),
        ("token id", principal.token_id),
        ("key", principal.key_id),
        ("only from", principal.network),
    )
    yield from (f"{what}: {value}" for what, value in names if value)
    left_s = principal.expires_at - clock.wall()
    expires_at = datetime.fromtimestamp(min(principal.expires_at, _LAST - 1), UTC)
    yield f"expires: {expires_at:%Y-%m-%dT%H:%M:%SZ}, in {left_s:.0f} s"
    for permission in principal.permissions:
        yield f"permission: {permission}"

"""`sign URL`: make a signed URL, which needs no other credential."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import typer

from gateway.aio.clock import SystemClock
from gateway.commands.failure import CommandFailed

_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_DURATION: Final = re.compile(r"([1-9][0-9]{0,8})([smhd])")


def sign(
    key: Annotated[Path, typer.Option("--key", metavar="FILE", help="File with the signing key.")],
    key_id: Annotated[str, typer.Option("--key-id", metavar="ID", help="The key's id in the configuration.")],
    url: Annotated[
        str, typer.Argument(metavar="URL", help="The stream's URL at the gateway; not needed with --cookie.")
    ] = "",
    duration: Annotated[
        str, typer.Option("--for", metavar="TIME", help="How long the signature is valid: 90s, 15m, 1h, 7d.")
    ] = "1h",
    allow: Annotated[
        str, typer.Option("--allow", metavar="ACTIONS", help="Actions, separated by commas, such as read,append.")
    ] = "read",
    streams: Annotated[
        str, typer.Option("--streams", metavar="PATTERN", help="Sign for all paths of a pattern, such as /rooms/7/**.")
    ] = "",
    network: Annotated[
        str, typer.Option("--network", metavar="CIDR", help="Only for clients of this network, such as 192.0.2.0/24.")
    ] = "",
    as_cookie: Annotated[
        bool, typer.Option("--cookie", help="Print the value of a signed cookie in place of a URL; needs --streams.")
    ] = False,
) -> None:
    """Print a signed URL, or the value of a signed cookie, for a route with `by = "signed"`."""
    from gateway.auth.permissions import BadPermission, Pattern, parse_actions
    from gateway.auth.signed_urls import PARAMETERS, Signed, SigningKey, expiry_after, signed_query
    from gateway.protocol.target import BadTarget, parse_target

    found = _DURATION.fullmatch(duration)
    if found is None:
        raise typer.BadParameter("expected a time such as 90s, 15m, 1h or 7d", param_hint="'--for'")
    if not url and not as_cookie:
        raise typer.BadParameter("is needed without --cookie", param_hint="'URL'")
    parts = urlsplit(url)
    try:
        target = parse_target((parts.path or "/") + (f"?{parts.query}" if parts.query else ""))
        actions = parse_actions(allow.split(","))
        if streams:
            Pattern(streams)
    except (BadTarget, BadPermission) as error:
        raise typer.BadParameter(str(error)) from None
    if as_cookie and (not streams or target.query):
        raise typer.BadParameter("needs --streams, and a URL without a query", param_hint="'--cookie'")
    if not {pair.partition("=")[0] for pair in target.query.split("&")}.isdisjoint(PARAMETERS):
        raise typer.BadParameter("is signed already, or has a parameter that signatures use")
    try:
        secret = key.read_bytes().strip()
    except OSError as error:
        raise CommandFailed(f"{key}: cannot be read: {error.strerror or error}") from None
    methods = "" if allow == "read" else ",".join(sorted(actions))
    expires = expiry_after(SystemClock().wall(), int(found[1]) * _UNITS[found[2]])
    signed = Signed(expires, methods, streams, network, key_id, target.query, target.path)
    query = signed_query(signed, SigningKey(key_id, secret))
    if as_cookie:
        typer.echo(query)
        return
    others = f"{parts.query}&" if parts.query else ""
    scheme = f"{parts.scheme}://{parts.netloc}" if parts.netloc else ""
    typer.echo(f"{scheme}{parts.path or '/'}?{others}{query}")

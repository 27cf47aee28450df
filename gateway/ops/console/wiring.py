"""Attaches the console to the admin port."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from gateway.config.gateway import GatewayConfig
from gateway.ops.console.relay import Relay
from gateway.ops.console.site import site_routes


def add_console(
    application: web.Application,
    config: Callable[[], GatewayConfig],
    gateway_url: Callable[[], str],
    inside_url: Callable[[], str],
) -> None:
    """Add the console's routes to the admin port's application; call it before the application is set up.

    `config` gives the configuration in effect.  `gateway_url` gives the URL at which clients reach the public port,
    `inside_url` the one for this process; each is "" while the port does not listen there.
    """
    relay = Relay(config, gateway_url, inside_url)
    application.cleanup_ctx.append(relay.running)
    application.add_routes([*site_routes(), *relay.routes()])

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
    """Add the console's routes to the admin port's application.  Call before the application is set up.

    `config` returns the configuration in effect.  `gateway_url` returns the public port's URL for clients, and
    `inside_url` returns the URL for this process.  Each result is empty while the port is closed.
    """
    relay = Relay(config, gateway_url, inside_url)
    application.cleanup_ctx.append(relay.running)
    application.add_routes([*site_routes(), *relay.routes()])

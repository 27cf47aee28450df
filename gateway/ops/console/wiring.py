"""The console's one seam to the admin port."""

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
    """Serve the console on the admin port's application, before it is set up.

    `config` gives the configuration in effect; `gateway_url` where clients reach the public port, and `inside_url`
    where this process does, each "" while it does not listen there.
    """
    relay = Relay(config, gateway_url, inside_url)
    application.cleanup_ctx.append(relay.running)
    application.add_routes([*site_routes(), *relay.routes()])

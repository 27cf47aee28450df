"""Applies the routes, limits and protocols of a configuration to the metrics."""

from __future__ import annotations

from gateway.config.gateway import GatewayConfig
from gateway.ops.metrics import Metrics


def configure_metrics(metrics: Metrics, config: GatewayConfig, budget: int) -> None:
    """Apply a configuration to the metrics.  `budget` is the most bytes of tapes."""
    limits = {"connections": config.limits.max_connections, "followed_streams": config.limits.followed_streams}
    routes = [route.name for route in config.routes]
    metrics.configure(routes, budget, limits)
    metrics.protocols = {one.name: "durable-streams" if one.is_bridged else one.protocol for one in config.routes}
    metrics.limit_figures.configure(config.rate_limits, routes)
    metrics.guarded_routes = tuple(route.name for route in config.routes if route.auth)

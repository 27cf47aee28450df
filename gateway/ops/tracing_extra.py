"""Checks that the extra for tracing is installed."""

from __future__ import annotations

from importlib import import_module

from gateway.config.errors import ConfigError
from gateway.config.telemetry import TracingConfig


def check_tracing(config: TracingConfig) -> None:
    """Raise ConfigError if tracing is on without its packages."""
    if not config.endpoint:
        return
    try:
        import_module("gateway.ops.opentelemetry_tracer")
    except ImportError as error:
        raise ConfigError(
            f"tracing.endpoint is set and {error.name} is not installed: pip install 'durable-gateway[opentelemetry]'"
        ) from None

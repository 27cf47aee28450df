"""Opens the tracer, and checks that the extra for tracing is installed."""

from __future__ import annotations

import random
from importlib import import_module

from gateway.aio.clock import Clock
from gateway.config.errors import ConfigError
from gateway.config.gateway import GatewayConfig
from gateway.config.telemetry import TracingConfig
from gateway.telemetry.tracing import NO_TRACER, Tracer, current


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


def open_tracer(config: GatewayConfig, clock: Clock, rng: random.Random) -> Tracer:
    """Return the configured tracer.  Raises ConfigError if its packages are not installed."""
    if not config.tracing.endpoint:
        return NO_TRACER
    check_tracing(config.tracing)
    from gateway.ops.opentelemetry_tracer import OpenTelemetryTracer

    return OpenTelemetryTracer(config.tracing, clock, rng)


def sampled_trace() -> str | None:
    """Return the trace id of the current request if the trace is sampled, for exemplars in the metrics; else None."""
    span = current()
    return span.trace_id if span.is_sampled else None

"""The part of a running gateway that the admin port needs."""

from __future__ import annotations

from typing import Protocol

from gateway.config.change import Change
from gateway.config.gateway import GatewayConfig
from gateway.engine.core import Engine
from gateway.engine.route import RouteTable
from gateway.ops.history import History, Sample
from gateway.ops.metrics import Metrics
from gateway.upstream.auth_services import AuthServices


class NothingToRead(Exception):
    """The gateway was not started from a configuration that can be read again; the text is one line."""


class Subject(Protocol):
    """A running gateway, as the admin port sees it."""

    engine: Engine
    metrics: Metrics
    history: History
    routes: RouteTable
    auth_services: AuthServices
    has_file: bool
    """Whether a reload reads a configuration file, or only files that flags and the environment name."""
    started_at: float
    """When it was started (monotonic seconds of the engine's clock)."""

    @property
    def config(self) -> GatewayConfig:
        """The configuration in effect."""

    @property
    def is_ready(self) -> bool:
        """Whether it accepts clients and is not draining."""

    @property
    def connections(self) -> int:
        """Client connections open now."""

    def sample(self) -> Sample:
        """The counters at this moment."""

    def drain(self, within_s: float | None = None) -> None:
        """Stop being ready and send the live readers off in order, within `within_s` or the configured time."""

    def undo_drain(self) -> bool:
        """Be ready again after `drain`; False if it is too late, because the gateway stops."""

    async def reload(self) -> Change:
        """Read the configuration again and apply every setting that can change at run time.

        ConfigError if it is invalid, NothingToRead if there is no file to read; then nothing changes.
        """

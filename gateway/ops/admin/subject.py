"""The interface of a running gateway for the admin port."""

from __future__ import annotations

from typing import Protocol

from gateway.config.change import Change
from gateway.config.gateway import GatewayConfig
from gateway.engine.core import Engine
from gateway.engine.route_table import RouteTable
from gateway.ops.history import History, Sample
from gateway.ops.metrics import Metrics
from gateway.upstream.auth_services import AuthServices


class NothingToRead(Exception):
    """There is no configuration file that could be read again.  The text is one line."""


class NotReloaded(Exception):
    """Not every worker has applied the configuration.  The text is one line."""


class NotUpgraded(Exception):
    """The gateway has not been replaced by its next version.  The text is one line."""


class Subject(Protocol):
    """A running gateway, as the admin port uses it."""

    engine: Engine
    metrics: Metrics
    history: History
    routes: RouteTable
    auth_services: AuthServices
    has_file: bool
    """Whether a reload reads a configuration file in addition to the files named by flags and the environment."""
    drain_changes: int
    """The number of times that a drain was begun or undone."""
    level_changes: int
    """The number of times that the log level was set at the admin port."""
    started_at: float
    """The time at which the gateway was started, in monotonic seconds of the engine's clock."""

    is_replaced: bool
    """Whether another version of the gateway replaces this one, or may replace it.  Changes then have to be made at the
    other version."""

    @property
    def config(self) -> GatewayConfig:
        """The configuration in effect."""

    @property
    def is_ready(self) -> bool:
        """Whether the gateway accepts clients and is not draining."""

    @property
    def connections(self) -> int:
        """The number of open client connections."""

    def sample(self) -> Sample:
        """Return the counters at this moment."""

    def drain(self, within_s: float | None = None) -> None:
        """Begin a drain: the gateway is no longer ready, and ends live reads properly within `within_s` seconds or the
        configured time.
        """

    def undo_drain(self) -> bool:
        """End a drain.  Returns False if the gateway is already stopping."""

    async def reload(self) -> Change:
        """Read the configuration again, and apply every setting that can change at run time.

        Raises ConfigError if the configuration is invalid, and NothingToRead if there is no file to read.  In both
        cases, nothing changes.  Raises NotReloaded if some of several workers have not applied the configuration, or
        may still apply it.
        """

    async def upgrade(self) -> str:
        """Start the next version of the gateway on the same sockets.  Return one line after that version is ready for
        clients.

        Raises NotUpgraded if that version does not start, or if the gateway has no supervisor that could start it.
        """

"""The endpoints that control the gateway: drain, log level, and configuration."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import Field, with_config

from gateway.config.errors import ConfigError
from gateway.ops.admin.endpoint import API_TYPE, ApiRequest, Endpoint, Nothing, Refused
from gateway.ops.admin.subject import NothingToRead, NotReloaded, NotUpgraded, Subject
from gateway.workers.control import SupervisorGone

Level = Literal["debug", "info", "warning", "error"]

LOGGER: Final = "gateway"
"""The parent of the gateway's own loggers.  Other libraries keep their levels."""

_LEVELS: Final[Mapping[Level, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class DrainBody:
    """Bounds on the drain."""

    within_s: Annotated[float, Field(ge=0, le=3_600)] | None = None
    """Seconds until the last live reader is disconnected; the configured shutdown_timeout_s if left out."""
    undo: bool = False
    """End the drain instead.  Live readers that are still connected stay."""


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class Draining:
    """Whether the gateway is draining, by this request or an earlier one."""

    is_draining: bool


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class LogLevel:
    """The lowest level that is logged."""

    level: Level


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class Reloaded:
    """The result of reading the configuration again, as dotted names of settings."""

    changed: list[str]
    needs_restart: list[str]
    """Changed settings that take effect only after a restart."""
    has_file: bool
    """Whether there is a configuration file.  Without one, only the files named by flags and the environment are
    read."""


@dataclass(frozen=True, slots=True)
class Upgraded:
    """The answer to an upgrade."""

    outcome: str
    """One line that names the new process."""


def controls_endpoints(subject: Subject) -> list[Endpoint]:
    """Make the endpoints `/api/config`, `/api/drain`, `/api/log-level`, `/api/reload` and `/api/upgrade`."""

    async def config(_: ApiRequest[Nothing, Nothing]) -> dict[str, Any]:
        # Secrets have pydantic's type SecretStr, which is dumped as asterisks.
        return subject.config.model_dump(mode="json")

    async def drain(request: ApiRequest[Nothing, DrainBody]) -> Draining:
        if not request.body.undo:
            subject.drain(request.body.within_s)
        elif request.body.within_s is not None:
            raise Refused(422, "within_s: cannot be set together with undo")
        elif not subject.undo_drain():
            raise Refused(409, "the gateway is stopping")
        return Draining(subject.engine.drain.is_set)

    async def log_level(_: ApiRequest[Nothing, Nothing]) -> LogLevel:
        return LogLevel(level_now())

    async def set_log_level(request: ApiRequest[Nothing, LogLevel]) -> LogLevel:
        subject.level_changes += 1
        set_level(request.body.level)
        return LogLevel(level_now())

    async def reload(_: ApiRequest[Nothing, Nothing]) -> Reloaded:
        try:
            change = await subject.reload()
        except ConfigError as error:
            raise Refused(422, str(error)) from None
        except NothingToRead as error:
            raise Refused(409, str(error)) from None
        except (NotReloaded, SupervisorGone) as error:
            raise Refused(503, str(error)) from None
        return Reloaded(list(change.changed), list(change.needs_restart), subject.has_file)

    async def upgrade(_: ApiRequest[Nothing, Nothing]) -> Upgraded:
        try:
            return Upgraded(await subject.upgrade())
        except (NotUpgraded, SupervisorGone) as error:
            raise Refused(409, str(error)) from None

    return [
        Endpoint("GET", "/api/config", "The configuration in effect, secrets hidden", config, dict[str, Any]),
        Endpoint(
            "POST",
            "/api/drain",
            "Drain the live readers, or undo the drain",
            drain,
            Draining,
            body=DrainBody,
            status=202,
            audited=_drained,
            refusals={409: "The gateway is stopping, which cannot be undone."},
        ),
        Endpoint("GET", "/api/log-level", "The log level", log_level, LogLevel),
        Endpoint(
            "PUT", "/api/log-level", "Set the log level", set_log_level, LogLevel, body=LogLevel, audited=_level_set
        ),
        Endpoint(
            "POST",
            "/api/reload",
            "Read the configuration again",
            reload,
            Reloaded,
            audited=_reloaded,
            refusals={
                409: "There is no configuration file to read again.",
                422: "The new configuration is invalid; the old configuration stays in effect.",
                503: "Some of several workers have not taken the configuration, or the gateway stops.",
            },
        ),
        Endpoint(
            "POST",
            "/api/upgrade",
            "Start the next version on the same sockets, and drain this one",
            upgrade,
            Upgraded,
            audited=_upgraded,
            refusals={409: "The next version does not start, or there is no supervisor. The old version serves."},
        ),
    ]


def _drained(body: DrainBody, _: Draining) -> str:
    if body.undo:
        return "undone"
    return f"within {body.within_s:g} s" if body.within_s is not None else ""


def _level_set(_: LogLevel, now: LogLevel) -> str:
    return now.level


def _reloaded(_: Nothing, done: Reloaded) -> str:
    waiting = [f"needs a restart: {', '.join(done.needs_restart)}"] if done.needs_restart else []
    return "; ".join([", ".join(done.changed) or "nothing changed", *waiting])


def _upgraded(_: Nothing, done: Upgraded) -> str:
    return done.outcome


def set_level(level: Level) -> None:
    """Set the log level of the gateway's own loggers."""
    logging.getLogger(LOGGER).setLevel(_LEVELS[level])


def level_now() -> Level:
    """Return the log level in effect."""
    level = logging.getLogger(LOGGER).getEffectiveLevel()
    names: list[Level] = [name for name, least in _LEVELS.items() if least <= level]
    return names[-1] if names else "debug"

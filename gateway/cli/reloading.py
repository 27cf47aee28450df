"""The outcome of a reload, in one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from gateway.config.errors import ConfigError

NO_FILE: Final = "this gateway was started without a configuration file"

if TYPE_CHECKING:
    from gateway.app import RunningGateway


async def reloaded(gateway: RunningGateway) -> str:
    """Read the configuration again, in a gateway of one process.  Returns the outcome in one line."""
    try:
        change = await gateway.reload()
    except Exception as error:
        # Keep serving, because the next file may be valid.
        return not_reloaded(failure_text(error))
    return has_reloaded(change.changed, change.needs_restart, has_file=gateway.has_file)


def has_reloaded(changed: Sequence[str], needs_restart: Sequence[str], *, has_file: bool) -> str:
    """Return the line for a configuration that has been taken, with the names of settings."""
    waiting = f"; needs a restart: {', '.join(needs_restart)}" if needs_restart else ""
    nothing = "nothing has changed" if has_file else f"nothing has changed: {NO_FILE}"
    return f"reloaded: {', '.join(changed) or nothing}{waiting}"


def not_reloaded(why: str) -> str:
    """Return the line for a configuration that has not been taken."""
    return f"not reloaded, all stays as it was: {why}"


def failure_text(error: Exception) -> str:
    """Describe why a configuration cannot be taken."""
    return str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"

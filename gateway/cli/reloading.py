"""The outcome of a reload, in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.config.errors import ConfigError

NO_FILE: Final = "this gateway was started without a configuration file"

if TYPE_CHECKING:
    from gateway.app import RunningGateway


async def reloaded(gateway: RunningGateway) -> str:
    """Read the configuration again.  Returns the outcome in one line."""
    try:
        change = await gateway.reload()
    except ConfigError as error:
        return f"not reloaded, all stays as it was: {error}"
    except Exception as error:
        # Keep serving, because the next file may be valid.
        return f"not reloaded, all stays as it was: {type(error).__name__}: {error}"
    waiting = f"; needs a restart: {', '.join(change.needs_restart)}" if change.needs_restart else ""
    nothing = "nothing has changed" if gateway.has_file else f"nothing has changed: {NO_FILE}"
    return f"reloaded: {', '.join(change.changed) or nothing}{waiting}"

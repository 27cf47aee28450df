"""`reload`: make the gateway read its configuration again."""

from __future__ import annotations

import typer

from gateway.commands.admin_client import DEFAULT_URL, AdminUrl, admin_client, admin_url
from gateway.commands.failure import CommandFailed
from gateway.commands.run import run

_DONE_S = 60.0
"""The longest wait.  With several workers, an earlier reload may be under way, and the gateway bounds the time of each
reload."""


def reload(admin: AdminUrl = DEFAULT_URL) -> None:
    """Make the gateway read its configuration file again, as SIGHUP does.  An invalid file changes nothing."""
    if not run(_reload(admin_url(admin))):
        raise CommandFailed("stopped; the configuration may have been read")


async def _reload(url: str) -> None:
    async with admin_client(url) as client:
        answer = await client.post("/api/reload", {}, within_s=_DONE_S)
        lines = [f"changed {name}" for name in answer["changed"]]
        lines += [f"needs a restart: {name}" for name in answer["needs_restart"]]
        has_file = answer["has_file"]
    nothing = "nothing changed" if has_file else "nothing changed: the gateway was started without a configuration file"
    for line in lines or [nothing]:
        typer.echo(line)

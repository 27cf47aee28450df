"""`upgrade`: replace a running gateway by its next version, without a refused connection."""

from __future__ import annotations

import typer

from gateway.commands.admin_client import DEFAULT_URL, AdminUrl, admin_client, admin_url
from gateway.commands.failure import CommandFailed
from gateway.commands.run import run

_SERVES_S = 135.0
"""The longest wait for the gateway's answer.  The gateway itself waits for its next version for up to 120 s."""


def upgrade(admin: AdminUrl = DEFAULT_URL) -> None:
    """Start the installed version of the gateway on the same sockets, then drain the running one, as SIGUSR2 does.

    If the new version does not start, the running one goes on.  Only for a gateway with several workers.
    """
    if not run(_upgrade(admin_url(admin))):
        raise CommandFailed("stopped waiting; the upgrade may go on")


async def _upgrade(url: str) -> None:
    async with admin_client(url) as client:
        answer = await client.post("/api/upgrade", {}, within_s=_SERVES_S)
    typer.echo(answer["outcome"])

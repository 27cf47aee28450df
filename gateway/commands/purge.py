"""`purge`: drop cached streams, or mark them stale."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.commands.admin_client import DEFAULT_URL, AdminUrl, admin_client, admin_url
from gateway.commands.failure import CommandFailed
from gateway.commands.run import run
from gateway.commands.target import stream_path


def purge(
    stream: Annotated[
        str | None, typer.Argument(metavar="[PATH]", help="One stream, by its path at the origin: /orders/1.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option("--prefix", metavar="PATH", help="Every stream whose path begins with this.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="Every stream that the origin gave this surrogate key.")
    ] = None,
    soft: Annotated[
        bool, typer.Option("--soft", help="Keep the bytes; revalidate with the origin before the next hit.")
    ] = False,
    admin: AdminUrl = DEFAULT_URL,
) -> None:
    """Purge one stream, all below a prefix, or all with a surrogate key."""
    path = stream_path(stream, "PATH") if stream is not None else None
    below = stream_path(prefix, "--prefix") if prefix is not None else None
    asked = {name: value for name, value in (("stream", path), ("prefix", below), ("key", key)) if value is not None}
    if len(asked) != 1:
        raise typer.BadParameter("give exactly one of them", param_hint="PATH / '--prefix' / '--key'")
    if not run(_purge(admin_url(admin), {**asked, "soft": soft})):
        raise CommandFailed("stopped; the purge may have been done")


async def _purge(url: str, body: dict[str, object]) -> None:
    from rich.console import Console

    stderr = Console(stderr=True, highlight=False, markup=False, emoji=False)
    async with admin_client(url) as client:
        if stderr.is_terminal:
            with stderr.status("purging"):
                answer = await client.post("/api/purge", body)
        else:
            answer = await client.post("/api/purge", body)
        count = int(answer["purged"])
    streams = f"{count} stream{'' if count == 1 else 's'}"
    typer.echo(f"marked {streams} stale" if body["soft"] else f"purged {streams}")

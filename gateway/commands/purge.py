"""`purge`: drop cached streams, or mark them stale."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from gateway.commands.admin_client import DEFAULT_URL, AdminUrl, admin_client, admin_url
from gateway.commands.failure import CommandFailed
from gateway.commands.run import run
from gateway.commands.target import stream_path

PURGE_S: Final = 25.0
"""The timeout of the request in seconds.  A gateway with several workers purges in two rounds of at most 10 s."""


def purge(
    stream: Annotated[
        str | None, typer.Argument(metavar="PATH", help="One stream, by its path at the origin: /orders/1.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option("--prefix", metavar="PATH", help="Every stream whose path has this prefix.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="Every stream that the origin gave this surrogate key.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every stream; asks first.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    soft: Annotated[
        bool, typer.Option("--soft", help="Keep the bytes; revalidate with the origin before the next hit.")
    ] = False,
    admin: AdminUrl = DEFAULT_URL,
) -> None:
    """Purge one stream, all below a prefix, all with a surrogate key, or everything.

    In a fleet, every member purges.  The command fails if a member has not confirmed the purge.
    """
    selected = {
        name: value for name, value in (("stream", stream), ("prefix", prefix), ("key", key)) if value is not None
    }
    if len(selected) + all_ != 1:
        raise typer.BadParameter("give exactly one of them", param_hint="PATH / '--prefix' / '--key' / '--all'")
    url = admin_url(admin)
    asked: dict[str, object] = {name: _selector(name, value) for name, value in selected.items()}
    if all_:
        asked["all"] = True
        if not yes:
            _confirm(f"{'Revalidate' if soft else 'Purge'} every stream of {url}?")
    if not run(_purge(url, {**asked, "soft": soft})):
        raise CommandFailed("stopped; the purge may have been done")


def _selector(name: str, value: str) -> str:
    """Return `value` for the API.  Raises BadParameter if it is empty or selects all streams.

    The value may be empty by mistake, because of an unset shell variable.
    """
    hint = "PATH" if name == "stream" else f"--{name}"
    if not value:
        raise typer.BadParameter("is empty: --all purges every stream", param_hint=f"'{hint}'")
    if name == "key":
        return value
    path = stream_path(value, hint)
    if name == "prefix" and path == "/":
        raise typer.BadParameter("/ is every stream: --all purges them", param_hint=f"'{hint}'")
    return path


def _confirm(question: str) -> None:
    """Ask the user.  Raises CommandFailed if the answer is no or there is no terminal."""
    if not sys.stdin.isatty():
        raise CommandFailed("purging every stream needs --yes if no terminal is there for the question")
    if not typer.confirm(question, err=True):
        raise CommandFailed("nothing was purged")


async def _purge(url: str, body: dict[str, object]) -> None:
    from rich.console import Console

    stderr = Console(stderr=True, highlight=False, markup=False, emoji=False)
    async with admin_client(url) as client:
        if stderr.is_terminal:
            with stderr.status("purging"):
                answer = await client.post("/api/purge", body, within_s=PURGE_S)
        else:
            answer = await client.post("/api/purge", body, within_s=PURGE_S)
        count = int(answer["purged"])
    streams = f"{count} stream{'' if count == 1 else 's'}"
    typer.echo(f"marked {streams} stale" if body["soft"] else f"purged {streams}")
    members: list[dict[str, str | int | None]] = answer.get("members", [])
    if missing := [f"{one['member']} ({one['why_not']})" for one in members if one["affected"] is None]:
        raise CommandFailed(f"not confirmed by these members of the fleet: {', '.join(missing)}")

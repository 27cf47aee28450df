"""`streams`: list the cached streams, one a line."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Final

import typer

from gateway.commands import figures
from gateway.commands.admin_client import DEFAULT_URL, AdminClient, AdminUrl, admin_client, admin_url
from gateway.commands.failure import CommandFailed
from gateway.commands.run import run
from gateway.commands.target import stream_path

_PAGE: Final = 100
_COLUMNS: Final = ("stream", "partition", "tail", "state", "bytes", "readers", "reads", "hits", "sent_bytes")


def streams(
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="Only streams whose path has this prefix.")] = "",
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Most streams to list.")] = 1_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line, as in the API.")] = False,
    admin: AdminUrl = DEFAULT_URL,
) -> None:
    """List the streams in the gateway's memory: a table on a terminal, tab-separated lines in a pipe."""
    if not run(_streams(admin_url(admin), stream_path(prefix, "PREFIX") if prefix else "", limit, as_json)):
        raise CommandFailed("stopped before the end of the list")


async def _streams(url: str, prefix: str, limit: int, as_json: bool) -> None:
    import orjson
    from rich.console import Console

    async with admin_client(url) as client:
        found, has_more = await _pages(client, prefix, limit)
        cells = [] if as_json else [_cells(stream) for stream in found]
        table = _table(found) if not as_json and sys.stdout.isatty() else None
    if as_json:
        for stream in found:
            typer.echo(orjson.dumps(stream))
    elif table is not None:
        Console().print(table)
    else:
        typer.echo("\t".join(_COLUMNS))
        for row in cells:
            typer.echo("\t".join(row))
    if has_more:
        typer.echo(f"there are more than {limit} streams: raise --limit", err=True)


async def _pages(client: AdminClient, prefix: str, limit: int) -> tuple[list[dict[str, Any]], bool]:
    """Return up to `limit` streams, and whether there are more."""
    found: list[dict[str, Any]] = []
    after = ""
    while True:
        query: dict[str, str | int] = {"prefix": prefix, "limit": min(_PAGE, limit - len(found))}
        if after:
            query["after"] = after
        page = await client.get("/api/streams", query)
        found += page["streams"]
        after = page["next"] or ""
        if not after or len(found) >= limit:
            return found, bool(after)


def _cells(stream: dict[str, Any]) -> list[str]:
    names = (
        figures.stream_name(stream),
        stream["partition"],
        stream["tail"] or "-",
        figures.stream_state(stream) or "-",
    )
    return [*names, *(str(stream[name]) for name in ("bytes", "readers", "reads", "hits", "sent_bytes"))]


def _table(found: list[dict[str, Any]]) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("stream", overflow="fold", ratio=2)
    table.add_column("tail", overflow="fold")
    table.add_column("state")
    for title in ("bytes", "readers", "reads", "hits", "sent"):
        table.add_column(title, justify="right", no_wrap=True)
    for stream in found:
        table.add_row(
            Text(figures.stream_name(stream)),
            Text(stream["tail"] or "-"),
            figures.stream_state(stream),
            figures.size(stream["bytes"]),
            f"{stream['readers']:,}",
            f"{stream['reads']:,}",
            figures.ratio(stream["hit_ratio"]),
            figures.size(stream["sent_bytes"]),
        )
    return table

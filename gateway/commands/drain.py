"""`drain`: disconnect live readers, spread over time, and wait until all have left.  `--undo` cancels the drain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gateway.aio.clock import SystemClock, pause
from gateway.commands.admin_client import DEFAULT_URL, AdminClient, AdminUrl, admin_client, admin_url
from gateway.commands.failure import CommandFailed
from gateway.commands.run import run

if TYPE_CHECKING:
    from rich.console import Console

_POLL_S: Final = 0.25
_GRACE_S: Final = 5.0
"""The seconds to wait for readers after the end of the drain."""


def drain(
    within: Annotated[
        float | None,
        typer.Option(
            "--within",
            metavar="SECONDS",
            min=0,
            max=3_600,
            show_default="its shutdown_timeout_s",
            help="Time within which the last live reader is disconnected.",
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until no live reader is left.")] = True,
    undo: Annotated[bool, typer.Option("--undo", help="End a drain: the gateway is ready again.")] = False,
    admin: AdminUrl = DEFAULT_URL,
) -> None:
    """Make the gateway not ready and disconnect its clients cleanly.  The process keeps running until it is stopped."""
    if undo:
        if within is not None:
            raise typer.BadParameter("does not go with --undo", param_hint="'--within'")
        if not run(_undo(admin_url(admin))):
            raise CommandFailed("stopped; the drain may have been undone")
        return
    if not run(_drain(admin_url(admin), within, wait)):
        raise CommandFailed("stopped watching; the drain goes on")


async def _undo(url: str) -> None:
    async with admin_client(url) as client:
        await client.post("/api/drain", {"undo": True})
    typer.echo("ready again")


async def _drain(url: str, within_s: float | None, wait: bool) -> None:
    from rich.console import Console

    async with admin_client(url) as client:
        if within_s is None and wait:
            config = await client.get("/api/config")
            bound_s = float(config["server"]["shutdown_timeout_s"])
        else:
            bound_s = within_s or 0.0
        before = _readers(await client.get("/api/overview"))
        await client.post("/api/drain", {} if within_s is None else {"within_s": within_s})
        if not wait:
            typer.echo(f"draining {_count(before)}")
            return
        await _watch(
            client, before, bound_s + _GRACE_S, Console(stderr=True, highlight=False, markup=False, emoji=False)
        )
    typer.echo(f"drained {_count(before)}")


async def _watch(client: AdminClient, before: int, bound_s: float, stderr: Console) -> None:
    """Return when no live reader is left.  Raises CommandFailed after `bound_s`."""
    clock = SystemClock()
    ends_at = clock.now() + bound_s
    with _progress(stderr, before) as show:
        while left := _readers(await client.get("/api/overview")):
            show(left)
            if clock.now() >= ends_at:
                raise CommandFailed(f"{_count(left)} after {bound_s:g} s: clients still connect to this gateway")
            await pause(clock, _POLL_S)


@contextmanager
def _progress(stderr: Console, before: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal.  The caller calls the result with the number of readers left."""
    if not stderr.is_terminal or not before:
        yield lambda _: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("draining"), BarColumn(), TextColumn("{task.fields[left]} left"), TimeElapsedColumn())
    with Progress(*columns, console=stderr, transient=True) as progress:
        task = progress.add_task("drain", total=before, left=before)
        yield lambda left: progress.update(task, completed=max(0, before - left), left=left)


def _readers(overview: dict[str, Any]) -> int:
    return sum(int(count) for count in overview["subscribers"].values())


def _count(readers: int) -> str:
    return f"{readers} live reader{'' if readers == 1 else 's'}"

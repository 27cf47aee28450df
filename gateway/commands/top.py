"""`top`: the gateway at a glance and its busiest streams, live.

What is counted since the start becomes a rate by looking twice; `--once`, for scripts, looks once and shows the counts.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gateway.commands.admin_client import DEFAULT_URL, AdminClient, AdminUrl, admin_client, admin_url
from gateway.commands.failure import CommandFailed
from gateway.commands.readable import watching
from gateway.commands.run import run

if TYPE_CHECKING:
    from gateway.commands.top_view import Look


class By(StrEnum):
    """What makes a stream a busy one."""

    REQUESTS = "requests"
    BYTES = "bytes"
    SUBSCRIBERS = "subscribers"


_KEYS: Final = {"r": By.REQUESTS, "b": By.BYTES, "s": By.SUBSCRIBERS}
_PIPE_WIDTH: Final = 20_000
"""Above the longest line of a request, and so of any stream's name."""

_CANDIDATES: Final = 200
"""The API orders by what was counted since the start; who is busiest now is found among so many of those."""

_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.)")
_LEAVE: Final = ("q", "Q", "\x1b", "\x03", "\x04")


def top(
    by: Annotated[By, typer.Option("--by", help="What makes a stream a busy one.")] = By.REQUESTS,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=1_000, help="How many streams.")] = 20,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.1, max=60, help="How often to look.")
    ] = 2,
    once: Annotated[bool, typer.Option("--once", help="Print what has been counted since the start, once.")] = False,
    admin: AdminUrl = DEFAULT_URL,
) -> None:
    """Show the busiest streams, live; q or Ctrl-C leaves, r, b and s choose the order.  In a pipe it prints once."""
    url = admin_url(admin)
    if once or not sys.stdout.isatty():
        if not run(_once(url, by, limit)):
            raise CommandFailed("stopped")
        return
    run(_live(url, by, limit, interval))


async def _once(url: str, by: By, limit: int) -> None:
    from rich.console import Console

    from gateway.commands.top_view import view

    is_terminal = sys.stdout.isatty()
    # Whoever reads a pipe wants names whole, however narrow a terminal there might be.
    console = Console() if is_terminal else Console(width=_PIPE_WIDTH, highlight=False)
    async with admin_client(url) as client:
        console.print(view(await _look(client, by, limit), None, limit, fills=is_terminal))


async def _look(client: AdminClient, by: By, limit: int) -> Look:
    from gateway.commands.top_view import Look

    overview, origins, top = await asyncio.gather(
        client.get("/api/overview"),
        client.get("/api/origins"),
        client.get("/api/top", {"by": by.value, "limit": limit}),
    )
    return Look(overview, origins["origins"], top["streams"], by.value)


async def _live(url: str, by: By, limit: int, interval_s: float) -> None:
    from rich.console import Console
    from rich.live import Live

    from gateway.commands.top_view import view

    before: Look | None = None
    trouble = ""
    async with admin_client(url) as client:
        candidates = max(limit, _CANDIDATES)
        now = await _look(client, by, candidates)
        with _pressed() as keys, Live(console=Console(), screen=True, auto_refresh=False) as live:
            while True:
                live.update(view(now, before, limit, trouble), refresh=True)
                key = await _key(keys, interval_s)
                if key in _LEAVE:
                    return
                by = _KEYS.get(key, by)
                try:
                    before, now, trouble = now, await _look(client, by, candidates), ""
                except CommandFailed as error:
                    # It may be restarting: what was seen last stays, and is said to be old.
                    trouble = str(error)


async def _key(keys: asyncio.Queue[str], within_s: float) -> str:
    """A key that was pressed, or nothing when none was in time."""
    try:
        async with asyncio.timeout(within_s):
            return await keys.get()
    except TimeoutError:
        return ""


@contextmanager
def _pressed() -> Iterator[asyncio.Queue[str]]:
    """Keys as they are pressed, without Enter and without showing them; none where stdin is no terminal."""
    keys: asyncio.Queue[str] = asyncio.Queue()
    descriptor = sys.stdin.fileno()
    if not os.isatty(descriptor):
        yield keys
        return
    settings = termios.tcgetattr(descriptor)

    def read() -> None:
        pressed = os.read(descriptor, 64).decode("utf-8", "replace")
        # Arrows and their like begin with Escape and go on; several keys may come at once.
        for key in _SEQUENCE.sub("", pressed):
            keys.put_nowait(key)
        if not pressed:
            keys.put_nowait("q")  # the terminal is gone

    tty.setcbreak(descriptor)
    try:
        with watching(descriptor, read):
            yield keys
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, settings)

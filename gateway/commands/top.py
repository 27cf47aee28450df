"""`top`: a live summary of the gateway and its busiest streams.

Rates are computed from two snapshots of the counters.  `--once` shows the counts of one snapshot, for scripts.
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
    """Order of the streams."""

    REQUESTS = "requests"
    BYTES = "bytes"
    SUBSCRIBERS = "subscribers"


_KEYS: Final = {"r": By.REQUESTS, "b": By.BYTES, "s": By.SUBSCRIBERS}
_PIPE_WIDTH: Final = 20_000
"""The width of the table in a pipe: more than the longest request line, so that names are not cut."""

_CANDIDATES: Final = 200
"""The number of streams in a snapshot.  The API orders them by counts since the start.  The currently busiest ones are
selected among these."""

_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.)")
_LEAVE: Final = ("q", "Q", "\x1b", "\x03", "\x04")


def top(
    by: Annotated[By, typer.Option("--by", help="Order of the streams.")] = By.REQUESTS,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=1_000, help="Most streams to show.")] = 20,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.1, max=60, help="Time between two updates.")
    ] = 2,
    once: Annotated[bool, typer.Option("--once", help="Print the counts since the start once, and exit.")] = False,
    admin: AdminUrl = DEFAULT_URL,
) -> None:
    """Show the busiest streams, live; q or Ctrl-C exits, r, b and s choose the order.  In a pipe, print once."""
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
    # In a pipe, names are printed in full.
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
        with _key_presses() as keys, Live(console=Console(), screen=True, auto_refresh=False) as live:
            while True:
                live.update(view(now, before, limit, trouble), refresh=True)
                key = await _key(keys, interval_s)
                if key in _LEAVE:
                    return
                by = _KEYS.get(key, by)
                try:
                    before, now, trouble = now, await _look(client, by, candidates), ""
                except CommandFailed as error:
                    # The gateway may be restarting.  Keep showing the last snapshot, with the error.
                    trouble = str(error)


async def _key(keys: asyncio.Queue[str], within_s: float) -> str:
    """Return the next key pressed within `within_s` seconds; an empty text without one."""
    try:
        async with asyncio.timeout(within_s):
            return await keys.get()
    except TimeoutError:
        return ""


@contextmanager
def _key_presses() -> Iterator[asyncio.Queue[str]]:
    """Provide a queue of pressed keys, without Enter and echo.  It stays empty if stdin is not a terminal."""
    keys: asyncio.Queue[str] = asyncio.Queue()
    descriptor = sys.stdin.fileno()
    if not os.isatty(descriptor):
        yield keys
        return
    settings = termios.tcgetattr(descriptor)

    def read() -> None:
        pressed = os.read(descriptor, 64).decode("utf-8", "replace")
        # Remove escape sequences, such as arrow keys.  Several keys may arrive at once.
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

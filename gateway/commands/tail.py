"""`tail URL`: follow a stream from the terminal."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Coroutine
from typing import Annotated, Any

import typer

from gateway.aio.clock import SystemClock
from gateway.commands.failure import CommandFailed
from gateway.commands.output import abandon_stdout, watching_reader
from gateway.commands.run import run
from gateway.commands.target import Headers, request_headers, stream_url
from gateway.protocol import offsets


class _OutputGone(Exception):
    """The reader of stdout has closed its end."""


def tail(
    url: Annotated[str, typer.Argument(metavar="URL", help="The stream, at any gateway or origin.")],
    start: Annotated[str, typer.Option("--from", metavar="OFFSET|now|start", help="Where to begin.")] = "start",
    sse: Annotated[
        bool, typer.Option("--sse", help="Follow by Server-Sent Events; the default except for text.")
    ] = False,
    long_poll: Annotated[bool, typer.Option("--long-poll", help="Follow by long-poll; the default for text.")] = False,
    show_offsets: Annotated[
        bool, typer.Option("--offsets", help="Print the offset after every batch on stderr.")
    ] = False,
    header: Headers = None,
) -> None:
    """Print a stream and follow it until it is closed: indented JSON on a terminal, one message a line in a pipe.

    It resumes after disconnects without loss or repeats.  Ctrl-C ends it.
    """
    if sse and long_poll:
        raise typer.BadParameter("use only one of them", param_hint="'--sse' / '--long-poll'")
    offset = {"start": offsets.START, "now": offsets.NOW}.get(start, start)
    if not offsets.is_well_formed(offset):
        raise typer.BadParameter(f"expected an offset, now or start, got {start!r}", param_hint="'--from'")
    target, headers = stream_url(url), request_headers(header)
    try:
        run(_tail(target, offset, "sse" if sse else "long-poll" if long_poll else "by-type", show_offsets, headers))
    except _OutputGone:
        abandon_stdout()


async def _tail(url: str, offset: str, follow: str, show_offsets: bool, headers: dict[str, str]) -> None:
    from rich.console import Console

    from gateway.commands.exchange import open_session
    from gateway.commands.printer import Printer, printer_for
    from gateway.commands.reader import Batch, Follow, StreamReader

    terminal = Console() if sys.stdout.isatty() else None
    stderr = Console(stderr=True, highlight=False, markup=False, emoji=False)
    printer: Printer | None = None

    def take(batch: Batch) -> None:
        nonlocal printer
        if printer is None:
            printer = printer_for(reader.content_type, sys.stdout.buffer, terminal)
        try:
            for piece in batch.pieces:
                printer.show(piece)
            sys.stdout.flush()
        except BrokenPipeError:
            raise _OutputGone from None
        except OSError as error:
            abandon_stdout()
            raise CommandFailed(f"cannot write: {os.strerror(error.errno or 0)}") from None
        if show_offsets:
            stderr.print(f"offset {batch.next_offset}", style="dim", soft_wrap=True)

    async with open_session(url, headers) as session:
        reader = StreamReader(
            session,
            url,
            offset=offset,
            follow=Follow(follow),
            clock=SystemClock(),
            rng=random.Random(),
            take=take,
            notice=lambda text: stderr.print(text, style="dim", soft_wrap=True),
        )
        await _until_output_is_gone(reader.read())


async def _until_output_is_gone(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end.  Raises _OutputGone as soon as the reader of stdout leaves, even without a write."""
    task = asyncio.current_task()
    has_left = False

    def left() -> None:
        nonlocal has_left
        has_left = True
        if task is not None:
            task.cancel()

    try:
        with watching_reader(left):
            await work
    except asyncio.CancelledError:
        if not has_left:
            raise
        raise _OutputGone from None

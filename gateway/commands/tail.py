"""`tail URL`: follow a stream from the terminal."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Coroutine
from functools import partial
from typing import Annotated, Any

import typer

from gateway.aio.clock import SystemClock
from gateway.commands.failure import CommandFailed
from gateway.commands.output import abandon_stdout, watching_reader
from gateway.commands.run import run
from gateway.commands.target import Headers, Target, stream_target
from gateway.protocol import names
from gateway.s2.records import parse_u64


class _OutputGone(Exception):
    """The reader of stdout has closed its end."""


def tail(
    url: Annotated[
        str,
        typer.Argument(metavar="URL", help="The stream, at any gateway or origin; S2: s2://host:port/basin/stream."),
    ],
    start: Annotated[
        str,
        typer.Option("--from", metavar="OFFSET|now|start", help="Where to begin; S2's offsets are sequence numbers."),
    ] = "start",
    sse: Annotated[
        bool, typer.Option("--sse", help="Follow by Server-Sent Events; the default except for text.")
    ] = False,
    long_poll: Annotated[
        bool,
        typer.Option("--long-poll", help="Follow by long-poll; the default for text. S2: by reads that wait."),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="S2: print whole records, with number, timestamp and headers."),
    ] = False,
    show_offsets: Annotated[
        bool, typer.Option("--offsets", help="Print the offset after every batch on stderr.")
    ] = False,
    header: Headers = None,
) -> None:
    """Print a stream and follow it until it is closed: indented JSON on a terminal, one message a line in a pipe.

    For an S2 stream, print the body of each record as a line, and leave out command records.  The access token is read
    from S2_ACCESS_TOKEN.

    After a disconnect, printing resumes without loss or repeats.  Ctrl-C ends the command.
    """
    if sse and long_poll:
        raise typer.BadParameter("use only one of them", param_hint="'--sse' / '--long-poll'")
    offset = {"start": names.START, "now": names.NOW}.get(start, start)
    target = stream_target(url, header, os.environ)
    if target.is_s2 and offset not in (names.START, names.NOW) and parse_u64(offset) is None:
        raise typer.BadParameter(f"expected a sequence number, now or start, got {start!r}", param_hint="'--from'")
    if not names.is_well_formed(offset):
        raise typer.BadParameter(f"expected an offset, now or start, got {start!r}", param_hint="'--from'")
    if as_json and not target.is_s2:
        raise typer.BadParameter("is for S2 streams: JSON streams are printed as JSON anyway", param_hint="'--json'")
    follow = "sse" if sse else "long-poll" if long_poll else "by-type"
    try:
        run(_tail(target, offset, follow, show_offsets, as_json=as_json))
    except _OutputGone:
        abandon_stdout()


async def _tail(target: Target, offset: str, follow: str, show_offsets: bool, *, as_json: bool) -> None:
    from rich.console import Console

    from gateway.commands.exchange import SILENCE_S, open_session
    from gateway.commands.following import Batch, Follow
    from gateway.commands.printer import Printer, printer_for
    from gateway.commands.reader import StreamReader
    from gateway.commands.s2_reader import SILENCE_S as S2_SILENCE_S
    from gateway.commands.s2_reader import RecordReader

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

    mode = Follow(follow)
    # Allow the longer silence for unary reads of S2 too, because they wait without data, like long-polls.
    silence_s = S2_SILENCE_S if target.is_s2 and mode is not Follow.LONG_POLL else SILENCE_S
    make = partial(RecordReader, as_json=as_json) if target.is_s2 else StreamReader
    async with open_session(target.url, target.headers, silence_s) as session:
        reader = make(
            session,
            target.url,
            offset=offset,
            follow=mode,
            clock=SystemClock(),
            rng=random.Random(),
            take=take,
            notice=lambda text: stderr.print(text, style="dim", soft_wrap=True),
        )
        await _until_output_is_gone(reader.read())


async def _until_output_is_gone(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end.  Raises _OutputGone when the reader of stdout leaves, even without a write."""
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

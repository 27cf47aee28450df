"""`append URL`: append stdin to a stream."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gateway.aio.clock import SystemClock
from gateway.commands.failure import CommandFailed
from gateway.commands.run import run
from gateway.commands.target import Headers, request_headers, stream_url
from gateway.protocol import names

if TYPE_CHECKING:
    import aiohttp
    from rich.console import Console

    from gateway.commands.producer import Producer
    from gateway.commands.standard_input import Cutter, StandardInput

_BATCH_BYTES: Final = 1024 * 1024
"""Most bytes of one append, unless a single message is larger: few round trips, and little to send again."""


def append(
    url: Annotated[str, typer.Argument(metavar="URL", help="The stream, at any gateway or origin.")],
    json: Annotated[
        bool, typer.Option("--json", help="stdin is JSON values, each a message; the default for JSON streams.")
    ] = False,
    lines: Annotated[
        bool, typer.Option("--lines", help="Each line is a message, as a string in JSON; the default for text.")
    ] = False,
    binary: Annotated[bool, typer.Option("--binary", help="stdin is bytes; the default for all other types.")] = False,
    create: Annotated[
        str | None, typer.Option("--create", metavar="TYPE", help="Create the stream first, with this content type.")
    ] = None,
    close: Annotated[bool, typer.Option("--close", help="Close the stream at the end of stdin.")] = False,
    retry_for: Annotated[
        float, typer.Option("--retry-for", metavar="SECONDS", min=0, help="How long a failed append is retried.")
    ] = 60,
    header: Headers = None,
) -> None:
    """Append stdin to a stream as it arrives.  Retries never append a message twice."""
    asked = [name for name, is_set in (("json", json), ("lines", lines), ("binary", binary)) if is_set]
    if len(asked) > 1:
        raise typer.BadParameter("use only one of them", param_hint="'--json' / '--lines' / '--binary'")
    target, headers = stream_url(url), request_headers(header)
    if create is not None and (not create.isprintable() or "/" not in create):
        raise typer.BadParameter(f"expected a content type, got {create!r}", param_hint="'--create'")
    sent = _Sent()
    try:
        work = _append(target, asked[0] if asked else None, create, close, retry_for, headers, sent)
        if not run(work):
            raise CommandFailed("stopped")
    except CommandFailed as error:
        raise CommandFailed(f"{error} ({sent} before)") from None


class _Sent:
    """Messages and bytes that the origin has acknowledged."""

    def __init__(self) -> None:
        self.messages: int | None = None
        self.size_bytes = 0

    def __str__(self) -> str:
        if self.messages is None:
            return f"appended {self.size_bytes} bytes"
        return f"appended {self.messages} message{'' if self.messages == 1 else 's'}"


async def _append(
    url: str,
    asked: str | None,
    create: str | None,
    close: bool,
    retry_for_s: float,
    headers: dict[str, str],
    sent: _Sent,
) -> None:
    from rich.console import Console

    from gateway.commands.exchange import open_session
    from gateway.commands.producer import Producer
    from gateway.commands.standard_input import StandardInput

    stderr = Console(stderr=True, highlight=False, markup=False, emoji=False)
    async with open_session(url, headers) as session:
        content_type = await _created(session, url, create) if create else await _content_type(session, url)
        cutter = _cutter(asked, content_type)
        sent.messages = 0 if cutter.counts_messages else None
        producer = Producer(
            session,
            url,
            content_type,
            clock=SystemClock(),
            rng=random.SystemRandom(),
            retry_for_s=retry_for_s,
            notice=lambda text: stderr.print(text, style="dim", soft_wrap=True),
        )
        await _copy(StandardInput(), cutter, producer, sent, stderr)
        if close:
            await producer.close()
    tail = f"; the tail is {producer.tail}" if producer.tail else ""
    typer.echo(f"{sent}{' and closed' if close else ''}{tail}")


async def _copy(source: StandardInput, cutter: Cutter, producer: Producer, sent: _Sent, stderr: Console) -> None:
    """Copy stdin to the stream until stdin ends."""
    from gateway.commands.standard_input import BadInput

    with _progress(stderr, source.size_bytes) as advance:
        while True:
            piece = await source.piece()
            bad: BadInput | None = None
            messages: list[bytes] = []
            try:
                # Not extend(): the messages before a bad one are kept.
                for message in cutter.feed(piece) if piece else cutter.finish():
                    messages.append(message)  # noqa: PERF402
            except BadInput as error:
                bad = error
            for batch in _batches(messages):
                await producer.append(cutter.joined(batch))
                sent.size_bytes += sum(map(len, batch))
                if sent.messages is not None:
                    sent.messages += len(batch)
            if bad is not None:
                raise bad
            if not piece:
                return
            advance(len(piece))


def _batches(messages: list[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for message in messages:
        if batch and size + len(message) > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += len(message)
    if batch:
        yield batch


@contextmanager
def _progress(stderr: Console, total_bytes: int | None) -> Iterator[Callable[[int], None]]:
    """A progress bar; call the result with the number of bytes appended.

    It is shown only if stderr is a terminal and stdin is not.
    """
    if not stderr.is_terminal or sys.stdin.isatty():
        yield lambda _: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("appending"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=stderr, transient=True) as progress:
        task = progress.add_task("append", total=total_bytes)
        yield lambda size: progress.advance(task, size)


async def _created(session: aiohttp.ClientSession, url: str, content_type: str) -> str:
    """Create the stream, which may exist with the same type, and return its content type."""
    from gateway.commands.exchange import Transient, origin_error, request

    try:
        async with request(session, "PUT", url, {"Content-Type": content_type}) as response:
            if response.status == 409:
                raise CommandFailed(f"{url}: exists, but not as an open stream of {content_type}")
            if response.status not in (200, 201):
                raise await origin_error(response)
            return content_type
    except Transient as error:
        raise CommandFailed(str(error)) from None


async def _content_type(session: aiohttp.ClientSession, url: str) -> str:
    """The content type of an existing open stream.  Raises CommandFailed."""
    from gateway.commands.exchange import Transient, origin_error, request

    try:
        async with request(session, "HEAD", url) as response:
            if response.status == 404:
                raise CommandFailed(f"{url}: no such stream; --create TYPE makes one")
            if response.status != 200:
                raise await origin_error(response)
            if names.STREAM_NEXT_OFFSET not in response.headers:
                raise CommandFailed(f"{url}: not a durable stream: no {names.STREAM_NEXT_OFFSET} in the answer")
            if names.is_true(response.headers.get(names.STREAM_CLOSED)):
                raise CommandFailed(f"{url}: the stream is closed")
            return response.headers.get("Content-Type", names.DEFAULT_TYPE)
    except Transient as error:
        raise CommandFailed(str(error)) from None


def _cutter(asked: str | None, content_type: str) -> Cutter:
    """The cutter of the flag in `asked`, or the one that fits the stream's type."""
    from gateway.commands.standard_input import JsonValues, Lines, Pieces

    is_json = names.is_json(content_type)
    is_text = names.media_type(content_type).startswith("text/")
    match asked or ("json" if is_json else "lines" if is_text else "binary"):
        case "json" if is_json:
            return JsonValues()
        case "json":
            raise CommandFailed(f"--json is for JSON streams, and this one is {content_type}")
        case "lines":
            return Lines(as_json=is_json)
        case _ if is_json:
            raise CommandFailed("--binary is not for JSON streams: use --json or --lines")
        case _:
            return Pieces()

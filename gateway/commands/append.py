"""`append URL`: append stdin to a stream."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from gateway.aio.clock import SystemClock
from gateway.commands.failure import CommandFailed
from gateway.commands.run import run
from gateway.commands.target import Headers, Target, stream_target
from gateway.protocol import names

if TYPE_CHECKING:
    import aiohttp
    from rich.console import Console

    from gateway.commands.standard_input import BodyCutter, Cutter, StandardInput

_BATCH_BYTES: Final = 1024 * 1024
"""The most bytes of one append, unless a single message is larger.  With a larger bound, more bytes would be sent again
after a failure."""


def append(
    url: Annotated[
        str,
        typer.Argument(metavar="URL", help="The stream, at any gateway or origin; S2: s2://host:port/basin/stream."),
    ],
    json: Annotated[
        bool, typer.Option("--json", help="stdin is JSON values, each a message; the default for JSON streams.")
    ] = False,
    lines: Annotated[
        bool,
        typer.Option("--lines", help="Each line is a message, as a string in JSON; the default for text and for S2."),
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
    """Append stdin to a stream as it arrives.  Retries never append a message twice.

    For an S2 stream, append each message as a record.  The access token is read from S2_ACCESS_TOKEN.
    """
    asked = [name for name, is_set in (("json", json), ("lines", lines), ("binary", binary)) if is_set]
    if len(asked) > 1:
        raise typer.BadParameter("use only one of them", param_hint="'--json' / '--lines' / '--binary'")
    target = stream_target(url, header, os.environ)
    for option, is_set in (("--create", create is not None), ("--close", close)):
        if target.is_s2 and is_set:
            raise typer.BadParameter("is not for S2 streams", param_hint=f"'{option}'")
    if create is not None and (not create.isprintable() or "/" not in create):
        raise typer.BadParameter(f"expected a content type, got {create!r}", param_hint="'--create'")
    sent = _Sent()
    try:
        if not run(_append(target, asked[0] if asked else None, create, close, retry_for, sent)):
            raise CommandFailed("stopped")
    except CommandFailed as error:
        raise CommandFailed(f"{error} ({sent} before)") from None


class _Sent:
    """Counts messages and bytes that the origin has acknowledged."""

    def __init__(self) -> None:
        self.messages: int | None = None
        self.noun = "message"
        self.size_bytes = 0

    def __str__(self) -> str:
        if self.messages is None:
            return f"appended {self.size_bytes} bytes"
        return f"appended {self.messages} {self.noun}{'' if self.messages == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class _Most:
    """The bounds of one append."""

    size: int
    """The most bytes, unless a single message is larger."""
    count: int | None = None
    """The most messages."""
    overhead: int = 0
    """The bytes counted for each message in addition to its content."""

    def batches(self, messages: list[bytes]) -> Iterator[list[bytes]]:
        """Divide messages among as few appends as possible, in order."""
        batch: list[bytes] = []
        size = 0
        for message in messages:
            more = len(message) + self.overhead
            if batch and (size + more > self.size or len(batch) == self.count):
                yield batch
                batch, size = [], 0
            batch.append(message)
            size += more
        if batch:
            yield batch


@dataclass(frozen=True, slots=True)
class _Sink:
    """A stream to append to."""

    cutter: Cutter
    most: _Most
    send: Callable[[list[bytes]], Awaitable[None]]
    """Appends messages, and returns after the acknowledgement."""
    tail: Callable[[], str | None]
    close: Callable[[], Awaitable[None]]


async def _append(
    target: Target, asked: str | None, create: str | None, close: bool, retry_for_s: float, sent: _Sent
) -> None:
    from rich.console import Console

    from gateway.commands.exchange import open_session
    from gateway.commands.standard_input import StandardInput

    stderr = Console(stderr=True, highlight=False, markup=False, emoji=False)
    retrying = _Retrying(retry_for_s, lambda text: stderr.print(text, style="dim", soft_wrap=True))
    async with open_session(target.url, target.headers) as session:
        if target.is_s2:
            sent.noun = "record"
            sink = await _s2_sink(session, target.url, asked, retrying)
        else:
            sink = await _durable_sink(session, target.url, asked, create, retrying)
        sent.messages = 0 if sink.cutter.counts_messages else None
        await _copy(StandardInput(), sink, sent, stderr)
        if close:
            await sink.close()
    tail = f"; the tail is {sink.tail()}" if sink.tail() else ""
    typer.echo(f"{sent}{' and closed' if close else ''}{tail}")


class _Retrying(NamedTuple):
    """How long failed appends are retried, and the function that prints notices about retries."""

    for_s: float
    notice: Callable[[str], None]


async def _durable_sink(
    session: aiohttp.ClientSession, url: str, asked: str | None, create: str | None, retrying: _Retrying
) -> _Sink:
    from gateway.commands.producer import Producer

    content_type = await _created(session, url, create) if create else await _content_type(session, url)
    cutter = _cutter(asked, content_type)
    producer = Producer(
        session,
        url,
        content_type,
        clock=SystemClock(),
        rng=random.SystemRandom(),
        retry_for_s=retrying.for_s,
        notice=retrying.notice,
    )

    async def send(messages: list[bytes]) -> None:
        await producer.append(cutter.joined(messages))

    return _Sink(cutter, _Most(_BATCH_BYTES), send, lambda: producer.tail, producer.close)


async def _s2_sink(session: aiohttp.ClientSession, url: str, asked: str | None, retrying: _Retrying) -> _Sink:
    from gateway.commands.s2_producer import RecordProducer
    from gateway.commands.standard_input import RECORD_OVERHEAD_BYTES, RecordLines, RecordPieces, RecordValues
    from gateway.s2.records import MAX_BATCH_METERED_BYTES, MAX_BATCH_RECORDS

    cutters: dict[str, Callable[[], Cutter]] = {"json": RecordValues, "lines": RecordLines, "binary": RecordPieces}
    producer = RecordProducer(
        session,
        url,
        clock=SystemClock(),
        rng=random.SystemRandom(),
        retry_for_s=retrying.for_s,
        notice=retrying.notice,
    )
    await producer.open()
    most = _Most(MAX_BATCH_METERED_BYTES, MAX_BATCH_RECORDS, RECORD_OVERHEAD_BYTES)

    async def no_close() -> None:
        """Do nothing: S2 streams cannot be closed, and `append` has refused the option."""

    return _Sink(cutters[asked or "lines"](), most, producer.append, lambda: producer.tail, no_close)


async def _copy(source: StandardInput, sink: _Sink, sent: _Sent, stderr: Console) -> None:
    """Copy stdin to the stream until stdin ends."""
    from gateway.commands.standard_input import BadInput

    with _progress(stderr, source.size_bytes) as advance:
        while True:
            piece = await source.piece()
            bad: BadInput | None = None
            messages: list[bytes] = []
            try:
                # `extend` would lose the messages before an invalid one.
                for message in sink.cutter.feed(piece) if piece else sink.cutter.finish():
                    messages.append(message)  # noqa: PERF402
            except BadInput as error:
                bad = error
            for batch in sink.most.batches(messages):
                await sink.send(batch)
                sent.size_bytes += sum(map(len, batch))
                if sent.messages is not None:
                    sent.messages += len(batch)
            if bad is not None:
                raise bad
            if not piece:
                return
            advance(len(piece))


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
    """Return the content type of an existing open stream.  Raises CommandFailed."""
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


def _cutter(asked: str | None, content_type: str) -> BodyCutter:
    """Return the cutter for a flag, or, if `asked` is None, for the stream's type."""
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

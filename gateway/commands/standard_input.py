"""Reads stdin as it arrives, and divides it into messages."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from typing import Final, Protocol

import orjson

from gateway.commands.failure import CommandFailed
from gateway.commands.json_text import MAX_VALUE_BYTES, NotJson, ValueCutter
from gateway.commands.readable import watching
from gateway.s2.records import MAX_BATCH_METERED_BYTES

_PIECE_BYTES: Final = 1024 * 1024
RECORD_OVERHEAD_BYTES: Final = 8
"""The metered bytes of an S2 record in addition to its body."""
MOST_RECORD_BYTES: Final = MAX_BATCH_METERED_BYTES - RECORD_OVERHEAD_BYTES


class StandardInput:
    """Reads a file descriptor without blocking the loop, and without changing its mode, which a shell may share."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor

    @property
    def size_bytes(self) -> int | None:
        """The bytes left in a regular file; None for pipes and terminals."""
        found = os.fstat(self._descriptor)
        if not stat.S_ISREG(found.st_mode):
            return None
        return max(0, found.st_size - os.lseek(self._descriptor, 0, os.SEEK_CUR))

    async def piece(self) -> bytes:
        """Read the next bytes, up to 1 MiB; empty at the end.  Waits for a pipe without a timeout."""
        mode = os.fstat(self._descriptor).st_mode
        can_be_waited_for = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(self._descriptor)
        while True:
            if can_be_waited_for:
                await self._readable()
            try:
                # One read of a ready descriptor does not block; files and /dev/null are always ready.
                return os.read(self._descriptor, _PIECE_BYTES)
            except BlockingIOError:
                continue  # another process reads the same input and was faster
            except OSError as error:
                raise CommandFailed(f"cannot read stdin: {os.strerror(error.errno or 0)}") from None

    async def _readable(self) -> None:
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def resolve() -> None:
            if not ready.done():
                ready.set_result(None)

        with watching(self._descriptor, resolve):
            await ready


class BadInput(CommandFailed):
    """stdin does not have the expected format."""


class Cutter(Protocol):
    """Divides pieces of input into messages.

    Callers must exhaust the iterators of `feed` and `finish`.  These raise BadInput after the valid messages.
    """

    counts_messages: bool

    def feed(self, piece: bytes) -> Iterator[bytes]: ...

    def finish(self) -> Iterator[bytes]: ...


class BodyCutter(Cutter, Protocol):
    """A cutter that also joins messages into a request body."""

    def joined(self, messages: list[bytes]) -> bytes: ...


class JsonValues:
    """Divides input into JSON values with any white space between them: JSON lines, or several indented documents."""

    counts_messages = True

    def __init__(self) -> None:
        self._cutter = ValueCutter()

    def feed(self, piece: bytes) -> Iterator[bytes]:
        return _checked(self._cutter.feed(piece))

    def finish(self) -> Iterator[bytes]:
        return _checked(self._cutter.finish())

    def joined(self, messages: list[bytes]) -> bytes:
        # The origin removes one level of arrays.  Inside this array, a message that is itself an array stays whole.
        return b"[" + b",".join(messages) + b"]"


def _checked(values: Iterator[bytes]) -> Iterator[bytes]:
    try:
        yield from values
    except NotJson as error:
        raise BadInput(f"stdin, line {error.line}: {error}") from None


class Lines:
    """Divides input into lines.  For a text stream, a line keeps its line feed.  For a JSON stream, a line becomes a
    JSON string without its line feed."""

    counts_messages = True

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._pending = bytearray()
        self._line = 0

    def feed(self, piece: bytes) -> Iterator[bytes]:
        end = piece.rfind(b"\n") + 1
        if end:
            whole = bytes(self._pending) + piece[:end]
            self._pending = bytearray(piece[end:])
            for line in whole[:-1].split(b"\n"):
                yield self._message(line + b"\n")
        else:
            self._pending += piece
        if len(self._pending) > MAX_VALUE_BYTES:
            raise BadInput(f"stdin, line {self._line + 1}: longer than {MAX_VALUE_BYTES} bytes")

    def finish(self) -> Iterator[bytes]:
        if self._pending:
            yield self._message(bytes(self._pending))

    def joined(self, messages: list[bytes]) -> bytes:
        return b"[" + b",".join(messages) + b"]" if self._as_json else b"".join(messages)

    def _message(self, line: bytes) -> bytes:
        self._line += 1
        if not self._as_json:
            return line
        try:
            return orjson.dumps(line.removesuffix(b"\n").removesuffix(b"\r").decode())
        except UnicodeDecodeError:
            raise BadInput(f"stdin, line {self._line}: not UTF-8") from None


class RecordLines(Lines):
    """Divides input into lines, which become bodies of S2 records without their line ends."""

    def __init__(self) -> None:
        super().__init__(as_json=False)

    def _message(self, line: bytes) -> bytes:
        body = super()._message(line).removesuffix(b"\n").removesuffix(b"\r")
        return _record(body, f"line {self._line}")


class RecordValues(JsonValues):
    """Divides input into JSON values, which become bodies of S2 records."""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        return map(_record, super().feed(piece))

    def finish(self) -> Iterator[bytes]:
        return map(_record, super().finish())


def _record(body: bytes, name: str = "a JSON value") -> bytes:
    if len(body) > MOST_RECORD_BYTES:
        raise BadInput(f"stdin, {name}: longer than the {MOST_RECORD_BYTES} bytes that an S2 record takes")
    return body


class Pieces:
    """Passes input on in the pieces in which it was read."""

    counts_messages = False

    def feed(self, piece: bytes) -> Iterator[bytes]:
        yield piece

    def finish(self) -> Iterator[bytes]:
        return iter(())

    def joined(self, messages: list[bytes]) -> bytes:
        return b"".join(messages)


class RecordPieces(Pieces):
    """Divides input into pieces that fit into one S2 record each."""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        for at in range(0, len(piece), MOST_RECORD_BYTES):
            yield piece[at : at + MOST_RECORD_BYTES]

"""A minimal HTTP/1.1 client for measurements, which uses little processor time.

A `Connection` sends prepared bytes, and finds the end of an answer by Content-Length or chunked coding.  It supports
only the kinds of answers that `bench` expects.  Any other answer ends the connection, and counts as an error.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Mapping
from typing import Final, TypeVar, cast
from urllib.parse import urlsplit

from gateway import __version__
from gateway.commands.exchange import CONNECT_S
from gateway.commands.failure import CommandFailed

_STATUS: Final = re.compile(rb"HTTP/1\.1 (\d{3})")
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_CHUNKED: Final = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked", re.IGNORECASE)


def request_bytes(url: str, headers: Mapping[str, str]) -> bytes:
    """Return a GET request for `url` as bytes."""
    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    fields = {"Host": parts.netloc.rpartition("@")[2], "User-Agent": f"durable-gateway/{__version__}", **headers}
    lines = [f"GET {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


C = TypeVar("C", bound="Connection")


async def connect(url: str, connection: Callable[[], C]) -> C:
    """Connect to the server of `url`.  Raises CommandFailed."""
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    context = ssl.create_default_context() if is_tls else None
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_S):
            _, protocol = await loop.create_connection(connection, parts.hostname or "", port, ssl=context)
    except (OSError, TimeoutError) as error:
        raise CommandFailed(f"cannot connect to {parts.hostname}:{port}: {error}") from None
    return protocol


class BadAnswer(Exception):
    """The answer is of a kind that this client does not support."""


class Connection(asyncio.Protocol):
    """One connection.  A subclass handles heads, body bytes and ends of answers."""

    def __init__(self) -> None:
        self.is_lost = False
        self.transport: asyncio.Transport | None = None
        self._pending = b""
        self._in_body = False
        self._chunked = False
        self._left = 0
        """The bytes left of the body, or of the current chunk and its CRLF."""
        self._last_chunk = False

    # -- for subclasses

    def on_head(self, status: int, head: bytes) -> None:
        """Handle the head of an answer."""

    def on_body(self, data: bytes) -> None:
        """Handle bytes of the answer's body."""

    def on_end(self) -> None:
        """Handle the end of the answer."""

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True

    def data_received(self, data: bytes) -> None:
        try:
            self._take(self._pending + data if self._pending else data)
        except BadAnswer:
            self.is_lost = True
            if self.transport is not None:
                self.transport.abort()

    def _take(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            if not self._in_body:
                end = data.find(b"\r\n\r\n", at)
                if end < 0:
                    break
                self._begin(data[at : end + 2])
                at = end + 4
                if not self._chunked and not self._left:
                    self._finish()
            elif not self._chunked:
                piece = data[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                self.on_body(piece)
                if not self._left:
                    self._finish()
            elif self._left:
                piece = data[at : at + self._left]
                at += len(piece)
                # The last two bytes of `_left` are the CRLF after the chunk.
                payload = piece[: max(0, self._left - 2)]
                self._left -= len(piece)
                if self._last_chunk:
                    if not self._left:
                        self._finish()
                elif payload:
                    self.on_body(payload)
            else:
                end = data.find(b"\r\n", at)
                if end < 0:
                    break
                size = _chunk_size(data[at:end])
                self._last_chunk = size == 0
                self._left = size + 2
                at = end + 2
        self._pending = data[at:]
        if not self._in_body and len(self._pending) > 65_536:
            raise BadAnswer

    def _begin(self, head: bytes) -> None:
        status, length = _STATUS.match(head), _LENGTH.search(head)
        self._chunked = _CHUNKED.search(head) is not None
        if status is None or (length is None and not self._chunked and status[1] not in (b"204", b"304")):
            raise BadAnswer
        self._left = 0 if self._chunked or length is None else int(length[1])
        self._in_body = True
        self.on_head(int(status[1]), head)

    def _finish(self) -> None:
        self._in_body = self._chunked = self._last_chunk = False
        self._left = 0
        self.on_end()


def _chunk_size(line: bytes) -> int:
    try:
        return int(line.partition(b";")[0], 16)
    except ValueError:
        raise BadAnswer from None

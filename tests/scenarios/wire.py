"""A client on a bare socket: it observes how an answer ends, stops reading on request, and leaves at any moment.

It shares no code with the gateway, so that one framing bug cannot hide another.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit

from multidict import CIMultiDict

from tests.transports import EDGE

BOUND_S = 10.0
"""Longer than anything takes on loopback; beyond it the test hangs."""


class Dropped(Exception):
    """The connection ended before the answer did; `body` holds the received part."""

    def __init__(self, body: bytes = b"") -> None:
        super().__init__(f"connection dropped after {len(body)} bytes of body")
        self.body = body


def fields_of(lines: list[str]) -> CIMultiDict[str]:
    """Parse header lines."""
    fields: CIMultiDict[str] = CIMultiDict()
    for line in filter(None, lines):
        name, _, value = line.partition(": ")
        fields.add(name, value)
    return fields


@dataclass(frozen=True, slots=True)
class Answer:
    """One complete answer."""

    status: int
    headers: CIMultiDict[str]
    body: bytes = b""

    @property
    def next_offset(self) -> str:
        return self.headers["Stream-Next-Offset"]

    @property
    def is_up_to_date(self) -> bool:
        return self.headers.get("Stream-Up-To-Date") == "true"

    @property
    def is_closed(self) -> bool:
        return self.headers.get("Stream-Closed") == "true"

    @property
    def is_one_line_of_text(self) -> bool:
        """Whether it is a proper error for clients: one plain line, no traceback."""
        return (
            self.headers.get("Content-Type", "").startswith("text/plain")
            and self.body.endswith(b"\n")
            and self.body.count(b"\n") == 1
            and b"Traceback" not in self.body
        )


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event; a comment has the name `:`."""

    name: str
    data: str


@dataclass
class Wire:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    _taken: int = 0
    _lines: bytearray = field(default_factory=bytearray)
    _left: int | None = None
    _is_chunked: bool = False
    _is_over: bool = False

    @classmethod
    async def open(cls, url: str, receive_bytes: int | None = None, tls: ssl.SSLContext | None = None) -> Self:
        """Connect; `receive_bytes` bounds the kernel's buffer for a reader that has stopped."""
        parts = urlsplit(url)
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        limit = 1 << 20
        if receive_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            limit = receive_bytes
        name = EDGE if tls is not None else None
        try:
            await asyncio.get_running_loop().sock_connect(sock, (parts.hostname, parts.port))
            reader, writer = await asyncio.open_connection(sock=sock, limit=limit, ssl=tls, server_hostname=name)
        except BaseException:
            sock.close()
            raise
        return cls(reader, writer)

    @property
    def taken(self) -> int:
        """Body bytes of the latest answer that have come."""
        return self._taken

    @property
    def is_over(self) -> bool:
        """Whether the latest answer has come to its end."""
        return self._is_over

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        async with asyncio.timeout(BOUND_S):
            await self.writer.drain()

    async def ask(
        self, target: str, headers: Mapping[str, str] | None = None, method: str = "GET", body: bytes | None = None
    ) -> None:
        """Send one request."""
        fields = {"Host": "edge.test", **(headers or {})}
        if body is not None:
            fields["Content-Length"] = str(len(body))
        head = f"{method} {target} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        await self.send(head.encode() + b"\r\n" + (body or b""))

    async def head(self, method: str = "GET") -> Answer:
        """The head of the next answer that is not a 1xx."""
        async with asyncio.timeout(BOUND_S):
            while True:
                try:
                    raw = await self.reader.readuntil(b"\r\n\r\n")
                except (asyncio.IncompleteReadError, ConnectionError) as error:
                    raise Dropped from error
                lines = raw.decode("latin-1").split("\r\n")
                status = int(lines[0].split(" ")[1])
                if status >= 200 or status == 101:
                    break
        headers = fields_of(lines[1:])
        self._taken = 0
        self._is_chunked = headers.get("Transfer-Encoding") == "chunked"
        self._left = int(headers["Content-Length"]) if "Content-Length" in headers else None
        self._is_over = method == "HEAD" or status in (204, 304) or (self._left == 0 and not self._is_chunked)
        return Answer(status, headers)

    async def piece(self) -> bytes:
        """Some bytes of the body as they arrive; none at its clean end.  Raises Dropped."""
        if self._is_over:
            return b""
        try:
            async with asyncio.timeout(BOUND_S):
                piece = await self._piece()
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Dropped from error
        self._taken += len(piece)
        return piece

    async def _piece(self) -> bytes:
        if self._is_chunked:
            if not self._left:
                self._left = int(await self.reader.readuntil(b"\r\n"), 16)
                if not self._left:
                    await self.reader.readexactly(2)
                    self._is_over = True
                    return b""
            data = await self.reader.read(min(self._left, 1 << 18))
            self._left -= len(data)
            if data and not self._left:
                await self.reader.readexactly(2)
        else:
            data = await self.reader.read(1 << 18 if self._left is None else min(self._left, 1 << 18))
            if self._left is None:
                self._is_over = not data
                return data
            self._left -= len(data)
            self._is_over = not self._left
        if not data:
            raise asyncio.IncompleteReadError(b"", None)
        return data

    async def body(self) -> bytes:
        """The rest of the body.  Raises Dropped with the received part if the connection ends first."""
        got = bytearray()
        try:
            while piece := await self.piece():
                got += piece
        except Dropped as error:
            raise Dropped(bytes(got)) from error
        return bytes(got)

    async def answer(self, method: str = "GET") -> Answer:
        """The next complete answer."""
        head = await self.head(method)
        return Answer(head.status, head.headers, await self.body())

    async def event(self) -> Event | None:
        """The next server-sent event or comment; None at the clean end.  Raises Dropped."""
        while b"\n\n" not in self._lines:
            piece = await self.piece()
            if not piece:
                assert not self._lines, f"half an event at the clean end: {bytes(self._lines)!r}"
                return None
            self._lines += piece
        block, _, rest = bytes(self._lines).partition(b"\n\n")
        self._lines[:] = rest
        name, data = "message", []
        for line in block.decode().split("\n"):
            field_name, _, value = line.partition(":")
            match field_name:
                case "event":
                    name = value.removeprefix(" ")
                case "data":
                    data.append(value.removeprefix(" "))
                case "":
                    return Event(":", value)
        return Event(name, "\n".join(data))

    async def is_ended(self) -> bool:
        """Whether the connection ends without further bytes; further bytes are a failure."""
        try:
            async with asyncio.timeout(BOUND_S):
                return not await self.reader.read(1)
        except ConnectionError:
            return True

    def leave(self) -> None:
        """Close cleanly."""
        self.writer.close()

    def reset(self) -> None:
        """Close with an RST, unless the connection has ended."""
        if (sock := self.writer.get_extra_info("socket")) is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.writer.transport.abort()

    async def closed(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass


async def pairs(wire: Wire) -> AsyncIterator[tuple[str, Event]]:
    """Data events, each with its control event; a control event alone comes with no data."""
    data: str | None = None
    while (event := await wire.event()) is not None:
        if event.name == "data":
            assert data is None, "a data event without its control event"
            data = event.data
        elif event.name == "control":
            yield data or "", event
            data = None
    assert data is None, "a data event without its control event"

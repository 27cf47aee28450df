"""A client's connection: HTTP/1.1 from a chosen source address.  It shares no code with the gateway."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Final, Self

HOST: Final = "127.0.0.1"
NO_LINGER: Final = struct.pack("ii", 1, 0)
_LIMIT: Final = 1 << 20


class Cut(Exception):
    """The connection was refused, or ended before the reply was complete."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


class Wire:
    """One connection.  Every method raises Cut if it ends; callers bound the time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.is_over = False
        """Whether the peer accepts no further request."""

    @classmethod
    async def open(cls, port: int, source: str = HOST, receive_bytes: int = 0) -> Self:
        """Connect from `source`; `receive_bytes` bounds the kernel's buffer of a reader that stops reading."""
        sock = socket.socket()
        try:
            sock.setblocking(False)
            if receive_bytes:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.bind((source, 0))
            await _connect(sock, port)
            reader, writer = await asyncio.open_connection(sock=sock, limit=receive_bytes or _LIMIT)
        except OSError as error:
            sock.close()
            raise Cut(str(error)) from error
        except BaseException:
            sock.close()
            raise
        return cls(reader, writer)

    async def send(self, data: bytes) -> None:
        """Send bytes; wait while the peer takes none."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except (OSError, RuntimeError) as error:
            raise Cut(str(error)) from error

    async def ask(self, method: str, target: str, headers: Mapping[str, str] = {}, body: bytes | None = None) -> None:
        """Send a request."""
        await self.send(request(method, target, headers, body))

    async def reply(self) -> Reply:
        """The next final reply."""
        head = await self.head()
        return Reply(head.status, head.headers, b"".join([part async for part in self.parts(head)]))

    async def head(self) -> Reply:
        """The head of the next final reply."""
        status = 100
        lines: list[str] = []
        while status < 200:
            try:
                raw = await self._reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, OSError) as error:
                raise Cut(str(error)) from error
            lines = raw.decode("latin-1").split("\r\n")
            status = int(lines[0].split(" ")[1])
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:-2])}
        self.is_over = headers.get("connection", "").lower() == "close"
        return Reply(status, headers)

    async def parts(self, head: Reply) -> AsyncIterator[bytes]:
        """The body that follows the head, in parts as they arrive."""
        try:
            if head.headers.get("transfer-encoding", "").lower() == "chunked":
                while size := int(await self._reader.readuntil(b"\r\n"), 16):
                    yield await self._reader.readexactly(size)
                    await self._reader.readexactly(2)
                await self._reader.readexactly(2)
            elif left := int(head.headers.get("content-length", "0")):
                while left:
                    part = await self._reader.read(min(left, 1 << 18))
                    if not part:
                        raise Cut("the body is incomplete")
                    left -= len(part)
                    yield part
        except (asyncio.IncompleteReadError, OSError) as error:
            raise Cut(str(error)) from error

    async def some(self) -> bytes:
        """The bytes that arrive next; none at the end of the connection."""
        try:
            return await self._reader.read(1 << 16)
        except OSError as error:
            raise Cut(str(error)) from error

    async def ended(self) -> None:
        """Wait until the peer ends the connection, and drop what it sends before."""
        while await self.some():
            pass

    def stop_reading(self) -> None:
        """Take no further bytes from the kernel."""
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    def close(self, *, resets: bool = False) -> None:
        """Drop the connection, with an RST where asked."""
        if resets:
            self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        self._writer.transport.abort()


async def _connect(sock: socket.socket, port: int) -> None:
    """Connect.  The loop's own way looks the address up in a thread, which waits for all other work on the machine."""
    if sock.connect_ex((HOST, port)) not in (0, errno.EINPROGRESS):
        raise OSError("not connected")
    loop = asyncio.get_running_loop()
    is_made = loop.create_future()
    loop.add_writer(sock, _settle, is_made)
    try:
        await is_made
    finally:
        loop.remove_writer(sock)
    if error := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        raise OSError(error, os.strerror(error))


def _settle(is_made: asyncio.Future[None]) -> None:
    if not is_made.done():
        is_made.set_result(None)


def request(method: str, target: str, headers: Mapping[str, str] = {}, body: bytes | None = None) -> bytes:
    """A request as it is sent."""
    fields = {"Host": "edge.test", **headers}
    if body is not None:
        fields["Content-Length"] = str(len(body))
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode() + (body or b"")

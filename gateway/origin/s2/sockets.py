"""A client's socket, and the choice of its protocol by the first bytes.

One port serves HTTP/1.1 and HTTP/2 with prior knowledge.  An HTTP/2 client begins with a preface that no HTTP/1.1
request begins with (RFC 9113 section 3.3).
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Protocol, cast

from gateway.aio.signal import Signal
from gateway.origin.half_closed import watch


class Socket:
    """A connection, as used by the HTTP implementations."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._is_full = False
        self._room = Signal()
        self.is_closed = False
        """Whether the connection is closed, so that written bytes are dropped."""

    def write(self, data: bytes) -> None:
        """Send bytes; they are dropped if the connection has ended."""
        if not self.is_closed:
            self._transport.write(data)

    async def room(self) -> None:
        """Wait until more may be written.  Raises ConnectionResetError if the connection ends."""
        while self._is_full and not self.is_closed:
            await self._room.wait()
        if self.is_closed:
            raise ConnectionResetError("the client has left")

    async def flushed(self) -> None:
        """Wait until the kernel has every byte."""
        self._transport.set_write_buffer_limits(0)
        if self._transport.get_write_buffer_size():
            self._is_full = True
        await self.room()

    def pause_reading(self) -> None:
        """Stop reading for now."""
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Continue reading."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Close after the written bytes have been sent."""
        self.is_closed = True
        self._transport.close()
        self._room.fire()

    def reset(self) -> None:
        """End the connection with a TCP reset."""
        sock = self._transport.get_extra_info("socket")
        if sock is not None and not self.is_closed:
            # A linger time of zero turns the close into an RST.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.is_closed = True
        self._transport.abort()
        self._room.fire()

    def watch(self, probe: Callable[[], bytes | None]) -> None:
        """Drop the connection of a half-closed client once the client is gone (`gateway.origin.half_closed`)."""
        watch(self._transport, probe)

    def full(self, is_full: bool) -> None:
        """Record whether the transport's buffer is full."""
        self._is_full = is_full
        if not is_full:
            self._room.fire()

    def lost(self) -> None:
        """Handle the end of the connection."""
        self.is_closed = True
        self._room.fire()


class HttpConnection(Protocol):
    """An HTTP implementation on a socket."""

    def receive(self, data: bytes) -> None: ...

    def half_closed(self) -> bool: ...

    def lost(self) -> None: ...

    def drain(self) -> None: ...


class Connection(asyncio.Protocol):
    """A client's connection.  Chooses the version of HTTP, and passes all bytes to its implementation."""

    def __init__(
        self,
        made: Callable[[Connection], object],
        lost: Callable[[Connection], object],
        preface: bytes,
        http1: Callable[[Socket], HttpConnection],
        http2: Callable[[Socket], HttpConnection],
    ) -> None:
        self._made = made
        self._lost = lost
        self._preface = preface
        self._http1 = http1
        self._http2 = http2
        self._begun = b""
        self._socket: Socket | None = None
        self._http: HttpConnection | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = Socket(cast(asyncio.Transport, transport))
        self._made(self)

    def data_received(self, data: bytes) -> None:
        assert self._socket is not None
        if self._http is None:
            self._begun += data
            if len(self._begun) < len(self._preface) and self._preface.startswith(self._begun):
                return
            choose = self._http2 if self._begun.startswith(self._preface) else self._http1
            self._http = choose(self._socket)
            data, self._begun = self._begun, b""
        self._http.receive(data)

    def eof_received(self) -> bool:
        return self._http is not None and self._http.half_closed()

    def pause_writing(self) -> None:
        if self._socket is not None:
            self._socket.full(True)

    def resume_writing(self) -> None:
        if self._socket is not None:
            self._socket.full(False)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._socket is not None:
            self._socket.lost()
        if self._http is not None:
            self._http.lost()
        self._lost(self)

    def drain(self) -> None:
        """Accept no more requests, and close when all are answered."""
        if self._http is not None:
            self._http.drain()
        elif self._socket is not None:
            self._socket.close()

    def abort(self) -> None:
        """End the connection immediately."""
        if self._socket is not None:
            self._socket.reset()

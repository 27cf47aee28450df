"""The origin's HTTP/1.1: an h11 state machine and one socket.  Requests of a connection are answered one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import h11
from multidict import CIMultiDict

from gateway.aio.tasks import Tasks
from gateway.origin.half_closed import INTERIM, LEADING_ZERO
from gateway.origin.s2.exchange import Exchange, Incoming, Serve
from gateway.origin.s2.sockets import Socket

MAX_QUEUED_BYTES: Final = 1024 * 1024
"""The most body bytes queued for a handler.  With more, the connection stops reading."""

_BODILESS: Final = frozenset({204, 304})


class Http1Exchange(Exchange):
    """A request over HTTP/1.1."""

    def __init__(self, connection: Http1Connection, request: h11.Request) -> None:
        headers = CIMultiDict((name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers)
        incoming = Incoming(connection.taken)
        super().__init__(request.method.decode("ascii"), request.target.decode("ascii"), headers, incoming)
        self._connection = connection
        self._is_bodiless = False
        self.is_chunked = False
        """Whether the answer's body has begun, in chunked coding."""

    async def begin(self, status: int, headers: Mapping[str, str], length: int | None = None) -> None:
        self._is_bodiless = status in _BODILESS or self.method == "HEAD"
        framed = dict(headers)
        if length is not None and status not in _BODILESS:
            framed["content-length"] = str(length)
        self.has_begun = True
        self.is_chunked = length is None and not self._is_bodiless
        await self._connection.send(h11.Response(status_code=status, headers=list(framed.items())))

    async def send(self, data: bytes) -> None:
        if not self._is_bodiless:
            await self._connection.send(h11.Data(data=data))

    async def end(self) -> None:
        await self._connection.send(h11.EndOfMessage())
        self.has_ended = True

    async def flushed(self) -> None:
        await self._connection.socket.flushed()

    def truncate(self) -> None:
        self._connection.socket.close()

    def reset(self) -> None:
        self._connection.socket.reset()

    def cut(self) -> None:
        self._connection.socket.reset()


class Http1Connection:
    """One client's connection."""

    def __init__(self, socket: Socket, tasks: Tasks, serve: Serve) -> None:
        self.socket = socket
        self._tasks = tasks
        self._serve = serve
        self._state = h11.Connection(h11.SERVER)
        self._exchange: Http1Exchange | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False

    def receive(self, data: bytes) -> None:
        """Process bytes from the client."""
        self._state.receive_data(data)
        self._advance()

    def half_closed(self) -> bool:
        """Handle a half-close: answer the request, then close.  Returns False if no complete request is pending."""
        if self._exchange is None or self._state.their_state is not h11.DONE:
            return False
        self._state.receive_data(b"")
        self.socket.watch(self._probe)
        return True

    def _probe(self) -> bytes:
        exchange = self._exchange
        if exchange is None:
            return b""
        if exchange.has_begun:
            return LEADING_ZERO if exchange.is_chunked else b""
        return INTERIM if self._state.their_http_version == b"1.1" else b""

    def lost(self) -> None:
        """Handle the end of the connection."""
        if self._exchange is not None:
            self._exchange.incoming.leave()
        if self._task is not None:
            self._task.cancel()

    def drain(self) -> None:
        """Accept no more requests."""
        self._is_closing = True
        if self._task is None:
            self.socket.close()

    async def send(self, event: h11.Response | h11.Data | h11.EndOfMessage) -> None:
        """Send a part of an answer."""
        if self.socket.is_closed:
            raise ConnectionResetError("the client has left")
        if data := self._state.send(event):
            self.socket.write(data)
        await self.socket.room()

    def taken(self, size: int) -> None:
        """Continue reading if the handler has taken enough of the body."""
        exchange = self._exchange
        if exchange is not None and exchange.incoming.queued_bytes <= MAX_QUEUED_BYTES:
            self.socket.resume_reading()

    def _advance(self) -> None:
        while True:
            try:
                event = self._state.next_event()
            except h11.RemoteProtocolError as error:
                self._refuse(error.error_status_hint)
                return
            match event:
                case h11.Request():
                    self._begin(event)
                case h11.Data(data=data) if self._exchange is not None:
                    self._exchange.incoming.feed(bytes(data))
                    if self._exchange.incoming.queued_bytes > MAX_QUEUED_BYTES:
                        self.socket.pause_reading()
                case h11.EndOfMessage() if self._exchange is not None:
                    self._exchange.incoming.end()
                case h11.ConnectionClosed():
                    self.socket.close()
                    return
                case _:
                    return

    def _begin(self, request: h11.Request) -> None:
        if self._state.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[])
            self.socket.write(self._state.send(go_on) or b"")
        self._exchange = Http1Exchange(self, request)
        self._task = self._tasks.start(self._answer(self._exchange), "s2 origin: answer")

    async def _answer(self, exchange: Http1Exchange) -> None:
        try:
            await self._serve(exchange)
        except ConnectionError:
            pass
        finally:
            self._task = self._exchange = None
        if self.socket.is_closed:
            return
        if self._is_closing or not (self._state.our_state is h11.DONE and self._state.their_state is h11.DONE):
            # One side has announced that it closes, or the rest of the request's body is not worth reading.
            self.socket.close()
            return
        self._state.start_next_cycle()
        self.socket.resume_reading()
        self._advance()

    def _refuse(self, status: int) -> None:
        if self._state.our_state in (h11.IDLE, h11.SEND_RESPONSE) and self._exchange is None:
            head = h11.Response(status_code=status, headers=[("content-length", "0"), ("connection", "close")])
            self.socket.write((self._state.send(head) or b"") + (self._state.send(h11.EndOfMessage()) or b""))
        self.socket.close()

"""The origin's HTTP/2: an h2 state machine and one socket.

Flow control credit for a request's body is returned when a handler takes the bytes, so clients wait while their appends
wait.  An answer waits for the client's flow control windows and for the socket.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from typing import Final

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import FlowControlError, ProtocolError
from h2.settings import SettingCodes, Settings
from multidict import CIMultiDict

from gateway.aio.signal import Signal
from gateway.aio.tasks import Tasks
from gateway.origin.s2.exchange import Exchange, Incoming, Serve
from gateway.origin.s2.sockets import Socket

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The connection preface of a client with prior knowledge (RFC 9113 section 3.4)."""

_GOAWAY: Final = b"\0\0\x08\x07\0\0\0\0\0"
"""The head of a GOAWAY frame without debug data (RFC 9113 section 6.8)."""

MAX_STREAMS: Final = 256
WINDOW_BYTES: Final = 4 * 1024 * 1024
"""The flow control windows for request bodies, of a stream and of the connection."""


class Http2Exchange(Exchange):
    """A request over HTTP/2."""

    def __init__(self, connection: Http2Connection, stream_id: int, fields: list[tuple[str, str]]) -> None:
        pseudo = {name: value for name, value in fields if name.startswith(":")}
        headers = CIMultiDict((name, value) for name, value in fields if not name.startswith(":"))
        headers.setdefault("host", pseudo.get(":authority", ""))
        incoming = Incoming(lambda size: connection.acknowledge(stream_id, size))
        # CONNECT has no path (RFC 9113 section 8.5).  Use the authority, which is its target in HTTP/1.1.
        super().__init__(pseudo[":method"], pseudo.get(":path", pseudo.get(":authority", "")), headers, incoming)
        self._connection = connection
        self.stream_id = stream_id

    async def begin(self, status: int, headers: Mapping[str, str], length: int | None = None) -> None:
        fields = [(":status", str(status)), *((name.lower(), value) for name, value in headers.items())]
        if length is not None and status not in (204, 304):
            fields.append(("content-length", str(length)))
        self.has_begun = True
        self._connection.send_head(self.stream_id, fields)
        await self._connection.socket.room()

    async def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            size = await self._connection.window(self.stream_id)
            self._connection.send_data(self.stream_id, view[:size].tobytes())
            view = view[size:]
            await self._connection.socket.room()

    async def end(self) -> None:
        self._connection.end(self.stream_id)
        self.has_ended = True

    async def flushed(self) -> None:
        await self._connection.socket.flushed()

    def truncate(self) -> None:
        self._connection.end(self.stream_id)
        self.has_ended = True

    def reset(self) -> None:
        self._connection.reset(self.stream_id, ErrorCodes.INTERNAL_ERROR)

    def cut(self) -> None:
        self._connection.socket.reset()


class Http2Connection:
    """One client's connection and its streams."""

    def __init__(self, socket: Socket, tasks: Tasks, serve: Serve) -> None:
        self.socket = socket
        self._tasks = tasks
        self._serve = serve
        self._state = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        self._exchanges: dict[int, Http2Exchange] = {}
        self._answers: dict[int, asyncio.Task[None]] = {}
        self._windows = Signal()
        """Fires when a window may have grown, or a stream has ended."""
        self._is_draining = False
        own = {
            SettingCodes.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
            SettingCodes.INITIAL_WINDOW_SIZE: WINDOW_BYTES,
        }
        self._state.local_settings = Settings(client=False, initial_values=own)
        self._state.initiate_connection()
        self._state.increment_flow_control_window(WINDOW_BYTES - 65_535)
        self._flush()

    # -- from the client

    def receive(self, data: bytes) -> None:
        """Process bytes from the client."""
        try:
            events = self._state.receive_data(data)
        except ProtocolError:
            self._flush()
            self.socket.close()
            return
        for event in events:
            self._handle(event)
        self._flush()

    def lost(self) -> None:
        """Handle the end of the connection."""
        for stream_id in tuple(self._exchanges):
            self._leave(stream_id)
        self._windows.fire()

    def half_closed(self) -> bool:
        """Handle a half-close: end the connection, because HTTP/2 needs the client's acknowledgements."""
        return False

    def drain(self) -> None:
        """Accept no more requests, and close when all are answered."""
        self._is_draining = True
        # Send it without h2, which treats a connection as closed after a GOAWAY.
        self.socket.write(_GOAWAY + struct.pack(">II", self._state.highest_inbound_stream_id, ErrorCodes.NO_ERROR))
        self._close_if_done()

    def _handle(self, event: Event) -> None:
        match event:
            case RequestReceived(stream_id=int(stream_id), headers=fields):
                if not self._is_draining:
                    self._begin(stream_id, [(_text(name), _text(value)) for name, value in fields or []])
            case DataReceived(stream_id=int(stream_id), data=data, flow_controlled_length=length):
                exchange = self._exchanges.get(stream_id)
                part = data or b""
                if exchange is not None and part:
                    exchange.incoming.feed(part)
                    self.acknowledge(stream_id, (length or 0) - len(part))
                else:
                    self.acknowledge(stream_id, length or 0)
            case StreamEnded(stream_id=int(stream_id)):
                if (exchange := self._exchanges.get(stream_id)) is not None:
                    exchange.incoming.end()
            case StreamReset(stream_id=int(stream_id)):
                self._leave(stream_id)
                self._windows.fire()
            case WindowUpdated() | RemoteSettingsChanged():
                self._windows.fire()
            case ConnectionTerminated():
                self._is_draining = True
                self._close_if_done()
            case _:
                pass

    def _begin(self, stream_id: int, fields: list[tuple[str, str]]) -> None:
        exchange = self._exchanges[stream_id] = Http2Exchange(self, stream_id, fields)
        self._answers[stream_id] = self._tasks.start(self._answer(exchange), "s2 origin: answer")

    async def _answer(self, exchange: Http2Exchange) -> None:
        stream_id = exchange.stream_id
        try:
            await self._serve(exchange)
        except ConnectionError:
            pass
        finally:
            self._exchanges.pop(stream_id, None)
            self._answers.pop(stream_id, None)
            if not exchange.has_ended:
                self.reset(stream_id, ErrorCodes.INTERNAL_ERROR)
            elif not exchange.incoming.is_whole:
                # The answer is complete, and the rest of the request is not needed (RFC 9113 section 8.1).
                self.reset(stream_id, ErrorCodes.NO_ERROR)
            self._close_if_done()

    def _leave(self, stream_id: int) -> None:
        exchange = self._exchanges.get(stream_id)
        if exchange is not None:
            exchange.incoming.leave()
            self._answers[stream_id].cancel()

    def _close_if_done(self) -> None:
        if self._is_draining and not self._exchanges:
            self.socket.close()

    # -- to the client

    def send_head(self, stream_id: int, fields: list[tuple[str, str]]) -> None:
        """Send the head of an answer.  Raises ConnectionResetError if the stream has ended."""
        try:
            self._state.send_headers(stream_id, fields)
        except ProtocolError:
            raise ConnectionResetError("the client has left") from None
        self._flush()

    async def window(self, stream_id: int) -> int:
        """Wait until data may be sent; return how many bytes may be sent in one frame.

        Raises ConnectionResetError if the stream has ended.
        """
        while not self.socket.is_closed:
            try:
                size = min(self._state.local_flow_control_window(stream_id), self._state.max_outbound_frame_size)
            except ProtocolError:
                break
            if size > 0:
                return size
            await self._windows.wait()
        raise ConnectionResetError("the client has left")

    def send_data(self, stream_id: int, data: bytes) -> None:
        """Send bytes that the windows allow.  Raises ConnectionResetError if the stream has ended."""
        try:
            self._state.send_data(stream_id, data)
        except FlowControlError:
            raise
        except ProtocolError:
            raise ConnectionResetError("the client has left") from None
        self._flush()

    def end(self, stream_id: int) -> None:
        """End a stream as complete.  Raises ConnectionResetError if it has ended."""
        try:
            self._state.end_stream(stream_id)
        except ProtocolError:
            raise ConnectionResetError("the client has left") from None
        self._flush()

    def reset(self, stream_id: int, code: ErrorCodes) -> None:
        """Reset a stream, unless it has ended."""
        try:
            self._state.reset_stream(stream_id, code)
        except ProtocolError:
            return
        self._flush()

    def acknowledge(self, stream_id: int, size: int) -> None:
        """Return flow control credit for `size` bytes of a request's body."""
        if size and not self.socket.is_closed:
            try:
                self._state.acknowledge_received_data(size, stream_id)
            except ProtocolError:
                return
            self._flush()

    def _flush(self) -> None:
        if data := self._state.data_to_send():
            self.socket.write(data)


def _text(field: bytes | str) -> str:
    """Decode a header name or value as in HTTP/1.1, where it may have any bytes (RFC 9110 section 5.5)."""
    return field.decode("latin-1") if isinstance(field, bytes) else field

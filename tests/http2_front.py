"""A server of HTTP/2 without TLS, made of h2, that passes each request on to an origin of HTTP/1.1.

It makes any origin one of HTTP/2.  Bodies stream both ways at the same time, within the windows of either side.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import aiohttp
import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
from yarl import URL

from gateway.http.http2.frames import ErrorCode, goaway

_SKIPPED: Final = frozenset({"connection", "keep-alive", "transfer-encoding"})


class _Stream:
    """One request on its way to the origin."""

    def __init__(self, id_: int) -> None:
        self.id = id_
        self.pieces: asyncio.Queue[tuple[bytes, int] | None] = asyncio.Queue()
        self.task: asyncio.Task[None] | None = None


class _Peer:
    """One connection of the gateway."""

    def __init__(self, front: Http2Front, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._front = front
        self._reader = reader
        self._writer = writer
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding=None))
        self._streams: dict[int, _Stream] = {}
        self._room = asyncio.Condition()
        self._last_id = 0
        self._has_left = False

    @property
    def open_streams(self) -> int:
        return len(self._streams)

    async def serve(self) -> None:
        self._h2.local_settings = h2.settings.Settings(
            client=False,
            initial_values={h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: self._front.most_streams},
        )
        self._h2.initiate_connection()
        try:
            while True:
                self._flush()
                data = await self._reader.read(1 << 16)
                if not data:
                    return
                for event in self._h2.receive_data(data):
                    await self._take(event)
        except (h2.exceptions.ProtocolError, ConnectionError) as error:
            self._front.errors.append(error)
            self._flush()
        finally:
            for stream in self._streams.values():
                if stream.task is not None:
                    stream.task.cancel()
            self._writer.transport.abort()

    def leave(self) -> None:
        """Say GOAWAY and let the streams end.  h2 itself would take it for the end of them."""
        self._has_left = True
        self._writer.write(goaway(self._last_id, ErrorCode.NO_ERROR))

    def cut(self) -> None:
        self._writer.transport.abort()

    def _flush(self) -> None:
        self._writer.write(self._h2.data_to_send())

    async def _take(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived():
                assert event.stream_id is not None
                assert event.headers is not None
                if self._has_left:
                    # As GOAWAY has announced.
                    return
                self._last_id = event.stream_id
                stream = self._streams[event.stream_id] = _Stream(event.stream_id)
                fields = [(bytes(name).decode(), bytes(value).decode("latin-1")) for name, value in event.headers]
                has_body = event.stream_ended is None
                stream.task = asyncio.create_task(self._relay(stream, fields, has_body=has_body))
                self._front.requests += 1
                self._front.most_at_once = max(self._front.most_at_once, len(self._streams))
            case h2.events.DataReceived():
                assert event.stream_id is not None
                if (found := self._streams.get(event.stream_id)) is not None:
                    assert event.data is not None
                    found.pieces.put_nowait((event.data, event.flow_controlled_length or 0))
            case h2.events.StreamEnded():
                assert event.stream_id is not None
                if (found := self._streams.get(event.stream_id)) is not None:
                    found.pieces.put_nowait(None)
            case h2.events.StreamReset():
                assert event.stream_id is not None
                self._front.resets += 1
                found = self._streams.pop(event.stream_id, None)
                if found is not None and found.task is not None:
                    found.task.cancel()
            case h2.events.WindowUpdated() | h2.events.RemoteSettingsChanged():
                async with self._room:
                    self._room.notify_all()

    async def _relay(self, stream: _Stream, fields: list[tuple[str, str]], *, has_body: bool) -> None:
        pseudo = {name: value for name, value in fields if name.startswith(":")}
        headers = [(name, value) for name, value in fields if not name.startswith(":")]
        assert self._front.session is not None
        try:
            async with self._front.session.request(
                pseudo[":method"],
                URL(self._front.origin_url + pseudo[":path"], encoded=True),
                headers=[("Host", pseudo[":authority"]), *headers],
                data=self._body(stream) if has_body else None,
                allow_redirects=False,
                skip_auto_headers=("Content-Type", "User-Agent", "Accept"),
            ) as answer:
                said = [(name, value) for name, value in answer.headers.items() if name.lower() not in _SKIPPED]
                self._h2.send_headers(stream.id, [(":status", str(answer.status)), *said])
                self._flush()
                async for piece in answer.content.iter_any():
                    await self._send(stream, piece)
                self._h2.end_stream(stream.id)
        except (aiohttp.ClientError, ConnectionError):
            self._h2.reset_stream(stream.id, 2)
        except h2.exceptions.ProtocolError:
            # The stream has ended meanwhile.
            return
        finally:
            self._streams.pop(stream.id, None)
        self._flush()

    async def _body(self, stream: _Stream) -> AsyncIterator[bytes]:
        while (got := await stream.pieces.get()) is not None:
            piece, size = got
            if size:
                self._h2.acknowledge_received_data(size, stream.id)
                self._flush()
            yield piece

    async def _send(self, stream: _Stream, piece: bytes) -> None:
        while piece:
            room = min(self._h2.local_flow_control_window(stream.id), self._h2.max_outbound_frame_size)
            if room <= 0:
                async with self._room:
                    if self._h2.local_flow_control_window(stream.id) <= 0:
                        await self._room.wait()
                continue
            self._h2.send_data(stream.id, piece[:room])
            piece = piece[room:]
            self._flush()
            await self._writer.drain()


class Http2Front:
    """Listens on port 0.  `most_streams` is its MAX_CONCURRENT_STREAMS."""

    def __init__(self, origin_url: str, *, most_streams: int = 100) -> None:
        self.origin_url = origin_url
        self.most_streams = most_streams
        self.url = ""
        self.connections = 0
        self.requests = 0
        self.resets = 0
        """Streams that the gateway has reset."""
        self.most_at_once = 0
        """The most requests that were open on one connection."""
        self.errors: list[Exception] = []
        """What h2 holds against the gateway."""
        self.peers: list[_Peer] = []
        self.session: aiohttp.ClientSession | None = None
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self.session = aiohttp.ClientSession(
            auto_decompress=False,
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=None),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        # There is no public switch: a request whose answer was lost must not be repeated here.
        self.session._retry_connection = False
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        peer = _Peer(self, reader, writer)
        self.peers.append(peer)
        try:
            await peer.serve()
        except asyncio.CancelledError:
            pass
        finally:
            self.peers.remove(peer)

    async def stop(self) -> None:
        assert self._server is not None
        assert self.session is not None
        self._server.close()
        for peer in tuple(self.peers):
            peer.cut()
        await self._server.wait_closed()
        await self.session.close()

"""Thousands of SSE readers of many streams in one event loop, which join again at the end of each response.

They are browsers behind a trusted proxy, with tokens, as in `loadtest/bench/production.py`.  A reader that joins again
opens another connection, and resets the former one, so that no port waits for its reuse.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Final, cast

from loadtest.bench.machine import BenchError
from loadtest.bench.production import ALL, CLIENTS

_ACCEPT: Final = "text/event-stream\r\nCache-Control: no-cache"
_BATCH: Final = 200
_PATIENCE_S: Final = 60.0
_RESET: Final = struct.pack("ii", 1, 0)
_OFFSET: Final = b'"streamNextOffset":"'
_EVENT: Final = b"event: data"
_OK: Final = b"HTTP/1.1 200"
_END: Final = b"0\r\n\r\n"


async def until(is_so: Callable[[], bool], hope: str, look_s: float = 0.005) -> None:
    """Wait until something is so, which `hope` names.  Raises BenchError if it takes too long."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            while not is_so():  # noqa: ASYNC110
                await asyncio.sleep(look_s)
    except TimeoutError:
        raise BenchError(f"not in {_PATIENCE_S:g} s: {hope}") from None


class Crowd:
    """Readers of the streams `prefix/0` to `prefix/n-1` at one port, each stream with as many."""

    def __init__(self, port: int, prefix: str, streams: int) -> None:
        self._port = port
        self._targets = [f"{prefix}/{number}" for number in range(streams)]
        self._sections = [ALL.section(client, _ACCEPT).encode() for client in range(CLIENTS)]
        self._readers: list[_Reader] = []
        self._rejoining: set[asyncio.Task[None]] = set()
        self._is_over = False
        self.opened = 0
        """Readers that have got their first event."""
        self.joins = 0
        """Readers that have joined again."""
        self.failure = ""
        """Why a reader does not get events."""
        self.events = 0
        self.received_bytes = 0

    async def open(self, count: int) -> None:
        """Let so many readers join, and wait until all have their first event."""
        wanted = self.opened + count
        while len(self._readers) < wanted:
            first = len(self._readers)
            batch = [_Reader(self, number) for number in range(first, min(first + _BATCH, wanted))]
            self._readers += batch
            await asyncio.gather(*(self._connect(reader) for reader in batch))
            await self._until_opened(len(self._readers))

    async def _until_opened(self, count: int) -> None:
        await until(lambda: self.opened >= count or bool(self.failure), "readers have joined")
        self.expect_no_failure()

    def expect_no_failure(self) -> None:
        """Raise BenchError if a reader has failed."""
        if self.failure:
            raise BenchError(self.failure)

    async def _connect(self, reader: _Reader) -> None:
        await asyncio.get_running_loop().create_connection(lambda: reader, "127.0.0.1", self._port)

    def request(self, number: int, offset: bytes) -> bytes:
        """The request of a reader at an offset."""
        target = self._targets[number % len(self._targets)].encode()
        return b"GET %s?offset=%s&live=sse HTTP/1.1\r\n%s" % (target, offset, self._sections[number % CLIENTS])

    def rejoin(self, reader: _Reader) -> None:
        """Let a reader join again where it stands."""
        if not self._is_over:
            self.joins += 1
            task = asyncio.get_running_loop().create_task(self._connect(reader))
            self._rejoining.add(task)
            task.add_done_callback(self._rejoining.discard)

    async def close(self) -> None:
        """Reset all connections."""
        self._is_over = True
        await asyncio.gather(*self._rejoining, return_exceptions=True)
        for reader in self._readers:
            reader.reset()
        await asyncio.sleep(0.5)


class _Reader(asyncio.Protocol):
    def __init__(self, crowd: Crowd, number: int) -> None:
        self._crowd = crowd
        self._number = number
        self._offset = b"-1"
        self._is_new = True
        self._has_head = False
        self._is_complete = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._has_head = self._is_complete = False
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._crowd.request(self._number, self._offset))

    def data_received(self, data: bytes) -> None:
        crowd = self._crowd
        crowd.received_bytes += len(data)
        crowd.events += data.count(_EVENT)
        if not self._has_head:
            self._has_head = True
            if not data.startswith(_OK):
                crowd.failure = f"a reader was answered {data[:60]!r}"
        at = data.rfind(_OFFSET)
        if at >= 0:
            begin = at + len(_OFFSET)
            self._offset = data[begin : data.index(b'"', begin)]
            if self._is_new:
                self._is_new = False
                crowd.opened += 1
        if data.endswith(_END):
            self._is_complete = True
            self.reset()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._crowd.failure = f"a reader has lost its connection: {exc}"
        elif self._is_complete:
            self._crowd.rejoin(self)

    def reset(self) -> None:
        if self._transport is not None:
            connection: socket.socket = self._transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._transport.abort()
            self._transport = None


class Writer:
    """Appends to streams at their origin, on one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> Writer:
        """Connect to the origin."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def create(self, prefix: str, streams: int) -> None:
        """Create streams of JSON with one message each."""
        for number in range(streams):
            await self._send("PUT", f"{prefix}/{number}", b'["first"]')

    async def append(self, prefix: str, streams: Sequence[int], event_bytes: int) -> None:
        """Append an event of that many bytes to each of these streams."""
        body = json.dumps(["x" * (event_bytes - 4)], separators=(",", ":")).encode()
        for number in streams:
            await self._send("POST", f"{prefix}/{number}", body)

    async def _send(self, method: str, target: str, body: bytes) -> None:
        head = f"{method} {target} HTTP/1.1\r\nHost: origin\r\nContent-Type: application/json\r\n"
        self._writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        status = int(answer[9:12])
        if status not in (200, 201, 204):
            raise BenchError(f"the origin answered {method} {target} with {status}")
        length = answer.partition("content-length:")[2].partition("\r\n")[0]
        if length.strip():
            await self._reader.readexactly(int(length))

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()

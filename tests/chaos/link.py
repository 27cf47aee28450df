"""A stretch of network between two parties of a run: passes bytes on, as badly as its weather says.

Each direction of a connection is one task that reads a piece and decides what becomes of it: passed on, late, in
slices, held for a while, or the end of the connection, by a reset or politely in the middle of what it was carrying.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tests.waiting import pause

_PIECE_BYTES = 1 << 16
_LATENCY_S = 0.02
_STALL_S = (0.1, 1.2)


@dataclass
class Weather:
    """How likely each mishap is for one piece of what is carried (0 to 1); all 0 is a good network."""

    slices: float = 0.0
    latency: float = 0.0
    stall: float = 0.0
    reset: float = 0.0
    cut: float = 0.0

    def calm(self) -> None:
        """Nothing goes wrong any more."""
        self.slices = self.latency = self.stall = self.reset = self.cut = 0.0


class Link:
    """Listens on loopback and connects each client to `target`, a host and port that may change between two clients."""

    def __init__(self, target: Callable[[], tuple[str, int]], rng: Random) -> None:
        self.weather = Weather()
        self.port = 0
        self._target = target
        self._rng = rng
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stalls_end = asyncio.Event()
        """Set when the stalls of now end; those to come have another."""
        self.stalls = 0
        """The pieces that are held up now."""
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._start(self._connect(reader, writer))

    def _start(self, work: object) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            there, back = await asyncio.open_connection(*self._target())
        except OSError:
            self._reset(writer)
            return
        self._writers.add(back)
        self._start(self._carry(reader, back, writer))
        self._start(self._carry(there, writer, back))

    async def _carry(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, other: asyncio.StreamWriter
    ) -> None:
        rng, weather = self._rng, self.weather
        try:
            while data := await source.read(_PIECE_BYTES):
                if rng.random() < weather.latency:
                    await pause(rng.random() * _LATENCY_S)
                if rng.random() < weather.stall:
                    await self._stall(rng.uniform(*_STALL_S))
                if rng.random() < weather.reset:
                    sink.write(data[: rng.randrange(len(data) + 1)])
                    break
                if rng.random() < weather.cut:
                    sink.write(data[: rng.randrange(len(data) + 1)])
                    sink.close()
                    other.close()
                    return
                await self._pass(sink, data, is_sliced=rng.random() < weather.slices)
            else:
                # The other direction may go on for a while: half-closed connections are rare and lawful.
                sink.close()
                return
        except (OSError, RuntimeError):
            pass  # the other direction has ended the connection; uvloop calls writing to it a RuntimeError
        finally:
            self._writers.discard(sink)
        self._reset(sink)
        self._reset(other)

    async def _stall(self, seconds: float) -> None:
        self.stalls += 1
        try:
            async with asyncio.timeout(seconds):
                await self._stalls_end.wait()
        except TimeoutError:
            pass
        finally:
            self.stalls -= 1

    def calm(self) -> None:
        """Nothing goes wrong any more, and what is held up goes on: a connection that has ended behind a stall would
        look alive."""
        self.weather.calm()
        self._stalls_end.set()
        self._stalls_end = asyncio.Event()

    async def _pass(self, sink: asyncio.StreamWriter, data: bytes, *, is_sliced: bool) -> None:
        while is_sliced and len(data) > 1:
            cut = self._rng.randrange(1, len(data))
            sink.write(data[:cut])
            data = data[cut:]
            await pause(0.001)
            is_sliced = self._rng.random() < 0.7
        sink.write(data)
        await sink.drain()

    def _reset(self, writer: asyncio.StreamWriter) -> None:
        """End a connection with an RST."""
        self._writers.discard(writer)
        sock = writer.get_extra_info("socket")
        if sock is not None and not writer.transport.is_closing():
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    def cut_all(self) -> None:
        """Reset every connection that there is."""
        for writer in tuple(self._writers):
            self._reset(writer)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut_all()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

"""A real Redis on loopback, which a test kills, starts again and hangs."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from tests.debian import program
from tests.ports import kept_port
from tests.waiting import eventually

READY_S: Final = 10.0


class RedisServer:
    """The server, and a client of the test."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        self.options: list[str] = []
        """Further options of the next start."""
        self.client: Redis = Redis(host="127.0.0.1", port=port)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Start the server, with the data that it has on disk."""
        command = [
            str(program("redis-server", "redis-server", "valkey-server")),
            "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder),
            "--save", "", "--appendonly", "yes", "--appendfsync", "always",
            # The stream is trimmed to the entry.
            "--stream-node-max-entries", "1",
            "--logfile", str(self.folder / "redis.log"), *self.options,
        ]  # fmt: skip
        self._process = subprocess.Popen(command)  # noqa: ASYNC220 - it begins at once

        async def is_ready() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, (self.folder / "redis.log").read_text()
            with suppress(RedisError, OSError):
                return bool(await self.client.ping())
            return False

        await eventually(is_ready, within_s=READY_S, look_s=0.01)

    def kill(self, *, keeps_data: bool = True) -> None:
        """Kill the server."""
        if (process := self._process) is not None:
            self._process = None
            process.kill()
            process.wait()
        if not keeps_data:
            for file in (self.folder / "appendonlydir").glob("*"):
                file.unlink()

    async def key(self, name: str) -> str:
        """The only key that ends with this name."""
        found: list[Any] = await self.client.keys(f"durable-gateway:*:{name}")
        [key] = found
        return str(key, "ascii")

    async def orders(self) -> list[tuple[bytes, bytes]]:
        """The orders in the stream: ids and entries.  Marks are none."""
        found: Any = await self.client.xrange(await self.key("orders"))
        entries = [(one, fields.get(b"order", b"")) for one, fields in found]
        return [(one, entry) for one, entry in entries if b'"purge"' in entry or b'"revoke"' in entry]

    async def count(self) -> int:
        """How many orders there are."""
        return len(await self.orders())


@asynccontextmanager
async def redis_server(folder: Path) -> AsyncIterator[RedisServer]:
    """A running server, until the block ends."""
    with ExitStack() as kept:
        server = RedisServer(folder, kept.enter_context(kept_port()))
        try:
            await server.start()
            yield server
        finally:
            server.kill()
            await server.client.aclose()


class Gate:
    """A TCP proxy that can hold all bytes."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.connections = 0
        """How many connections there were."""

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def hold(self) -> None:
        self._is_open.clear()

    def release(self) -> None:
        self._is_open.set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", 0)

    async def close(self) -> None:
        self.release()
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()
        await self._server.wait_closed()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(OSError):
            there, back = await asyncio.open_connection("127.0.0.1", self._port)
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._is_open.wait()
                writer.write(data)
                await writer.drain()
        self._writers.discard(writer)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


@asynccontextmanager
async def gate(port: int) -> AsyncIterator[Gate]:
    """An open gate before a server, until the block ends."""
    found = Gate(port)
    await found.open()
    try:
        yield found
    finally:
        await found.close()

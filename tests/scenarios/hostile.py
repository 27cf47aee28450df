"""An origin that behaves as no HTTP library would: it gets each request and the bare connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from multidict import CIMultiDict

from tests.scenarios.wire import BOUND_S, fields_of


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it arrived, without its body."""

    method: str
    target: str
    headers: CIMultiDict[str]
    connection: int


Script = Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]


def answer(status: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    """A well-formed answer, with a Content-Length unless `headers` give one."""
    fields = (
        headers
        if "Content-Length" in headers or "Transfer-Encoding" in headers
        else {**headers, "Content-Length": str(len(body))}
    )
    head = f"HTTP/1.1 {status}\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return head.encode() + b"\r\n" + body


def part_of_stream(body: bytes, end: str, content_type: str = "text/plain", **more: str) -> bytes:
    """A correct origin's answer to a catch-up read."""
    headers = {"Content-Type": content_type, "Stream-Next-Offset": end, "Stream-Up-To-Date": "true"}
    return answer("200 OK", {**headers, **more}, body)


METADATA = answer("200 OK", {"Content-Type": "text/plain", "Stream-Next-Offset": "0001", "Cache-Control": "no-store"})


class HostileOrigin:
    """Listens and passes every request to `script`; it answers HEAD itself unless the script does.

    Bodies are read before the script runs, unless `leaves_bodies` is set.
    """

    def __init__(
        self, script: Script, *, takes_head: bool = False, metadata: bytes = METADATA, leaves_bodies: bool = False
    ) -> None:
        self.script = script
        self.asked: list[Asked] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.url = ""
        self._takes_head = takes_head
        self._metadata = metadata
        self._leaves_bodies = leaves_bodies
        self._server: asyncio.Server | None = None
        self._changed = asyncio.Condition()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self.writers:
            writer.transport.abort()
        await self._server.wait_closed()

    @property
    def reads(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.method == "GET"]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds; it is evaluated after every request."""
        async with asyncio.timeout(BOUND_S), self._changed:
            await self._changed.wait_for(condition)

    @staticmethod
    async def _skip_body(reader: asyncio.StreamReader, headers: CIMultiDict[str]) -> None:
        await reader.readexactly(int(headers.get("Content-Length", 0)))
        if headers.get("Transfer-Encoding") == "chunked":
            while size := int(await reader.readuntil(b"\r\n"), 16):
                await reader.readexactly(size + 2)
            await reader.readexactly(2)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(self.writers)
        self.writers.append(writer)
        try:
            while True:
                raw = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, target, _ = raw[0].split(" ")
                headers = fields_of(raw[1:])
                asked = Asked(method, target, headers, number)
                if not self._leaves_bodies:
                    await self._skip_body(reader, headers)
                async with self._changed:
                    self.asked.append(asked)
                    self._changed.notify_all()
                if method == "HEAD" and not self._takes_head:
                    writer.write(self._metadata)
                else:
                    await self.script(asked, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

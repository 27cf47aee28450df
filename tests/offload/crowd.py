"""Clients in great number, each as cheap as a socket allows.

They share no code with the gateway: heads, chunks and events are parsed here again, so that one framing bug cannot hide
another.  Bytes are compared with the writer's as they arrive, never collected.
"""

from __future__ import annotations

import asyncio
import base64
import json
import select
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self
from urllib.parse import urlsplit

BOUND_S = 30.0
"""Bound on any answer over loopback, even to the last of a thousand clients."""

_READ_BYTES = 1 << 18


class WrongBytes(AssertionError):
    """A client received other bytes than the stream holds."""


@dataclass(slots=True)
class Tally:
    """Requests and received bytes of all clients of a crowd."""

    requests: int = 0
    body_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """The head of an answer whose body has been read."""

    status: int
    headers: dict[str, str]

    @property
    def next_offset(self) -> str:
        return self.headers["stream-next-offset"]

    @property
    def cursor(self) -> str | None:
        return self.headers.get("stream-cursor")

    @property
    def is_up_to_date(self) -> bool:
        return self.headers.get("stream-up-to-date") == "true"

    @property
    def is_closed(self) -> bool:
        return self.headers.get("stream-closed") == "true"


class Checker:
    """One reader's position in the writer's log, of which a part may not be written yet.

    The log of a JSON stream is its messages joined by commas, which is what the insides of its replies add up to.
    """

    def __init__(self, log: bytes, *, is_json: bool, position: int = 0) -> None:
        self._log = memoryview(log)
        self._is_json = is_json
        self.position = position
        self._held = b""
        self._is_open = False
        self._is_first = True

    def begin(self) -> None:
        """A body begins."""
        self._held = b""
        self._is_open = False
        self._is_first = True

    def take(self, data: bytes) -> None:
        """The next bytes of a body."""
        if not self._is_json:
            self._compare(data)
            return
        data = self._held + data
        if not self._is_open:
            if not data.startswith(b"["):
                raise WrongBytes(f"no array: {data[:40]!r}")
            data = data[1:]
            self._is_open = True
        # The last byte may be the bracket that closes the array.
        self._held, data = data[-1:], data[:-1]
        if data and self._is_first:
            self._is_first = False
            if self.position:
                self._compare(b",")
        self._compare(data)

    def end(self) -> None:
        """The body is over."""
        if self._is_json and self._held != b"]":
            raise WrongBytes(f"array ends in {self._held!r}")

    def whole(self, body: bytes) -> None:
        """A body in one piece."""
        self.begin()
        if body or self._is_json:
            self.take(body)
        self.end()

    def _compare(self, data: bytes) -> None:
        end = self.position + len(data)
        if self._log[self.position : end] != data:
            wanted = bytes(self._log[self.position : self.position + 40])
            raise WrongBytes(f"at {self.position}: {data[:40]!r} in place of {wanted!r}")
        self.position = end


@dataclass(slots=True)
class Client:
    """One keep-alive connection; its requests are sent one after another."""

    tally: Tally
    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter
    headers: Mapping[str, str]
    """Fields of every request."""
    _host: str = "edge.test"
    has_ended: bool = field(default=False, init=False)

    @classmethod
    async def open(cls, url: str, tally: Tally, headers: Mapping[str, str] = MappingProxyType({})) -> Self:
        parts = urlsplit(url)
        async with asyncio.timeout(BOUND_S):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=_READ_BYTES)
        return cls(tally, reader, writer, headers)

    @property
    def is_closed(self) -> bool:
        """Whether the server has closed the connection.  Call this between an answer and the next request."""
        sock = self._writer.get_extra_info("socket")
        if self._reader.at_eof() or self._writer.is_closing() or sock is None:
            # A network in memory has no socket, and nothing that the loop has yet to read.
            return self._reader.at_eof() or self._writer.is_closing()
        # Nothing but the end can have come.  This process may have been too busy to read it.
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    async def send(
        self,
        method: str,
        target: str,
        headers: dict[str, str] | None = None,
        body: bytes = b"",
        take: Callable[[bytes], None] | None = None,
    ) -> Reply:
        """One request and its whole answer; `take` gets the body as it arrives.  EOFError if it is truncated."""
        async with asyncio.timeout(BOUND_S):
            reply = await self._ask(method, target, headers or {}, body)
            async for data in self._body(method, reply):
                if take is not None:
                    take(data)
        return reply

    async def read(self, target: str, checker: Checker) -> Reply:
        """A read whose body goes to the checker, if it has one."""
        checker.begin()
        reply = await self.send("GET", target, take=checker.take)
        if reply.status == 200:
            checker.end()
        return reply

    async def subscribe(
        self, target: str, headers: Mapping[str, str] = MappingProxyType({}), statuses: Collection[int] = (200,)
    ) -> Subscription:
        """An SSE connection; AssertionError for another status than these."""
        async with asyncio.timeout(BOUND_S):
            reply = await self._ask("GET", target, {"Accept": "text/event-stream", **headers}, b"")
        assert reply.status in statuses, reply
        assert reply.status != 200 or reply.headers["content-type"] == "text/event-stream", reply
        return Subscription(self, reply)

    @property
    def port(self) -> int:
        """This end's."""
        port: int = self._writer.get_extra_info("sockname")[1]
        return port

    def close(self) -> None:
        self._writer.close()

    async def _ask(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Reply:
        self.tally.requests += 1
        length = {"Content-Length": str(len(body))} if body or method in ("PUT", "POST") else {}
        all_fields = {"Host": self._host, **length, **self.headers, **headers}
        fields = "".join(f"{name}: {value}\r\n" for name, value in all_fields.items())
        self._writer.write(f"{method} {target} HTTP/1.1\r\n{fields}\r\n".encode() + body)
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = int(head[0].split(" ")[1])
        pairs = (line.split(":", 1) for line in head[1:] if line)
        return Reply(status, {name.lower(): value.strip() for name, value in pairs})

    async def _body(self, method: str, reply: Reply) -> AsyncIterator[bytes]:
        if method == "HEAD" or reply.status in (204, 304):
            return
        if reply.headers.get("transfer-encoding") == "chunked":
            while size := int(await self._reader.readuntil(b"\r\n"), 16):
                async for data in self._exactly(size):
                    yield data
                await self._reader.readexactly(2)
            await self._reader.readexactly(2)
        else:
            async for data in self._exactly(int(reply.headers["content-length"])):
                yield data

    async def _exactly(self, size: int) -> AsyncIterator[bytes]:
        while size:
            data = await self._reader.read(min(size, _READ_BYTES))
            if not data:
                raise EOFError("the answer was cut short")
            size -= len(data)
            self.tally.body_bytes += len(data)
            yield data


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event."""

    name: str
    data: str


class Subscription:
    """One SSE connection."""

    def __init__(self, client: Client, reply: Reply) -> None:
        self._client = client
        self.reply = reply
        self.is_base64 = reply.headers.get("stream-sse-data-encoding") == "base64"

    async def events(self) -> AsyncIterator[Event]:
        """Whole events until the gateway ends the connection in order."""
        buffer = b""
        async for data in self._client._body("GET", self.reply):
            *blocks, buffer = (buffer + data).split(b"\n\n")
            for block in blocks:
                name, lines = "message", []
                for line in block.decode().split("\n"):
                    key, _, value = line.partition(":")
                    value = value.removeprefix(" ")
                    if key == "event":
                        name = value
                    elif key == "data":
                        lines.append(value)
                if lines:
                    yield Event(name, "\n".join(lines))
        assert buffer == b"", f"half an event at the end: {buffer[:40]!r}"

    async def follow(self, checker: Checker) -> AsyncIterator[dict[str, Any]]:
        """The control events, in order; the checker has had the data event before each."""
        waiting = 0
        async for event in self.events():
            if event.name == "data":
                waiting += 1
                assert waiting == 1, "two data events without a control event between them"
                data = event.data.encode()
                checker.whole(base64.b64decode(data, validate=True) if self.is_base64 else data)
            elif event.name == "control":
                waiting = 0
                yield json.loads(event.data)
        assert not waiting, "a data event without its control event"

"""Kinds of hostile origins.  Each serves one connection until it is cancelled or the gateway has disconnected.

Endless data is paced: `_PART` every `_PACE_S`, which is 1.3 MB/s per connection.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final

_PART: Final = b"x" * (1 << 16)
_PACE_S: Final = 0.05
_OK: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nStream-Next-Offset: 0001\r\n"
_HOUR_S: Final = 3_600.0
_HEAD: Final = "HTTP/1.1 {}\r\nStream-Next-Offset: 0001\r\nStream-Up-To-Date: true\r\nContent-Type: {}\r\n"
_LATE_S: Final = 0.03
"""The most seconds from a reply to the second reply to the same request.  Connections of the gateway rest for
`origins.connection_rest_s` (0.05) after a reply, so it must notice every second reply."""
_LIVE_S: Final = 0.5
POISON: Final = b"the reply to another request"
"""The body of each second reply."""

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def _asked(reader: asyncio.StreamReader) -> bytes:
    """The head of the next request.  Raises IncompleteReadError once the gateway has disconnected."""
    return await reader.readuntil(b"\r\n\r\n")


async def _for_ever(writer: asyncio.StreamWriter, part: bytes, pace_s: float = _PACE_S) -> None:
    while True:
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(pace_s)


async def hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Accept requests, and never answer."""
    while await reader.read(1 << 16):
        pass


async def trickles(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a byte of the head every half second."""
    await _asked(reader)
    for byte in _OK + b"X-Slow: ":
        writer.write(bytes((byte,)))
        await asyncio.sleep(0.5)
    await _for_ever(writer, b"x", 0.5)


async def endless_events(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send SSE data events for ever, never a control event."""
    await _asked(reader)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nStream-Next-Offset: 0001\r\n\r\n")
    await _for_ever(writer, b"event: data\ndata: " + _PART + b"\n\n")


async def huge_bodies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send bodies of 100 GB."""
    await _asked(reader)
    writer.write(_OK + b"Content-Length: 100000000000\r\n\r\n")
    await _for_ever(writer, _PART)


async def resets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """End each connection by RST in the middle of a body."""
    await _asked(reader)
    writer.write(_OK + b"Content-Length: 1000\r\n\r\nhalf of")
    await writer.drain()


async def interim_floods(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send interim replies (1xx) for ever."""
    await _asked(reader)
    await _for_ever(writer, b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 1_000)


async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send random bytes."""
    await _asked(reader)
    writer.write(os.urandom(4_096))
    await writer.drain()


async def huge_heads(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send heads that never end."""
    await _asked(reader)
    writer.write(_OK)
    await _for_ever(writer, b"X-Large: " + b"x" * 8_000 + b"\r\n")


async def lies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Announce 10 bytes and send 20; every second time announce 20 and send 10."""
    turn = 0
    while True:
        turn += 1
        await _asked(reader)
        writer.write(_OK + b"Content-Length: " + (b"10" if turn % 2 else b"20") + b"\r\n\r\n")
        writer.write(b"y" * (20 if turn % 2 else 10))
        await writer.drain()


async def never_ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each request at once with one more byte, and never say that this was the last."""
    step = 0
    while True:
        head = await _asked(reader)
        step += 1
        next_offset = b"Stream-Next-Offset: %08d\r\n" % step
        body = b"" if head.startswith(b"HEAD") else b"x"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n" + next_offset)
        writer.write(b"Content-Length: 1\r\n\r\n" + body)
        await writer.drain()


def content(path: str) -> bytes:
    """The content of the stream with this path at the gateway or at the origin that sends late second replies."""
    return f"the content of {path.rpartition('/')[2]};".encode() * 10


async def late_replies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each request rightly, and a moment later once more, with another body."""
    while True:
        head = await _asked(reader)
        method, target, _ = head.split(b" ", 2)
        path, _, query = target.decode().partition("?")
        if method == b"POST":
            await reader.readexactly(_length(head))
        if "live=" in query:
            await asyncio.sleep(_LIVE_S)
        writer.write(_right_reply(method, path, query))
        await writer.drain()
        at = time.monotonic()
        await asyncio.sleep(random.uniform(0, _LATE_S))
        if time.monotonic() - at <= _LATE_S:
            # On a busy machine a pause may be too long, and the gateway may have sent another request.
            writer.write(_OK + b"Content-Length: %d\r\n\r\n" % len(POISON) + POISON)
            await writer.drain()


def _right_reply(method: bytes, path: str, query: str) -> bytes:
    """A correct origin's reply for a stream whose tail is 0001."""
    if "live=sse" in query:
        data = b"event: data\ndata: " + content(path) + b"\n\n" if "offset=-1" in query else b""
        body = data + b'event: control\ndata: {"streamNextOffset":"0001","upToDate":true}\n\n'
        return _HEAD.format("200 OK", "text/event-stream").encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
    if method == b"POST" or "live=" in query:
        return _HEAD.format("204 No Content", "text/plain").encode() + b"\r\n"
    body = content(path) if "offset=-1" in query else b""
    head = _HEAD.format("200 OK", "text/plain").encode() + b"Content-Length: %d\r\n\r\n" % len(body)
    return head if method == b"HEAD" else head + body


def _length(head: bytes) -> int:
    """The Content-Length of a request."""
    lines = head.lower().split(b"\r\n")
    return next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)


REFUSES: Final = "refuses connections"
"""The kind without a listener."""
LATE: Final = "late second replies"
"""The kind whose answers are known."""

KINDS: Final[dict[str, Serve]] = {
    "hangs": hangs,
    "trickles heads": trickles,
    "endless events": endless_events,
    "huge bodies": huge_bodies,
    "resets": resets,
    "floods of 1xx": interim_floods,
    "garbage": garbage,
    "huge heads": huge_heads,
    "false lengths": lies,
    "streams without end": never_ends,
    LATE: late_replies,
}
"""The kinds with a listener."""


def prefix(kind: str) -> str:
    """The path of the kind's route."""
    return "/" + kind.replace(" ", "-").lower()


async def serve(kind: str, port: int) -> None:
    """Serve as an origin of that kind until cancelled."""
    run = KINDS[kind]

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HOUR_S):
                await run(reader, writer)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, TimeoutError):
            pass
        finally:
            writer.transport.abort()

    async with await asyncio.start_server(one, "127.0.0.1", port, backlog=1_024) as server:
        await server.serve_forever()

"""Kinds of hostile origins.  Each serves one connection until it is cancelled or the gateway has disconnected.

Endless data is paced: `_PART` every `_PACE_S`, which is 1.3 MB/s per connection.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Final

_PART: Final = b"x" * (1 << 16)
_PACE_S: Final = 0.05
_OK: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nStream-Next-Offset: 0001\r\n"
_HOUR_S: Final = 3_600.0

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


REFUSES: Final = "refuses connections"
"""The kind without a listener."""

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

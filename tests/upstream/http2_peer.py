"""Origins of HTTP/2 that say what a test has them say, frame by frame."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from hpack import Decoder

from gateway.http.http2 import frames
from tests.http.http2.peer import NO_SETTINGS, OK, Frame, Headers, data, reply
from tests.upstream.test_exchange import Origin, Peer, origin


class Asked(NamedTuple):
    """One request as it arrived, without its body."""

    id: int
    fields: dict[str, str]
    is_whole: bool


class Http2Peer:
    """One connection on the origin's side, whose client has been greeted."""

    def __init__(self, peer: Peer) -> None:
        self.number = peer.number
        self._peer = peer
        self._decoder = Decoder()
        self.seen: list[Frame] = []
        """All frames that were read."""

    async def greeted(self, settings: bytes = NO_SETTINGS) -> None:
        assert await self._peer.reader.readexactly(len(frames.PREFACE)) == frames.PREFACE
        await self.says(settings)

    async def says(self, *raw: bytes) -> None:
        await self._peer.says(b"".join(raw))

    def writes(self, *raw: bytes) -> None:
        """Say it without waiting for room."""
        self._peer.writer.write(b"".join(raw))

    def hang_up(self) -> None:
        self._peer.hang_up()

    async def frame(self) -> Frame:
        """The next frame."""
        high, low, kind, flags, stream_id = frames.read_head(await self._peer.reader.readexactly(frames.HEAD_BYTES))
        payload = await self._peer.reader.readexactly(high << 16 | low)
        self.seen.append((kind, flags, stream_id, payload))
        return self.seen[-1]

    async def until(self, kind: int) -> Frame:
        """The next frame of this kind; others are skipped."""
        while True:
            found = await self.frame()
            if found[0] == kind:
                return found

    async def asked(self) -> Asked:
        """The next request's head."""
        _, flags, stream_id, payload = await self.until(frames.HEADERS)
        fields = {str(name): str(value) for name, value in self._decoder.decode(payload)}
        return Asked(stream_id, fields, bool(flags & frames.END_STREAM))

    async def answers(self, asked: Asked, body: bytes = b"good", headers: Headers = OK) -> None:
        await self.says(reply(asked.id, headers, ends=False), data(asked.id, body, ends=True))

    async def idles(self) -> None:
        """Read until the client hangs up."""
        while True:
            await self.frame()


Script = Callable[[Http2Peer], Awaitable[None]]


@asynccontextmanager
async def http2_origin(script: Script, settings: bytes = NO_SETTINGS) -> AsyncIterator[Origin]:
    """An origin whose connections are greeted with these settings and passed to the script."""

    async def greeted(peer: Peer) -> None:
        over_http2 = Http2Peer(peer)
        await over_http2.greeted(settings)
        await script(over_http2)

    async with origin(greeted) as running:
        yield running


async def good(peer: Http2Peer) -> None:
    """Answer everything."""
    while True:
        await peer.answers(await peer.asked())

"""Bytes onto the connection: through the fault switches, past the counters.

One `Delivery` is one answer.  Whatever ends it before its time raises `CutShort`, and the connection is gone by then;
the handler has nothing left to say.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

from aiohttp import web
from multidict import CIMultiDict

from gateway.origin.counters import Counters
from gateway.origin.faults import BodyEffect, Drop, Effect, Raw, Refuse, Stall, Truncate, Unsolicited
from gateway.origin.replies import COMMON_HEADERS, Reply
from gateway.origin.requests import Kind

SERVER_NAME = "durable-gateway-origin"


class CutShort(Exception):
    """A fault switch has ended the connection."""


class Delivery:
    """One answer on its way out."""

    def __init__(
        self, request: web.BaseRequest, kind: Kind, counters: Counters, effects: Sequence[Effect] = ()
    ) -> None:
        self._request = request
        self._kind = kind
        self._counters = counters
        shaping = [effect for effect in effects if isinstance(effect, Drop | Truncate | Stall)]
        self._shaping: list[BodyEffect] = sorted(shaping, key=lambda effect: effect.after_bytes)
        self._unsolicited = [effect.data for effect in effects if isinstance(effect, Unsolicited)]
        self._in_place = [effect for effect in effects if isinstance(effect, Raw | Refuse)]
        self._sent = 0
        self.response: web.StreamResponse | None = None
        """The answer that was begun, if one was."""

    async def whole(self, reply: Reply) -> web.StreamResponse:
        """Send a complete answer."""
        if self._in_place:
            await self._in_place_of_answer(self._in_place[0])
        has_body = bool(reply.body) and self._request.method != "HEAD" and reply.status not in (204, 304)
        if self._shaping and has_body:
            await self._begin(reply, len(reply.body))
            await self.write(reply.body)
        else:
            # Head and body in one write; it also knows when an answer without a body has a Content-Length.
            self.response = web.Response(
                status=reply.status, headers=self._headers(reply.headers), body=reply.body if has_body else None
            )
            await self.response.prepare(self._request)
            await self._shape_up_to(0)
            self._count(len(reply.body) if has_body else 0)
        await self.finish()
        assert self.response is not None
        return self.response

    async def open(self, status: int, headers: dict[str, str]) -> web.StreamResponse:
        """Send the head of an answer whose body comes bit by bit, chunked."""
        if self._in_place:
            await self._in_place_of_answer(self._in_place[0])
        return await self._begin(Reply(status, headers), None)

    async def write(self, data: bytes) -> None:
        """Send body bytes; ends or halts where a fault switch says."""
        view = memoryview(data)
        while self._shaping and self._shaping[0].after_bytes <= self._sent + len(view):
            due = max(0, self._shaping[0].after_bytes - self._sent)
            await self._put(view[:due])
            view = view[due:]
            await self._apply(self._shaping.pop(0))
        await self._put(view)

    async def finish(self) -> None:
        """End the body."""
        assert self.response is not None
        await self.response.write_eof()
        transport = self._request.transport
        if transport is not None and not transport.is_closing():
            for data in self._unsolicited:
                transport.write(data)

    # -- the connection

    def _headers(self, headers: dict[str, str]) -> CIMultiDict[str]:
        return CIMultiDict({"Server": SERVER_NAME, **COMMON_HEADERS, **headers})

    async def _begin(self, reply: Reply, length: int | None) -> web.StreamResponse:
        response = web.StreamResponse(status=reply.status, headers=self._headers(reply.headers))
        is_chunked = any(isinstance(effect, Truncate) and effect.is_chunked for effect in self._shaping)
        if length is not None and not is_chunked:
            response.content_length = length
        self.response = response
        transport = self._request.transport
        if self._shaping and transport is not None:
            # With no room in the buffer, draining means that the kernel has every byte.
            transport.set_write_buffer_limits(0)
        await response.prepare(self._request)
        await self._shape_up_to(0)
        return response

    async def _put(self, view: memoryview) -> None:
        if not view:
            return
        assert self.response is not None
        await self.response.write(view)
        self._count(len(view))

    def _count(self, size: int) -> None:
        if size:
            self._sent += size
            self._counters.sent(self._kind, size)

    async def _shape_up_to(self, sent: int) -> None:
        while self._shaping and self._shaping[0].after_bytes <= sent:
            await self._apply(self._shaping.pop(0))

    async def _apply(self, effect: BodyEffect) -> None:
        match effect:
            case Stall(gate=gate):
                await self._flushed()
                await gate.wait()
            case Drop():
                await self._flushed()
                self._reset()
                raise CutShort
            case Truncate():
                self._close()
                raise CutShort

    async def _in_place_of_answer(self, effect: Raw | Refuse) -> None:
        transport = self._request.transport
        if isinstance(effect, Raw) and transport is not None and not transport.is_closing():
            transport.write(effect.data)
            self._close()
        else:
            self._reset()
        raise CutShort

    async def _flushed(self) -> None:
        """Wait until the kernel has every byte, because a reset throws away what it has not."""
        await self._request.writer.drain()

    def _close(self) -> None:
        transport = self._request.transport
        if transport is not None:
            transport.close()

    def _reset(self) -> None:
        transport = self._request.transport
        if transport is None:
            return
        sock = transport.get_extra_info("socket")
        if sock is not None:
            # Lingering for no time makes the close an RST.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()

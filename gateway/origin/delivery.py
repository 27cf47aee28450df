"""Sends a reply with the effects of fault switches, and counts its bytes.

A `Delivery` sends one reply.  A fault that ends the reply early raises `ConnectionCut`.  The connection is then closed,
and the handler must send nothing more.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from email.utils import formatdate
from functools import lru_cache

from aiohttp import web
from multidict import CIMultiDict

from gateway.aio.clock import Clock
from gateway.origin.counters import Counters
from gateway.origin.faults import BodyEffect, Drop, Raw, Refuse, Stall, Truncate, Unsolicited
from gateway.origin.replies import COMMON_HEADERS, Reply
from gateway.origin.requests import Kind

SERVER_NAME = "durable-gateway-origin"


@lru_cache(maxsize=4)
def _date(wall: int) -> str:
    return formatdate(wall, usegmt=True)


class ConnectionCut(Exception):
    """A fault switch has ended the connection."""


class Delivery:
    """One reply being sent."""

    def __init__(
        self, request: web.BaseRequest, kind: Kind, counters: Counters, clock: Clock, effects: Sequence[object] = ()
    ) -> None:
        self._request = request
        self._kind = kind
        self._counters = counters
        self._clock = clock
        body_effects = [effect for effect in effects if isinstance(effect, Drop | Truncate | Stall)]
        self._body_effects: list[BodyEffect] = sorted(body_effects, key=lambda effect: effect.after_bytes)
        self._unsolicited = [effect.data for effect in effects if isinstance(effect, Unsolicited)]
        self._replacements = [effect for effect in effects if isinstance(effect, Raw | Refuse)]
        self._sent = 0
        self.response: web.StreamResponse | None = None
        """The response, once it has begun."""

    async def whole(self, reply: Reply) -> web.StreamResponse:
        """Send a complete reply."""
        if self._replacements:
            await self._replace_reply(self._replacements[0])
        has_body = bool(reply.body) and self._request.method != "HEAD" and reply.status not in (204, 304)
        if self._body_effects and has_body:
            await self._begin(reply, len(reply.body))
            await self.write(reply.body)
        else:
            # Sends head and body in one write, and adds Content-Length only where it is allowed.
            self.response = web.Response(
                status=reply.status, headers=self._headers(reply.headers), body=reply.body if has_body else None
            )
            await self.response.prepare(self._request)
            await self._apply_due(0)
            self._count(len(reply.body) if has_body else 0)
        await self.finish()
        assert self.response is not None
        return self.response

    async def open(self, status: int, headers: dict[str, str]) -> web.StreamResponse:
        """Send the head of a reply whose body is sent by `write`, in chunks."""
        if self._replacements:
            await self._replace_reply(self._replacements[0])
        return await self._begin(Reply(status, headers), None)

    async def write(self, data: bytes) -> None:
        """Send body bytes, and apply fault switches after the byte that each names."""
        view = memoryview(data)
        while self._body_effects and self._body_effects[0].after_bytes <= self._sent + len(view):
            due = max(0, self._body_effects[0].after_bytes - self._sent)
            await self._put(view[:due])
            view = view[due:]
            await self._apply(self._body_effects.pop(0))
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
        # Use the origin's clock, which also decides lifetimes.  In tests it differs from the machine's.
        return CIMultiDict({"Server": SERVER_NAME, "Date": _date(int(self._clock.wall())), **COMMON_HEADERS, **headers})

    async def _begin(self, reply: Reply, length: int | None) -> web.StreamResponse:
        response = web.StreamResponse(status=reply.status, headers=self._headers(reply.headers))
        is_chunked = any(isinstance(effect, Truncate) and effect.is_chunked for effect in self._body_effects)
        if length is not None and not is_chunked:
            response.content_length = length
        self.response = response
        transport = self._request.transport
        if self._body_effects and transport is not None:
            # Without a write buffer, draining means that the kernel has every byte.
            transport.set_write_buffer_limits(0)
        await response.prepare(self._request)
        await self._apply_due(0)
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

    async def _apply_due(self, sent: int) -> None:
        while self._body_effects and self._body_effects[0].after_bytes <= sent:
            await self._apply(self._body_effects.pop(0))

    async def _apply(self, effect: BodyEffect) -> None:
        match effect:
            case Stall(gate=gate):
                await self._flushed()
                await gate.wait()
            case Drop():
                await self._flushed()
                self._reset()
                raise ConnectionCut
            case Truncate():
                self._close()
                raise ConnectionCut

    async def _replace_reply(self, effect: Raw | Refuse) -> None:
        transport = self._request.transport
        if isinstance(effect, Raw) and transport is not None and not transport.is_closing():
            transport.write(effect.data)
            self._close()
        else:
            self._reset()
        raise ConnectionCut

    async def _flushed(self) -> None:
        """Wait until the kernel has every byte, because a reset discards unsent bytes."""
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
            # A linger time of zero turns the close into an RST.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()

"""Client connections: aiohttp's protocol with the bounds it lacks.

aiohttp bounds an idle keep-alive connection but not one that sends a request's head a byte at a time; its error texts
echo what the parser saw; and a stalled reader hides megabytes in kernel buffers before a write notices.  Each of the
three is mended here.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

from aiohttp import web
from aiohttp.web_protocol import RequestHandler, _ErrInfo

from gateway.config import LimitsConfig

_TEXTS = {400: "Bad request", 408: "Request timeout", 413: "Request body too large", 504: "Gateway timeout"}


class ClientConnection(RequestHandler):
    """One client's connection; created by `ClientServer` only."""

    __slots__ = ("_head_timer", "_limits", "_server")

    def __init__(self, server: ClientServer, **settings: Any) -> None:
        super().__init__(server, **settings)
        self._server = server
        self._limits = server.limits
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # uvloop's transports are no subclass of asyncio's.
        transport = cast("asyncio.Transport", transport)
        if len(self._server.connections) > self._limits.max_connections:
            transport.abort()
            return
        # Unsent bytes are to be seen here, not in the kernel: half the bound there, half in the transport.
        half = self._limits.send_buffer_bytes // 2
        transport.set_write_buffer_limits(high=half)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, half)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._notice_broken_body()
        if self._messages or self._request_in_progress or self._current_request is not None:
            self._head_is_here()
        elif self._head_timer is None:
            self._await_head()

    def _notice_broken_body(self) -> None:
        """Fail the body that is being read when its framing is broken: aiohttp queues a 400 behind the request, which
        would wait for the rest of its body until the idle bound."""
        request = self._current_request
        if request is None or not self._messages or not isinstance(self._messages[-1][0], _ErrInfo):
            return
        content = request.content
        if not content._eof:
            content.set_exception(web.RequestPayloadError("Malformed request body"))
            content.feed_eof()
            # The answer to this request is the last one on this connection.
            self.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._head_is_here()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        loop = asyncio.get_running_loop()
        self._head_timer = loop.call_later(self._limits.client_header_timeout_s, self._give_up)

    def _head_is_here(self) -> None:
        timer, self._head_timer = self._head_timer, None
        if timer is not None:
            timer.cancel()

    def _give_up(self) -> None:
        self._head_timer = None
        if self.transport is not None and not self._messages and not self._request_in_progress:
            self.transport.abort()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """A fixed one-line text; what was wrong in detail goes to the log, where it is this side's fault."""
        if request.writer.output_size > 0:
            # A second head in the middle of a body would be taken for a part of it.
            if self.transport is not None:
                self.transport.abort()
            raise ConnectionError("the response has begun")
        if status >= 500:
            self.log_exception("unhandled error", exc_info=exc)
        else:
            self._server.on_bad_request()
        response = web.Response(status=status, text=_TEXTS.get(status, "Internal error") + "\n")
        response.headers["Cache-Control"] = "no-store"
        response.force_close()
        return response


class ClientServer(web.Server):
    """Makes a `ClientConnection` for every client; `on_bad_request` is called for what no handler saw."""

    def __init__(self, handler: Any, limits: LimitsConfig, on_bad_request: Any) -> None:
        super().__init__(handler, handler_cancellation=True)
        self.limits = limits
        self.on_bad_request = on_bad_request

    def abort(self) -> None:
        """Drop every connection that is left: a client that takes nothing would hold an orderly end up."""
        for transport in list(self._connections.values()):
            transport.abort()

    def __call__(self) -> ClientConnection:
        return ClientConnection(
            self,
            loop=self._loop,
            keepalive_timeout=self.limits.keepalive_timeout_s,
            access_log=None,
            lingering_time=1.0,
            max_line_size=8_190,
            max_headers=128,
            max_field_size=8_190,
            auto_decompress=False,
        )

"""Client connections: aiohttp's protocol with the bounds it lacks.

aiohttp does not bound a connection that sends a request's head a byte at a time, and its error texts echo what the
parser saw.  Both are mended here.  The transport, its buffers and the time it may be idle belong to the door.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler, _ErrInfo

from gateway.config import LimitsConfig

if TYPE_CHECKING:
    from gateway.server.door import Door

_TEXTS = {400: "Bad request", 408: "Request timeout", 413: "Request body too large", 504: "Gateway timeout"}


class ClientConnection(RequestHandler):
    """The strict side of one client's connection; created by `ClientServer` only."""

    __slots__ = ("_head_timer", "_limits", "_server", "door")

    def __init__(self, server: ClientServer, door: Door, **settings: Any) -> None:
        super().__init__(server, **settings)
        self.door = door
        self._server = server
        self._limits = server.limits
        self._head_timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Whether a new request would be the only one: none is waiting, being read or being answered."""
        waiter = self._waiter
        return waiter is not None and not waiter.done() and not self._messages and not self._request_in_progress

    @property
    def is_settling(self) -> bool:
        """Whether the last response is out and only this protocol's own task has not come round to waiting again."""
        will_wait = self._task_handler is not None and not self._close and not self._force_close
        return will_wait and not self._request_in_progress and not self._messages and not self.is_idle

    @property
    def is_reading_paused(self) -> bool:
        """Whether it has read more than it can take."""
        return bool(self._reading_paused)

    def _process_keepalive(self) -> None:
        """The door closes idle connections; it alone sees the requests that it answers itself."""

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
        if not content.is_eof():
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
        text = _TEXTS.get(status, "Internal error") + "\n"
        if status < 500:
            self._server.on_bad_request(status, len(text), request.remote)
        response = web.Response(status=status, text=text)
        response.headers["Cache-Control"] = "no-store"
        response.force_close()
        return response


class ClientServer(web.Server):
    """Makes a `ClientConnection` for every client; `on_bad_request` is called for what no handler saw, with the status
    and the body bytes of the answer, and the client's address."""

    def __init__(
        self, handler: Any, limits: LimitsConfig, on_bad_request: Callable[[int, int, str | None], None]
    ) -> None:
        super().__init__(handler, handler_cancellation=True)
        self.limits = limits
        self.on_bad_request = on_bad_request

    def connect(self, door: Door) -> ClientConnection:
        """The strict protocol for a door's connection."""
        return ClientConnection(
            self,
            door,
            loop=self._loop,
            access_log=None,
            lingering_time=1.0,
            max_line_size=8_190,
            max_headers=128,
            max_field_size=8_190,
            auto_decompress=False,
        )

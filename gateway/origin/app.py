"""The composition: an `Origin` holds the streams, a `RunningOrigin` serves them on a port.

Because the two are separate, an origin can be stopped and restarted on the same port with the same streams:

    running = await start_origin()
    port = running.port
    await running.stop()
    running = await start_origin(OriginSettings(port=port), origin=running.origin)

Stopping takes three steps of limited duration.  First the listener closes.  Then live readers end at their next control
event, and long-polls are answered.  Finally, requests still in flight after the grace period are cut off.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import dataclass
from random import Random
from typing import Any, Final, cast

from aiohttp import HttpVersion11, StreamReader, web
from aiohttp.http import StreamWriter

from gateway.aio.clock import Clock, SystemClock
from gateway.origin.counters import Counters
from gateway.origin.delivery import SERVER_NAME
from gateway.origin.faults import Faults
from gateway.origin.half_closed import INTERIM, LEADING_ZERO, watch
from gateway.origin.handlers import Handlers
from gateway.origin.live import Drain
from gateway.origin.replies import CACHE_NEVER, COMMON_HEADERS
from gateway.origin.store import Store

_log = logging.getLogger("gateway.origin")

_NO_ACCESS_LOG: Final = logging.getLogger("gateway.origin.access")
_NO_ACCESS_LOG.disabled = True

DEFAULT_GRACE_S: Final = 5.0
"""Seconds that `stop` gives replies to finish."""


@dataclass(frozen=True, slots=True)
class OriginSettings:
    """The origin's address and limits.  Raises ValueError for invalid values."""

    host: str = "127.0.0.1"
    port: int = 0
    """The TCP port; 0 selects a free port."""
    long_poll_timeout_s: float = 30.0
    """How long a long-poll waits, and how long an SSE connection may be silent, in seconds."""
    sse_lifetime_s: float = 60.0
    """The lifetime of SSE connections in seconds.  They end within its last tenth (section 8.2)."""
    max_chunk_bytes: int = 1_048_576
    """The most payload bytes in one reply or SSE event.  A single JSON message is never divided."""
    max_body_bytes: int = 64 * 1_048_576
    """The largest request body in bytes.  Larger ones are answered with 413."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise ValueError("port must lie between 0 and 65535")
        if self.long_poll_timeout_s <= 0 or self.sse_lifetime_s <= 0:
            raise ValueError("long_poll_timeout_s and sse_lifetime_s must be above 0")
        if self.max_chunk_bytes < 1 or self.max_body_bytes < 1:
            raise ValueError("max_chunk_bytes and max_body_bytes must be at least 1")


class Origin:
    """One in-memory origin: its streams, faults and counters."""

    def __init__(
        self,
        settings: OriginSettings | None = None,
        *,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        self.settings = settings or OriginSettings()
        self.store = Store()
        self.faults = Faults()
        self.counters = Counters()
        self.clock: Clock = clock or SystemClock()
        self._random = random or Random()

    def application(self, *, drain: Drain | None = None) -> web.Application:
        """Return an aiohttp application that serves this origin under any path.  An origin may have several."""
        handlers = Handlers(
            self.store,
            self.faults,
            self.counters,
            self.clock,
            drain or Drain(),
            self._random,
            long_poll_timeout_s=self.settings.long_poll_timeout_s,
            sse_lifetime_s=self.settings.sse_lifetime_s,
            max_chunk_bytes=self.settings.max_chunk_bytes,
            max_body_bytes=self.settings.max_body_bytes,
        )
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", handlers.handle)
        return application


class _Connection(web.RequestHandler):
    """aiohttp's connection, with one-line answers to malformed requests and a connection count."""

    counters: Counters
    _has_ended = False
    """Whether the client has half-closed the connection."""
    _unanswered = 0
    _written = 0
    """The number of answer bytes that had been written at the latest check of a half-closed client."""
    _last_body: StreamReader | None = None
    """The body of the latest request, the only one that may be incomplete."""

    def data_received(self, data: bytes) -> None:
        before = len(self._messages)
        super().data_received(data)
        if len(self._messages) > before:
            self._unanswered += len(self._messages) - before
            self._last_body = self._messages[-1][1]

    def eof_received(self) -> bool:  # type: ignore[override]
        """Handle a half-close: answer pending requests, then close.  Returns False if there is no complete request."""
        if self._has_ended:
            # Called again, because aiohttp continues to read after a body.
            return self._unanswered > 0
        is_whole = self._last_body is not None and self._last_body.is_eof()
        if self.transport is None or not self._unanswered or not is_whole:
            return False
        self._has_ended = True
        watch(self.transport, self._probe)
        return True

    def _probe(self) -> bytes | None:
        request = self._current_request
        if request is None:
            return b""
        written = request.writer.output_size
        if not written:
            return INTERIM if request.version >= HttpVersion11 else b""
        if cast(StreamWriter, request.writer).chunked:
            return LEADING_ZERO
        has_moved, self._written = written != self._written, written
        return b"" if has_moved else None

    async def _handle_request(
        self, request: web.BaseRequest, start_time: float | None, request_handler: Any
    ) -> tuple[web.StreamResponse, bool]:
        try:
            return await super()._handle_request(request, start_time, request_handler)
        finally:
            self._unanswered -= 1
            if self._has_ended and not self._unanswered:
                self.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.counters.connected()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if isinstance(exc, ConnectionError) or request.writer.output_size > 0:
            raise ConnectionError("the client has left or already has a reply") from exc
        if status >= 500:
            _log.error("a connection failed", exc_info=exc)
        text = "Malformed request" if status < 500 else "Internal error"
        response = web.Response(
            status=status,
            text=f"{text}\n",
            headers={"Server": SERVER_NAME, **COMMON_HEADERS, "Cache-Control": CACHE_NEVER},
        )
        response.force_close()
        return response


class RunningOrigin:
    """An origin on a port."""

    def __init__(self, origin: Origin, host: str, port: int) -> None:
        self.origin = origin
        self.host = host
        self.port = port
        self._drain = Drain()
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """`http://host:port`, without a trailing slash."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    async def start(self) -> None:
        """Bind and accept connections.  Raises OSError if the address is not available."""
        runner = web.AppRunner(self.origin.application(drain=self._drain), access_log=None, handler_cancellation=True)
        await runner.setup()
        server = runner.server
        assert server is not None
        loop = asyncio.get_running_loop()

        def connection() -> _Connection:
            # Store bodies as they arrive: Content-Encoding is the writer's business.
            handler = _Connection(server, loop=loop, access_log=_NO_ACCESS_LOG, auto_decompress=False)
            handler.counters = self.origin.counters
            return handler

        try:
            self._listener = await loop.create_server(
                connection, self.host, self.port, reuse_address=True, backlog=4096
            )
        except OSError:
            await runner.cleanup()
            raise
        self._runner = runner
        bound: socket.socket = self._listener.sockets[0]
        self.port = bound.getsockname()[1]

    async def stop(self, grace_s: float = DEFAULT_GRACE_S) -> None:
        """Stop in the three steps described above; with a `grace_s` of 0, cut all connections, like a crash."""
        listener, runner = self._listener, self._runner
        self._listener = self._runner = None
        if listener is None or runner is None:
            return
        await _close(listener)
        server = runner.server
        assert server is not None
        if grace_s > 0:
            self._drain.begin()
            # aiohttp may use up the timeout twice: once to wait, once to cancel.
            server.pre_shutdown()
            await server.shutdown(grace_s / 2)
        else:
            for connection in server.connections:
                if connection.transport is not None:
                    connection.transport.abort()
            await server.shutdown(0)
        await runner.cleanup()


async def _close(listener: asyncio.Server) -> None:
    """Stop accepting connections.

    If an asyncio listener closes in the same loop turn in which it has accepted a connection, that connection is
    neither served nor closed.  So stop listening a few turns earlier.
    """
    loop = asyncio.get_running_loop()
    if isinstance(loop, asyncio.SelectorEventLoop):
        for listening in listener.sockets:
            loop.remove_reader(listening.fileno())
        for _ in range(3):
            await asyncio.sleep(0)
    listener.close()


async def start_origin(
    settings: OriginSettings | None = None, *, origin: Origin | None = None, clock: Clock | None = None
) -> RunningOrigin:
    """Serve a new origin with these settings, or an existing one at the host and port of `settings`.

    An existing origin keeps its timeouts and limits.  Raises OSError if the address is not available.
    """
    if origin is None:
        origin = Origin(settings, clock=clock)
    elif clock is not None:
        raise ValueError("an existing origin keeps its clock")
    at = settings or origin.settings
    running = RunningOrigin(origin, at.host, at.port)
    await running.start()
    return running

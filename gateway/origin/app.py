"""The composition: an `Origin` holds the streams, a `RunningOrigin` serves them on a port.

They are separate so that an origin can be stopped and restarted on the same port with the same streams while its
clients watch:

    running = await start_origin()
    port = running.port
    await running.stop()
    running = await start_origin(OriginSettings(port=port), origin=running.origin)

Stopping takes three bounded steps.  The listener closes.  Live readers end at their next control event, and long-polls
answer.  Requests still in flight after the grace period are cut off.
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
    """0 picks a free port."""
    long_poll_timeout_s: float = 30.0
    """How long a long-poll waits, and how long an SSE connection may be silent."""
    sse_lifetime_s: float = 60.0
    """When SSE connections end, spread over the last tenth (section 8.2)."""
    max_chunk_bytes: int = 1_048_576
    """Payload bytes in one reply or one SSE event; a single JSON message is never divided."""
    max_body_bytes: int = 64 * 1_048_576
    """Larger request bodies are answered with 413."""

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
        """An aiohttp application that serves this origin under any path; one origin may have several."""
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
    """Whether the client has half-closed."""
    _unanswered = 0
    _written = 0
    """Bytes of the answer that were written when a half-closed client was last looked at."""
    _last_body: StreamReader | None = None
    """The body of the latest request: the only one that may not be whole."""

    def data_received(self, data: bytes) -> None:
        before = len(self._messages)
        super().data_received(data)
        if len(self._messages) > before:
            self._unanswered += len(self._messages) - before
            self._last_body = self._messages[-1][1]

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client has half-closed: answer its request, then close.  False if no whole request is unanswered."""
        if self._has_ended:
            # aiohttp reads on behind a body.
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
        """Bind and accept.  Raises OSError if the address is not available."""
        runner = web.AppRunner(self.origin.application(drain=self._drain), access_log=None, handler_cancellation=True)
        await runner.setup()
        server = runner.server
        assert server is not None
        loop = asyncio.get_running_loop()

        def connection() -> _Connection:
            # Bodies are stored as they arrive: Content-Encoding is up to the writer.
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
        """Stop in the module's three steps; a `grace_s` of 0 cuts every connection at once, as a crash would."""
        listener, runner = self._listener, self._runner
        self._listener = self._runner = None
        if listener is None or runner is None:
            return
        await _close(listener)
        server = runner.server
        assert server is not None
        if grace_s > 0:
            self._drain.begin()
            # aiohttp may use the timeout twice: once to wait, once to cancel.
            server.pre_shutdown()
            await server.shutdown(grace_s / 2)
        else:
            for connection in server.connections:
                if connection.transport is not None:
                    connection.transport.abort()
            await server.shutdown(0)
        await runner.cleanup()


async def _close(listener: asyncio.Server) -> None:
    """Stop accepting.  An asyncio listener that closes in the same turn in which it accepted a connection forgets it:
    the connection is neither served nor closed.  Listening therefore stops a few turns before."""
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
    """Serve an origin: a new one with these settings, or an existing one at the host and port of `settings`.

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

"""One request to one host, and its answer.

An exchange goes on by what happens to it: a connection is there, a head comes, something fails.  Each is a plain call,
and so is the word to whoever has asked (`Asker`).  A task runs only while a connection has to be waited for.

Every wait is bounded: connecting, the first byte, each pause in a body, the whole.  Foreign exceptions end here and
become the tree of `errors.py`.  Bodies come raw: nothing is decompressed, no redirect is followed, no cookie is kept,
and a `101` is refused.  A body that ends before its announced end raises; a caller that saw no exception holds every
byte.

A kept connection may turn out to be dead: the origin has closed it while the request was on its way.  A GET or HEAD
without a body is then sent once more, on a new connection, if nothing at all has come of its answer (RFC 9112 section
9.3.1).  There is at most one such repetition for each answer that came whole before, so an origin in trouble is not
asked more for it.  Nothing else is repeated here.

What becomes of a request is told to the books of the origin that it was sent to, where it has one (`Sending`).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from math import inf
from typing import Final

from multidict import CIMultiDict

from gateway.aio.tasks import Tasks
from gateway.config.origin_tls import OriginTls
from gateway.errors import GatewayError, UpstreamBroken, UpstreamTimeout, UpstreamUnreachable
from gateway.http.outgoing import InvalidRequest, request_head
from gateway.http.reply import ReplyBroken
from gateway.telemetry.tracing import NO_TRACER, ExchangeSpan, Tracer
from gateway.upstream.asking import Asker, answer_to
from gateway.upstream.connection import Connection, Incoming, nothing
from gateway.upstream.connections import ConnectionPool, Connections
from gateway.upstream.dialer import Dialer
from gateway.upstream.endpoint import Endpoint, endpoint_of, split_url
from gateway.upstream.failures import ConnectionLost, ConnectTimedOut, NotConnected, UploadFailed
from gateway.upstream.reasons import reason_of
from gateway.upstream.reply import Body, Bounds, Reply, Sending
from gateway.upstream.resolver import LookUp, look_up

_log = logging.getLogger("gateway.upstream")

_REPEATED: Final = frozenset({"GET", "HEAD"})


class Exchanges:
    """Connections to all hosts.  `close` ends them.

    Live requests have a pool of their own, bounded by the number of clients rather than by `connections`: held for
    minutes each, they would leave none for the requests that everybody waits for.
    """

    def __init__(self, connections: int, tracer: Tracer = NO_TRACER, look_up: LookUp = look_up) -> None:
        self._tracer = tracer
        self.tasks = Tasks()
        self.dialer = Dialer(self.tasks, look_up)
        self._brief = ConnectionPool(connections)
        self._live = ConnectionPool(0)

    def leave_room(self, hosts: int) -> None:
        """Spread connections over so many hosts, so that one that hangs does not take them all."""
        self._brief.leave_room(hosts)

    def trust(self, tls: Mapping[str, OriginTls]) -> None:
        """Speak TLS with these origins like this from here on; connections that are kept are not used for it."""
        if tls or self.dialer.tls:
            self.dialer.tls = dict(tls)
            self._brief.drop_idle()
            self._live.drop_idle()

    @property
    def open_connections(self) -> int:
        """Connections in use now."""
        return len(self._brief) + len(self._live)

    def connections(self) -> dict[str, Connections]:
        """What is open: `shared` for requests of all kinds, `live` for followed streams and live reads relayed."""
        now = asyncio.get_running_loop().time()
        return {"shared": self._brief.look(now), "live": self._live.look(now)}

    def ask(
        self,
        asker: Asker,
        method: str,
        url: str,
        headers: CIMultiDict[str],
        bounds: Bounds,
        body: Body = None,
        sending: Sending | None = None,
        *,
        is_live: bool = False,
    ) -> Exchange:
        """Send one request.  `asker` is told what becomes of it, maybe before this returns.

        A failing body iterator aborts the connection, so that the origin never takes a part for the whole.
        """
        span = self._tracer.exchange(method, url, headers)
        if span is not None:
            headers = span.headers
        pool = self._live if is_live else self._brief
        exchange = Exchange(self, pool, asker, method, bounds, body, sending, span)
        exchange.begin(url, headers)
        return exchange

    async def send(
        self,
        method: str,
        url: str,
        headers: CIMultiDict[str],
        bounds: Bounds,
        body: Body = None,
        sending: Sending | None = None,
        *,
        is_live: bool = False,
        on_sent: Callable[[], object] = nothing,
    ) -> Reply:
        """Send one request and wait for the head of its answer; `on_sent` is called for each time that it is sent.

        Raises UpstreamUnreachable, UpstreamTimeout, UpstreamBroken.
        """
        return await answer_to(
            lambda asker: self.ask(asker, method, url, headers, bounds, body, sending, is_live=is_live), on_sent
        )

    async def close(self) -> None:
        self._brief.close()
        self._live.close()
        await self.tasks.close()


class Exchange:
    """One request, from its first byte to the head of its answer.

    Failed or answered once; or left, and then nobody is told anything any more.
    """

    __slots__ = (
        "_asker",
        "_body",
        "_bounds",
        "_by",
        "_connecting",
        "_connection",
        "_deadline",
        "_exchanges",
        "_incoming",
        "_method",
        "_pool",
        "_request",
        "_sending",
        "_span",
        "_upload",
        "is_over",
    )

    def __init__(
        self,
        exchanges: Exchanges,
        pool: ConnectionPool,
        asker: Asker,
        method: str,
        bounds: Bounds,
        body: Body,
        sending: Sending | None,
        span: ExchangeSpan | None,
    ) -> None:
        self._exchanges = exchanges
        self._pool = pool
        self._asker = asker
        self._method = method
        self._bounds = bounds
        self._body = body
        self._sending = sending
        self._span = span
        self._deadline = self._by = inf
        """When all of the answer is to be here, and when its head."""
        self._request = b""
        self._upload: _Upload | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._connection: Connection | None = None
        self._incoming: Incoming | None = None
        """None until the request has been sent, or begun to be."""
        self.is_over = False
        """Whether it has failed, been answered or been left."""

    def begin(self, url: str, headers: CIMultiDict[str]) -> None:
        """Send it."""
        began = asyncio.get_running_loop().time()
        bounds, body = self._bounds, self._body
        self._deadline = self._by = inf if bounds.total_s is None else began + bounds.total_s
        length: int | None = None
        is_chunked = False
        self._asker.sent()
        try:
            if body is None or isinstance(body, bytes):
                self._by = min(self._deadline, began + bounds.first_byte_s)
                length = None if body is None else len(body)
            else:
                # While a body is being sent the first byte may lawfully be long in coming: only `total` bounds that.
                self._upload = _Upload(body, bounds.first_byte_s, self._deadline)
                length = self._upload.measure(headers)
                is_chunked = length is None
            origin, target = split_url(url)
            endpoint = endpoint_of(origin)
            self._request = request_head(self._method, target, endpoint.says, headers, length, is_chunked=is_chunked)
        except ValueError as error:
            self._fail(error)
            return
        connection = self._pool.take(endpoint, is_upload=self._upload is not None)
        if connection is not None:
            self._send(connection)
        else:
            self._connect(endpoint, is_repeat=False)

    def _connect(self, endpoint: Endpoint, *, is_repeat: bool) -> None:
        self._connecting = self._exchanges.tasks.start(self._until_connected(endpoint, is_repeat), f"to {endpoint}")

    async def _until_connected(self, endpoint: Endpoint, is_repeat: bool) -> None:
        try:
            connection = await self._connected(endpoint, is_repeat)
        except Exception as error:
            self._connecting = None
            self._fail(error)
        else:
            self._connecting = None
            self._send(connection)

    async def _connected(self, endpoint: Endpoint, is_repeat: bool) -> Connection:
        """A connection, waited for until the head has to be here, and made within a bound of its own where none is idle
        or a kept one will not do."""
        loop = asyncio.get_running_loop()
        bound = asyncio.timeout_at(self._by if self._by < inf else None)
        if self._sending is not None:
            self._sending.may_end(lambda: bound.reschedule(loop.time()))
        pool = self._pool
        async with bound:
            is_upload = self._upload is not None
            await pool.place(endpoint, is_upload=is_upload)
            try:
                connection = None if is_repeat else pool.idle(endpoint)
                if connection is None:
                    connection = await self._exchanges.dialer.dial(endpoint, pool, self._bounds.connect_s)
                    if not connection.is_open:
                        # Closed before anybody could use it: it has no place to give back.
                        raise ConnectionLost
                    pool.made(connection)
            except BaseException:
                pool.leave_place(endpoint)
                if is_upload:
                    pool.uploaded(endpoint)
                raise
        return connection

    def _send(self, connection: Connection) -> None:
        self._connection = connection
        body = self._body
        whole = body if isinstance(body, bytes) else None
        incoming = connection.ask(self._request, whole, self._by, is_head=self._method == "HEAD")
        self._incoming = incoming
        incoming.on_change = self._changed
        if self._sending is not None:
            self._sending.may_end(incoming.give_up)
        if self._upload is not None:
            pool, endpoint = self._pool, connection.endpoint
            upload = self._exchanges.tasks.start(self._upload.run(connection, incoming), f"upload {endpoint}")
            # Not in the task itself: one that is cancelled before its first step never gets to its `finally`.
            upload.add_done_callback(lambda _: pool.uploaded(endpoint))
            connection.uploading(upload)

    def _changed(self) -> None:
        incoming, connection = self._incoming, self._connection
        assert incoming is not None
        assert connection is not None
        if (head := incoming.head) is not None:
            incoming.on_change = nothing
            self.is_over = True
            reply = Reply(head, incoming, self._bounds, self._deadline, self._sending)
            if self._sending is not None:
                self._sending.answered(reply)
            if self._span is not None:
                self._span.answered(reply.status)
                reply.span = self._span
            self._asker.answered(reply)
        elif (error := incoming.error) is not None:
            is_repeatable = connection.is_used and self._body is None and self._method in _REPEATED
            if is_repeatable and not incoming.has_heard and isinstance(error, ConnectionLost):
                incoming.on_change = nothing
                self._asker.sent()
                self._connect(connection.endpoint, is_repeat=True)
            else:
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self.is_over:
            return
        self._let_go()
        failure = _failure(error, is_unsent=self._incoming is None)
        if self._sending is not None:
            by_client = self._upload is not None and self._upload.is_to_blame(error)
            if self._sending.failed(error, by_client=by_client):
                failure = UpstreamUnreachable()
        failure.__cause__ = error
        if self._span is not None:
            self._span.failed(failure)
            self._span.end()
        self._asker.failed(failure)

    def leave(self) -> None:
        """Nobody waits for the head any more; without effect once it is here."""
        if self.is_over:
            return
        self._let_go()
        left = asyncio.CancelledError()
        if self._sending is not None:
            self._sending.failed(left, by_client=True)
        if self._span is not None:
            self._span.failed(left)
            self._span.end()

    def _let_go(self) -> None:
        self.is_over = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._incoming is not None:
            self._incoming.on_change = nothing
            self._incoming.end(ConnectionLost("left"))


class _Upload:
    """A request body on its way, which may fail by its client's doing."""

    __slots__ = ("_body", "_deadline", "_first_byte_s", "_has_begun", "_has_ended", "_length")

    def __init__(self, body: AsyncIterator[bytes], first_byte_s: float, deadline: float) -> None:
        self._body = body
        self._first_byte_s = first_byte_s
        self._deadline = deadline
        self._length: int | None = None
        self._has_begun = False
        self._has_ended = False

    def measure(self, headers: CIMultiDict[str]) -> int | None:
        """The length that the headers announce, None for a chunked body.  InvalidRequest if it is not a length."""
        said = headers.getall("Content-Length", None)
        if said is not None:
            if len(said) > 1 or not (said[0].isascii() and said[0].isdecimal()):
                raise InvalidRequest("a length that is none")
            self._length = int(said[0])
        return self._length

    def is_to_blame(self, error: BaseException) -> bool:
        """Whether a request failed because its client did not bring the body, or not in time."""
        is_late = isinstance(error, TimeoutError) and self._has_begun and not self._has_ended
        return is_late or isinstance(error, UploadFailed)

    async def run(self, connection: Connection, incoming: Incoming) -> None:
        """Send the body, and await the first byte from its end on."""
        self._has_begun = True
        self._has_ended = await connection.send(self._body, self._length)
        if self._has_ended and incoming.head is None and incoming.connection is not None:
            now = asyncio.get_running_loop().time()
            connection.deadline.move(min(now + self._first_byte_s, self._deadline))


def _failure(error: BaseException, *, is_unsent: bool) -> GatewayError:
    """What a failure is called outside."""
    match error:
        case ConnectTimedOut():
            return UpstreamTimeout(is_unsent=is_unsent)
        case NotConnected(__cause__=ssl.SSLError()) | ConnectionLost(__cause__=ssl.SSLError()):
            # Nothing that passes by itself: whoever sets the gateway up is to see it at once.
            return UpstreamUnreachable(f"Origin unreachable: {reason_of(error)}", is_unsent=is_unsent)
        case NotConnected():
            return UpstreamUnreachable(is_unsent=is_unsent)
        case ConnectionLost():
            return UpstreamUnreachable(is_unsent=is_unsent)
        case TimeoutError():
            return UpstreamTimeout(is_unsent=is_unsent)
        case ReplyBroken() | UploadFailed() | ValueError():
            return UpstreamBroken()
    _log.error("unhandled error", exc_info=error)
    return GatewayError()

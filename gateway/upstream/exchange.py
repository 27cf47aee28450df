"""One request to one host, and its answer.

Every await is bounded: connecting, the first byte, each pause in a body, the whole.  Foreign exceptions end here and
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
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from math import inf
from typing import Any, Final

from multidict import CIMultiDict

from gateway.config_tls import OriginTls
from gateway.errors import GatewayError, UpstreamBroken, UpstreamTimeout, UpstreamUnreachable
from gateway.http.outgoing import UnfitRequest, request_head
from gateway.http.reply import ReplyBroken
from gateway.tasks import Tasks
from gateway.tracing import NO_TRACER, ExchangeSpan, Tracer
from gateway.upstream.connection import Connection, Incoming
from gateway.upstream.connections import ConnectionPool, Connections
from gateway.upstream.dialer import Dialer
from gateway.upstream.endpoint import Endpoint, endpoint_of, split_url
from gateway.upstream.failures import ConnectionLost, ConnectTimedOut, NotConnected, UploadFailed
from gateway.upstream.reply import Body, Bounds, Reply, Sending
from gateway.upstream.resolver import LookUp, look_up

_REPEATED: Final = frozenset({"GET", "HEAD"})


class Exchanges:
    """Connections to all hosts.  `close` ends them.

    Live requests have a pool of their own, bounded by the number of clients rather than by `connections`: held for
    minutes each, they would leave none for the requests that everybody waits for.
    """

    def __init__(self, connections: int, tracer: Tracer = NO_TRACER, look_up: LookUp = look_up) -> None:
        self._tracer = tracer
        self._tasks = Tasks()
        self._dialer = Dialer(self._tasks, look_up)
        self._brief = ConnectionPool(connections)
        self._live = ConnectionPool(0)

    def leave_room(self, hosts: int) -> None:
        """Spread connections over so many hosts, so that one that hangs does not take them all."""
        self._brief.leave_room(hosts)

    def trust(self, tls: Mapping[str, OriginTls]) -> None:
        """Speak TLS with these origins like this from here on; connections that are kept are not used for it."""
        if tls or self._dialer.tls:
            self._dialer.tls = dict(tls)
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

    def send(
        self,
        method: str,
        url: str,
        headers: CIMultiDict[str],
        bounds: Bounds,
        body: Body = None,
        sending: Sending | None = None,
        *,
        is_live: bool = False,
        on_repeat: Callable[[], object] = lambda: None,
    ) -> Coroutine[Any, Any, Reply]:
        """Send one request and wait for the head of its answer; `on_repeat` is called where it is sent once more.

        A failing body iterator aborts the connection, so that the origin never takes a part for the whole.
        Raises UpstreamUnreachable, UpstreamTimeout, UpstreamBroken.
        """
        span = self._tracer.exchange(method, url, headers)
        if span is None:
            return self._exchange(method, url, headers, bounds, body, sending, is_live, on_repeat)
        return _traced(span, self._exchange(method, url, span.headers, bounds, body, sending, is_live, on_repeat))

    async def _exchange(
        self,
        method: str,
        url: str,
        headers: CIMultiDict[str],
        bounds: Bounds,
        body: Body,
        sending: Sending | None,
        is_live: bool,
        on_repeat: Callable[[], object],
    ) -> Reply:
        began = asyncio.get_running_loop().time()
        deadline = inf if bounds.total_s is None else began + bounds.total_s
        upload = None if body is None or isinstance(body, bytes) else _Upload(body, bounds.first_byte_s, deadline)
        # While a body is being sent the first byte may lawfully be long in coming: only `total` bounds that phase.
        by = deadline if upload is not None else min(deadline, began + bounds.first_byte_s)
        pool = self._live if is_live else self._brief
        incoming: Incoming | None = None
        try:
            origin, target = split_url(url)
            endpoint = endpoint_of(origin)
            whole = body if isinstance(body, bytes) else None
            length = len(whole) if whole is not None else upload.measure(headers) if upload is not None else None
            is_chunked = upload is not None and length is None
            request = request_head(method, target, endpoint.says, headers, length, is_chunked=is_chunked)
            connection = pool.take(endpoint)
            while True:
                if connection is None:
                    is_repeat = incoming is not None
                    connection = await self._connected(pool, endpoint, by, bounds.connect_s, sending, is_repeat)
                incoming = connection.ask(request, whole, by, is_head=method == "HEAD")
                if sending is not None:
                    sending.may_end(incoming.give_up)
                if upload is not None:
                    connection.uploading(self._tasks.start(upload.run(connection, incoming), f"upload {endpoint}"))
                try:
                    head = await incoming.until_head()
                    break
                except ConnectionLost:
                    if incoming.has_heard or not connection.is_used or body is not None or method not in _REPEATED:
                        raise
                on_repeat()
                connection = None
        except BaseException as error:
            if incoming is not None:
                incoming.end(ConnectionLost("left"))
            failure = _failure(error, is_unsent=incoming is None)
            has_ended = False
            if sending is not None:
                by_client = failure is None or (upload is not None and upload.is_to_blame(error))
                has_ended = sending.failed(error, by_client=by_client)
            if failure is None:
                raise
            if has_ended:
                raise UpstreamUnreachable from error
            raise failure from error
        reply = Reply(head, incoming, bounds, deadline, sending)
        if sending is not None:
            sending.answered(reply)
        return reply

    async def _connected(
        self,
        pool: ConnectionPool,
        endpoint: Endpoint,
        by: float,
        within_s: float,
        sending: Sending | None,
        is_repeat: bool,
    ) -> Connection:
        """A connection, waited for until `by`, and made within `within_s` where none is idle or a kept one will not
        do."""
        loop = asyncio.get_running_loop()
        bound = asyncio.timeout_at(by if by < inf else None)
        if sending is not None:
            sending.may_end(lambda: bound.reschedule(loop.time()))
        async with bound:
            await pool.place(endpoint)
            try:
                connection = None if is_repeat else pool.idle(endpoint)
                if connection is None:
                    connection = await self._dialer.dial(endpoint, pool, within_s)
                    if not connection.is_open:
                        # Closed before anybody could use it: it has no place to give back.
                        raise ConnectionLost
                    pool.made(connection)
            except BaseException:
                pool.leave_place(endpoint)
                raise
        return connection

    async def close(self) -> None:
        self._brief.close()
        self._live.close()
        await self._tasks.close()


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
        """How long the body is by its headers' word, None where it goes in chunks.  UnfitRequest where that is none."""
        said = headers.getall("Content-Length", None)
        if said is not None:
            if len(said) > 1 or not (said[0].isascii() and said[0].isdecimal()):
                raise UnfitRequest("a length that is none")
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


async def _traced(span: ExchangeSpan, exchange: Coroutine[Any, Any, Reply]) -> Reply:
    """The same exchange, told to its span."""
    try:
        reply = await exchange
    except BaseException as error:
        span.failed(error)
        span.end()
        raise
    span.answered(reply.status)
    reply.span = span
    return reply


def _failure(error: BaseException, *, is_unsent: bool) -> GatewayError | None:
    """What a failure is called outside; None for what is nobody's here, such as a cancellation."""
    match error:
        case ConnectTimedOut():
            return UpstreamTimeout(is_unsent=is_unsent)
        case NotConnected():
            return UpstreamUnreachable(is_unsent=is_unsent)
        case ConnectionLost():
            return UpstreamUnreachable(is_unsent=is_unsent)
        case TimeoutError():
            return UpstreamTimeout(is_unsent=is_unsent)
        case ReplyBroken() | UploadFailed() | ValueError():
            return UpstreamBroken()
    return None

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
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from math import inf
from types import TracebackType
from typing import Final, Self

from multidict import CIMultiDict, CIMultiDictProxy

from gateway.errors import GatewayError, UpstreamBroken, UpstreamTimeout, UpstreamUnreachable
from gateway.http.outgoing import UnfitRequest, request_head
from gateway.http.reply import Head, ReplyBroken
from gateway.tasks import Tasks
from gateway.tracing import NO_TRACER, ExchangeSpan, Tracer
from gateway.upstream.connection import Connection, Incoming
from gateway.upstream.connections import ConnectionPool, Connections
from gateway.upstream.dialer import Dialer
from gateway.upstream.endpoint import Endpoint, endpoint_of, split_url
from gateway.upstream.failures import ConnectionLost, ConnectTimedOut, NotConnected, UploadFailed
from gateway.upstream.origins import Sent
from gateway.upstream.reasons import is_own_fault, reason_of
from gateway.upstream.resolver import LookUp, look_up

Body = AsyncIterator[bytes] | bytes | None

_REPEATED: Final = frozenset({"GET", "HEAD"})


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long an exchange may take, in seconds, phase by phase."""

    connect_s: float = 5.0
    first_byte_s: float = 30.0
    idle_s: float = 30.0
    total_s: float | None = 600.0


class Sending:
    """A request to an origin, as its books are told of it."""

    __slots__ = ("_now", "_sent")

    def __init__(self, sent: Sent, now: Callable[[], float]) -> None:
        self._sent = sent
        self._now = now

    def answered(self, reply: Reply) -> None:
        """The head has come; from here on an end that the origin's books call for cuts the body off."""
        self._sent.on_end = reply.cut
        self._sent.answered(reply.status, self._now())

    def failed(self, error: BaseException, *, by_client: bool) -> bool:
        """No head has come; whether that is because the books called for an end."""
        if by_client or is_own_fault(error):
            self._sent.abandoned()
        else:
            self._sent.failed(reason_of(error), self._now())
        self._sent.close()
        return self._sent.has_ended

    def heard(self) -> None:
        """A part of the body has come."""
        self._sent.heard(self._now())

    def broke(self) -> bool:
        """The body ended early; whether that is because the books called for it."""
        self._sent.broke(self._now())
        return self._sent.has_ended

    def may_end(self, end: Callable[[], None]) -> None:
        """`end` is how the books can have the request fail while its head is awaited."""
        self._sent.on_end = end

    def close(self) -> None:
        """All of it is over."""
        self._sent.on_end = None
        self._sent.close()


class Reply:
    """An origin's answer: the head is here, the body comes by `chunks`.  Use as an async context manager."""

    __slots__ = (
        "_bounds",
        "_deadline",
        "_incoming",
        "_sending",
        "content_length",
        "headers",
        "is_delimited",
        "reason",
        "span",
        "status",
    )

    def __init__(
        self, head: Head, incoming: Incoming, bounds: Bounds, deadline: float, sending: Sending | None = None
    ) -> None:
        self._incoming = incoming
        self._bounds = bounds
        self._deadline = deadline
        self._sending = sending
        self.span: ExchangeSpan | None = None
        self.status = head.status
        self.reason = head.reason
        self.headers: CIMultiDictProxy[str] = head.headers
        self.content_length = head.content_length
        """The announced length in bytes, None for a chunked body."""
        self.is_delimited = head.is_delimited
        """Whether the body's end can be told from a lost connection (RFC 9112 §6.3, all cases but the last)."""

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives.  Raises UpstreamBroken when it ends early, UpstreamTimeout when it stalls."""
        # No generator: the loop keeps a weak reference to each of those, at the cost of a small reply's parsing.
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        now = asyncio.get_running_loop().time()
        try:
            if now >= self._deadline:
                # A buffer that never runs dry is a slow reader's, who would hold the connection for ever.
                raise TimeoutError
            chunk = self._incoming.take()
            if chunk is None:
                chunk = await self._incoming.read(min(now + self._bounds.idle_s, self._deadline))
        except TimeoutError as error:
            raise self._failed(UpstreamTimeout()) from error
        except (ConnectionLost, ReplyBroken, UploadFailed) as error:
            if self._sending is not None and self._sending.broke():
                raise self._failed(UpstreamUnreachable()) from error
            raise self._failed(UpstreamBroken("Origin's answer ended early")) from error
        if not chunk:
            raise StopAsyncIteration
        if self._sending is not None:
            self._sending.heard()
        return chunk

    def _failed(self, error: GatewayError) -> GatewayError:
        if self.span is not None:
            self.span.failed(error)
        return error

    async def hold(self, until: Awaitable[None]) -> None:
        """Leave the body alone meanwhile; UpstreamTimeout when the time for the whole of it runs out."""
        try:
            async with asyncio.timeout_at(self._deadline if self._deadline < inf else None):
                await until
        except TimeoutError as error:
            raise UpstreamTimeout from error

    async def read(self, limit: int) -> bytes:
        """The whole body; UpstreamBroken when it is longer than `limit` bytes."""
        body = bytearray()
        async for chunk in self.chunks():
            body += chunk
            if len(body) > limit:
                raise UpstreamBroken("Origin's answer is too large")
        return bytes(body)

    def close(self) -> None:
        """Drop the connection unless the whole answer has come; then it was given back by that."""
        self._incoming.end(ConnectionLost("left"))
        if self._sending is not None:
            self._sending.close()
        if self.span is not None:
            self.span.end()

    def cut(self) -> None:
        """Have the body end here, by an error."""
        self._incoming.end(ConnectionLost("cut"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


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

    @property
    def open_connections(self) -> int:
        """Connections in use now."""
        return len(self._brief) + len(self._live)

    def connections(self) -> dict[str, Connections]:
        """What is open: `shared` for requests of all kinds, `live` for followed streams and live reads relayed."""
        now = asyncio.get_running_loop().time()
        return {"shared": self._brief.look(now), "live": self._live.look(now)}

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
        on_repeat: Callable[[], object] = lambda: None,
    ) -> Reply:
        """Send one request and wait for the head of its answer; `on_repeat` is called where it is sent once more.

        A failing body iterator aborts the connection, so that the origin never takes a part for the whole.
        Raises UpstreamUnreachable, UpstreamTimeout, UpstreamBroken.
        """
        span = self._tracer.exchange(method, url, headers)
        if span is None:
            return await self._exchange(method, url, headers, bounds, body, sending, is_live, on_repeat)
        try:
            reply = await self._exchange(method, url, span.headers, bounds, body, sending, is_live, on_repeat)
        except BaseException as error:
            span.failed(error)
            span.end()
            raise
        span.answered(reply.status)
        reply.span = span
        return reply

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


def _failure(error: BaseException, *, is_unsent: bool) -> GatewayError | None:
    """What a failure is called outside; None for what is nobody's here, such as a cancellation."""
    match error:
        case ConnectTimedOut():
            return UpstreamTimeout(is_unsent=is_unsent)
        case NotConnected():
            return UpstreamUnreachable(is_unsent=is_unsent)
        case ConnectionLost():
            return UpstreamUnreachable()
        case TimeoutError():
            return UpstreamTimeout(is_unsent=is_unsent)
        case ReplyBroken() | UploadFailed() | ValueError():
            return UpstreamBroken()
    return None

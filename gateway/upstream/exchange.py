"""One request to one host, and its reply, over HTTP/1.1 or HTTP/2.

An exchange advances by plain calls: a connection is ready, a head arrives, something fails.  It notifies its
`Requester` by plain calls too.  A task runs only while a connection is awaited.

Every wait is bounded: for a connection slot, connecting, the first byte, each pause in a body, the whole.  The wait
for a slot is not the origin's fault, so it ends before the time for the first byte begins.  Foreign exceptions are
translated into those of `errors.py` here.  Bodies are raw: nothing is decompressed, no redirect is followed, no
cookie is kept, and a `101` is refused.  A body that ends before its announced end raises; a caller that saw no
exception holds every byte.

A request whose kept connection turns out to be dead may be sent once more: `gateway.upstream.repeats`.

The outcome of a request is reported to the origin's state, if the request has one (`OutcomeReport`).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Coroutine
from functools import partial
from math import inf
from typing import Protocol, TypeVar

from multidict import CIMultiDict

from gateway.aio.tasks import Tasks
from gateway.errors import (
    GatewayError,
    UpstreamBroken,
    UpstreamCongested,
    UpstreamTimeout,
    UpstreamUnreachable,
    bare,
)
from gateway.http.outgoing import request_head
from gateway.http.reply import Interim, ReplyBroken
from gateway.limits.askers import Askers
from gateway.telemetry.tracing import ExchangeSpan
from gateway.upstream.asking import Requester
from gateway.upstream.connection_pool import ConnectionPool, Slot
from gateway.upstream.dialer import Dialer
from gateway.upstream.endpoint import Endpoint, endpoint_of
from gateway.upstream.failures import (
    ConnectionLost,
    ConnectTimedOut,
    NoSlot,
    NotConnected,
    UploadFailed,
)
from gateway.upstream.http2_dials import Http2Dials
from gateway.upstream.incoming import Carrier, IncomingReply, no_op
from gateway.upstream.purpose import Purpose
from gateway.upstream.reasons import reason_of
from gateway.upstream.repeats import is_repeatable
from gateway.upstream.reply import Body, Bounds, OutcomeReport, Reply
from gateway.upstream.slots import Lane
from gateway.upstream.upload import Upload

_log = logging.getLogger("gateway.upstream")

T = TypeVar("T")


class Dialling(Protocol):
    """How an exchange gets its connection."""

    tasks: Tasks
    dialer: Dialer
    http2_dials: Http2Dials

    def uses_http2(self, endpoint: Endpoint) -> bool:
        """Whether the host is asked over HTTP/2."""


class Exchange:
    """One request, from its first byte to the head of its reply.

    Fails once or is answered once.  After `leave` the requester is not notified any more.
    """

    __slots__ = (
        "_body",
        "_bounds",
        "_by",
        "_client",
        "_connecting",
        "_connection",
        "_deadline",
        "_dialling",
        "_incoming",
        "_lane",
        "_method",
        "_pool",
        "_request",
        "_requester",
        "_sending",
        "_span",
        "_upload",
        "is_over",
    )

    def __init__(
        self,
        dialling: Dialling,
        pool: ConnectionPool,
        requester: Requester,
        method: str,
        bounds: Bounds,
        body: Body,
        sending: OutcomeReport | None,
        span: ExchangeSpan | None,
        client: str | Askers,
    ) -> None:
        self._dialling = dialling
        self._pool = pool
        self._requester = requester
        self._method = method
        self._bounds = bounds
        self._body = body
        self._sending = sending
        self._span = span
        self._client = client
        """The nets of the clients that the request is made for; empty for the gateway's own."""
        self._lane: Lane
        self._deadline = self._by = inf
        """When the complete reply is due, and when its head is."""
        self._request = b""
        self._upload: Upload | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._connection: Carrier | None = None
        self._incoming: IncomingReply | None = None
        """None until the request is sent, at least in part."""
        self.is_over = False
        """Whether it has failed, been answered or been left."""

    def begin(self, origin: str, target: str, headers: CIMultiDict[str], route: str, purpose: Purpose) -> None:
        """Send the request, to `target` in origin form at `origin`, as in `http://host:port`."""
        began = asyncio.get_running_loop().time()
        bounds, body = self._bounds, self._body
        self._deadline = self._by = inf if bounds.total_s is None else began + bounds.total_s
        length: int | None = None
        is_chunked = False
        try:
            if body is None or isinstance(body, bytes):
                self._by = min(self._deadline, began + bounds.first_byte_s)
                length = None if body is None else len(body)
            else:
                # During an upload the first byte may rightly take long: only `total_s` bounds it.
                self._upload = Upload(body, bounds.first_byte_s, self._deadline)
                length = self._upload.measure(headers)
                is_chunked = length is None
            endpoint = endpoint_of(origin)
            self._request = request_head(
                self._method, target, endpoint.host_header, headers, length, is_chunked=is_chunked
            )
        except ValueError as error:
            self._fail(error)
            return
        pool, client = self._pool, self._client
        lane = self._lane = pool.lane(endpoint, route, purpose, is_upload=self._upload is not None)
        self._dialling.dialer.look_again(endpoint)
        payer = client if isinstance(client, str) else next(iter(client.nets))
        connection = pool.take_idle(lane, payer, is_head=self._method == "HEAD")
        if connection is not None:
            self._requester.sent()
            self._send(connection)
        else:
            self._connect(endpoint, is_repeat=False)

    def _connect(self, endpoint: Endpoint, *, is_repeat: bool) -> None:
        self._connecting = self._dialling.tasks.start(self._until_connected(endpoint, is_repeat), f"to {endpoint}")

    async def _until_connected(self, endpoint: Endpoint, is_repeat: bool) -> None:
        try:
            connection = await self._connected(endpoint, is_repeat)
        except Exception as error:
            self._connecting = None
            self._fail(error)
        else:
            self._connecting = None
            self._send(connection)

    async def _connected(self, endpoint: Endpoint, is_repeat: bool) -> Carrier:
        """A connection: in its turn, and made within its own bound if none is idle or a kept one must not be used."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        pool = self._pool
        slot = await pool.acquire(self._lane, self._client)
        try:
            self._by = min(self._by + loop.time() - began, self._deadline)
            self._requester.sent()
            if self._dialling.uses_http2(endpoint):
                stream = await self._bounded(self._stream(endpoint, slot))
                if stream is not None:
                    return stream
            kept = None if is_repeat else pool.idle(slot, is_head=self._method == "HEAD")
            if kept is not None:
                return kept
            dial = self._dialling.dialer.dial(endpoint, pool, self._bounds.connect_s)
            connection = await self._bounded(dial)
            if not connection.is_open:
                # Closed before it was used.  It never took the slot, so the slot is released below.
                raise ConnectionLost
            pool.made(connection, slot)
        except BaseException:
            pool.release(slot)
            raise
        return connection

    async def _stream(self, endpoint: Endpoint, slot: Slot) -> Carrier | None:
        """A stream of a connection that has room, or is made now.  If others use it up first, another one is made.

        None if the host is no longer asked over HTTP/2.
        """
        bounds = self._bounds
        try:
            async with asyncio.timeout(bounds.connect_s):
                while self._dialling.uses_http2(endpoint):
                    if (stream := self._pool.idle(slot, is_head=False)) is not None:
                        return stream
                    await self._dialling.http2_dials.dialled(self._pool, endpoint, bounds.connect_s)
        except TimeoutError as error:
            raise ConnectTimedOut from error
        return None

    async def _bounded(self, dial: Coroutine[None, None, T]) -> T:
        """What `dial` makes within its own bound, and within that of the exchange."""
        bound = asyncio.timeout_at(self._by if self._by < inf else None)
        try:
            async with bound:
                if self._sending is not None:
                    self._sending.set_cancel(partial(_expire, bound))
                return await dial
        finally:
            # The bound refers to the task, and the traceback of a cancelled task to this frame.
            del bound
            if self._sending is not None:
                self._sending.set_cancel(no_op)

    def _send(self, connection: Carrier) -> None:
        self._connection = connection
        body = self._body
        whole = body if isinstance(body, bytes) else None
        is_head, is_upload = self._method == "HEAD", self._upload is not None
        incoming = connection.ask(self._request, whole, self._by, is_head=is_head, is_upload=is_upload)
        self._incoming = incoming
        incoming.on_change = self._changed
        incoming.on_interim = self._informed
        if self._upload is not None:
            pool = self._pool
            name = f"upload {connection.endpoint}"
            upload = self._dialling.tasks.start(self._upload.run(connection, incoming), name)
            # A callback, because a task cancelled before its first step never reaches its `finally`.  It comes before
            # the connection's own, which may give the connection to another request.
            upload.add_done_callback(lambda _: pool.upload_done(connection))
            connection.uploading(upload)
        if self._sending is not None:
            # Last, because the call may end the exchange.
            self._sending.set_cancel(incoming.time_out)

    def _informed(self, interim: Interim) -> None:
        """An interim reply is a sign of life (RFC 9110 section 15.2): the wait for the head begins again."""
        if self.is_over or self._connection is None:
            return
        if self._upload is None or self._upload.has_ended:
            now = asyncio.get_running_loop().time()
            self._connection.deadline.move(min(now + self._bounds.first_byte_s, self._deadline))
        self._requester.informed(interim)

    def _changed(self) -> None:
        incoming, connection = self._incoming, self._connection
        assert incoming is not None
        assert connection is not None
        if (head := incoming.head) is not None:
            incoming.detach()
            self.is_over = True
            reply = Reply(head, incoming, self._bounds, self._deadline, self._sending)
            if self._lane.purpose is Purpose.READ:
                reply.in_slot(self._lane, self._pool.stalls)
            if self._sending is not None:
                self._sending.answered(reply)
            if self._span is not None:
                self._span.answered(reply.status)
                reply.span = self._span
            self._requester.answered(reply)
        elif (error := incoming.error) is not None:
            if not incoming.has_received and self._is_repeatable(error) and connection.may_repeat():
                incoming.detach()
                self._connection = None
                self._connect(connection.endpoint, is_repeat=True)
            else:
                self._fail(error)

    @property
    def _was_reused(self) -> bool:
        """Whether the connection had carried other exchanges, and no byte of the reply has arrived on it."""
        connection, incoming = self._connection, self._incoming
        return bool(connection and connection.is_reused and incoming and not incoming.has_received)

    def _is_repeatable(self, error: BaseException) -> bool:
        has_body, is_streamed = self._body is not None, self._upload is not None
        return is_repeatable(error, self._method, has_body=has_body, is_streamed=is_streamed)

    def _fail(self, error: BaseException) -> None:
        if self.is_over:
            return
        self._cancel()
        failure = _failure(error, is_unsent=self._incoming is None)
        if self._sending is not None:
            by_client = self._upload is not None and self._upload.is_at_fault(error)
            if self._sending.failed(error, by_client=by_client, is_reused=self._was_reused):
                failure = UpstreamUnreachable()
        failure.__cause__ = bare(error)
        if self._span is not None:
            self._span.failed(failure)
            self._span.end()
        self._requester.failed(failure)

    def leave(self) -> None:
        """Give up waiting for the head.  Has no effect once it is here."""
        if self.is_over:
            return
        # A client that cancels its reads must not cost the others the connections that are kept for all.
        incoming = self._incoming
        if incoming is not None and self._lane.purpose is Purpose.READ:
            self._incoming = None
            incoming.detach()
            incoming.leave()
        self._cancel()
        left = asyncio.CancelledError()
        if self._sending is not None:
            self._sending.failed(left, by_client=True)
        if self._span is not None:
            self._span.failed(left)
            self._span.end()

    def _cancel(self) -> None:
        self.is_over = True
        if self._connecting is not None:
            self._connecting.cancel()
            # A cancelled task keeps its traceback, whose frames refer to this exchange.
            self._connecting = None
        if self._incoming is not None:
            self._incoming.detach()
            self._incoming.end(ConnectionLost("left"))


def _expire(bound: asyncio.Timeout) -> None:
    bound.reschedule(asyncio.get_running_loop().time())


def _failure(error: BaseException, *, is_unsent: bool) -> GatewayError:
    """Translate a failure into an error of `errors.py`."""
    match error:
        case ConnectTimedOut():
            return UpstreamTimeout(is_unsent=is_unsent)
        case NoSlot():
            return UpstreamCongested()
        case NotConnected(__cause__=ssl.SSLError()) | ConnectionLost(__cause__=ssl.SSLError()):
            # Not a transient failure: the text tells the operator the reason at once.
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

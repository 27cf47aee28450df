"""One request to one host, and its reply, over HTTP/1.1 or HTTP/2.

Events drive an exchange by plain calls: a connection is ready, a head has arrived, something has failed.  The exchange
notifies its `Requester` by plain calls too.  A task runs only while the exchange waits for a connection.

All waits are bounded: for a slot (the right to a connection), for the connection, for the first byte, for each part of
a body, and in total.  The bound on the first byte begins after the wait for a slot, which is not the origin's fault.

Bodies are passed on as they are.  Nothing is decompressed, no redirect is followed, no cookie is kept, and a `101` is
refused.  Reading a truncated body raises an exception, so a body that was read without an exception is complete.  This
module translates exceptions of other libraries into the exceptions of `errors.py`.

A request may be sent once more if a kept connection proves to be dead.  `gateway.upstream.repeats_and_retries` has the
rule for such repetitions.

If the host is an origin of a route, the outcome is reported to the origin's state (`OriginRequest`).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Coroutine
from functools import partial
from math import inf
from typing import Final, Protocol, TypeVar

from gateway.aio.tasks import Tasks
from gateway.errors import GatewayError, UpstreamBroken, UpstreamCongested, UpstreamTimeout, UpstreamUnreachable, bare
from gateway.http.outgoing import request_head
from gateway.http.reply_parser import Interim, ReplyBroken
from gateway.telemetry.tracing import NO_TRACER, ExchangeSpan, Tracer
from gateway.upstream.connection_pool import ConnectionPool, Slot
from gateway.upstream.dialer import Dialer, Http2Dials
from gateway.upstream.failures import ConnectionLost, ConnectTimedOut, NoSlot, NotConnected, UploadFailed, reason_of
from gateway.upstream.incoming import Carrier, IncomingReply, Upload, ignore, no_op
from gateway.upstream.origin_call import Endpoint, OriginCall, endpoint_of
from gateway.upstream.origin_state import OriginRequest
from gateway.upstream.repeats_and_retries import is_repeatable
from gateway.upstream.reply import Reply, Requester
from gateway.upstream.slots import Lane, Purpose

_log = logging.getLogger("gateway.upstream")

# Module names are faster to look up than enum members, and every request needs these members.
_READ, _WRITE, _LIVE = Purpose.READ, Purpose.WRITE, Purpose.LIVE
_READS: Final = frozenset({"GET", "HEAD"})
_REDIRECTS: Final = frozenset({307, 308})
"""The statuses by which an origin redirects a request to another origin, with the same method."""

T = TypeVar("T")


class Hosts(Protocol):
    """The part of `gateway.upstream.client.Exchanges` that an exchange uses."""

    tasks: Tasks
    time: Callable[[], float]
    tracer: Tracer
    dialer: Dialer
    http2_dials: Http2Dials
    shared: ConnectionPool
    live: ConnectionPool

    def uses_http2(self, endpoint: Endpoint) -> bool:
        """Return whether requests to the host are sent over HTTP/2."""


class Exchange:
    """One request to one host, up to the head of its reply.

    The requester is notified once, of a reply or a failure.  After `give_up` it is not notified.
    """

    __slots__ = (
        "_by",
        "_call",
        "_connecting",
        "_connection",
        "_deadline",
        "_hosts",
        "_incoming",
        "_lane",
        "_pool",
        "_request",
        "_requester",
        "_sent",
        "_span",
        "_upload",
        "is_over",
    )

    def __init__(self, hosts: Hosts, requester: Requester, call: OriginCall, sent: OriginRequest | None = None) -> None:
        self._hosts = hosts
        self._pool = hosts.live if call.is_live else hosts.shared
        self._requester = requester
        self._call = call
        self._sent = sent
        """The request, as recorded in the state of its origin; None for a host without such a state."""
        self._span: ExchangeSpan | None = None
        self._lane: Lane
        self._deadline: float
        """When the end of the reply is due (the loop's clock)."""
        self._by: float
        """When the head of the reply is due (the loop's clock)."""
        self._request = b""
        self._upload: Upload | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._connection: Carrier | None = None
        self._incoming: IncomingReply | None = None
        """The reply; None until the request is being sent."""
        self.is_over = False
        """Whether a head has arrived, or the exchange has failed or was given up."""

    def send_request(self, authority: str, target: str, route: str = "") -> None:
        """Send the request for `target` (in origin form) to `authority`, as in `http://host:port`.

        The slot is taken from the share of `route`, and charged to the call's client.  If the call has several clients,
        the slot is charged to the client whose turn comes first.
        """
        method, _, headers, bounds, body, is_live, client, repeated, _, _ = self._call
        hosts, pool = self._hosts, self._pool
        began = hosts.time()
        if hosts.tracer is not NO_TRACER and (span := hosts.tracer.exchange(method, authority + target, headers)):
            self._span, headers = span, span.headers
        deadline = self._deadline = self._by = inf if bounds.total_s is None else began + bounds.total_s
        length: int | None = None
        is_streamed = is_chunked = False
        try:
            if body is None or isinstance(body, bytes):
                if (by := began + bounds.first_byte_s) < deadline:
                    self._by = by
                if body is not None:
                    length = len(body)
            else:
                # During a long upload the reply cannot begin, so only `total_s` bounds its first byte.
                self._upload = Upload(body, bounds.first_byte_s, self._deadline)
                length = self._upload.measure(headers)
                is_streamed, is_chunked = True, length is None
            endpoint = endpoint_of(authority)
            head = request_head if repeated is None else repeated.head
            self._request = head(method, target, endpoint.host_header, headers, length, is_chunked=is_chunked)
        except ValueError as error:
            self._fail(error)
            return
        purpose = _LIVE if is_live else _READ if body is None and method in _READS else _WRITE
        lane = self._lane = pool.lane(endpoint, route, purpose, is_upload=is_streamed)
        hosts.dialer.look_again(endpoint.host, endpoint.port)
        payer = client if isinstance(client, str) else next(iter(client.nets))
        connection = pool.take_idle(lane, payer, began, is_head=method == "HEAD")
        if connection is not None:
            self._requester.sent()
            self._send(connection)
        else:
            self._connect(endpoint, is_repeat=False)

    def _connect(self, endpoint: Endpoint, *, is_repeat: bool) -> None:
        self._connecting = self._hosts.tasks.start(self._until_connected(endpoint, is_repeat), f"to {endpoint}")

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
        """Wait for a slot, and return an idle or a new connection.  A repeated request needs a new connection."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        pool = self._pool
        slot = await pool.acquire(self._lane, self._call.client)
        try:
            self._by = min(self._by + loop.time() - began, self._deadline)
            self._requester.sent()
            if self._hosts.uses_http2(endpoint):
                stream = await self._bounded(self._stream(endpoint, slot))
                if stream is not None:
                    return stream
            kept = None if is_repeat else pool.idle(slot, is_head=self._call.method == "HEAD")
            if kept is not None:
                return kept
            dial = self._hosts.dialer.dial(endpoint, pool, self._call.bounds.connect_s)
            connection = await self._bounded(dial)
            if not connection.is_open:
                # The connection was closed before it took over the slot, which is released below.
                raise ConnectionLost
            pool.made(connection, slot)
        except BaseException:
            pool.release(slot)
            raise
        return connection

    async def _stream(self, endpoint: Endpoint, slot: Slot) -> Carrier | None:
        """Return a stream of an HTTP/2 connection, and make connections until one takes the request.

        Returns None if the host is no longer configured for HTTP/2.
        """
        bounds = self._call.bounds
        try:
            async with asyncio.timeout(bounds.connect_s):
                while self._hosts.uses_http2(endpoint):
                    if (stream := self._pool.idle(slot, is_head=False)) is not None:
                        return stream
                    await self._hosts.http2_dials.dialled(self._pool, endpoint, bounds.connect_s)
        except TimeoutError as error:
            raise ConnectTimedOut from error
        return None

    async def _bounded(self, dial: Coroutine[None, None, T]) -> T:
        """Await `dial`, but no longer than until the head of the reply is due.  The wait also ends if the request's
        `OriginRequest` is ended."""
        bound = asyncio.timeout_at(self._by if self._by < inf else None)
        try:
            async with bound:
                if self._sent is not None:
                    self._sent.end_by(partial(_expire, bound))
                return await dial
        finally:
            # Break a reference cycle: the bound refers to the task, whose traceback refers to this frame.
            del bound
            if self._sent is not None:
                self._sent.end_by(no_op)

    def _send(self, connection: Carrier) -> None:
        self._connection = connection
        call, upload = self._call, self._upload
        whole = call.body if isinstance(call.body, bytes) else None
        is_head, is_upload = call.method == "HEAD", upload is not None
        incoming = connection.ask(self._request, whole, self._by, is_head=is_head, is_upload=is_upload)
        self._incoming = incoming
        incoming.on_change = self._changed
        incoming.on_interim = self._informed
        if upload is not None:
            pool = self._pool
            sending = self._hosts.tasks.start(upload.run(connection, incoming), f"upload {connection.endpoint}")
            # Use a callback instead of `finally`, because a task cancelled before its first step does not run
            # `finally`.  Add this callback before the connection adds a callback that may free the connection.
            sending.add_done_callback(lambda _: pool.upload_done(connection))
            connection.uploading(sending)
        sent = self._sent
        if sent is not None:
            sent.on_end = incoming.time_out
            if sent.has_ended:
                # The origin's state has ended the request before `on_end` was set.
                incoming.time_out()

    def _informed(self, interim: Interim) -> None:
        """Begin the wait for the head again, because an interim reply shows that the origin is at work (RFC 9110
        section 15.2).
        """
        if self.is_over or self._connection is None:
            return
        if self._upload is None or self._upload.has_ended:
            now = self._hosts.time()
            self._connection.deadline.move(min(now + self._call.bounds.first_byte_s, self._deadline))
        self._requester.informed(interim)

    def _changed(self) -> None:
        incoming, connection = self._incoming, self._connection
        assert incoming is not None
        assert connection is not None
        if (head := incoming.head) is not None:
            incoming.on_change, incoming.on_interim = no_op, ignore
            self.is_over = True
            reply = Reply(head, incoming, self._call.bounds, self._deadline, self._sent)
            if self._lane.purpose is _READ and not incoming.has_ended:
                reply.in_slot(self._lane, self._pool.stalls, self._hosts.time())
            if self._sent is not None:
                self._sent.took_head(head.status, reply.cut)
            if self._span is not None:
                self._span.set_status(reply.status)
                reply.span = self._span
            if head.status in _REDIRECTS:
                self._redirected(reply)
            else:
                self._requester.head_arrived(reply)
        elif (error := incoming.error) is not None:
            if not incoming.has_received and self._is_repeatable(error) and connection.may_repeat():
                incoming.detach()
                self._connection = None
                self._connect(connection.endpoint, is_repeat=True)
            else:
                self._fail(error)

    @property
    def _was_reused(self) -> bool:
        """Whether the connection has carried other exchanges, and no byte of the reply has arrived."""
        connection, incoming = self._connection, self._incoming
        return bool(connection and connection.is_reused and incoming and not incoming.has_received)

    def _is_repeatable(self, error: BaseException) -> bool:
        has_body, is_streamed = self._call.body is not None, self._upload is not None
        return is_repeatable(error, self._call.method, has_body=has_body, is_streamed=is_streamed)

    def _fail(self, error: BaseException) -> None:
        if self.is_over:
            return
        self._cancel()
        failure = _failure(error, is_unsent=self._incoming is None)
        if self._sent is not None:
            by_client = self._upload is not None and self._upload.is_at_fault(error)
            if self._sent.gave_up(error, by_client=by_client, is_reused=self._was_reused):
                failure = UpstreamUnreachable()
        failure.__cause__ = bare(error)
        if self._span is not None:
            self._span.failed(failure)
            self._span.end_span()
        self._failed(failure)

    # -- the end; the subclass in `gateway.upstream.client` may try another origin instead

    def _redirected(self, reply: Reply) -> None:
        self._requester.head_arrived(reply)

    def _failed(self, error: GatewayError) -> None:
        self._requester.failed(error)

    def give_up(self) -> None:
        """Cancel the request.  Has no effect once the head has arrived."""
        if self.is_over:
            return
        # Keep the connection if possible.  Otherwise a client could close kept connections by cancelling its reads.
        incoming = self._incoming
        if incoming is not None and self._lane.purpose is _READ:
            self._incoming = None
            incoming.detach()
            incoming.abandon()
        self._cancel()
        left = asyncio.CancelledError()
        if self._sent is not None:
            self._sent.gave_up(left, by_client=True)
        if self._span is not None:
            self._span.failed(left)
            self._span.end_span()

    def _cancel(self) -> None:
        self.is_over = True
        if self._connecting is not None:
            self._connecting.cancel()
            # Break a reference cycle: frames of the cancelled task's traceback refer to this exchange.
            self._connecting = None
        if self._incoming is not None:
            self._incoming.detach()
            self._incoming.break_off("left")


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
            # A TLS failure is not transient, so the message gives the reason.
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

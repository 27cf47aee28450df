"""One client's connection over HTTP/1.1: what comes is parsed, each request answered in its turn.

A request whose bytes are remembered (`remembered`) is answered at once, without being parsed: those very bytes were
parsed before.  Any other goes to the handler in a task of its own.  Live answers have no task: a reader of the stream
writes to the connection (`gateway.server.live`).

Requests that come before the one in front of them is answered wait here, already parsed, and nothing more is read
meanwhile.  A parser is held only from the first byte of a message to its last.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Final, cast

from multidict import CIMultiDict

from gateway.errors import BadRequest
from gateway.http.http2 import frames
from gateway.http.request import Event, Mark, RequestHead, RequestParser
from gateway.http.state import State
from gateway.protocol.proxies import Proxies
from gateway.server.body import RequestBody
from gateway.server.clients import Clients, Work
from gateway.server.deadlines import NOT_SEEN, Phase
from gateway.server.head import response_head
from gateway.server.http2.connection import Http2Connection
from gateway.server.joins import Join
from gateway.server.remembered import MAX_REQUEST_BYTES, RememberedAnswer
from gateway.server.request import Channel, Request
from gateway.server.writing import WritingConnection

_log = logging.getLogger("gateway.server")

_LINGER_S: Final = 1.0
_SLICE_BYTES: Final = 1 << 14
"""So much is parsed at a time: requests take many times the memory of the bytes that they came in."""
_MOST_PENDING: Final = 1 << 12
"""Bytes, and events, that wait behind the request that is being answered before no more is read."""
_BAD_REQUEST: Final = b"Bad request\n"
_PREFACE: Final = frames.PREFACE
_NOTHING: Final[deque[Event]] = deque()


class Connection(WritingConnection):
    """One client's connection.  Owner of its transport."""

    __slots__ = (
        "_body",
        "_candidate",
        "_candidate_generation",
        "_client",
        "_exact",
        "_is_busy",
        "_is_going_on",
        "_is_held",
        "_is_unread",
        "_parser",
        "_pending",
        "_request",
        "_rest",
        "_task",
    )

    scheme: str = "http"
    versions = frozenset({"1.0", "1.1"})

    def __init__(self, clients: Clients, told: str | None = None) -> None:
        """`told` is the client's address where the connection's own peer is not the client."""
        super().__init__(clients)
        clients.expect()
        self._exact = clients.exact
        self._parser: RequestParser | None = None
        """The parser that holds a part of a message, or has read the last one."""
        self._pending: deque[Event] = _NOTHING
        """What has been parsed and not been taken."""
        self._rest = b""
        """What has come and is not parsed yet."""
        self._is_unread = False
        """Whether no more is read until what is pending has been taken."""
        self._is_busy = False
        """Whether a request may find something before it here: a look is due before it is answered from memory."""
        self._is_going_on = False
        """Whether what is pending is being taken now."""
        self._is_held = False
        """Whether the body that is being read has enough for now."""
        self._body: RequestBody | None = None
        """The body that is being read."""
        self._task: asyncio.Task[None] | None = None
        self._request: Request | None = None
        """The one that is being answered."""
        self._candidate: bytes | None = None
        """The request that is being answered, where its bytes may be remembered."""
        self._candidate_generation = 0
        """That of what is remembered when the candidate was read."""
        self._client = told

    @property
    def client(self) -> str | None:
        """The address that the connection has come from, without its port; None where it has none."""
        if self._client is None and self.transport is not None:
            peer = self.transport.get_extra_info("peername")
            self._client = peer[0] if isinstance(peer, tuple) else None
        return self._client

    @property
    def proxies(self) -> Proxies | None:
        return self._clients.proxies

    @property
    def alias(self) -> bytes | None:
        """The request in bytes, where it came by itself and whole, and they may be remembered."""
        return self._candidate if self._candidate_generation == self._clients.joins.generation else None

    # -- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's.
        self.transport = transport = cast("asyncio.Transport", transport)
        clients = self._clients
        if not clients.admit(self):
            transport.abort()
            return
        # Half of the bound on unsent bytes; the listener gives the other half to the kernel's buffer.
        transport.set_write_buffer_limits(high=clients.limits.send_buffer_bytes // 2)
        self._watch(clients.limits.client_header_timeout_s)

    def data_received(self, data: bytes) -> None:
        # The one place where every attribute counts: a hit that nothing stands before.
        answer = self._exact.get(data)
        if (
            answer is None
            or self._is_busy
            or self._now() >= answer.until
            or answer.stale_marks != answer.stream.stale_marks
            or ((tail := answer.tail) is not None and tail.turn != answer.stream.tail_turns)
            or self.transport is None
        ):
            self._receive(data)
            return
        self._is_active = True
        answer.hits += 1
        if answer.joined is not None:
            self.transport.write(answer.joined)
        else:
            self.transport.writelines(answer.pieces)
        if self._clients.on_hit is not None:
            self._clients.on_hit(answer, self.client, data)

    def _receive(self, data: bytes) -> None:
        clients = self._clients
        if self.phase is Phase.LINGERING or self.transport is None or self.transport.is_closing():
            return
        is_first = not self._is_busy
        if is_first and clients.join is not None and (join := clients.joins.get(data)) is not None:
            self._is_busy = self._is_active = True
            if self._has_joined(clients.join, join):
                return
            self._is_busy = False
        remembered = clients.remembered
        if is_first and remembered is not None and (answer := remembered.find(data)) is not None:
            self._is_active = True
            self._serve(answer, data)
            return
        if is_first:
            self._candidate = None
        self._rest += data
        if not self._is_active and self._quiet_looks < 0 and self._rest[:1] == _PREFACE[:1] and self._is_http2():
            return
        self._read(is_first)

    def _is_http2(self) -> bool:
        """Whether these first bytes of the connection are HTTP/2's, so far (RFC 9113 section 3.3)."""
        data, transport = self._rest, self.transport
        assert transport is not None
        if len(data) < len(_PREFACE) and _PREFACE.startswith(data):
            self._is_busy = True
            self._watch_head()
            return True
        if self.scheme != "http" or not data.startswith(_PREFACE):
            return False
        self._unwatch()
        self.transport = None
        Http2Connection(self._clients, self._client, is_expected=False).take_over(self, transport, data)
        return True

    def _read(self, is_first: bool = False) -> None:
        """Parse what has come, a slice at a time, as far as what is parsed can be taken."""
        data = self._rest
        while data and not self._pending:
            part, data = (data[:_SLICE_BYTES], data[_SLICE_BYTES:]) if len(data) > _SLICE_BYTES else (data, b"")
            # Beforehand: what is taken now may lead here again.
            self._rest = data
            self._feed(part, is_first)
            is_first, data = False, self._rest
        if self._pending and self.transport is not None and len(self._rest) + len(self._pending) > _MOST_PENDING:
            # Not at once: an end that is not read is not seen.
            self._is_unread = True
            self.transport.pause_reading()
        elif self._is_unread and not self._pending:
            self._is_unread = False
            if not self._is_held:
                self.go_on()

    def _feed(self, data: bytes, is_first: bool) -> None:
        clients = self._clients
        events = clients.header_cache.lookup(data) if is_first else None
        if events is None:
            parser = self._parser or clients.parser()
            events = parser.feed(data)
            if parser.state is State.IDLE:
                self._parser = None
                clients.spare(parser)
                if is_first:
                    clients.header_cache.store(data, events)
            else:
                self._parser = parser
        if events:
            # Line ends between two requests are no sign of life.
            self._is_active = True
        # Nothing may be left in the parser: it would be a part of what is remembered.
        if is_first and self._parser is None and _is_one_plain_get(events, data):
            self._candidate = data
            self._candidate_generation = clients.joins.generation
        self._pending = deque(events)
        self._go_on()

    def eof_received(self) -> None:
        """The client has said its last word: with None the transport closes."""

    def pause_writing(self) -> None:
        self.is_full = self._is_busy = True
        if self.phase is Phase.LIVE:
            # It is sent no more until it has read: moved back to reading the tape.
            self._clients.metrics.slow_consumer(is_closed=False)
        if self.phase is not Phase.ANSWERING:
            # An answer that the client does not take: nobody awaits it, so its deadline is kept here.
            self._unsent = NOT_SEEN
            self._expect_progress()

    def resume_writing(self) -> None:
        self.is_full = False
        self._has_room()
        if self.phase is Phase.ANSWERING:
            return
        if self._live is not None:
            self._watch_idle()
            self._live.pump()
        elif self.phase is Phase.IDLE:
            self._watch_idle()
            self._resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        self.transport = None
        # Nobody says any more that there is room: what is still to come of an answer is taken, and dropped.
        self.is_full = False
        self._pending = _NOTHING
        self._rest = b""
        parser, self._parser = self._parser, None
        if parser is not None:
            parser.close()
        body, self._body = self._body, None
        if body is not None:
            body.fail(BadRequest("Request body ended early"))
        self._has_room(ConnectionResetError("the client has gone"))
        live, self._live = self._live, None
        if live is not None:
            live.left(self)
        if self._task is not None and live is None and not (self._request is not None and self._request.is_detached):
            self._task.cancel()
        elif self._request is not None and not self._request.is_detached:
            self._request = None
        self._leave_if_gone()

    # -- requests, one after the other

    def _go_on(self) -> None:
        """Take of what has been parsed as much as can be taken now."""
        pending = self._pending
        self._is_going_on = True
        while pending and self.transport is not None and not self.transport.is_closing():
            if self._body is not None:
                self._take_body(self._body, pending)
                continue
            event = pending[0]
            if not isinstance(event, RequestHead) and event is not Mark.BROKEN:
                # The rest of a body that nobody reads any more.
                pending.popleft()
            elif self.phase is not Phase.IDLE or self.is_full:
                break
            elif isinstance(event, RequestHead):
                pending.popleft()
                self._begin_request(event)
            else:
                self._refuse()
                break
        self._is_going_on = False
        self._regard()

    def _take_body(self, body: RequestBody, pending: deque[Event]) -> None:
        """Give a body what of it has come."""
        while pending and self._body is body:
            event = pending.popleft()
            if isinstance(event, bytes):
                body.feed(event)
                continue
            self._body = None
            if event is Mark.END:
                body.end()
            else:
                # Broken: nobody can tell where it would end, so that this answer is the last one.
                body.fail(BadRequest("Malformed request body"))

    def _regard(self) -> None:
        """See what is to be waited for next."""
        transport, parser = self.transport, self._parser
        if transport is None or transport.is_closing():
            return
        self._is_busy = (
            self.phase is not Phase.IDLE
            or parser is not None
            or bool(self._pending)
            or bool(self._rest)
            or self.is_full
        )
        if self.phase is Phase.IDLE and parser is not None and parser.state is State.HEAD:
            self._watch_head()
        elif self.has_part:
            self.has_part = False
            self._watch_idle()

    def _begin_request(self, head: RequestHead) -> None:
        pending = self._pending
        if pending and pending[0] is Mark.END:
            pending.popleft()
            body = self._body = None
        else:
            body = self._body = RequestBody(self, head)
            # All that has come, so that a small body is whole before anybody waits for it.
            self._take_body(body, pending)
        self.phase = Phase.ANSWERING
        request = self._request = Request(self, head, body)
        try:
            work = self._clients.handler(request)
        except Exception:
            _log.exception("unhandled error")
            if self._live is None:
                self._fail(request)
            else:
                self.abort()
            return
        if work is not None:
            self._task = task = self._clients.loop.create_task(self._work(request, work))
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """What was left to be done has been, or was cancelled before it began."""
        # Its live answer may be over already, and the next request have begun.
        if self._task is task:
            self._task = None
            self._leave_if_gone()

    def _leave_if_gone(self) -> None:
        if self.transport is None and self._task is None and (self._request is None or not self._request.is_detached):
            self._clients.leave(self)

    def _has_joined(self, join: Callable[[Channel, Join], bool], asked: Join) -> bool:
        """Whether a live answer to a request that is known by its bytes has begun."""
        try:
            return join(self, asked)
        except Exception:
            _log.exception("unhandled error")
            self.abort()
            return True

    async def _work(self, request: Request, work: Work) -> None:
        """Have the request answered, whatever comes of that."""
        try:
            answered = await work
        except ConnectionError:
            self.abort()
        except asyncio.CancelledError:
            self.abort()
            raise
        except Exception:
            _log.exception("unhandled error")
            self._fail(request)
        else:
            if answered is not None:
                self.answered(request)

    def _fail(self, request: Request) -> None:
        """What went wrong in detail is in the log."""
        if request.has_begun:
            self.abort()
            return
        request.keeps_alive = False
        self.respond(request, 500, _plain(), b"Internal error\n")
        self.answered(request)

    def answered(self, request: Request) -> None:
        """The answer is out: the connection is free for the next request, or goes."""
        self.phase = Phase.IDLE
        self._live = self._request = None
        if self.transport is None:
            self._leave_if_gone()
            return
        is_whole = request.body is None or request.body.is_whole
        self._body = None
        if self._is_held:
            self.go_on()
        if not is_whole:
            self._linger()
        elif not request.keeps_alive or self._clients.is_leaving:
            self._close()
        else:
            self._resume()

    def _resume(self) -> None:
        """Take the next request."""
        self._candidate = None
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        self._is_active = True
        if self.is_full:
            self._unsent = NOT_SEEN
            self._expect_progress()
        elif self._tick < 0:
            self._watch_idle()
        if self._is_going_on:
            # What was parsed behind this request is taken by whoever has begun it.
            return
        if not self._pending and self._parser is None and not self._rest:
            # Most of the time: whoever was answered has sent nothing since.
            self._is_busy = self.is_full
            return
        self._go_on()
        self._read()

    def _refuse(self) -> None:
        """What came is no request, and the connection goes."""
        self._clients.on_bad_request(400, len(_BAD_REQUEST), self.client)
        assert self.transport is not None
        headers = _plain()
        headers["Content-Length"] = str(len(_BAD_REQUEST))
        self.transport.write(response_head(400, headers, self._clients.wall(), keeps=False) + _BAD_REQUEST)
        self._linger()

    def _linger(self) -> None:
        """Say that this was all, and let the client read it: a close with bytes unread would take it back."""
        transport = self.transport
        self._pending = _NOTHING
        self._rest = b""
        if transport is None or transport.is_closing():
            return
        self.phase = Phase.LINGERING
        self._is_busy = True
        if transport.can_write_eof():
            transport.write_eof()
        transport.resume_reading()
        self._watch(_LINGER_S)

    # -- answers from memory

    def _serve(self, answer: RememberedAnswer, request: bytes) -> None:
        assert self.transport is not None
        answer.hits += 1
        if answer.joined is not None:
            self.transport.write(answer.joined)
        else:
            self.transport.writelines(answer.pieces)
        if self._clients.on_hit is not None:
            self._clients.on_hit(answer, self.client, request)

    def learn(self, answer: RememberedAnswer, credential_headers: Collection[str]) -> None:
        """The request was answered so; remember it if it was one to remember, and if what it came by still holds."""
        alias, remembered = self.alias, self._clients.remembered
        if alias is not None and remembered is not None:
            remembered.remember(alias, answer, credential_headers)

    # -- a body's side

    def hold(self) -> None:
        self._is_held = True
        if self.transport is not None:
            self.transport.pause_reading()

    def go_on(self) -> None:
        self._is_held = False
        if self._pending or self._rest:
            # Not before that has been taken.
            self._is_unread = True
        elif self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()


class SecureConnection(Connection):
    """The same under TLS."""

    __slots__ = ()

    scheme = "https"


def _plain() -> CIMultiDict[str]:
    return CIMultiDict({"Content-Type": "text/plain; charset=utf-8", "Cache-Control": "no-store"})


def _is_one_plain_get(events: Sequence[Event], data: bytes) -> bool:
    """Whether `data` is one whole HTTP/1.1 GET without a body that keeps its connection, and nothing more."""
    if len(events) != 2 or len(data) > MAX_REQUEST_BYTES:
        return False
    head, end = events
    if end is not Mark.END or not isinstance(head, RequestHead) or head.method != "GET" or not head.keeps_alive:
        return False
    return head.fields.is_plain

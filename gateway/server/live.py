"""Live answers: SSE responses and waiting long-polls leave the strict protocol for the bare connection.

From here on nothing of aiohttp is held for such a client: the door keeps the connection, a subscriber or a waiter the
place in the stream.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable

from aiohttp import hdrs, web
from aiohttp.http import HttpVersion11
from multidict import CIMultiDict

from gateway.clock import Clock
from gateway.engine.answer import Answer
from gateway.engine.replies import failure_answer
from gateway.engine.request import Drain
from gateway.engine.route import Route
from gateway.engine.tail import Subscription, Waiting
from gateway.engine.waiter import Rendered, Waiter
from gateway.errors import GatewayError
from gateway.journal import CloseReason, Journal, LiveNote, Record, note_parked
from gateway.live.subscriber import Subscriber
from gateway.metrics_seam import NO_ROUTE
from gateway.protocol.cache_status import Outcome, cache_status
from gateway.protocol.coding import applied
from gateway.protocol.mode import Mode
from gateway.protocol.names import ACCEL_BUFFERING, SSE_TYPE, STREAM_CLOSED, STREAM_NEXT_OFFSET, is_true
from gateway.server.connection import ClientConnection
from gateway.server.door import Door
from gateway.server.head import date_line, field_lines, status_line
from gateway.tracing import NO_REQUEST, RequestSpan, current

_log = logging.getLogger("gateway.live")

Dress = Callable[[Route | None, str | None, CIMultiDict[str]], None]
"""Adds what every response carries, for a client of this route that sent this Origin header."""


class Parked(web.StreamResponse):
    """In place of a response: it is written elsewhere.  `until` is when the strict protocol goes on, where it does."""

    def __init__(self, until: asyncio.Future[None] | None) -> None:
        super().__init__()
        self._until = until

    async def prepare(self, request: web.BaseRequest) -> None:
        """Nothing to write."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing to end; what the client has sent behind this request waits until it is answered."""
        if self._until is not None:
            # Bounded by the live answer, which has bounds of its own.
            await self._until

    @property
    def keep_alive(self) -> bool:
        return True


class LiveAnswers:
    """Begins live answers.  Owns nothing: their doors do."""

    def __init__(self, node: str, dress: Dress, clock: Clock, drain: Drain, journal: Journal) -> None:
        self.node = node
        self.dress = dress
        self.drain = drain
        self.clock = clock
        self._journal = journal

    def subscribe(
        self, request: web.BaseRequest, subscription: Subscription, route: Route | None, began: float
    ) -> Parked:
        """Begin an SSE response.  Raises UpstreamBroken, and closes the subscription, for headers not to be written."""
        door = _door(request)
        is_chunked = request.version >= HttpVersion11
        keeps = is_chunked and request.keep_alive
        headers = CIMultiDict(subscription.stream.headers)
        headers.update(subscription.headers)
        headers["Content-Type"] = SSE_TYPE
        headers["Cache-Control"] = "no-cache, no-transform"
        headers[ACCEL_BUFFERING] = "no"
        headers["Cache-Status"] = cache_status(self.node, Outcome.FOLLOWED)
        if is_chunked:
            headers["Transfer-Encoding"] = "chunked"
        self.dress(route, request.headers.get(hdrs.ORIGIN), headers)
        try:
            head = self.head(200, headers, keeps=keeps)
        except GatewayError:
            subscription.close()
            raise
        subscriber = subscription.start(door)

        def look(into: Record) -> None:
            into.status, into.first_byte_s = 200, door.live_first_byte_s
            into.next_offset, into.sent_bytes = subscriber.at, door.live_bytes
            readers = subscriber.topic.readers_now
            into.subscribers = len(readers) + (subscriber not in readers)

        name = route.config.name if route is not None else NO_ROUTE
        note = self._note(Mode.SSE, name, began, look)
        until = door.take_over(subscriber, Mode.SSE, name, began, note, keeps=keeps, is_chunked=is_chunked)
        door.write_head(head)
        _start(subscriber)
        return Parked(until)

    def wait(self, request: web.BaseRequest, waiting: Waiting, route: Route | None, began: float) -> Parked:
        """Have a long-poll wait for its answer."""
        door = _door(request)
        keeps = request.version >= HttpVersion11 and request.keep_alive
        poller = _Poller(self, door, route, request.headers.get(hdrs.ORIGIN), keeps=keeps)
        waiter = waiting.start(poller)
        topic = waiting.topic

        def look(into: Record) -> None:
            into.sent_bytes = door.live_bytes
            into.subscribers = len(topic.readers_now) + (waiter not in topic.readers_now)
            if (answer := poller.answer) is not None:
                into.status = answer.status
                into.next_offset = answer.headers.get(STREAM_NEXT_OFFSET)
                into.first_byte_s = self.clock.now() - began
                into.coding, into.saved_bytes = applied(answer.headers.get(hdrs.CONTENT_ENCODING)), answer.saved_bytes

        name = route.config.name if route is not None else NO_ROUTE
        note = self._note(Mode.LONGPOLL, name, began, look)
        until = door.take_over(waiter, Mode.LONGPOLL, name, began, note, keeps=keeps, is_chunked=False)
        _start(waiter)
        return Parked(until)

    def _note(self, mode: Mode, route: str, began: float, look: Callable[[Record], None]) -> _LiveNote | None:
        """Where the answer that begins now is noted: in the access log and in its trace, where there are any."""
        record, span = note_parked(), current()
        span.park()
        if record is None and span is NO_REQUEST:
            return None
        note = None
        if record is not None:
            record.outcome = Outcome.FOLLOWED
            note = self._journal.live(record, began, look)
        return _LiveNote(note, span, mode, route, look)

    def head(self, status: int, headers: CIMultiDict[str], *, keeps: bool) -> bytes:
        """The head of a response.  Raises UpstreamBroken for a header that must not be written."""
        close = b"" if keeps else b"Connection: close\r\n"
        return status_line(status) + field_lines(headers) + close + date_line(int(self.clock.wall())) + b"\r\n"


class _Poller:
    """The client of a long-poll: a `gateway.engine.waiter.Client`."""

    __slots__ = ("_answers", "_door", "_keeps", "_origin", "_route", "answer")

    def __init__(
        self, answers: LiveAnswers, door: Door, route: Route | None, origin: str | None, *, keeps: bool
    ) -> None:
        self._answers = answers
        self._door = door
        self._route = route
        self._origin = origin
        self._keeps = keeps
        self.answer: Answer | None = None
        """What the client was told, in the end."""

    @property
    def shape(self) -> Hashable:
        return self._origin, self._keeps

    def render(self, answer: Answer) -> Rendered:
        try:
            return self._rendered(answer)
        except GatewayError as error:
            return self._rendered(failure_answer(self._answers.node, error))

    def _rendered(self, answer: Answer) -> Rendered:
        self._answers.dress(self._route, self._origin, answer.headers)
        body = answer.whole()
        if answer.status not in (204, 304):
            answer.headers["Content-Length"] = str(len(body))
        head = self._answers.head(answer.status, answer.headers, keeps=self._keeps)
        return Rendered(head + body, len(body), answer)

    def send(self, rendered: Rendered) -> None:
        self._door.write_response(rendered.data, rendered.body_bytes)

    def settle(self, rendered: Rendered) -> None:
        self.answer = answer = rendered.answer
        reason = _reason(answer, is_draining=self._answers.drain.is_set)
        self._door.answered(answer.outcome, reason, answer.saved_bytes)

    def has_gone(self) -> None:
        self._door.over(CloseReason.LEFT, in_order=False)


class _LiveNote:
    """The end of a live answer, for the log and for the trace."""

    __slots__ = ("_look", "_mode", "_note", "_route", "_span")

    def __init__(
        self, note: LiveNote | None, span: RequestSpan, mode: Mode, route: str, look: Callable[[Record], None]
    ) -> None:
        self._note = note
        self._span = span
        self._mode = mode
        self._route = route
        self._look = look

    @property
    def trace_id(self) -> str | None:
        """The trace that its figures are an example of, where it is sampled."""
        return self._span.trace_id if self._span.is_sampled else None

    def end(self, outcome: Outcome, reason: CloseReason) -> None:
        seen = Record()
        self._look(seen)
        if seen.status:
            self._span.answered(seen.status)
        self._span.tell(self._mode, outcome, self._route)
        self._span.end()
        if self._note is not None:
            self._note.end(outcome, reason)


def _start(reader: Subscriber | Waiter) -> None:
    """Have a live reader begin.  The connection is its own by now: no error of it may be told by a response."""
    try:
        reader.start()
    except Exception:
        _log.exception("a live answer failed")
        reader.gone()


def _reason(answer: Answer, *, is_draining: bool) -> CloseReason:
    """Why a long-poll that was answered so has ended."""
    if answer.status in (200, 304):
        return CloseReason.ANSWERED
    if answer.status == 204:
        if is_true(answer.headers.get(STREAM_CLOSED)):
            return CloseReason.CLOSED
        return CloseReason.DRAINED if is_draining else CloseReason.TIMED_OUT
    return CloseReason.ENDED if answer.status < 500 else CloseReason.FAILED


def _door(request: web.BaseRequest) -> Door:
    connection = request.protocol
    assert isinstance(connection, ClientConnection)
    return connection.door

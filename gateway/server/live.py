"""Live answers: SSE responses and waiting long-polls, given to a client by whoever keeps its place in the stream.

From here on no task is held for such a client: its channel has the connection, a subscriber or a waiter the place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable

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
from gateway.protocol.cache_status import Outcome, cache_status
from gateway.protocol.coding import applied
from gateway.protocol.mode import Mode
from gateway.protocol.names import SSE_TYPE, STREAM_CLOSED, STREAM_NEXT_OFFSET, is_true
from gateway.server.head import response_head
from gateway.server.request import Channel
from gateway.tracing import NO_REQUEST, RequestSpan, current

_log = logging.getLogger("gateway.live")

Dress = Callable[[Route | None, str | None, CIMultiDict[str]], None]
"""Adds what every response carries, for a client of this route that sent this Origin header."""


class LiveAnswers:
    """Begins live answers.  Owns nothing: their channels do."""

    def __init__(self, node: str, dress: Dress, clock: Clock, drain: Drain, journal: Journal) -> None:
        self.node = node
        self.dress = dress
        self.drain = drain
        self.clock = clock
        self._journal = journal

    def subscribe(
        self,
        channel: Channel,
        origin: str | None,
        subscription: Subscription,
        began: float,
        *,
        keeps: bool = True,
        is_chunked: bool = True,
    ) -> None:
        """Begin an SSE response to a client that sent this Origin header.  Raises UpstreamBroken, and closes the
        subscription, for headers not to be written."""
        route = subscription.read.route
        headers = CIMultiDict(subscription.stream.headers)
        headers.update(subscription.headers)
        headers["Content-Type"] = SSE_TYPE
        headers["Cache-Control"] = "no-cache"
        headers["Cache-Status"] = cache_status(self.node, Outcome.FOLLOWED)
        if is_chunked:
            headers["Transfer-Encoding"] = "chunked"
        self.dress(route, origin, headers)
        try:
            head = self.head(200, headers, keeps=keeps)
        except GatewayError:
            subscription.close()
            raise
        subscriber = subscription.start(channel)

        def look(into: Record) -> None:
            into.status, into.first_byte_s = 200, channel.live_first_byte_s
            into.next_offset, into.sent_bytes = subscriber.at, channel.live_bytes
            readers = subscriber.topic.readers_now
            into.subscribers = len(readers) + (subscriber not in readers)

        name = route.config.name
        note = self._note(Mode.SSE, name, began, look)
        channel.park(subscriber, Mode.SSE, name, began, note, keeps=keeps, is_chunked=is_chunked)
        channel.write_head(head)
        _start(subscriber)

    def wait(self, channel: Channel, origin: str | None, waiting: Waiting, began: float, *, keeps: bool = True) -> None:
        """Have the long-poll of a client that sent this Origin header wait for its answer."""
        route = waiting.read.route
        poller = _Poller(self, channel, route, origin, keeps=keeps)
        waiter = waiting.start(poller)
        topic = waiting.topic

        def look(into: Record) -> None:
            into.sent_bytes = channel.live_bytes
            into.subscribers = len(topic.readers_now) + (waiter not in topic.readers_now)
            if (answer := poller.answer) is not None:
                into.status = answer.status
                into.next_offset = answer.headers.get(STREAM_NEXT_OFFSET)
                into.first_byte_s = self.clock.now() - began
                into.coding, into.saved_bytes = applied(answer.headers.get("Content-Encoding")), answer.saved_bytes

        name = route.config.name
        note = self._note(Mode.LONGPOLL, name, began, look)
        channel.park(waiter, Mode.LONGPOLL, name, began, note, keeps=keeps)
        _start(waiter)

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
        return response_head(status, headers, self.clock.wall(), keeps=keeps)


class _Poller:
    """The client of a long-poll: a `gateway.engine.waiter.Client`."""

    __slots__ = ("_answers", "_channel", "_keeps", "_origin", "_route", "answer")

    def __init__(
        self, answers: LiveAnswers, channel: Channel, route: Route, origin: str | None, *, keeps: bool
    ) -> None:
        self._answers = answers
        self._channel = channel
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
        self._channel.write_response(rendered.data, rendered.body_bytes)

    def settle(self, rendered: Rendered) -> None:
        self.answer = answer = rendered.answer
        reason = _reason(answer, is_draining=self._answers.drain.is_set)
        self._channel.answered(answer.outcome, reason, answer.saved_bytes)

    def has_gone(self) -> None:
        self._channel.over(CloseReason.LEFT, in_order=False)


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

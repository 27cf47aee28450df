"""Live answers: SSE responses and waiting long-polls, given to a client by whoever keeps its place in the stream.

From here on no task is held for such a client: its channel has the connection, a subscriber or a waiter the place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from multidict import CIMultiDict

from gateway.engine.sse import Subscription
from gateway.engine.waiter import Waiter, Waiting
from gateway.errors import GatewayError
from gateway.live.subscriber import Subscriber
from gateway.protocol.cache_status import Outcome, cache_status
from gateway.protocol.coding import applied
from gateway.protocol.mode import Mode
from gateway.protocol.names import ACCEL_BUFFERING, SSE_TYPE, STREAM_NEXT_OFFSET
from gateway.server.head import response_head
from gateway.server.joins import Join, SseHead
from gateway.server.poll_group import PollGroup, Rendering
from gateway.server.request import Channel
from gateway.telemetry.access_record import AccessLog, CloseReason, LiveNote, Record, park_record
from gateway.telemetry.tracing import NO_REQUEST, RequestSpan, current

_log = logging.getLogger("gateway.live")


class LiveAnswers:
    """Begins live answers.  Owns nothing: their channels do."""

    def __init__(self, rendering: Rendering, access_log: AccessLog) -> None:
        self._rendering = rendering
        self._clock = rendering.clock
        self._access_log = access_log

    def subscribe(
        self,
        channel: Channel,
        join: Join,
        subscription: Subscription,
        began: float,
        *,
        keeps: bool = True,
        is_chunked: bool = True,
    ) -> None:
        """Begin an SSE response.  Raises UpstreamBroken, and closes the subscription, for headers not to be written."""
        route, stream, second = subscription.read.route, subscription.stream, int(self._clock.wall())
        sse_head = join.sse_head
        if (
            sse_head is not None
            and sse_head.second == second
            and sse_head.headers is stream.headers
            and sse_head.content_type == stream.content_type
        ):
            head = sse_head.head
        else:
            try:
                head = self._sse_head(subscription, join.origin, keeps=keeps, is_chunked=is_chunked)
            except GatewayError:
                subscription.close()
                raise
            join.sse_head = SseHead(stream.headers, stream.content_type, second, head)
        subscriber = subscription.start(channel)

        def look(into: Record) -> None:
            into.status, into.first_byte_s = 200, channel.live_first_byte_s
            into.next_offset, into.sent_bytes = subscriber.at, channel.live_bytes
            readers = subscriber.topic.readers_now
            into.subscribers = len(readers) + (subscriber not in readers)

        name = route.config.name
        note = self._note(Mode.SSE, name, began, look)
        channel.follow(subscriber, name, began, note, keeps=keeps, is_chunked=is_chunked)
        channel.write_head(head)
        _start(subscriber)

    def _sse_head(self, subscription: Subscription, origin: str | None, *, keeps: bool, is_chunked: bool) -> bytes:
        headers = CIMultiDict(subscription.stream.headers)
        headers.update(subscription.headers)
        headers["Content-Type"] = SSE_TYPE
        headers["Cache-Control"] = "no-cache, no-transform"
        headers[ACCEL_BUFFERING] = "no"
        headers["Cache-Status"] = cache_status(self._rendering.node, Outcome.FOLLOWED)
        if is_chunked:
            headers["Transfer-Encoding"] = "chunked"
        self._rendering.dress(subscription.read.route, origin, headers)
        return response_head(200, headers, self._clock.wall(), keeps=keeps)

    def wait(
        self, channel: Channel, origin: str | None, waiting: Waiting, began: float, *, keeps: bool = True
    ) -> PollGroup:
        """Have the long-poll of a client that sent this Origin header wait for its answer, others with it perhaps."""
        route = waiting.read.route
        group = PollGroup(self._rendering, route, origin, keeps=keeps)
        waiter = waiting.start(group)
        topic = waiting.topic

        def look(into: Record) -> None:
            into.sent_bytes = channel.live_bytes
            into.subscribers = len(topic.readers_now) + topic.extra_clients + (waiter not in topic.readers_now)
            if (answer := group.answer) is not None:
                into.status = answer.status
                into.next_offset = answer.headers.get(STREAM_NEXT_OFFSET)
                into.first_byte_s = self._clock.now() - began
                into.coding, into.saved_bytes = applied(answer.headers.get("Content-Encoding")), answer.saved_bytes

        group.begin(waiter, channel, began, self._note(Mode.LONGPOLL, route.config.name, began, look))
        _start(waiter)
        return group

    def _note(self, mode: Mode, route: str, began: float, look: Callable[[Record], None]) -> _LiveNote | None:
        """Where the answer that begins now is noted: in the access log and in its trace, where there are any."""
        record, span = park_record(), current()
        span.park()
        if record is None and span is NO_REQUEST:
            return None
        note = None
        if record is not None:
            record.outcome = Outcome.FOLLOWED
            note = self._access_log.live(record, began, look)
        return _LiveNote(note, span, mode, route, look)


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
        self._span.describe(self._mode, outcome, self._route)
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

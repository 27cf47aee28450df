"""Live answers: SSE responses and waiting long-polls.

A live answer has no task.  Its channel is the client's HTTP/1.1 connection or HTTP/2 stream.  A subscriber (SSE) or a
waiter (long-poll) holds the position in the stream and writes to the channel.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from multidict import CIMultiDict

from gateway.auth.verdict import Caller
from gateway.engine.long_poll_waiter import Waiter, WaitingPoll
from gateway.engine.sse import MOST_BYTES, SseOpening, Subscription
from gateway.errors import GatewayError
from gateway.http.outgoing import response_head
from gateway.live.subscriber import Subscriber
from gateway.protocol.cache_status import Outcome, cache_status
from gateway.protocol.coding import applied
from gateway.protocol.mode import Mode
from gateway.protocol.names import ACCEL_BUFFERING, SSE_TYPE, STREAM_NEXT_OFFSET
from gateway.server.cors import ANY_ORIGIN, split_at_origin, with_origin
from gateway.server.header_meanings import NO_SECTION, Section
from gateway.server.joins import Join, SseHead
from gateway.server.poll_group import PollGroup, Rendering
from gateway.server.request import Channel, Note
from gateway.server.request_records import Observed
from gateway.telemetry.access_record import AccessLog, CloseReason, LiveNote, Record
from gateway.telemetry.tracing import NO_REQUEST, RequestSpan

_log = logging.getLogger("gateway.live")

_MOST_HEAD_BYTES: Final = 2_048
"""The largest head that is kept for the next reader."""

Client = tuple[str | Caller | None, Section]
"""The client of a live request that was not parsed.  The first member is the client's principal (its authenticated
user) if the request was authorised, and otherwise its address.  The second is the request's header section.
"""


class LiveRequest(NamedTuple):
    """One client's live request at the beginning of its answer.

    `observed` has the request's log record if the request handler has made a record.  Without such a record, the access
    log uses `client`.
    """

    channel: Channel
    join: Join
    began: float
    observed: Observed | None = None
    client: Client | None = None
    keeps: bool = True
    """Whether the connection stays open after the answer."""
    is_chunked: bool = True
    """Whether the answer may be chunked.  HTTP/1.0 has no chunks."""
    ends_in_s: float | None = None
    """Seconds after which the answer ends.  It ends because the client's credential expires, or because a reload has
    put the route under rules.  None if the answer certainly ends earlier.
    """
    line: bytes | None = None
    """The request's line, if it differs from the line of the join's first request."""


class LiveAnswers:
    """Begins live answers.  The state of each answer is in its channel and its reader."""

    def __init__(self, rendering: Rendering, access_log: AccessLog) -> None:
        self._rendering = rendering
        self._clock = rendering.clock
        self._access_log = access_log

    def subscribe(self, request: LiveRequest, subscription: Subscription) -> None:
        """Begin an SSE response.  If a header must not be sent, close the subscription and raise UpstreamBroken."""
        channel, join, began, observed, client, keeps, is_chunked, ends_in_s, _ = request
        route, stream, second = subscription.read.route, subscription.stream, int(self._clock.wall())
        known = join.sse_head
        if known is not None and (subscription.is_unconfirmed or not known.is_of(stream, second)):
            known = None
        if known is not None:
            head = known.head
        else:
            try:
                head = self._sse_head(subscription, join.origin, keeps=keeps, is_chunked=is_chunked)
            except GatewayError:
                subscription.close()
                raise
            if len(head) <= _MOST_HEAD_BYTES and not subscription.is_unconfirmed:
                join.sse_head = SseHead(stream.headers, stream.content_type, second, head)
        opening = _Opening(channel, _own(head, join, client))
        subscriber = subscription.start(opening)
        note = self._sse_note(subscriber, join, began, observed, client)
        channel.follow(subscriber, route.name, began, note, keeps=keeps, is_chunked=is_chunked)
        _start(subscriber)
        opening.write_head()
        subscriber.wire = channel
        if ends_in_s is not None:
            subscriber.drain_within(ends_in_s, ends_in_s)
            return
        if known is not None and channel.live_bytes <= MOST_BYTES:
            # This reader has come less than a second after another reader.  Keep the beginning of the answer, because
            # more readers may follow.
            join.sse_opening = kept = subscription.sse.opening(subscriber, subscription.at, second)
            if kept is not None:
                join.sse_first = split_at_origin(head + kept.step.data)

    def reopen(
        self,
        channel: Channel,
        join: Join,
        opening: SseOpening,
        subscriber: Subscriber,
        began: float,
        client: Client | None,
    ) -> None:
        """Begin an SSE response with the latest reader's first bytes, for a reader that `Sse.reopen` has accepted."""
        note, step = None, opening.step
        if join.facts is not None and client is not None:
            note = self._access_log.join(join.facts, began, subscriber, client)
        channel.follow(subscriber, join.read.route.name, began, note, keeps=True, is_chunked=True)
        subscriber.start_after(step)
        first, rest = join.sse_first
        if join.origin is not None:
            first += ((client[1].origin if client is not None else None) or join.origin) + rest
        channel.write_first(first, step.data, step.size)

    def _sse_note(
        self, subscriber: Subscriber, join: Join, began: float, observed: Observed | None, client: Client | None
    ) -> Note | None:
        """Return the record of an SSE answer; None without an access log."""
        if observed is not None:
            return self.note(observed, Mode.SSE, join.read.route.name, began, partial(_fill, subscriber))
        if client is None or join.facts is None:
            return None
        return self._access_log.join(join.facts, began, subscriber, client)

    def _sse_head(self, subscription: Subscription, origin: bytes | None, *, keeps: bool, is_chunked: bool) -> bytes:
        headers = CIMultiDict(subscription.stream.headers)
        headers.update(subscription.headers)
        headers["Content-Type"] = SSE_TYPE
        headers["Cache-Control"] = "no-cache, no-transform"
        headers[ACCEL_BUFFERING] = "no"
        headers["Cache-Status"] = cache_status(self._rendering.node, subscription.outcome)
        if is_chunked:
            headers["Transfer-Encoding"] = "chunked"
        self._rendering.dress(subscription.read.route, ANY_ORIGIN if origin is not None else None, headers)
        return response_head(200, headers, self._clock.wall(), keeps=keeps)

    def wait(self, request: LiveRequest, waiting: WaitingPoll) -> PollGroup:
        """Begin to wait for a long-poll's answer, in a new group that equal requests may join."""
        channel, join, began, observed, client, keeps, _, ends_in_s, line = request
        route, topic = waiting.read.route, waiting.topic
        facts = join.facts.record if join.facts is not None else None
        group = PollGroup(self._rendering, route, join.origin, topic, facts, keeps=keeps)
        waiter = waiting.start(group)
        group.line = join.line
        note = None
        if observed is not None:

            def fill(into: Record) -> None:
                into.sent_bytes = channel.live_bytes
                into.subscribers = group.subscribers
                if (answer := group.answer) is not None:
                    into.status = answer.status
                    into.next_offset = answer.headers.get(STREAM_NEXT_OFFSET)
                    into.first_byte_s = self._clock.now() - began
                    into.coding, into.saved_bytes = applied(answer.headers.get("Content-Encoding")), answer.saved_bytes

            note = self.note(observed, Mode.LONGPOLL, route.config.name, began, fill)
        address, section = client if client is not None else (None, NO_SECTION)
        group.add_first(waiter, channel, (began, address, section, line), note)
        _start(waiter)
        if ends_in_s is not None:
            waiter.drain_within(ends_in_s, ends_in_s)
        return group

    def note(
        self, observed: Observed | None, mode: Mode, route: str, began: float, fill: Callable[[Record], None]
    ) -> Note | None:
        """Return the answer's record for the access log and the trace.  None if neither the log nor the trace needs a
        record."""
        if observed is None:
            return None
        record, span = observed.record, observed.span
        note = None
        if record is not None:
            record.outcome = Outcome.FOLLOWED
            note = self._access_log.live(record, began, fill)
            if span is NO_REQUEST:
                return note
        return LiveRecord(note, span, mode, route, fill)


class LiveRecord:
    """Records the end of a live answer in the access log and in the trace."""

    __slots__ = ("_fill", "_mode", "_note", "_route", "_span")

    def __init__(
        self, note: LiveNote | None, span: RequestSpan, mode: Mode, route: str, fill: Callable[[Record], None]
    ) -> None:
        self._note = note
        self._span = span
        self._mode = mode
        self._route = route
        self._fill = fill

    @property
    def trace_id(self) -> str | None:
        """The trace's id, for exemplars in the metrics; None if the trace is not sampled."""
        return self._span.trace_id if self._span.is_sampled else None

    def record_end(self, outcome: Outcome, reason: CloseReason) -> None:
        seen = Record()
        self._fill(seen)
        if seen.status:
            self._span.set_status(seen.status)
        self._span.describe(self._mode, outcome, self._route)
        self._span.end_span()
        if self._note is not None:
            self._note.record_end(outcome, reason)

    def discard(self) -> None:
        self._span.end_span()
        if self._note is not None:
            self._note.discard()


class _Opening:
    """Receives the output of a subscriber that is starting, and writes the head and the first piece of the body
    together."""

    __slots__ = ("_channel", "_head")

    def __init__(self, channel: Channel, head: bytes) -> None:
        self._channel = channel
        self._head = head
        """The head; empty once it is written."""

    @property
    def carrier(self) -> int:
        return self._channel.carrier

    @property
    def live_bytes(self) -> int:
        return self._channel.live_bytes

    @property
    def live_first_byte_s(self) -> float:
        return self._channel.live_first_byte_s

    @property
    def is_full(self) -> bool:
        return self._channel.is_full

    def send_chunk(self, chunk: bytes, size: int) -> None:
        head, self._head = self._head, b""
        if head:
            self._channel.write_head(head, chunk, size)
        else:
            self._channel.send_chunk(chunk, size)

    def send_view(self, piece: memoryview) -> None:
        self.write_head()
        self._channel.send_view(piece)

    def over(self, reason: CloseReason, *, in_order: bool) -> None:
        self.write_head()
        self._channel.over(reason, in_order=in_order)

    def write_head(self) -> None:
        """Write the head, unless it has been written."""
        head, self._head = self._head, b""
        if head:
            self._channel.write_head(head)


def _fill(subscriber: Subscriber, into: Record) -> None:
    """Add an SSE answer's final counts to a record."""
    into.status = 200
    into.first_byte_s, into.next_offset, into.sent_bytes, into.subscribers = subscriber.live_counts()


def _own(head: bytes, join: Join, client: Client | None) -> bytes:
    """Return the head with this client's own web origin."""
    if join.origin is None:
        return head
    return with_origin(head, (client[1].origin if client is not None else None) or join.origin)


def _start(reader: Subscriber | Waiter) -> None:
    """Start a live reader.  An error ends the connection, because the answer has begun."""
    try:
        reader.start()
    except Exception:
        _log.exception("a live answer failed")
        reader.gone()

"""Groups of long-polls that wait for the same answer, which is rendered once for all of them.

One waiter represents the whole group among the stream's readers.  The group begins with one client, and clients with an
equal request may join for a short while.  All clients of a group get the same answer at the same time, so no client
loses anything by joining.  The common part of their lines in the access log is made once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace

from multidict import CIMultiDict

from gateway.aio.clock import Clock
from gateway.auth.verdict import Caller
from gateway.engine.answer import Answer, Rendered
from gateway.engine.long_poll_waiter import Waiter
from gateway.engine.response_heads import failure_answer
from gateway.engine.route import Route
from gateway.errors import GatewayError
from gateway.http.outgoing import JOINED_BYTES, response_head
from gateway.limits.memory import NOTHING, Holding, SharedBytes
from gateway.live.subscriber import Drain
from gateway.live.topic import Topic
from gateway.protocol.cache_status import Outcome
from gateway.protocol.coding import applied
from gateway.protocol.mode import Mode
from gateway.protocol.names import STREAM_CLOSED, STREAM_NEXT_OFFSET, is_true
from gateway.server.cors import ANY_ORIGIN, with_origin
from gateway.server.header_meanings import Section
from gateway.server.request import Channel, Note
from gateway.telemetry.access_record import AccessLog, CloseReason, LiveNote, Record, Repeated
from gateway.telemetry.metrics import MetricsRecorder, Sent

Dress = Callable[[Route | None, str | None, CIMultiDict[str]], None]
"""Adds the headers that every response carries, for a route and the request's Origin header."""


class Rendering:
    """The settings that all live answers of a process are rendered with."""

    __slots__ = ("access_log", "clock", "drain", "dress", "metrics", "node")

    def __init__(
        self,
        node: str,
        dress: Dress,
        clock: Clock,
        drain: Drain,
        metrics: MetricsRecorder,
        access_log: AccessLog,
    ) -> None:
        self.node = node
        self.dress = dress
        self.clock = clock
        self.drain = drain
        self.metrics = metrics
        self.access_log = access_log


PolledBy = tuple[float, str | Caller | None, Section, bytes | None]
"""One client of a group.  The members are the time of its request (seconds of the streams' clock), its principal (the
authenticated user) or otherwise its address, its header section, and its request line.  The line is given only if it
contains the client's credential, and therefore differs from the group's line.  A plain tuple is cheap, and every
long-poll makes one.
"""


class PollGroup:
    """The clients of one waiter.  Implements `gateway.engine.long_poll_waiter.PollClient`."""

    __slots__ = (
        "_channels",
        "_keeps",
        "_note",
        "_noted",
        "_origin",
        "_rendering",
        "_route",
        "_topic",
        "_unrecorded",
        "_waiter",
        "_watch",
        "answer",
        "facts",
        "line",
        "shape",
    )

    def __init__(
        self,
        rendering: Rendering,
        route: Route,
        origin: bytes | None,
        topic: Topic,
        facts: Record | None,
        *,
        keeps: bool,
    ) -> None:
        """`origin` is the web origin in the first client's answer.  Each other client's answer contains that client's
        own web origin.  `facts` is the common part of the clients' log records; None without an access log.
        """
        self._topic = topic
        self._rendering = rendering
        self._route = route
        self._origin = origin
        self._keeps = keeps
        # Groups with equal shapes can share an answer.  The shape has the route itself rather than its name, because a
        # reload may have changed the route's CORS headers since another group began.
        self.shape: Hashable = (route, origin is None, keeps)
        self._waiter: Waiter | None = None
        """The waiter that represents the group.  None before `add_first`, after the end, and while clients wait for
        their requests to be handled again."""
        self._channels: dict[Channel, PolledBy] = {}
        self._note: Note | None = None
        """The record of the first client's answer, if the request handler has made one."""
        self._noted: Channel | None = None
        """The client to which `_note` belongs."""
        self._watch: LiveNote | None = None
        """The timer for interim lines, which the log gets for clients that still wait.  None while only the first
        client waits."""
        self._unrecorded: Sequence[Channel] = ()
        """Clients whose interim lines are due."""
        self.answer: Answer | None = None
        """The answer, kept only if the first client's record needs it."""
        self.facts = facts
        self.line: bytes | None = None
        """The request line of all clients that have no line of their own.  None until the first client's request is
        remembered."""

    def __repr__(self) -> str:
        return f"<PollGroup {len(self._channels)} clients, {'waiting' if self._waiter is not None else 'not waiting'}>"

    @property
    def subscribers(self) -> int:
        """Live readers of the stream.  Includes the clients of this group, even if they are about to leave."""
        topic, is_there = self._topic, self._waiter in self._topic.readers_now
        return len(topic.readers_now) + topic.extra_clients + (0 if is_there else len(self._channels))

    def add_first(self, waiter: Waiter, channel: Channel, client: PolledBy, note: Note | None) -> None:
        """Add the first client.  `note` is the client's record, if the request handler has made one."""
        self._waiter = waiter
        if note is not None:
            self._note, self._noted = note, channel
        self._take(channel, client)

    def join(self, channel: Channel, client: PolledBy) -> bool:
        """Add another client.  Returns False if the group accepts no more clients."""
        if self._waiter is None or not self._waiter.join(client[0]):
            return False
        self._take(channel, client)
        return True

    def remembered(self, line: bytes, section: Section) -> None:
        """Called when the first client's request is remembered, so that others may join."""
        self.line = line
        for channel, (began, address, _, own) in self._channels.items():
            self._channels[channel] = (began, address, section, own)

    def _take(self, channel: Channel, client: PolledBy) -> None:
        self._channels[channel] = client
        self._rendering.metrics.subscribers(Mode.LONGPOLL, 1, self._route.config.name)
        channel.park(self, keeps=self._keeps)
        if self.facts is not None and self._watch is None and channel is not self._noted:
            self._watch = self._rendering.access_log.watch(client[0], self._record_waiting)

    def split(self) -> Iterator[PollGroup]:
        """Yield a new group for each client but the first.  The caller must then call `waits` for each of them."""
        while len(self._channels) > 1:
            channel, client = self._channels.popitem()
            alone = PollGroup(self._rendering, self._route, self._origin, self._topic, self.facts, keeps=self._keeps)
            alone.line = client[3] or self.line
            alone._channels[channel] = client
            if channel is self._noted:
                alone._note, alone._noted, self._note, self._noted = self._note, channel, None, None
            elif self.facts is not None:
                alone._watch = self._rendering.access_log.watch(client[0], alone._record_waiting)
            channel.park(alone, keeps=self._keeps)
            yield alone

    def waits(self, waiter: Waiter) -> None:
        """Attach the group to its waiter."""
        self._waiter = waiter

    # -- called by the channels

    def holdings(self) -> tuple[Holding, ...]:
        """Empty, because a long-poll has no body before its end."""
        return NOTHING

    def pump(self) -> None:
        """Do nothing, because a long-poll has no body before its end."""

    def client_left(self, channel: Channel) -> None:
        """Remove a client that has left.  Does nothing if the client has been removed already, for example by
        `has_gone`."""
        if channel not in self._channels:
            return
        if self._waiter is not None and len(self._channels) == 1:
            self._waiter.gone()
        else:
            client = self._channels[channel]
            reason = channel.cut_reason or CloseReason.LEFT
            # Record the client before its removal, because the record counts this client among the live readers.
            if channel is self._noted:
                note, self._note, self._noted = self._note, None, None
                if note is not None:
                    note.record_end(Outcome.ABORTED, reason)
            elif self.facts is not None:
                self._record(self.facts, client, Outcome.ABORTED, reason, self.subscribers, is_final=True)
            del self._channels[channel]
            if self._waiter is not None:
                self._waiter.leave_one()
            self._count(Outcome.ABORTED, 1, self._rendering.clock.now() - client[0], 0, 0)

    # -- called by the waiter

    def render(self, answer: Answer) -> Rendered:
        """Render the response for all clients.  An error becomes an error response."""
        try:
            return self._rendered(answer)
        except GatewayError as error:
            return self._rendered(failure_answer(self._rendering.node, error))

    def _rendered(self, answer: Answer) -> Rendered:
        rendering = self._rendering
        rendering.dress(self._route, ANY_ORIGIN if self._origin is not None else None, answer.headers)
        body = answer.pieces()
        size = sum(map(len, body))
        if answer.status not in (204, 304):
            answer.headers["Content-Length"] = str(size)
        keeps = self._keeps and not rendering.drain.is_set
        head = response_head(answer.status, answer.headers, rendering.clock.wall(), keeps=keeps)
        if size <= JOINED_BYTES:
            head, body = b"".join((head, *body)), ()
        shared = answer.parts.shared if answer.parts is not None else None
        return Rendered(head, body, size, answer, shared or SharedBytes(size), keeps)

    def send_rendered(self, rendered: Rendered) -> None:
        """Write the response to all clients."""
        head, body, size, _, shared, _ = rendered
        if (origin := self._origin) is None:
            for channel in self._channels:
                channel.write_response(head, body, size, shared)
            return
        heads: dict[bytes, bytes] = {}
        for channel, client in self._channels.items():
            own = client[2].origin or origin
            if own not in heads:
                heads[own] = with_origin(head, own)
            channel.write_response(heads[own], body, size, shared)

    def account(self, rendered: Rendered) -> None:
        """Count the response, and free the connections for their next requests."""
        answer = rendered.answer
        if self._note is not None:
            self.answer = answer
        self._end(answer.outcome, _reason(answer, is_draining=self._rendering.drain.is_set), rendered)
        # A remembered request refers to its latest group.  Drop the group's answer, because otherwise this reference
        # would keep the answer's bytes in memory.
        self.answer = None
        channels, self._channels = self._channels, {}
        self._noted = None
        for channel in channels:
            channel.release(keeps=rendered.keeps)

    def relay(self, at: str) -> None:
        """Let the request handler handle each client's request again on its own, as a read of the bytes after the
        offset `at`."""
        self._waiter = None
        self._end_watch()
        for channel, (_, _, section, own) in list(self._channels.items()):
            line = own or self.line
            channel.begin_again(line + section.text if line is not None else None, at, self)

    def handed_over(self, channel: Channel) -> None:
        """Remove a client whose request is handled again, and discard its record."""
        del self._channels[channel]
        self._rendering.metrics.subscribers(Mode.LONGPOLL, -1, self._route.config.name)
        if channel is self._noted:
            note, self._note, self._noted = self._note, None, None
            if note is not None:
                note.discard()

    def has_gone(self) -> None:
        """Abort all connections, because there will be no answer."""
        try:
            self._end(Outcome.ABORTED, CloseReason.LEFT, None)
        finally:
            # Abort even if recording fails, because the clients would otherwise wait for ever.
            channels, self._channels = self._channels, {}
            for channel in channels:
                channel.abort()
                channel.release()

    def _end(self, outcome: Outcome, reason: CloseReason, rendered: Rendered | None) -> None:
        self._waiter = None
        clients = len(self._channels)
        if not clients:
            return
        # The clients arrived within one tick of the clock, so their mean time is exact enough for all of them.
        now, began = self._rendering.clock.now(), sum(client[0] for client in self._channels.values())
        sent_bytes = rendered.body_bytes if rendered is not None else 0
        saved_bytes = rendered.answer.saved_bytes if rendered is not None else 0
        self._count(outcome, clients, now - began / clients, sent_bytes, saved_bytes)
        self._end_watch()
        note, self._note = self._note, None
        if note is not None and (noted := self._noted) is not None:
            note.record_end(outcome, noted.cut_reason or reason if reason is CloseReason.LEFT else reason)
        if self.facts is not None and (self._noted is None or clients > 1):
            self._record_all(self.facts, outcome, reason, rendered, now)

    def _end_watch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.discard()

    def _record_all(
        self,
        facts: Record,
        outcome: Outcome,
        reason: CloseReason,
        rendered: Rendered | None,
        now: float,
    ) -> None:
        """Record the end for all clients, except the client that `_note` belongs to: the note records that client's
        end."""
        subscribers = self.subscribers
        if rendered is None:
            for channel, client in self._channels.items():
                if channel is not self._noted:
                    why = channel.cut_reason or reason
                    self._record(facts, client, outcome, why, subscribers, is_final=True)
            return
        answer = rendered.answer
        common = replace(
            facts,
            outcome=outcome,
            status=answer.status,
            next_offset=answer.headers.get(STREAM_NEXT_OFFSET),
            sent_bytes=rendered.body_bytes,
            saved_bytes=answer.saved_bytes,
            subscribers=subscribers,
            coding=applied(answer.headers.get("Content-Encoding")),
            close_reason=reason,
        )
        clients = [client for channel, client in self._channels.items() if channel is not self._noted]
        self._rendering.access_log.repeat_live(Repeated(common), now, clients)

    def _record_waiting(self, most: int) -> bool:
        """Write interim lines for at most `most` clients.  Returns whether all are written."""
        assert self.facts is not None
        subscribers, left = self.subscribers, self._unrecorded or list(self._channels)
        for channel in left[:most]:
            if channel is not self._noted and (client := self._channels.get(channel)) is not None:
                self._record(self.facts, client, Outcome.FOLLOWED, None, subscribers, is_final=False)
        self._unrecorded = left[most:]
        return not self._unrecorded

    def _record(
        self,
        facts: Record,
        client: PolledBy,
        outcome: Outcome,
        reason: CloseReason | None,
        subscribers: int,
        *,
        is_final: bool,
    ) -> None:
        """Record a client that gets no answer, or that still waits for its answer."""
        record = replace(facts, outcome=outcome, close_reason=reason, subscribers=subscribers, is_final=is_final)
        self._rendering.access_log.record_of(record, *client[:3])

    def _count(self, outcome: Outcome, clients: int, waited_s: float, sent_bytes: int, saved_bytes: int) -> None:
        metrics, name = self._rendering.metrics, self._route.config.name
        metrics.subscribers(Mode.LONGPOLL, -clients, name)
        metrics.request(
            Mode.LONGPOLL,
            outcome,
            waited_s,
            name,
            # The wait is also the time to the first byte, because a long-poll's response begins when its wait ends.
            Sent(waited_s, sent_bytes, saved_bytes),
            # Pass an empty string, because None would select the current context's trace, which belongs to another
            # request.
            trace_id=(self._note.trace_id if self._note is not None else None) or "",
            requests=clients,
        )


def _reason(answer: Answer, *, is_draining: bool) -> CloseReason:
    """Return the reason for the end of a long-poll with this answer, for the log."""
    if answer.status in (200, 304):
        return CloseReason.ANSWERED
    if answer.status == 204:
        if is_true(answer.headers.get(STREAM_CLOSED)):
            return CloseReason.CLOSED
        return CloseReason.DRAINED if is_draining else CloseReason.TIMED_OUT
    return CloseReason.ENDED if answer.status < 500 else CloseReason.FAILED

"""Long-poll clients that wait for the same answer: one waiter in the stream, and one answer rendered for all of them.

A group begins with one client.  Clients that have sent the same bytes may join it for a short while, in which none can
tell that it came later: all get the same answer at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator

from multidict import CIMultiDict

from gateway.aio.clock import Clock
from gateway.engine.answer import Answer
from gateway.engine.long_poll_waiter import Rendered, Waiter
from gateway.engine.read import Drain
from gateway.engine.response_heads import failure_answer
from gateway.engine.route import Route
from gateway.errors import GatewayError
from gateway.limits.shared_bytes import NOTHING, Holding, SharedBytes
from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode
from gateway.protocol.names import STREAM_CLOSED, is_true
from gateway.server.head import JOINED_BYTES, response_head
from gateway.server.request import Channel, Note
from gateway.telemetry.access_record import CloseReason
from gateway.telemetry.metrics import MetricsRecorder

Dress = Callable[[Route | None, str | None, CIMultiDict[str]], None]
"""Adds the headers that every response carries, for a route and the request's Origin header."""


class Rendering:
    """What all live answers of a process are rendered with."""

    __slots__ = ("clock", "drain", "dress", "metrics", "node")

    def __init__(self, node: str, dress: Dress, clock: Clock, drain: Drain, metrics: MetricsRecorder) -> None:
        self.node = node
        self.dress = dress
        self.clock = clock
        self.drain = drain
        self.metrics = metrics


class PollGroup:
    """The clients of one waiter; a `gateway.engine.long_poll_waiter.PollClient`."""

    __slots__ = (
        "_channels",
        "_keeps",
        "_note",
        "_origin",
        "_rendering",
        "_route",
        "_waiter",
        "answer",
        "request",
        "shape",
    )

    def __init__(self, rendering: Rendering, route: Route, origin: str | None, *, keeps: bool) -> None:
        self._rendering = rendering
        self._route = route
        self._origin = origin
        self._keeps = keeps
        self.shape: Hashable = (origin, keeps)
        self._waiter: Waiter | None = None
        """None before `begin` and after the end."""
        self._channels: dict[Channel, float] = {}
        """The clients, and when each arrived, in seconds of the streams' clock."""
        self._note: Note | None = None
        self.answer: Answer | None = None
        """The answer that was sent, if it is logged or traced."""
        self.request: bytes | None = None
        """The bytes that all clients have sent, if they may be remembered.  Without them there is one client."""

    def __repr__(self) -> str:
        return f"<PollGroup {len(self._channels)} clients, {'waiting' if self._waiter is not None else 'not waiting'}>"

    def begin(self, waiter: Waiter, channel: Channel, began: float, note: Note | None) -> None:
        """Add the first client."""
        self._waiter = waiter
        self._note = note
        self._take(channel, began)

    def join(self, channel: Channel, began: float) -> bool:
        """Add one more client; False if it came too late for this group."""
        if self._note is not None or self._waiter is None or not self._waiter.join(began):
            return False
        self._take(channel, began)
        return True

    def _take(self, channel: Channel, began: float) -> None:
        self._channels[channel] = began
        self._rendering.metrics.subscribers(Mode.LONGPOLL, 1, self._route.config.name)
        channel.park(self, keeps=self._keeps)

    def split(self) -> Iterator[PollGroup]:
        """Yield a new group for each client but the first; the caller owes each a call to `waits`."""
        while len(self._channels) > 1:
            channel, began = self._channels.popitem()
            alone = PollGroup(self._rendering, self._route, self._origin, keeps=self._keeps)
            alone._channels[channel] = began
            alone.request = self.request
            channel.park(alone, keeps=self._keeps)
            yield alone

    def waits(self, waiter: Waiter) -> None:
        """Attach the group to its waiter."""
        self._waiter = waiter

    # -- called by the channels

    def holdings(self) -> tuple[Holding, ...]:
        """Nothing: a long-poll has no body before its end."""
        return NOTHING

    def pump(self) -> None:
        """Do nothing: a long-poll has no body before its end."""

    def left(self, channel: Channel) -> None:
        """Remove a client that has left."""
        assert self._waiter is not None
        if len(self._channels) == 1:
            self._waiter.gone()
        else:
            self._waiter.leave_one()
            began = self._channels.pop(channel)
            self._count(Outcome.ABORTED, 1, self._rendering.clock.now() - began, 0, 0)

    # -- called by the waiter

    def render(self, answer: Answer) -> Rendered:
        """Render the response that all clients get."""
        try:
            return self._rendered(answer)
        except GatewayError as error:
            return self._rendered(failure_answer(self._rendering.node, error))

    def _rendered(self, answer: Answer) -> Rendered:
        rendering = self._rendering
        rendering.dress(self._route, self._origin, answer.headers)
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

    def send(self, rendered: Rendered) -> None:
        """Write the response to all clients."""
        head, body, size, _, shared, _ = rendered
        for channel in self._channels:
            channel.write_response(head, body, size, shared)

    def account(self, rendered: Rendered) -> None:
        """Count the response that was written, and free the connections for their next requests."""
        answer = rendered.answer
        if self._note is not None:
            self.answer = answer
        self._end(answer.outcome, _reason(answer, is_draining=self._rendering.drain.is_set), rendered)
        channels, self._channels = self._channels, {}
        for channel in channels:
            channel.release(keeps=rendered.keeps)

    def relay(self, at: str) -> None:
        """Have each client's request handled again, by itself, as a read of the bytes after the offset `at`."""
        self._waiter = None
        self._rendering.metrics.subscribers(Mode.LONGPOLL, -len(self._channels), self._route.config.name)
        note, self._note = self._note, None
        if note is not None:
            note.drop()
        channels, self._channels = self._channels, {}
        for channel in channels:
            channel.begin_again(self.request, at)

    def has_gone(self) -> None:
        """Abort all connections: no answer will come."""
        self._end(Outcome.ABORTED, CloseReason.LEFT, None)
        channels, self._channels = self._channels, {}
        for channel in channels:
            channel.abort()
            channel.release()

    def _end(self, outcome: Outcome, reason: CloseReason, rendered: Rendered | None) -> None:
        self._waiter = None
        clients = len(self._channels)
        if not clients:
            return
        # The clients arrived within one tick, so the mean is close enough for each.
        waited_s = self._rendering.clock.now() - sum(self._channels.values()) / clients
        sent_bytes = rendered.body_bytes if rendered is not None else 0
        self._count(outcome, clients, waited_s, sent_bytes, rendered.answer.saved_bytes if rendered is not None else 0)
        note, self._note = self._note, None
        if note is not None:
            (channel,) = self._channels
            note.end(outcome, channel.cut_reason or reason if reason is CloseReason.LEFT else reason)

    def _count(self, outcome: Outcome, clients: int, waited_s: float, sent_bytes: int, saved_bytes: int) -> None:
        metrics, name = self._rendering.metrics, self._route.config.name
        metrics.subscribers(Mode.LONGPOLL, -clients, name)
        metrics.request(
            Mode.LONGPOLL,
            outcome,
            waited_s,
            name,
            # The response of a long-poll begins when the wait is over.
            first_byte_s=waited_s,
            sent_bytes=sent_bytes,
            saved_bytes=saved_bytes,
            # None would take the trace of the current context, which belongs to another request.
            trace_id=(self._note.trace_id if self._note is not None else None) or "",
            requests=clients,
        )


def _reason(answer: Answer, *, is_draining: bool) -> CloseReason:
    """The reason to log for a long-poll with this answer."""
    if answer.status in (200, 304):
        return CloseReason.ANSWERED
    if answer.status == 204:
        if is_true(answer.headers.get(STREAM_CLOSED)):
            return CloseReason.CLOSED
        return CloseReason.DRAINED if is_draining else CloseReason.TIMED_OUT
    return CloseReason.ENDED if answer.status < 500 else CloseReason.FAILED

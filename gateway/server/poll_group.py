"""Long-poll clients that wait for the same answer: one place in the stream, and one answer made for all of them.

A crowd begins with one client.  Others that have sent the same bytes join it for as long as nobody could tell that they
came later: they are told the same at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator

from multidict import CIMultiDict

from gateway.aio.clock import Clock
from gateway.engine.answer import Answer
from gateway.engine.read import Drain
from gateway.engine.response_heads import failure_answer
from gateway.engine.route import Route
from gateway.engine.waiter import Rendered, Waiter
from gateway.errors import GatewayError
from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode
from gateway.protocol.names import STREAM_CLOSED, is_true
from gateway.server.head import response_head
from gateway.server.request import Channel, Note
from gateway.telemetry.access_record import CloseReason
from gateway.telemetry.metrics import MetricsRecorder

Dress = Callable[[Route | None, str | None, CIMultiDict[str]], None]
"""Adds what every response carries, for a client of this route that sent this Origin header."""


class Rendering:
    """What all live answers of a process are made with."""

    __slots__ = ("clock", "drain", "dress", "metrics", "node")

    def __init__(self, node: str, dress: Dress, clock: Clock, drain: Drain, metrics: MetricsRecorder) -> None:
        self.node = node
        self.dress = dress
        self.clock = clock
        self.drain = drain
        self.metrics = metrics


class PollGroup:
    """The clients of one waiter: a `gateway.engine.waiter.PollClient`."""

    __slots__ = ("_channels", "_keeps", "_note", "_origin", "_rendering", "_route", "_waiter", "answer", "shape")

    def __init__(self, rendering: Rendering, route: Route, origin: str | None, *, keeps: bool) -> None:
        self._rendering = rendering
        self._route = route
        self._origin = origin
        self._keeps = keeps
        self.shape: Hashable = (origin, keeps)
        self._waiter: Waiter | None = None
        """None before the beginning and after the end."""
        self._channels: dict[Channel, float] = {}
        """The clients, and when each has come."""
        self._note: Note | None = None
        self.answer: Answer | None = None
        """What the client was told, in the end, where that is noted."""

    def begin(self, waiter: Waiter, channel: Channel, began: float, note: Note | None) -> None:
        """The first client."""
        self._waiter = waiter
        self._note = note
        self._take(channel, began)

    def join(self, channel: Channel, began: float) -> bool:
        """One more; False where it has come too late for this crowd."""
        if self._note is not None or self._waiter is None or not self._waiter.join(began):
            return False
        self._take(channel, began)
        return True

    def _take(self, channel: Channel, began: float) -> None:
        self._channels[channel] = began
        self._rendering.metrics.subscribers(Mode.LONGPOLL, 1, self._route.config.name)
        channel.park(self, keeps=self._keeps)

    def split(self) -> Iterator[PollGroup]:
        """All clients but the first, each as a crowd of its own from here on; `waits` is owed to each."""
        while len(self._channels) > 1:
            channel, began = self._channels.popitem()
            alone = PollGroup(self._rendering, self._route, self._origin, keeps=self._keeps)
            alone._channels[channel] = began
            channel.park(alone, keeps=self._keeps)
            yield alone

    def waits(self, waiter: Waiter) -> None:
        """They wait by this waiter."""
        self._waiter = waiter

    # -- the channels' side

    def pump(self) -> None:
        """There is no body yet to go on with."""

    def left(self, channel: Channel) -> None:
        """One of them has gone."""
        assert self._waiter is not None
        if len(self._channels) == 1:
            self._waiter.gone()
        else:
            self._waiter.leave_one()
            began = self._channels.pop(channel)
            self._tell(Outcome.ABORTED, 1, self._rendering.clock.now() - began, 0, 0)

    # -- the waiter's side

    def render(self, answer: Answer) -> Rendered:
        """The response to each of them."""
        try:
            return self._rendered(answer)
        except GatewayError as error:
            return self._rendered(failure_answer(self._rendering.node, error))

    def _rendered(self, answer: Answer) -> Rendered:
        rendering = self._rendering
        rendering.dress(self._route, self._origin, answer.headers)
        body = answer.whole()
        if answer.status not in (204, 304):
            answer.headers["Content-Length"] = str(len(body))
        head = response_head(answer.status, answer.headers, rendering.clock.wall(), keeps=self._keeps)
        return Rendered(head + body, len(body), answer)

    def send(self, rendered: Rendered) -> None:
        """Write it to all."""
        data, size = rendered.data, rendered.body_bytes
        for channel in self._channels:
            channel.write_response(data, size)

    def account(self, rendered: Rendered) -> None:
        """It has been written: count it, and let the connections go on."""
        answer = rendered.answer
        if self._note is not None:
            self.answer = answer
        self._end(answer.outcome, _reason(answer, is_draining=self._rendering.drain.is_set), rendered)
        channels, self._channels = self._channels, {}
        for channel in channels:
            channel.release()

    def has_gone(self) -> None:
        """None of them will be answered."""
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
        # They have come within a tick of each other: the mean is near enough to each.
        waited_s = self._rendering.clock.now() - sum(self._channels.values()) / clients
        sent_bytes = rendered.body_bytes if rendered is not None else 0
        self._tell(outcome, clients, waited_s, sent_bytes, rendered.answer.saved_bytes if rendered is not None else 0)
        note, self._note = self._note, None
        if note is not None:
            (channel,) = self._channels
            note.end(outcome, channel.why_cut or reason if reason is CloseReason.LEFT else reason)

    def _tell(self, outcome: Outcome, clients: int, waited_s: float, sent_bytes: int, saved_bytes: int) -> None:
        metrics, name = self._rendering.metrics, self._route.config.name
        metrics.subscribers(Mode.LONGPOLL, -clients, name)
        metrics.request(
            Mode.LONGPOLL,
            outcome,
            waited_s,
            name,
            # A long-poll's response begins when it is over.
            first_byte_s=waited_s,
            sent_bytes=sent_bytes,
            saved_bytes=saved_bytes,
            # None would mean: that of whoever is being answered here, and that is somebody else.
            trace_id=(self._note.trace_id if self._note is not None else None) or "",
            requests=clients,
        )


def _reason(answer: Answer, *, is_draining: bool) -> CloseReason:
    """Why a long-poll that was answered so has ended."""
    if answer.status in (200, 304):
        return CloseReason.ANSWERED
    if answer.status == 204:
        if is_true(answer.headers.get(STREAM_CLOSED)):
            return CloseReason.CLOSED
        return CloseReason.DRAINED if is_draining else CloseReason.TIMED_OUT
    return CloseReason.ENDED if answer.status < 500 else CloseReason.FAILED

"""A waiter: one long-poll client at the tail, as an object of a few slots and a timer, with no task.

When its topic moves it looks whether it can be answered; when its time is up it is answered with nothing, if the
follower can vouch for that.  Only where the origin has to be asked does it need a task, for as long as that takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.clock import Clock, Timer
from gateway.engine.answer import Answer
from gateway.engine.replies import failure_answer, refusal_answer
from gateway.engine.request import Ended, Poll, Read, Uncacheable
from gateway.errors import GatewayError, UpstreamUnavailable
from gateway.live.topic import Topic
from gateway.protocol.cache_status import Outcome
from gateway.tape.stream import Stream
from gateway.tasks import Tasks

if TYPE_CHECKING:
    from gateway.engine.tail import Tail


class Waiter:
    """One long-poll client.  `answered` is called once: with the answer, or with None when the client has gone."""

    __slots__ = (
        "_answered",
        "_is_asking",
        "_is_late",
        "_is_over",
        "_read",
        "_stream",
        "_tail",
        "_tasks",
        "_timer",
        "_topic",
    )

    def __init__(
        self,
        tail: Tail,
        read: Read,
        stream: Stream,
        topic: Topic,
        clock: Clock,
        tasks: Tasks,
        patience_s: float,
        answered: Callable[[Answer | None], None],
    ) -> None:
        self._tail = tail
        self._read = read
        self._stream = stream
        self._topic = topic
        self._tasks = tasks
        self._answered = answered
        self._is_over = False
        self._is_asking = False
        self._is_late = False
        self._timer: Timer = clock.call_later(patience_s, self._time_is_up)

    def start(self) -> None:
        """Join the topic."""
        self._topic.readers_now.add(self)
        self.pump()

    def pump(self) -> None:
        """The topic has changed: answer, if there is something to answer with."""
        if self._is_over or self._is_asking:
            return
        try:
            found = self._tail.poll_now(self._read, self._stream, self._topic, Outcome.FOLLOWED)
        except Ended as ended:
            found = refusal_answer(self._read.route, ended.refusal, Outcome.FOLLOWED)
        if isinstance(found, Answer):
            self._finish(found)
        elif found is Poll.LOOK:
            self._ask(is_last=False)

    def beat(self) -> None:
        """A long-poll has no body yet to show a sign of life in."""

    def leave_within(self, delay_s: float) -> None:
        """Answer now: a client that is sent off with an answer is not disturbed by it."""
        self._time_is_up()

    def _time_is_up(self) -> None:
        self._is_late = True
        if self._is_over or self._is_asking:
            return
        answer = self._tail.still_nothing(self._read, self._stream, self._topic)
        if answer is not None:
            self._finish(answer)
        else:
            self._ask(is_last=True)

    def _ask(self, *, is_last: bool) -> None:
        self._is_asking = True
        self._tasks.start(self._asked(is_last), f"long-poll {self._read.start}")

    async def _asked(self, is_last: bool) -> None:
        found: Answer | Poll = Poll.WAIT
        route = self._read.route
        try:
            if is_last:
                found = await self._tail.nothing_new(self._read, self._stream)
            else:
                found = await self._tail.poll_looking(self._read, self._stream, self._topic)
        except Ended as ended:
            found = refusal_answer(route, ended.refusal, Outcome.FOLLOWED)
        except Uncacheable:
            found = await self._past_tape()
        except GatewayError as error:
            found = failure_answer(route.node, error)
        finally:
            self._is_asking = False
        if isinstance(found, Answer):
            self._finish(found)
        elif self._is_late:
            self._time_is_up()
        elif found is Poll.LOOK:
            self.pump()

    async def _past_tape(self) -> Answer:
        """What came is not on the tape, because it was too large for it or given up at once: fetched for this one."""
        try:
            return await self._tail.fetched(self._read, self._stream)
        except (Uncacheable, GatewayError):
            # When it comes again it is relayed, or told what is wrong.
            return failure_answer(self._read.route.node, UpstreamUnavailable())

    def gone(self) -> None:
        """The client is no longer there."""
        self._finish(None)

    def _finish(self, answer: Answer | None) -> None:
        if not self._is_over:
            self._is_over = True
            self._timer.cancel()
            self._topic.readers_now.discard(self)
            self._answered(answer)

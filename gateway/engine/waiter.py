"""A waiter: one long-poll client at the tail, as an object of a few slots and a timer, with no task.

When its topic moves it looks whether it can be answered; when its time is up it is answered with nothing, if the
follower can vouch for that.  Only where the origin has to be asked does it need a task, for as long as that takes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING

from gateway.clock import Clock, Timer
from gateway.engine.answer import Answer
from gateway.engine.replies import failure_answer, refusal_answer
from gateway.engine.request import Ended, Poll, Read, Uncacheable
from gateway.errors import GatewayError, TailMovedBack, UpstreamUnavailable
from gateway.protocol.cache_status import Outcome
from gateway.tasks import Tasks
from gateway.upstream.flight import Refusal

if TYPE_CHECKING:
    from gateway.engine.tail import Waiting


Again = Callable[[Read], "Awaitable[Answer | Waiting]"]
"""Asks a long-poll from the beginning.  Raises Uncacheable or a GatewayError."""


class Waiter:
    """One long-poll client.  `answered` is called once: with the answer, or with None when the client has gone."""

    __slots__ = (
        "_again",
        "_answered",
        "_clock",
        "_ends_at",
        "_has_missed",
        "_is_asking",
        "_is_late",
        "_is_over",
        "_place",
        "_tasks",
        "_timer",
        "_was_confirmed",
    )

    def __init__(
        self,
        place: Waiting,
        clock: Clock,
        tasks: Tasks,
        patience_s: float,
        again: Again,
        answered: Callable[[Answer | None], None],
    ) -> None:
        self._place = place
        self._was_confirmed = place.topic.is_confirmed
        """Whether the follower vouched for the stream when the client came."""
        self._clock = clock
        self._tasks = tasks
        self._again = again
        self._answered = answered
        self._is_over = False
        self._is_asking = False
        self._has_missed = False
        """Whether the topic has changed while the origin was being asked."""
        self._is_late = False
        self._ends_at = clock.now() + patience_s
        self._timer: Timer = clock.call_later(patience_s, self._time_is_up)

    def start(self) -> None:
        """Join the topic."""
        self._place.topic.readers_now.add(self)
        self.pump()

    def pump(self) -> None:
        """The topic has changed: answer, if there is something to answer with."""
        if self._is_over:
            return
        if self._is_asking:
            self._has_missed = True
            return
        place = self._place
        try:
            found = place.tail.poll_now(place.read, place.stream, place.topic, Outcome.FOLLOWED)
        except Ended as ended:
            found = refusal_answer(place.read.route, ended.refusal, Outcome.FOLLOWED)
        except TailMovedBack:
            self._ask(self._begin_anew())
            return
        if isinstance(found, Answer):
            self._finish(found)
        elif found is Poll.LOOK:
            self._ask(place.tail.poll_looking(place.read, place.stream, place.topic))

    def beat(self) -> None:
        """A long-poll has no body yet to show a sign of life in."""

    def leave(self, delay_s: float, within_s: float) -> None:
        """The wait is over after `delay_s`, if not before: to be answered with nothing disturbs nobody."""
        delay_s = min(delay_s, within_s)
        if not self._is_over and self._clock.now() + delay_s < self._ends_at:
            self._ends_at = self._clock.now() + delay_s
            self._timer.cancel()
            self._timer = self._clock.call_later(delay_s, self._time_is_up)

    def _time_is_up(self) -> None:
        self._is_late = True
        if self._is_over or self._is_asking:
            return
        place = self._place
        answer = place.tail.still_nothing(place.read, place.stream, place.topic)
        if answer is not None:
            self._finish(answer)
        else:
            self._ask(place.tail.nothing_new(place.read, place.stream))

    def _ask(self, question: Coroutine[None, None, Answer | Poll]) -> None:
        self._is_asking = True
        self._has_missed = False
        self._tasks.start(self._asked(question), f"long-poll {self._place.read.start}")

    async def _asked(self, question: Coroutine[None, None, Answer | Poll]) -> None:
        found: Answer | Poll = Poll.WAIT
        route = self._place.read.route
        try:
            try:
                found = await question
            except TailMovedBack:
                found = await self._begin_anew()
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
        elif found is Poll.LOOK or self._has_missed:
            self.pump()

    async def _begin_anew(self) -> Answer | Poll:
        """The stream is another one than was remembered.  Who waited for more of that one is told that it is no more;
        who came when nobody vouched for it begins again, with what the origin has now."""
        place = self._place
        if self._was_confirmed:
            return refusal_answer(place.read.route, Refusal.of_ended(404), Outcome.FOLLOWED)
        found = await self._again(place.read)
        if isinstance(found, Answer):
            return found
        if self._is_over:
            found.close()
            return Poll.WAIT
        place.topic.readers_now.discard(self)
        place.close()
        self._place = found
        found.topic.readers_now.add(self)
        return Poll.LOOK

    async def _past_tape(self) -> Answer:
        """What came is not on the tape, because it was too large for it or given up at once: fetched for this one."""
        place = self._place
        try:
            return await place.tail.fetched(place.read, place.stream)
        except (Uncacheable, GatewayError):
            # When it comes again it is relayed, or told what is wrong.
            return failure_answer(place.read.route.node, UpstreamUnavailable())

    def gone(self) -> None:
        """The client is no longer there."""
        self._finish(None)

    def _finish(self, answer: Answer | None) -> None:
        if not self._is_over:
            self._is_over = True
            self._timer.cancel()
            self._place.topic.readers_now.discard(self)
            self._place.close()
            self._answered(answer)

"""A waiter: the long-poll clients at one offset, as an object of a few slots, without a task or a timer.

When its topic moves, it checks whether it can be answered.  When its time is up, it is answered with a 204 if the
follower confirms the tail.  It needs a task only if the origin has to be asked, for as long as that takes.

Waiters that are woken by one event and whose answers cannot differ share the same bytes, made once.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gateway.aio.clock import Clock
from gateway.aio.tasks import Tasks
from gateway.aio.wheel import TICK_S, Wheel
from gateway.engine.answer import Answer
from gateway.engine.read import Poll, Read, StreamEnded, Uncacheable
from gateway.engine.response_heads import failure_answer, refusal_answer
from gateway.errors import GatewayError, TailMovedBack, UpstreamUnavailable
from gateway.live.topic import Topic
from gateway.protocol.cache_status import Outcome
from gateway.protocol.cursor import parse_cursor
from gateway.protocol.names import STREAM_CURSOR
from gateway.tape.stream import Stream
from gateway.upstream.flight import OriginError


class Rendered(NamedTuple):
    """A whole response in bytes."""

    data: bytes
    body_bytes: int
    answer: Answer
    """The answer it was made of."""

    @property
    def cursor(self) -> int | None:
        """The cursor in the response; None if it has none."""
        return parse_cursor(self.answer.headers.get(STREAM_CURSOR))


class PollClient(Protocol):
    """The client of a long-poll, or several clients that wait for the same answer."""

    @property
    def shape(self) -> Hashable:
        """What in the client determines the response: clients of equal shape get the same bytes."""

    def render(self, answer: Answer) -> Rendered:
        """The response for such a client."""

    def send(self, rendered: Rendered) -> None:
        """Write the response."""

    def account(self, rendered: Rendered) -> None:
        """The response has been written: count it, and let the connection continue."""

    def apart(self) -> Iterable[PollClient]:
        """All clients but one, each by itself from now on; the caller must call `waits` on each."""

    def waits(self, waiter: Waiter) -> None:
        """Set the waiter by which this client waits."""

    def has_gone(self) -> None:
        """The client disconnected before it was answered."""


class Polls(Protocol):
    """Answers waiters and holds what they share; implemented by `gateway.engine.long_poll.LongPoll`."""

    clock: Clock
    tasks: Tasks
    wheel: Wheel
    code_now: Callable[[Read, Answer], Answer]

    def wait(self, place: Waiting, client: PollClient) -> Waiter:
        """A waiter, not yet started."""

    def left(self, topic: Topic) -> None:
        """A reader has left the topic."""

    def poll_now(self, read: Read, stream: Stream, topic: Topic, outcome: Outcome) -> Answer | Poll:
        """The answer to a long-poll if it can be given at once.  Raises StreamEnded."""

    async def poll_looking(self, read: Read, stream: Stream, topic: Topic, outcome: Outcome) -> Answer | Poll:
        """Fetch what is missing for an answer."""

    def still_nothing(self, read: Read, stream: Stream, topic: Topic) -> Answer | None:
        """The 204 of a wait that has timed out, if the follower confirms the tail."""

    async def nothing_new(self, read: Read, stream: Stream) -> Answer:
        """The same when the origin has to be asked."""

    async def answer(self, read: Read) -> Answer | Waiting:
        """Answer a long-poll that starts again, or return its new place."""

    async def past_tape(self, read: Read, stream: Stream) -> Answer:
        """Answer a long-poll whose bytes are not on the tape."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """One long-poll client's place in the stream before it waits; `start` or `close` must be called."""

    polls: Polls
    read: Read
    stream: Stream
    topic: Topic

    def start(self, client: PollClient) -> Waiter:
        """A waiter for `client`, not yet started."""
        return self.polls.wait(self, client)

    def close(self) -> None:
        self.polls.left(self.topic)


class Waiter:
    """Long-poll clients that wait together.  They are answered, or found disconnected, once."""

    __slots__ = (
        "_client",
        "_cursor",
        "_has_missed",
        "_is_asking",
        "_is_late",
        "_is_over",
        "_kind",
        "_place",
        "_tick",
        "_turn",
        "_was_confirmed",
        "began",
        "clients",
    )

    def __init__(self, place: Waiting, client: PollClient, patience_s: float) -> None:
        polls, read = place.polls, place.read
        self._place = place
        self._client = client
        self._kind = (read.start, read.accepted, client.shape) if read.if_none_match is None else None
        """What determines its answer, except the cursor; None if the answer cannot be shared."""
        self._cursor = parse_cursor(read.cursor) or -1
        self._was_confirmed = place.topic.is_confirmed
        """Whether the follower has confirmed the stream since the client arrived."""
        self._is_over = False
        self._is_asking = False
        self._has_missed = False
        """Whether the topic changed while the origin was being asked."""
        self._is_late = False
        self.began = polls.clock.now()
        self.clients = 1
        """How many clients wait here for the same answer."""
        self._turn = place.stream.tail_turns, place.stream.stale_marks
        """The stream's state when the first client arrived."""
        self._tick = polls.wheel.add(self, patience_s)

    @property
    def at(self) -> str:
        """The offset before which the client has everything."""
        return self._place.read.start

    def join(self, now: float) -> bool:
        """Add one more client with the same request, if it may wait with the others; return whether it does."""
        stream = self._place.stream
        if (
            self._is_over
            or self._is_asking
            or self._is_late
            or now >= self.began + TICK_S
            or stream.ended is not None
            or (stream.tail_turns, stream.stale_marks) != self._turn
        ):
            return False
        topic = self._place.topic
        self.clients += 1
        topic.readers += 1
        topic.crowded += 1
        stream.count_reads(1, 0)
        return True

    def leave_one(self) -> None:
        """One of several clients has disconnected."""
        topic = self._place.topic
        self.clients -= 1
        topic.readers -= 1
        topic.crowded -= 1

    def start(self) -> None:
        """Join the topic."""
        self._place.topic.readers_now.add(self)
        self._look(Outcome.HIT)

    def pump(self) -> None:
        """The topic has changed: answer if that is possible now."""
        self._look(Outcome.FOLLOWED)

    def _look(self, outcome: Outcome) -> None:
        if self._is_over:
            return
        if self._place.topic.is_confirmed:
            self._was_confirmed = True
        if self._is_asking:
            self._has_missed = True
            return
        place, topic = self._place, self._place.topic
        if topic.foreign is not None:
            self._ask(self._past_tape())
            return
        answers = topic.shared_answers() if self._kind is not None and place.stream.ended is None else None
        kind: Hashable = self._kind
        if self._cursor >= topic.answers_cursor:
            # A client whose cursor is not below the shared one needs its own, unless it is among the far-ahead clients.
            kind = (kind, "far" if topic.is_far(self._cursor) else self._cursor)
        if answers is not None and isinstance(shared := answers.get(kind), Rendered) and self._goes_on(shared):
            self._is_over = True
            self._client.send(shared)
            if topic.is_pumping:
                topic.to_account.append((self, shared))
            else:
                self.account(shared)
            return
        try:
            found = place.polls.poll_now(place.read, place.stream, topic, outcome)
        except StreamEnded as ended:
            found = refusal_answer(place.read.route, ended.refusal, Outcome.FOLLOWED)
        except TailMovedBack:
            self._ask(self._begin_anew())
            return
        if isinstance(found, Answer):
            rendered = self._finish(found)
            if answers is not None and topic.is_confirmed:
                # Without a confirmed follower the tail may be valid for less than a second: do not share it.
                answers[kind] = rendered
        elif found is Poll.LOOK:
            self._ask(place.polls.poll_looking(place.read, place.stream, topic, outcome))

    def _goes_on(self, shared: Rendered) -> bool:
        """Whether an answer made for others suits this client: its cursor must not go back (section 8.1)."""
        return self._cursor < 0 or (cursor := shared.cursor) is None or cursor > self._cursor

    def account(self, sent: object) -> None:
        """Leave, after the answer was sent."""
        assert isinstance(sent, Rendered)
        self._leave()
        self._count(sent)
        self._client.account(sent)

    def beat(self) -> None:
        """Do nothing: a long-poll has no body yet that could carry a heartbeat."""

    def apart(self) -> list[Waiter]:
        """Itself and the clients that waited here, each with a waiter of its own from now on."""
        if self.clients == 1 or self._is_over or self._is_asking or self._is_late:
            return [self]
        found, topic = [self], self._place.topic
        left_s = max(0.0, self._tick * TICK_S - self._place.polls.clock.now())
        for client in self._client.apart():
            alone = Waiter(self._place, client, left_s)
            alone._was_confirmed, alone._turn = self._was_confirmed, self._turn
            client.waits(alone)
            self.clients -= 1
            topic.crowded -= 1
            topic.readers_now.add(alone)
            found.append(alone)
        return found

    def leave(self, delay_s: float, within_s: float) -> None:
        """End the wait after `delay_s`, if not before; an empty answer is harmless."""
        if self._is_over or self._is_late:
            return
        wheel = self._place.polls.wheel
        wheel.drop(self, self._tick)
        left_s = self._tick * TICK_S - self._place.polls.clock.now()
        self._tick = wheel.add(self, max(0.0, min(delay_s, within_s, left_s)))

    def due(self) -> None:
        """The wait has timed out."""
        self._is_late = True
        if self._is_over or self._is_asking:
            return
        place = self._place
        answer = place.polls.still_nothing(place.read, place.stream, place.topic)
        if answer is not None:
            self._finish(answer)
        else:
            self._ask(place.polls.nothing_new(place.read, place.stream))

    def _ask(self, question: Coroutine[None, None, Answer | Poll]) -> None:
        self._is_asking = True
        self._has_missed = False
        self._place.polls.tasks.start(self._asked(question), f"long-poll {self._place.read.start}")

    async def _asked(self, question: Coroutine[None, None, Answer | Poll]) -> None:
        found: Answer | Poll = Poll.WAIT
        route = self._place.read.route
        try:
            try:
                found = await question
            except TailMovedBack:
                found = await self._begin_anew()
        except StreamEnded as ended:
            found = refusal_answer(route, ended.refusal, Outcome.FOLLOWED)
        except Uncacheable:
            found = await self._past_tape()
        except GatewayError as error:
            found = failure_answer(route.node, error)
        except BaseException:
            self._is_asking = False
            self.gone()
            raise
        self._is_asking = False
        try:
            self._go_on(found)
        except Exception:
            self.gone()
            raise

    def _go_on(self, found: Answer | Poll) -> None:
        if self._is_over:
            if isinstance(found, Answer):
                found.close()
        elif isinstance(found, Answer):
            self._finish(found)
        elif self._is_late:
            self.due()
        elif found is Poll.LOOK or self._has_missed:
            self.pump()

    async def _begin_anew(self) -> Answer | Poll:
        """The stream has been replaced.  A client that waited for more of the old one is told that it has ended.  A
        client that arrived while the follower was unconfirmed starts again with the stream that the origin has now."""
        place = self._place
        if self._was_confirmed:
            return refusal_answer(place.read.route, OriginError.of_ended(404), Outcome.FOLLOWED)
        found = await place.polls.answer(place.read)
        if isinstance(found, Answer):
            return found
        if self._is_over:
            found.close()
            return Poll.WAIT
        self._give_back(place)
        self._place = found
        self._was_confirmed = found.topic.is_confirmed
        found.topic.readers_now.add(self)
        found.topic.readers += self.clients - 1
        found.topic.crowded += self.clients - 1
        return Poll.LOOK

    async def _past_tape(self) -> Answer:
        """Fetch for this client alone what is not on the tape, because it was too large or evicted at once."""
        place = self._place
        try:
            return await place.polls.past_tape(place.read, place.stream)
        except (Uncacheable, GatewayError):
            # When the client asks again, it is relayed or receives the error.
            return failure_answer(place.read.route.node, UpstreamUnavailable())

    def gone(self) -> None:
        """The client has disconnected."""
        if not self._is_over:
            self._leave()
            self._client.has_gone()

    def _finish(self, answer: Answer) -> Rendered:
        place = self._place
        rendered = self._client.render(place.polls.code_now(place.read, answer))
        self._leave()
        self._count(rendered)
        self._client.send(rendered)
        self._client.account(rendered)
        return rendered

    def _count(self, sent: Rendered) -> None:
        stream = self._place.stream
        stream.count_sent(sent.body_bytes * self.clients)
        if sent.answer.outcome is Outcome.HIT:
            stream.count_reads(0, self.clients)

    def _leave(self) -> None:
        self._is_over = True
        place = self._place
        place.polls.wheel.drop(self, self._tick)
        self._give_back(place)

    def _give_back(self, place: Waiting) -> None:
        topic = place.topic
        topic.readers_now.discard(self)
        # The last of them leaves by `Waiting.close`.
        topic.readers -= self.clients - 1
        topic.crowded -= self.clients - 1
        place.close()

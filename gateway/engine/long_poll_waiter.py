"""A waiter: the long-poll clients at one offset, as an object of a few slots, without a task or a timer.

When its topic moves, it checks whether it can be answered.  When its time is up, it is answered with a 204 if the
follower confirms the tail.  It needs a task only if the origin has to be asked, for as long as that takes.

Waiters that are woken by one event, and whose answers are equal, share bytes that are made once.
"""

from __future__ import annotations

from collections.abc import Coroutine, Hashable, Iterable
from typing import NamedTuple, Protocol

from gateway.aio.clock import Clock
from gateway.aio.tasks import Tasks
from gateway.aio.timers import TICK_S, Wheel
from gateway.engine.answer import Answer
from gateway.engine.classifier import BEYOND_TAIL
from gateway.engine.coder import Coder
from gateway.engine.live_start import TOO_LARGE
from gateway.engine.read import Poll, Read, StreamEnded, Uncacheable
from gateway.engine.response_heads import failure_answer, origin_error_answer
from gateway.errors import GatewayError, TailMovedBack
from gateway.limits.memory import SharedBytes
from gateway.live.frames import drop_failed
from gateway.live.topic import Topic
from gateway.protocol.cache_status import Outcome
from gateway.protocol.cursor import parse_cursor
from gateway.protocol.names import STREAM_CURSOR
from gateway.tape.stream import End, Stream
from gateway.upstream.flight import NotShareable, OriginError


class Rendered(NamedTuple):
    """A whole response in bytes."""

    head: bytes
    """The head, followed by the body if that is small."""
    body: tuple[bytes, ...]
    """A large body, in the pieces that the tape holds.  Responses with other heads share them."""
    body_bytes: int
    answer: Answer
    """The answer from which the response was rendered."""
    shared: SharedBytes
    """The account of a large body."""
    keeps: bool = True
    """Whether the connection stays open after the response."""

    @property
    def cursor(self) -> int | None:
        """The cursor in the response; None if it has none."""
        return parse_cursor(self.answer.headers.get(STREAM_CURSOR))


class PollClient(Protocol):
    """The client of a long-poll, or several clients that wait for the same answer."""

    @property
    def shape(self) -> Hashable:
        """The properties of the client that determine the response: clients of equal shape get the same bytes."""

    def render(self, answer: Answer) -> Rendered:
        """The response for such a client."""

    def send_rendered(self, rendered: Rendered) -> None:
        """Write the response."""

    def account(self, rendered: Rendered) -> None:
        """The response has been written: count it, and let the connection continue."""

    def split(self) -> Iterable[PollClient]:
        """All clients but one, each by itself from now on; the caller must call `waits` on each."""

    def waits(self, waiter: Waiter) -> None:
        """Set the waiter by which this client waits."""

    def relay(self, at: str) -> None:
        """Have each client's own request sent to the origin.  The request is for the bytes after the offset `at`, even
        if the client has asked for the tail."""

    def has_gone(self) -> None:
        """The client disconnected before it was answered, or its answer has failed.  Does nothing after `account`."""


class Polls(Protocol):
    """Answers waiters and holds what they share; implemented by `gateway.engine.long_poll.LongPoll`."""

    clock: Clock
    tasks: Tasks
    wheel: Wheel
    coder: Coder

    def wait(self, waiting: WaitingPoll, client: PollClient) -> Waiter:
        """A waiter, not yet started."""

    def reader_left(self, topic: Topic) -> None:
        """A reader has left the topic."""

    def poll_now(self, read: Read, stream: Stream, topic: Topic, outcome: Outcome) -> Answer | Poll:
        """The answer to a long-poll if it can be given at once.  Raises StreamEnded."""

    async def poll_asking(self, read: Read, stream: Stream, topic: Topic, outcome: Outcome) -> Answer | Poll:
        """Fetch what is missing for an answer."""

    def timeout_confirmed(self, read: Read, stream: Stream, topic: Topic) -> Answer | None:
        """The 204 of a wait that has timed out, if the follower confirms the tail."""

    async def timeout_asking(self, read: Read, stream: Stream) -> Answer:
        """The answer to a wait that has timed out, if the origin has to be asked for the tail."""

    async def answer(self, read: Read) -> Answer | WaitingPoll:
        """Answer a long-poll that starts again, or return its new place."""

    async def answer_past_tape(self, read: Read, stream: Stream) -> Answer:
        """Answer a long-poll whose bytes are not on the tape."""


class WaitingPoll(NamedTuple):
    """One long-poll client's place in the stream before it waits; `start` or `close` must be called."""

    polls: Polls
    read: Read
    stream: Stream
    topic: Topic

    def start(self, client: PollClient) -> Waiter:
        """A waiter for `client`, not yet started."""
        return self.polls.wait(self, client)

    def close(self) -> None:
        self.polls.reader_left(self.topic)


class Waiter:
    """Long-poll clients that wait together.  They are answered, or found disconnected, once."""

    __slots__ = (
        "_answer_key",
        "_client",
        "_cursor",
        "_has_left",
        "_has_missed",
        "_has_timed_out",
        "_is_asking",
        "_is_over",
        "_tick",
        "_version",
        "_waiting",
        "_was_confirmed",
        "began",
        "clients",
    )

    def __init__(self, waiting: WaitingPoll, client: PollClient, patience_s: float) -> None:
        polls, read = waiting.polls, waiting.read
        self._waiting = waiting
        self._client = client
        self._answer_key = (read.start, read.accepted, client.shape) if read.if_none_match is None else None
        """The values that determine its answer, except the cursor; None if the answer cannot be shared."""
        self._cursor = parse_cursor(read.cursor) or -1
        self._was_confirmed = waiting.topic.is_confirmed
        """Whether the follower has confirmed the stream since the client arrived."""
        self._is_over = False
        """Whether the clients have their answer, or will get none here."""
        self._has_left = False
        """Whether the topic has stopped counting the clients."""
        self._is_asking = False
        self._has_missed = False
        """Whether the topic changed while the origin was being asked."""
        self._has_timed_out = False
        self.began = polls.clock.now()
        self.clients = 1
        """How many clients wait here for the same answer."""
        self._version = waiting.stream.version
        """The stream's version when the first client arrived."""
        self._tick = polls.wheel.add(self, patience_s)

    def __repr__(self) -> str:
        return f"<Waiter {self.clients} clients at {self.at}>"

    @property
    def at(self) -> str:
        """The offset before which the client has everything."""
        return self._waiting.read.start

    def join(self, now: float) -> bool:
        """Add one more client with the same request, if it may wait with the others; return whether it does."""
        stream = self._waiting.stream
        if (
            self._is_over
            or self._is_asking
            or self._has_timed_out
            or now >= self.began + TICK_S
            or stream.ended is not None
            or not self._version.same_waiting_as(stream.version)
        ):
            return False
        topic = self._waiting.topic
        self.clients += 1
        topic.readers += 1
        topic.extra_clients += 1
        stream.count_reads(1, 0)
        return True

    def leave_one(self) -> None:
        """One of several clients has disconnected."""
        topic = self._waiting.topic
        self.clients -= 1
        topic.readers -= 1
        topic.extra_clients -= 1

    def start(self) -> None:
        """Join the topic."""
        self._waiting.topic.readers_now.add(self)
        self._look(Outcome.HIT)

    def pump(self) -> None:
        """The topic has changed: answer if that is possible now."""
        self._look(Outcome.FOLLOWED)

    def _look(self, outcome: Outcome) -> None:
        if self._is_over:
            return
        if self._waiting.topic.is_confirmed:
            self._was_confirmed = True
        if self._is_asking:
            self._has_missed = True
            return
        waiting, topic = self._waiting, self._waiting.topic
        if topic.not_shareable is not None or (waiting.stream.varies_by_origin and waiting.read.web_origin is not None):
            self._relay()
            return
        answers = topic.shared_answers() if self._answer_key is not None and waiting.stream.ended is None else None
        answer_key: Hashable = self._answer_key
        if self._cursor >= topic.answers_cursor:
            # A client whose cursor is not below the shared one needs its own, unless it is among the far-ahead clients.
            answer_key = (answer_key, "far" if topic.cursors.is_far(self._cursor) else self._cursor)
        if answers is not None and isinstance(shared := answers.get(answer_key), Rendered) and self._suits(shared):
            self._is_over = True
            self._client.send_rendered(shared)
            if topic.is_pumping:
                topic.to_account.append((self, shared))
            else:
                self.account(shared)
            return
        try:
            found = waiting.polls.poll_now(waiting.read, waiting.stream, topic, outcome)
        except StreamEnded as ended:
            found = origin_error_answer(waiting.read.route, ended.error, Outcome.FOLLOWED)
        except TailMovedBack:
            self._ask(self._restart())
            return
        if isinstance(found, Answer):
            rendered = self._finish(found)
            if answers is not None and topic.is_confirmed and (topic.is_pumping or not rendered.body):
                # Without a confirmed follower the tail may be valid for less than a second: do not share it.  A large
                # body would be kept from here after the tape has dropped it.
                answers[answer_key] = rendered
        elif found is Poll.ASK:
            self._ask(waiting.polls.poll_asking(waiting.read, waiting.stream, topic, outcome))

    def _suits(self, shared: Rendered) -> bool:
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

    def split(self) -> list[Waiter]:
        """Itself and the clients that waited here, each with a waiter of its own from now on."""
        if self.clients == 1 or self._is_over or self._is_asking or self._has_timed_out:
            return [self]
        found, topic = [self], self._waiting.topic
        left_s = max(0.0, self._tick * TICK_S - self._waiting.polls.clock.now())
        for client in self._client.split():
            alone = Waiter(self._waiting, client, left_s)
            alone._was_confirmed, alone._version = self._was_confirmed, self._version
            client.waits(alone)
            self.clients -= 1
            topic.extra_clients -= 1
            topic.readers_now.add(alone)
            found.append(alone)
        return found

    def drain_within(self, delay_s: float, within_s: float) -> None:
        """End the wait after `delay_s`, if not before; an empty answer is harmless."""
        if self._is_over or self._has_timed_out:
            return
        wheel = self._waiting.polls.wheel
        wheel.unlink(self, self._tick)
        left_s = self._tick * TICK_S - self._waiting.polls.clock.now()
        self._tick = wheel.add(self, max(0.0, min(delay_s, within_s, left_s)))

    def stay(self, lifetime_s: float) -> None:
        """Do nothing: an early end of a wait is harmless, a late one is not."""

    def due(self) -> None:
        """The wait has timed out."""
        try:
            self._time_out()
        except Exception:
            drop_failed(self)

    def _time_out(self) -> None:
        self._has_timed_out = True
        if self._is_over or self._is_asking:
            return
        waiting = self._waiting
        answer = waiting.polls.timeout_confirmed(waiting.read, waiting.stream, waiting.topic)
        if answer is not None:
            self._finish(answer)
        else:
            self._ask(waiting.polls.timeout_asking(waiting.read, waiting.stream))

    def _ask(self, question: Coroutine[None, None, Answer | Poll]) -> None:
        self._is_asking = True
        self._has_missed = False
        self._waiting.polls.tasks.start(self._asked(question), f"long-poll {self._waiting.read.start}")

    async def _asked(self, question: Coroutine[None, None, Answer | Poll]) -> None:
        found: Answer | Poll | NotShareable = Poll.WAIT
        route = self._waiting.read.route
        try:
            try:
                try:
                    found = await question
                except Uncacheable as error:
                    if error.why is not TOO_LARGE:
                        raise
                    found = await self._past_tape()
            except TailMovedBack:
                found = await self._restart()
        except StreamEnded as ended:
            found = origin_error_answer(route, ended.error, Outcome.FOLLOWED)
        except Uncacheable as error:
            found = error.why
        except GatewayError as error:
            found = failure_answer(route.node, error)
        except BaseException:
            self._is_asking = False
            self.gone()
            raise
        self._is_asking = False
        try:
            self._continue(found)
        except Exception:
            self.gone()
            raise

    def _continue(self, found: Answer | Poll | NotShareable) -> None:
        if self._is_over:
            if isinstance(found, Answer):
                found.close()
        elif isinstance(found, NotShareable):
            read = self._waiting.read
            if found.is_lasting:
                read.route.unshared.remember(read.key, read.shape, found.reason)
            self._relay()
        elif isinstance(found, Answer):
            self._finish(found)
        elif self._has_timed_out:
            self.due()
        elif found is Poll.ASK or self._has_missed:
            self.pump()

    async def _restart(self) -> Answer | Poll:
        """The stream's record has ended.  If the stream was replaced, a client that waited for more of the old one is
        told that it has ended.  A client that arrived while the follower was unconfirmed starts again with the stream
        that the origin has now, and so does every client if it is not known whether the stream was replaced."""
        waiting = self._waiting
        if self._was_confirmed and waiting.stream.ended not in (None, End.PURGED):
            return self._replaced()
        try:
            found = await waiting.polls.answer(waiting.read)
        except Uncacheable as error:
            if error.why is BEYOND_TAIL:
                # The old stream had named the offset.
                return self._replaced()
            raise
        if isinstance(found, Answer):
            return found
        if self._is_over:
            found.close()
            return Poll.WAIT
        self._detach(waiting)
        self._waiting = found
        self._was_confirmed = found.topic.is_confirmed
        found.topic.readers_now.add(self)
        found.topic.readers += self.clients - 1
        found.topic.extra_clients += self.clients - 1
        return Poll.ASK

    def _replaced(self) -> Answer:
        return origin_error_answer(self._waiting.read.route, OriginError.of_ended(404), Outcome.FOLLOWED)

    async def _past_tape(self) -> Answer:
        """Fetch for this client alone what is not on the tape, because it was too large or evicted at once."""
        waiting = self._waiting
        return await waiting.polls.answer_past_tape(waiting.read, waiting.stream)

    def _relay(self) -> None:
        """Leave the clients to the origin: its answers may not be shared."""
        self._leave()
        self._client.relay(self.at)

    def gone(self) -> None:
        """The client has disconnected, or its answer has failed: drop the clients that still wait."""
        if not self._has_left:
            self._leave()
        self._client.has_gone()

    def _finish(self, answer: Answer) -> Rendered:
        waiting = self._waiting
        rendered = self._client.render(waiting.polls.coder.code_now(waiting.read, answer))
        self._leave()
        self._count(rendered)
        self._client.send_rendered(rendered)
        self._client.account(rendered)
        return rendered

    def _count(self, sent: Rendered) -> None:
        stream = self._waiting.stream
        stream.sent_bytes += sent.body_bytes * self.clients
        if sent.answer.outcome is Outcome.HIT:
            stream.count_reads(0, self.clients)

    def _leave(self) -> None:
        self._is_over = self._has_left = True
        waiting = self._waiting
        waiting.polls.wheel.unlink(self, self._tick)
        self._detach(waiting)

    def _detach(self, waiting: WaitingPoll) -> None:
        topic = waiting.topic
        topic.readers_now.discard(self)
        # The last of them leaves by `WaitingPoll.close`.
        topic.readers -= self.clients - 1
        topic.extra_clients -= self.clients - 1
        waiting.close()

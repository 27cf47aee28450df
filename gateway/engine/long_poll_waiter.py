"""Waiting long-polls: one `Waiter` for all clients that wait at one offset for the same answer.

A waiter is a small object, without a task or timer of its own.  When the stream's topic (the group of its live readers)
changes, the waiter checks whether it can answer.  After a timeout, the waiter answers with a 204 if the follower (the
stream's one live request at the origin) has confirmed the tail.  The waiter starts a task only to ask the origin.

If one event wakes several waiters, those with equal answers share the rendered response.
"""

from __future__ import annotations

from collections.abc import Coroutine, Hashable, Iterable
from contextlib import suppress
from typing import NamedTuple, Protocol

from gateway.aio.clock import Clock
from gateway.aio.tasks import Tasks
from gateway.aio.timers import TICK_S, Wheel
from gateway.engine.answer import Answer, Rendered
from gateway.engine.compression import Coder
from gateway.engine.live_start import TOO_LARGE
from gateway.engine.read import MOST_CHANGES, Poll, Read, StreamEnded, Uncacheable
from gateway.engine.reply_classifier import BEYOND_TAIL
from gateway.engine.response_heads import failure_answer, origin_error_answer
from gateway.errors import GatewayError, TailMovedBack
from gateway.live.frames import drop_failed
from gateway.live.topic import Topic
from gateway.protocol.cache_status import Outcome
from gateway.protocol.cursor import parse_cursor
from gateway.tape.stream import End, Stream
from gateway.upstream.flight import CHANGES_TOO_FAST, NotShareable, OriginError


class PollClient(Protocol):
    """One long-poll client, or several long-poll clients that wait for the same answer."""

    @property
    def shape(self) -> Hashable:
        """The client's properties that affect the response.  Clients of equal shape get the same bytes."""

    def render(self, answer: Answer) -> Rendered:
        """Render an answer for this client."""

    def send_rendered(self, rendered: Rendered) -> None:
        """Write the response."""

    def account(self, rendered: Rendered) -> None:
        """Count a response that has been written, and let the connection continue."""

    def split(self) -> Iterable[PollClient]:
        """Keep one client, and return a new `PollClient` for each other client.  The caller must call `waits` on each
        of them."""

    def waits(self, waiter: Waiter) -> None:
        """Set the waiter through which this client waits."""

    def relay(self, at: str) -> None:
        """Relay each client's request to the origin, with the offset `at` even if the client has sent `offset=now`."""

    def has_gone(self) -> None:
        """Handle a client that has disconnected, or whose answer has failed.  Does nothing after `account`."""


class Polls(Protocol):
    """Makes the answers for waiters, and has the objects that all waiters share.  `gateway.engine.long_poll.LongPoll`
    implements the methods and documents their errors."""

    clock: Clock
    tasks: Tasks
    wheel: Wheel
    coder: Coder

    def wait(self, waiting: WaitingPoll, client: PollClient) -> Waiter:
        """Return a waiter that has not been started."""

    def are_overdue(self, read: Read, stream: Stream) -> bool:
        """Return whether an answer now would begin with bytes that the origin has failed to confirm."""

    def reader_left(self, topic: Topic) -> None:
        """Record that a reader has left the topic."""

    def poll_now(self, read: Read, stream: Stream, topic: Topic, outcome: Outcome) -> Answer | Poll:
        """Return the answer, or the reason why there is no answer yet, without a request to the origin."""

    async def poll_asking(self, read: Read, stream: Stream, topic: Topic, outcome: Outcome) -> Answer | Poll:
        """Ask the origin for the bytes or metadata that an answer needs."""

    def timeout_confirmed(self, read: Read, stream: Stream, topic: Topic) -> Answer | None:
        """Return the 204 for a wait that has timed out; None if the follower has not confirmed the tail."""

    async def timeout_asking(self, read: Read, stream: Stream) -> Answer:
        """Answer a wait that has timed out, after a request for the tail."""

    async def answer(self, read: Read) -> Answer | WaitingPoll:
        """Answer a long-poll that has been started again, or register the poll to wait."""

    async def answer_past_tape(self, read: Read, stream: Stream) -> Answer:
        """Answer a long-poll whose bytes are not on the tape."""


class WaitingPoll(NamedTuple):
    """A long-poll that is about to wait on a topic.  The caller must call `start` or `close`."""

    polls: Polls
    read: Read
    stream: Stream
    topic: Topic

    @property
    def is_unconfirmed(self) -> bool:
        """Whether an answer now would begin with bytes that the origin has failed to confirm."""
        return self.polls.are_overdue(self.read, self.stream)

    def start(self, client: PollClient) -> Waiter:
        """Return a waiter for `client` that has not been started."""
        return self.polls.wait(self, client)

    def close(self) -> None:
        self.polls.reader_left(self.topic)


class Waiter:
    """Long-poll clients that wait together for one answer.  Each client gets one answer, unless it disconnects."""

    __slots__ = (
        "_answer_key",
        "_changes",
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
        is_shared = read.if_none_match is None and not read.is_handed
        self._answer_key = (read.start, read.accepted, client.shape) if is_shared else None
        """The parts of the request that affect the answer, except the cursor; None if the answer cannot be shared.  An
        answer to another process cannot be shared, because its head has this process's statement about the stream."""
        self._cursor = parse_cursor(read.cursor) or -1
        self._was_confirmed = waiting.topic.is_confirmed
        """Whether the follower has confirmed the stream since the first client arrived (for `_restart`)."""
        self._is_over = False
        """Whether this waiter has answered the clients, or has handed them over to another object for the answer."""
        self._has_left = False
        """Whether the clients have been removed from the topic's count."""
        self._is_asking = False
        self._has_missed = False
        """Whether the topic has changed during a request to the origin, so that the waiter must check again."""
        self._has_timed_out = False
        self._changes = 0
        """The number of times that the wait has started again because the stream had changed."""
        self.began = polls.clock.now()
        self.clients = 1
        """The number of clients that wait for the answer."""
        self._version = waiting.stream.version
        """The stream's version when the first client arrived."""
        self._tick = polls.wheel.add(self, patience_s)

    def __repr__(self) -> str:
        return f"<Waiter {self.clients} clients at {self.at}>"

    carrier = 0

    @property
    def at(self) -> str:
        """The offset from which the clients read.  The clients have all bytes before this offset."""
        return self._waiting.read.start

    @property
    def is_handed(self) -> bool:
        """Whether the client that waits is another worker."""
        return self._waiting.read.is_handed

    def join(self, now: float) -> bool:
        """Add a client with the same request.  Return False if this client needs a separate waiter."""
        stream, version = self._waiting.stream, self._version
        if (
            self._is_over
            or self._is_asking
            or self._has_timed_out
            or now >= self.began + TICK_S
            or stream.ended is not None
            # Usually the version is still the same object, and the comparison with `is` saves a call.
            or (version is not stream.version and not version.same_waiting_as(stream.version))
        ):
            return False
        topic = self._waiting.topic
        self.clients += 1
        topic.readers += 1
        topic.extra_clients += 1
        stream.count_reads(1, 0)
        return True

    def leave_one(self) -> None:
        """Remove a client that has disconnected.  At least one client must remain."""
        topic = self._waiting.topic
        self.clients -= 1
        topic.readers -= 1
        topic.extra_clients -= 1

    def start(self) -> None:
        """Join the topic, and answer immediately if possible."""
        self._waiting.topic.readers_now.add(self)
        self._look(Outcome.HIT)

    def pump(self) -> None:
        """Answer if possible, because the topic has changed."""
        self._look(Outcome.FOLLOWED)

    def _look(self, outcome: Outcome) -> None:
        if self._is_over:
            return
        if self._waiting.topic.is_confirmed:
            self._was_confirmed = True
        if self._is_asking:
            self._has_missed = True
            if self._has_timed_out:
                self._answer_sooner()
            return
        waiting, topic = self._waiting, self._waiting.topic
        if topic.not_shareable is not None or (waiting.stream.varies_by_origin and waiting.read.web_origin is not None):
            self._relay()
            return
        answers = topic.shared_answers() if self._answer_key is not None and waiting.stream.ended is None else None
        answer_key: Hashable = self._answer_key
        if self._cursor >= topic.answers_cursor:
            # A client must always get a greater cursor than its own.  The shared answer's cursor is not greater than
            # this client's cursor.  Share an answer only among clients with equal cursors.
            answer_key = (answer_key, self._cursor)
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
                # Share an answer only if a follower has confirmed the tail.  Otherwise the tail may be out of date
                # within a second.  Share a body only while the topic wakes its waiters (`is_pumping`).  A body that is
                # shared for longer would stay in memory after the tape has dropped it.
                answers[answer_key] = rendered
        elif found is Poll.ASK:
            self._ask(waiting.polls.poll_asking(waiting.read, waiting.stream, topic, outcome))

    def _answer_sooner(self) -> None:
        """Answer a timed-out wait at once if the topic has the answer now.  A request to the origin is still under
        way."""
        polls, read, stream, topic, found = *self._waiting, None
        if topic.is_confirmed and topic.not_shareable is None and not stream.varies_by_origin:
            # If the stream has ended, the origin's answer decides what the clients get.
            with suppress(StreamEnded, TailMovedBack):
                found = polls.poll_now(read, stream, topic, Outcome.FOLLOWED)
                if found is Poll.WAIT:
                    found = polls.timeout_confirmed(read, stream, topic)
        if isinstance(found, Answer):
            self._finish(found)

    def _suits(self, shared: Rendered) -> bool:
        """Return whether a shared answer has a cursor that is valid for this client.  The client's cursor must not go
        back (section 8.1)."""
        return self._cursor < 0 or (cursor := shared.cursor) is None or cursor > self._cursor

    def account(self, sent: object) -> None:
        """Leave the topic after the answer has been sent, and count the answer."""
        assert isinstance(sent, Rendered)
        self._leave()
        self._count(sent)
        self._client.account(sent)

    def beat(self) -> None:
        """Do nothing.  A waiting long-poll has no body yet, so heartbeats are impossible."""

    def split(self) -> list[Waiter]:
        """Create a separate waiter for each client.  Return all waiters, including this one."""
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
        """End the wait within `delay_s` seconds.  An early 204 does no harm."""
        if self._is_over or self._has_timed_out:
            return
        wheel = self._waiting.polls.wheel
        wheel.unlink(self, self._tick)
        left_s = self._tick * TICK_S - self._waiting.polls.clock.now()
        self._tick = wheel.add(self, max(0.0, min(delay_s, within_s, left_s)))

    def stay(self, lifetime_s: float) -> None:
        """Do nothing after a cancelled drain.  A wait may end early, but must not last longer than the client
        expects."""

    def due(self) -> None:
        """Handle the timeout of the wait."""
        self._has_timed_out = True
        if self._is_over or self._is_asking:
            return
        polls, read, stream, topic = self._waiting
        try:
            if (answer := polls.timeout_confirmed(read, stream, topic)) is not None:
                self._finish(answer)
            else:
                self._ask(polls.timeout_asking(read, stream))
        except Exception:
            drop_failed(self)

    def _ask(self, question: Coroutine[None, None, Answer | Poll]) -> None:
        self._is_asking = True
        self._has_missed = False
        self._waiting.polls.tasks.start(self._asked(question), f"long-poll {self._waiting.read.start}")

    async def _asked(self, question: Coroutine[None, None, Answer | Poll]) -> None:
        found: Answer | Poll | NotShareable = Poll.WAIT
        waiting, route = self._waiting, self._waiting.read.route
        try:
            try:
                try:
                    found = await question
                except Uncacheable as error:
                    if error.why is not TOO_LARGE:
                        raise
                    # Fetch the bytes for these clients alone.
                    found = await waiting.polls.answer_past_tape(waiting.read, waiting.stream)
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
        """Start again with the stream that the origin has now.

        If the stream was re-created after the follower had confirmed the old stream, the clients get an error instead.
        Another process has to ask again.
        """
        waiting = self._waiting
        if self._was_confirmed and waiting.stream.ended not in (None, End.PURGED):
            return self._replaced()
        if self.is_handed:
            # The head of the answer would state the record with which the wait began, and the other process would
            # combine the bytes of two streams.  Cut the connection of the other process.  The answer to its next
            # request will state the new record.
            self.gone()
            return Poll.WAIT
        if waiting.stream.ended is not End.PURGED:
            # Limit the restarts, because a faulty origin may again and again state an offset and then refuse it.
            self._changes += 1
            if self._changes > MOST_CHANGES:
                raise Uncacheable(CHANGES_TOO_FAST)
        try:
            found = await waiting.polls.answer(waiting.read)
        except Uncacheable as error:
            if error.why is BEYOND_TAIL:
                # The origin has stated this offset for the old stream.  The new stream is shorter.
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

    def _relay(self) -> None:
        """Relay the clients' requests, because the origin's answers may not be shared."""
        self._leave()
        self._client.relay(self.at)

    def gone(self) -> None:
        """End the wait without an answer, because the last client has disconnected or the answer has failed."""
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
        self._waiting.polls.wheel.unlink(self, self._tick)
        self._detach(self._waiting)

    def _detach(self, waiting: WaitingPoll) -> None:
        topic = waiting.topic
        topic.readers_now.discard(self)
        # Subtract all clients but one from the topic's counts.  `WaitingPoll.close` subtracts the last client.
        topic.readers -= self.clients - 1
        topic.extra_clients -= self.clients - 1
        waiting.close()

"""One question to the origin on behalf of many readers, so that each answer is fresh for all who get it.

S2's reads are linearizable, so a reader may use an answer about the tail only if the question was sent after the
reader's request had arrived.  Readers that come while a question is under way therefore wait for the next one, which is
sent when the first has been answered: however many readers there are, at most one question is under way and one is
waiting.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from gateway.aio.signal import Signal
from gateway.aio.tasks import Tasks
from gateway.errors import GatewayError, UpstreamUnreachable, bare
from gateway.limits.askers import Askers

T = TypeVar("T")


class Question(Generic[T]):
    """One question: not sent yet, under way, or answered.  Owner: `Questions`."""

    __slots__ = ("answer", "askers", "changed", "error", "is_sent", "waiting")

    def __init__(self, client: str = "") -> None:
        self.askers = Askers(client)
        """The nets of the readers' clients."""
        self.is_sent = False
        self.waiting = 0
        """How many readers wait for the answer."""
        self.answer: list[T] = []
        """The answer, once there is one."""
        self.error: GatewayError | None = None
        self.changed = Signal()

    @property
    def is_over(self) -> bool:
        """Whether it was answered or has failed."""
        return bool(self.answer) or self.error is not None


class Questions(Generic[T]):
    """Which question a reader waits for, and which is sent next.  Decides only; `SharedQuestion` sends."""

    __slots__ = ("queued", "under_way")

    def __init__(self) -> None:
        self.under_way: Question[T] | None = None
        self.queued: Question[T] | None = None

    def __repr__(self) -> str:
        waiting = self.queued.waiting if self.queued is not None else 0
        served = self.under_way.waiting if self.under_way is not None else 0
        return f"<Questions {served} wait for the one under way, {waiting} for the next>"

    def join(self, client: str = "") -> Question[T]:
        """The question that a request of this net which arrives now waits for; `leave` must be called."""
        if self.queued is None:
            self.queued = Question(client)
        self.queued.askers.join(client)
        self.queued.waiting += 1
        return self.queued

    def leave(self, question: Question[T]) -> None:
        """A reader waits for this question no more."""
        question.waiting -= 1
        if question is self.queued and not question.waiting:
            self.queued = None

    def next(self) -> Question[T] | None:
        """The question to send now, if there is one and none is under way."""
        if self.under_way is not None or self.queued is None:
            return None
        self.under_way, self.queued = self.queued, None
        self.under_way.is_sent = True
        return self.under_way

    def over(self) -> None:
        """The question under way was answered or has failed."""
        self.under_way = None


class SharedQuestion(Generic[T]):
    """Sends questions."""

    def __init__(self, tasks: Tasks, name: str) -> None:
        self._tasks = tasks
        self._name = name
        self._questions: Questions[T] = Questions()
        self._is_running = False

    def __repr__(self) -> str:
        return repr(self._questions)

    @property
    def is_idle(self) -> bool:
        """Whether no question is under way or waiting."""
        return not self._is_running

    async def ask(self, send: Callable[[Askers], Awaitable[T]], client: str = "") -> T:
        """The answer to a question that is sent after this call, for a client of this net.

        `send`, always the same, asks the origin for these clients; it raises GatewayErrors and is bounded in time.  It
        is not kept, because it leads back to the owner.  Raises the GatewayError that the question failed with.
        """
        question = self._questions.join(client)
        if not self._is_running:
            # The task begins in the next turn of the loop, so all who come in this one share the question.
            self._is_running = True
            self._tasks.start(self._run(send), self._name)
        try:
            while not question.is_over:
                await question.changed.wait()
        finally:
            self._questions.leave(question)
        if question.error is not None:
            raise question.error.anew()
        return question.answer[0]

    async def _run(self, send: Callable[[Askers], Awaitable[T]]) -> None:
        question: Question[T] | None = None
        try:
            while (question := self._questions.next()) is not None:
                try:
                    question.answer.append(await send(question.askers))
                except GatewayError as error:
                    question.error = bare(error)
                self._questions.over()
                question.changed.fire()
        finally:
            self._is_running = False
            # Cancelled at shutdown, or failed unexpectedly: its waiters must not wait for ever.
            for left in (question, self._questions.queued):
                if left is not None and not left.is_over:
                    left.error = UpstreamUnreachable(_GIVEN_UP)
                    left.changed.fire()
            self._questions.over()


_GIVEN_UP: Final = "Question to the origin was given up"

"""Shared questions: no request gets the answer to a question that was sent before it arrived."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from gateway.aio.tasks import Tasks
from gateway.engine.s2.questions import Question, Questions, SharedQuestion
from gateway.errors import UpstreamTimeout, UpstreamUnreachable
from gateway.limits.askers import Askers
from tests.waiting import pass_turns


class QuestionsInTurn(RuleBasedStateMachine):
    """The answer is the time at which the question was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.questions: Questions[int] = Questions()
        self.now = 0
        self.sent_at: dict[Question[int], int] = {}
        self.waiting: list[tuple[int, Question[int]]] = []

    @rule()
    def arrive(self) -> None:
        self.now += 1
        self.waiting.append((self.now, self.questions.join()))

    @precondition(lambda self: self.waiting)
    @rule()
    def leave(self) -> None:
        _, question = self.waiting.pop()
        self.questions.leave(question)

    @rule()
    def send(self) -> None:
        self.now += 1
        under_way = self.questions.under_way
        question = self.questions.next()
        if question is not None:
            assert under_way is None
            assert question.waiting
            self.sent_at[question] = self.now

    @precondition(lambda self: self.questions.under_way is not None)
    @rule()
    def answer(self) -> None:
        question = self.questions.under_way
        assert question is not None
        self.questions.over()
        for arrived, joined in [one for one in self.waiting if one[1] is question]:
            assert self.sent_at[question] > arrived
            self.waiting.remove((arrived, joined))
            self.questions.leave(question)

    @invariant()
    def every_reader_waits_for_one_of_two_questions(self) -> None:
        mine = {question for _, question in self.waiting}
        assert mine <= {self.questions.under_way, self.questions.queued}

    @invariant()
    def no_question_is_sent_for_nobody(self) -> None:
        assert self.questions.queued is None or self.questions.queued.waiting > 0


def test_questions_in_turn() -> None:
    run_state_machine_as_test(QuestionsInTurn)


class Origin:
    """Answers questions with their number, one gate each."""

    def __init__(self) -> None:
        self.gates: list[asyncio.Future[None]] = []

    async def ask(self, askers: Askers) -> int:
        number = len(self.gates)
        self.gates.append(asyncio.get_running_loop().create_future())
        await self.gates[number]
        return number


async def test_readers_share_the_next_question() -> None:
    origin, tasks = Origin(), Tasks()
    shared: SharedQuestion[int] = SharedQuestion(tasks, "question")
    first = [asyncio.ensure_future(shared.ask(origin.ask)) for _ in range(3)]
    await pass_turns()
    later = [asyncio.ensure_future(shared.ask(origin.ask)) for _ in range(3)]
    await pass_turns()
    assert repr(shared) == "<Questions 3 wait for the one under way, 3 for the next>"
    assert len(origin.gates) == 1
    origin.gates[0].set_result(None)
    assert await asyncio.gather(*first) == [0, 0, 0]
    await pass_turns()
    origin.gates[1].set_result(None)
    assert await asyncio.gather(*later) == [1, 1, 1]
    await pass_turns()
    assert shared.is_idle
    await tasks.close()


async def test_a_reader_that_leaves_disturbs_no_other_and_the_last_takes_the_question_along() -> None:
    origin, tasks = Origin(), Tasks()
    shared: SharedQuestion[int] = SharedQuestion(tasks, "question")
    stays, leaves = asyncio.ensure_future(shared.ask(origin.ask)), asyncio.ensure_future(shared.ask(origin.ask))
    await pass_turns()
    alone = asyncio.ensure_future(shared.ask(origin.ask))
    await pass_turns()
    leaves.cancel()
    alone.cancel()
    await pass_turns()
    origin.gates[0].set_result(None)
    assert await stays == 0
    await pass_turns()
    assert len(origin.gates) == 1
    await tasks.close()


async def test_a_failure_is_given_to_all_who_waited_and_to_no_other() -> None:
    origin, tasks = Origin(), Tasks()
    shared: SharedQuestion[int] = SharedQuestion(tasks, "question")
    first = asyncio.ensure_future(shared.ask(origin.ask))
    await pass_turns()
    second = asyncio.ensure_future(shared.ask(origin.ask))
    await pass_turns()
    origin.gates[0].set_exception(UpstreamTimeout())
    with pytest.raises(UpstreamTimeout):
        await first
    await pass_turns()
    origin.gates[1].set_result(None)
    assert await second == 1
    await tasks.close()


async def test_a_shutdown_leaves_nobody_waiting() -> None:
    origin, tasks = Origin(), Tasks()
    shared: SharedQuestion[int] = SharedQuestion(tasks, "question")
    first = asyncio.ensure_future(shared.ask(origin.ask))
    await pass_turns()
    second = asyncio.ensure_future(shared.ask(origin.ask))
    await pass_turns()
    await tasks.close()
    for reader in (first, second):
        with pytest.raises(UpstreamUnreachable):
            await reader


async def test_a_question_is_asked_for_all_clients_that_wait_for_it() -> None:
    asked_for: list[list[str]] = []

    async def ask(askers: Askers) -> int:
        asked_for.append(list(askers.nets))
        return 1

    tasks = Tasks()
    shared: SharedQuestion[int] = SharedQuestion(tasks, "question")
    await asyncio.gather(shared.ask(ask, "a"), shared.ask(ask, "b"), shared.ask(ask, "a"))
    assert asked_for == [["a", "b"]]
    await tasks.close()

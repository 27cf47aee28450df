"""Shared questions: no request gets the answer to a question that was sent before it arrived."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.aio.tasks import Tasks
from gateway.engine.s2.fetch import S2Fetches, S2Question
from gateway.errors import UpstreamTimeout, UpstreamUnreachable
from gateway.limits.queues import Askers
from gateway.s2.records import StreamPosition
from gateway.upstream.s2_client import AtTail, S2Outcome
from tests.waiting import pass_turns

TAIL = S2Question.TAIL


class Bench:
    """The origin answers questions with their number, at a gate each."""

    def __init__(self) -> None:
        self.tasks = Tasks()
        self.fetches = S2Fetches(self.tasks, "/s")
        self.gates: list[asyncio.Future[None]] = []
        self.askers: list[list[str]] = []

    async def send(self, askers: Askers) -> S2Outcome:
        number = len(self.gates)
        self.gates.append(asyncio.get_running_loop().create_future())
        await self.gates[number]
        self.askers.append(list(askers.nets))
        return AtTail(StreamPosition(number, 0))

    async def _number(self, client: str, question: S2Question) -> int:
        found = await self.fetches.ask_question(question, self.send, client)
        assert isinstance(found, AtTail)
        return found.tail.seq_num

    def ask(self, client: str = "a", question: S2Question = TAIL) -> asyncio.Future[int]:
        """The number of the question that a reader who comes now is answered by."""
        return asyncio.ensure_future(self._number(client, question))

    @property
    def under_way(self) -> int:
        return sum(not gate.done() for gate in self.gates)


async def _play(steps: list[str]) -> None:
    """Readers come and go; the tail's number is how many questions had been sent before this one."""
    bench = Bench()
    waiting: list[tuple[int, asyncio.Future[int]]] = []
    for step in steps:
        if step == "arrive":
            waiting.append((len(bench.gates), bench.ask()))
        elif step == "leave" and waiting:
            waiting.pop()[1].cancel()
        elif step == "answer" and bench.under_way:
            bench.gates[-1].set_result(None)
        await pass_turns()
        assert bench.under_way <= 1
        for sent_before, reader in waiting:
            assert not reader.done() or reader.result() >= sent_before
        waiting = [(sent_before, reader) for sent_before, reader in waiting if not reader.done()]
        # A question is under way for each reader that waits, and no reader waits for more than two.
        assert not waiting or bench.under_way == 1
        assert all(len(bench.gates) - sent_before <= 2 for sent_before, _ in waiting)
    await bench.tasks.close()
    await asyncio.gather(*(reader for _, reader in waiting), return_exceptions=True)


@settings(max_examples=40)
@given(st.lists(st.sampled_from(["arrive", "arrive", "leave", "answer"]), max_size=15))
def test_questions_in_turn(steps: list[str]) -> None:
    asyncio.run(_play(steps))


async def test_readers_share_the_next_question() -> None:
    bench = Bench()
    first = [bench.ask() for _ in range(3)]
    await pass_turns()
    later = [bench.ask("b"), bench.ask("c"), bench.ask("b")]
    other = bench.ask("d", S2Question.CHECKED_TAIL)
    await pass_turns()
    assert repr(bench.fetches) == "<S2Fetches 4 wait for 2, 3 for the next>"
    assert len(bench.gates) == 2
    bench.gates[0].set_result(None)
    assert await asyncio.gather(*first) == [0, 0, 0]
    await pass_turns()
    for gate in bench.gates[1:]:
        gate.set_result(None)
    assert await asyncio.gather(*later) == [2, 2, 2]
    assert await other == 1
    await pass_turns()
    # Who waits for the next one may pay for the one under way, too: it is in their way.
    assert bench.askers == [["a", "b", "c"], ["d"], ["b", "c"]]
    assert repr(bench.fetches) == "<S2Fetches 0 wait for 0, 0 for the next>"
    await bench.tasks.close()


async def test_a_reader_that_leaves_disturbs_no_other_and_the_last_takes_the_question_along() -> None:
    bench = Bench()
    stays, leaves = bench.ask(), bench.ask()
    await pass_turns()
    alone = bench.ask()
    await pass_turns()
    leaves.cancel()
    alone.cancel()
    await pass_turns()
    bench.gates[0].set_result(None)
    assert await stays == 0
    await pass_turns()
    assert len(bench.gates) == 1
    assert not bench.fetches.is_asking(TAIL)
    await bench.tasks.close()


async def test_a_failure_is_given_to_all_who_waited_and_to_no_other() -> None:
    bench = Bench()
    first = bench.ask()
    await pass_turns()
    second = bench.ask()
    await pass_turns()
    bench.gates[0].set_exception(UpstreamTimeout())
    with pytest.raises(UpstreamTimeout):
        await first
    await pass_turns()
    bench.gates[1].set_result(None)
    assert await second == 1
    await bench.tasks.close()


async def test_a_shutdown_leaves_nobody_waiting() -> None:
    bench = Bench()
    first = bench.ask()
    await pass_turns()
    second = bench.ask()
    await pass_turns()
    await bench.tasks.close()
    for reader in (first, second):
        with pytest.raises(UpstreamUnreachable):
            await reader

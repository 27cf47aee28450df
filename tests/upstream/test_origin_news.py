"""What the workers of a gateway know of an origin, and tell each other."""

from __future__ import annotations

import asyncio
import random

from gateway.aio.clock import ManualClock
from gateway.config.origins import OriginsConfig
from gateway.config.routes import RouteConfig
from gateway.upstream.breaker import BreakerState
from gateway.upstream.health import OriginNews, learn, news_of
from gateway.upstream.origin_pool import Origins, state_of
from gateway.upstream.origin_state import Origin
from gateway.workers.shared_memory import ORIGINS, SharedMemory
from gateway.workers.shared_origins import SharedOrigins
from tests.waiting import pass_turns

ORIGIN = "http://a"
CLOSED, OPEN = BreakerState.CLOSED, BreakerState.OPEN


class Worker:
    """The registry of origins of one worker."""

    def __init__(self, slot: int, clock: ManualClock, shared: SharedMemory) -> None:
        self.clock = clock
        self.shared = shared
        self.said: list[str] = []
        self.news: list[OriginNews] = []
        self.watched: list[Origin] = []
        self.origins = Origins(clock, random.Random(slot), self.said.append, SharedOrigins(shared, slot))
        self.origins.on_change = lambda origin: self.news.append(news_of(origin))
        self.origins.on_open = self.watched.append
        self.use(ORIGIN)
        found = self.origins.find(ORIGIN)
        assert found is not None
        self.origin: Origin = found

    def use(self, origin: str) -> None:
        self.origins.configure([RouteConfig(origin=origin)], OriginsConfig(), {})

    def fail(self, times: int = 5) -> None:
        for _ in range(times):
            sent = self.origin.admit(self.clock.now(), is_live=False)
            assert sent is not None
            sent.record_failure("connection refused", self.clock.now())
            sent.close()

    def lose(self, times: int) -> None:
        for _ in range(times):
            sent = self.origin.admit(self.clock.now(), is_live=False)
            assert sent is not None
            sent.record_failure("connection lost", self.clock.now(), is_loss=True)

    def hear(self, teller: Worker) -> None:
        learn(self.origin, teller.news[-1], self.clock.now())


def crew() -> tuple[Worker, Worker]:
    clock, shared = ManualClock(), SharedMemory.create(2)
    return Worker(0, clock, shared), Worker(1, clock, shared)


def test_a_breaker_opens_at_all_workers_and_one_of_them_logs_it() -> None:
    first, second = crew()
    first.fail(2)
    second.fail(3)
    assert first.origin.admit(first.clock.now(), is_live=False) is None
    first.hear(second)
    assert state_of(first.origin, first.clock.now()).reason == "connection refused"
    assert (len(first.said), len(second.said)) == (0, 1)
    assert (first.watched, second.watched) == ([first.origin], [second.origin])
    # It passes nothing on: the worker that has told it tells the others too.
    assert first.news == []
    transitions = [state_of(worker.origin, 0.0).transitions[OPEN] for worker in (first, second)]
    assert transitions == [0, 1]


async def test_a_breaker_closes_at_all_workers_and_wakes_their_waiting_requests() -> None:
    first, second = crew()
    second.fail()
    first.hear(second)
    waiting = asyncio.create_task(first.origin.recovered.wait())
    await pass_turns(1)
    first.clock.advance(3)
    probe = second.origin.admit(second.clock.now(), is_live=False)
    assert probe is not None
    probe.status_arrived(200, second.clock.now())
    first.hear(second)
    assert first.origin.breaker.state is CLOSED
    await waiting
    assert first.said == []


def test_a_loss_does_not_count_in_the_series_if_another_worker_was_answered_meanwhile() -> None:
    first, second = crew()
    now = first.clock.now()
    lost = [first.origin.admit(now, is_live=False) for _ in range(10)]
    answered = second.origin.admit(now, is_live=False)
    assert answered is not None
    answered.status_arrived(200, now)
    for sent in lost:
        assert sent is not None
        sent.record_failure("connection lost", now, is_loss=True)
    assert first.origin.breaker.state is CLOSED


def test_requests_that_wait_at_another_worker_count_as_successes() -> None:
    first, second = crew()
    waiting = [second.origin.admit(second.clock.now(), is_live=False) for _ in range(40)]
    first.lose(20)
    assert first.origin.breaker.state is CLOSED
    for sent in waiting:
        assert sent is not None
        sent.close()
    first.lose(1)
    assert first.origin.breaker.state is OPEN


def test_a_worker_that_starts_while_the_breaker_is_open_watches_the_origin() -> None:
    first, second = crew()
    second.fail()
    late = Worker(0, first.clock, first.shared)
    assert late.watched == [late.origin]


def test_a_removed_origin_has_a_breaker_of_its_own() -> None:
    first, second = crew()
    second.use("http://b")
    first.fail()
    assert second.origin.admit(second.clock.now(), is_live=False) is not None
    second.fail()
    assert second.origin.breaker.state is OPEN
    assert first.origins.find(ORIGIN) is first.origin


def test_an_origin_is_shared_as_soon_as_the_table_has_room() -> None:
    clock, shared = ManualClock(), SharedMemory.create(2)
    rows = [SharedOrigins(shared, 0).join(f"http://{number}") for number in range(ORIGINS)]
    first, second = (Worker(slot, clock, shared) for slot in range(2))
    first.fail()
    second.fail(3)
    assert (first.origin.breaker.state, second.origin.breaker.state) == (OPEN, CLOSED)
    clock.advance(60)
    assert (first.origin.is_alone, second.origin.is_alone) == (True, True)
    assert rows[0] is not None
    rows[0].leave()
    clock.advance(60)
    assert (first.origin.is_alone, second.origin.is_alone) == (True, False), "an open breaker keeps its state"
    probe = first.origin.admit(clock.now(), is_live=False)
    assert probe is not None
    probe.status_arrived(200, clock.now())
    waiting = first.origin.admit(clock.now(), is_live=False)
    clock.advance(60)
    assert waiting is not None
    assert "2 workers, 1 waiting" in repr(SharedOrigins(shared, 1).join(ORIGIN))
    waiting.close()
    first.fail(2)
    second.fail(3)
    assert first.origin.admit(clock.now(), is_live=False) is None
    assert state_of(first.origin, 0.0).transitions[OPEN] == 1, "what was counted before stays"


def test_many_origins_are_shared_one_after_the_other() -> None:
    clock, shared = ManualClock(), SharedMemory.create(2)
    rows = [SharedOrigins(shared, 1).join(f"http://{number}") for number in range(ORIGINS)]
    worker = Worker(0, clock, shared)
    worker.origins.configure([RouteConfig(name=name, origin=f"http://{name}") for name in "abcd"], OriginsConfig(), {})
    for row in rows[:3]:
        assert row is not None
        row.leave()
    clock.advance(5)
    assert sum(origin.is_alone for origin in worker.origins) == 3
    clock.advance(4)
    assert sum(origin.is_alone for origin in worker.origins) == 1
    assert rows[3] is not None
    rows[3].leave()
    clock.advance(5)
    assert not any(origin.is_alone for origin in worker.origins)


def test_an_ejection_is_taken_over_and_taken_back_without_a_line() -> None:
    first, second = crew()
    now = first.clock.now()
    first.origin.eject("check", "503", now)
    first.news.append(news_of(first.origin))
    second.hear(first)
    states = [second.origin.is_ejected]
    first.origin.readmit("check", now)
    first.news.append(news_of(first.origin))
    second.hear(first)
    assert [*states, second.origin.is_ejected] == [True, False]
    assert second.said == []

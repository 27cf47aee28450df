"""What workers tell each other about an origin."""

from __future__ import annotations

import random

from gateway.aio.clock import ManualClock
from gateway.config.origins import OriginsConfig
from gateway.config.routes import RouteConfig
from gateway.upstream.breaker import BreakerState
from gateway.upstream.health import SILENCE_S, OriginNews, learn, news_of
from gateway.upstream.origin_pool import Origins
from gateway.upstream.origin_state import Origin

ORIGIN = "http://a"
LONGEST_S = 2.0


class Worker:
    """The registry of origins of one worker."""

    def __init__(self, slot: int, clock: ManualClock) -> None:
        self.slot = slot
        self.clock = clock
        self.said: list[str] = []
        self.news: list[OriginNews] = []
        origins = Origins(clock, random.Random(slot), self.said.append)
        origins.on_change = lambda origin: self.news.append(news_of(origin, slot))
        origins.configure([RouteConfig(origin=ORIGIN)], OriginsConfig(), {})
        found = origins.find(ORIGIN)
        assert found is not None
        self.origin: Origin = found

    @property
    def probes(self) -> bool:
        """Whether the worker would send a probe that is due."""
        is_open = self.origin.breaker.state is not BreakerState.CLOSED
        return is_open and self.origin.probed_elsewhere_until <= self.clock.now()

    def fail(self, times: int = 5) -> None:
        for _ in range(times):
            sent = self.origin.admit(self.clock.now(), is_live=False)
            assert sent is not None
            sent.record_failure("connection refused", self.clock.now())
            sent.close()

    def hear(self, teller: Worker) -> bool:
        return learn(self.origin, teller.news[-1], self.slot, self.clock.now(), LONGEST_S)


def test_a_breaker_opens_with_another_workers_and_only_that_worker_logs_and_probes() -> None:
    clock = ManualClock()
    first, second = Worker(0, clock), Worker(1, clock)
    second.fail()
    assert first.hear(second)
    assert first.origin.breaker.state is BreakerState.OPEN
    assert first.origin.admit(clock.now(), is_live=False) is None
    assert first.origin.snapshot(clock.now()).reason == "connection refused"
    assert (len(first.said), len(second.said)) == (0, 1)
    assert (first.probes, second.probes) == (False, True)
    # It passes nothing on: the worker that has told it tells the others too.
    assert first.news == []


def test_a_breaker_closes_with_another_workers() -> None:
    clock = ManualClock()
    first, second = Worker(0, clock), Worker(1, clock)
    second.fail()
    first.hear(second)
    clock.advance(3)
    probe = second.origin.admit(clock.now(), is_live=False)
    assert probe is not None
    probe.status_arrived(200, clock.now())
    assert not second.news[-1].is_open
    assert not first.hear(second)
    assert first.origin.breaker.state is BreakerState.CLOSED
    assert first.said == []


def test_each_failed_probe_is_told_so_that_the_others_go_on_waiting() -> None:
    clock = ManualClock()
    first, second = Worker(0, clock), Worker(1, clock)
    second.fail()
    first.hear(second)
    for _ in range(3):
        clock.advance(LONGEST_S + SILENCE_S - 1)
        told = len(second.news)
        second.fail(1)
        assert len(second.news) == told + 1
        first.hear(second)
        assert not first.probes


def test_a_worker_that_hears_nothing_more_probes_the_origin_itself() -> None:
    clock = ManualClock()
    first, second = Worker(0, clock), Worker(1, clock)
    second.fail()
    first.hear(second)
    clock.advance(LONGEST_S + SILENCE_S)
    assert first.probes


def test_of_workers_whose_breakers_have_opened_by_themselves_the_first_probes() -> None:
    clock = ManualClock()
    first, second = Worker(0, clock), Worker(1, clock)
    first.fail()
    second.fail()
    assert not first.hear(second)
    assert not second.hear(first)
    assert (first.probes, second.probes) == (True, False)


def test_an_ejection_is_taken_over_and_taken_back_without_a_line() -> None:
    clock = ManualClock()
    first, second = Worker(0, clock), Worker(1, clock)
    first.origin.eject("check", "503", clock.now())
    first.news.append(news_of(first.origin, 0))
    second.hear(first)
    states = [second.origin.is_ejected]
    first.origin.readmit("check", clock.now())
    first.news.append(news_of(first.origin, 0))
    second.hear(first)
    assert [*states, second.origin.is_ejected] == [True, False]
    assert second.said == []

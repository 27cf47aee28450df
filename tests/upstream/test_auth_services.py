"""Requests that wait until it is decided who may: their number is bounded, and each is judged once."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from gateway.aio.clock import ManualClock
from gateway.auth.questions import KeySource, Undecided
from gateway.auth.remembered_verdicts import Verdicts
from gateway.upstream.auth_services import FETCH_S, MOST_WAITING, AuthServices
from tests.waiting import eventually

SOURCE = KeySource("https://issuer.test", "http://127.0.0.1:9/keys")


async def test_waiting_requests_are_bounded_in_total_and_for_one_network() -> None:
    clock = ManualClock()
    verdicts = Verdicts(clock.wall, clock.now)
    services = AuthServices(verdicts, clock, random.Random(1))
    verdicts.key_sets.keep_sources([SOURCE])
    judged: list[str] = []

    def judge(net: str) -> Callable[[], None]:
        return lambda: judged.append(net)

    try:
        for net in "abcd":
            for _ in range(MOST_WAITING // 4):
                last = services.await_answer(SOURCE, net, judge(net))
            for other in (net, "e") if net == "d" else (net,):
                with pytest.raises(Undecided):
                    services.await_answer(SOURCE, other, judge("never"))
        last.leave_queue()
        last.leave_queue()
        services.await_answer(SOURCE, "e", judge("e"))
        clock.advance(FETCH_S)
        await eventually(lambda: len(judged) == MOST_WAITING)
        assert sorted(set(judged)) == ["a", "b", "c", "d", "e"]
        assert repr(services) == "<AuthServices 0 questions, 0 waiting>"
    finally:
        await services.close()

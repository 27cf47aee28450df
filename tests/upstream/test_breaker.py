"""A circuit breaker's life cycle under a manual clock, and its invariants."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.aio.clock import ManualClock
from gateway.upstream.breaker import TRANSITIONS, Breaker, BreakerState, Event, Permit, Policy
from gateway.upstream.failures import RequestFailure

POLICY = Policy(
    failures=3, ratio=0.5, window_s=10.0, least_requests=8, open_s=1.0, longest_open_s=4.0, probes=2
)  # fmt: skip


class Longest(random.Random):
    """Always draws the longest open time."""

    def uniform(self, a: float, b: float) -> float:
        return b


@dataclass(frozen=True)
class Step:
    """An event after a delay, the breaker's state after it, and the time until the next probe."""

    after_s: float
    does: str
    state: BreakerState
    retry_in_s: float | None = None


CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN

LIFE = [
    # Single failures among successes have no effect.
    Step(0, "ask a", CLOSED),
    Step(0, "a fails", CLOSED),
    Step(0, "ask b", CLOSED),
    Step(0, "b fails", CLOSED),
    Step(0, "ask c", CLOSED),
    Step(0, "c succeeds", CLOSED),
    # Three in a row open it; results of earlier requests no longer count.
    Step(1, "ask early", CLOSED),
    Step(0, "ask oldest", CLOSED),
    Step(0, "ask late", CLOSED),
    Step(0, "ask d", CLOSED),
    Step(0, "ask e", CLOSED),
    Step(0, "ask f", CLOSED),
    Step(0, "d fails", CLOSED),
    Step(0, "e fails", CLOSED),
    Step(0, "f fails", OPEN, 1.0),
    Step(0, "early succeeds", OPEN, 1.0),
    Step(0, "refuses", OPEN, 1.0),
    Step(0.9, "refuses", OPEN, 0.1),
    # Two probes pass, and no third.  One fails: the open time doubles, and the other's result does not count.
    Step(0.1, "ask g", HALF_OPEN, 0.0),
    Step(0, "ask h", HALF_OPEN, 0.0),
    Step(0, "refuses", HALF_OPEN, 0.0),
    Step(0, "late fails", HALF_OPEN, 0.0),
    Step(0.5, "g fails", OPEN, 2.0),
    # A probe whose client leaves makes room for another.
    Step(2, "ask i", HALF_OPEN, 0.0),
    Step(0, "ask j", HALF_OPEN, 0.0),
    Step(0, "refuses", HALF_OPEN, 0.0),
    Step(0, "h fails", HALF_OPEN, 0.0),
    Step(0, "i is abandoned", HALF_OPEN, 0.0),
    Step(0, "ask k", HALF_OPEN, 0.0),
    Step(0, "k fails", OPEN, 4.0),
    # The open time is bounded.
    Step(4, "ask l", HALF_OPEN, 0.0),
    Step(0, "l fails", OPEN, 4.0),
    # A success closes it.
    Step(5, "ask m", HALF_OPEN, 0.0),
    Step(0, "m succeeds", CLOSED),
    Step(0, "j succeeds", CLOSED),
    # It trips again at once: the open time continues to grow.
    Step(1, "ask n", CLOSED),
    Step(0, "n fails", CLOSED),
    Step(0, "oldest fails", CLOSED),
    Step(0, "ask o", CLOSED),
    Step(0, "o fails", CLOSED),
    # Both failures count; results from before the outage do not.
    Step(0, "ask p", CLOSED),
    Step(0, "p fails", OPEN, 4.0),
    Step(4, "ask q", HALF_OPEN, 0.0),
    Step(0, "q succeeds", CLOSED),
    # After it was closed for the longest open time, the open time starts over.
    Step(4, "ask r", CLOSED),
    Step(0, "r fails", CLOSED),
    Step(0, "ask s", CLOSED),
    Step(0, "s fails", CLOSED),
    Step(0, "ask t", CLOSED),
    Step(0, "t fails", OPEN, 1.0),
]


def test_life_cycle() -> None:
    clock = ManualClock()
    breaker = Breaker(POLICY, Longest(), clock.now())
    out: dict[str, Permit] = {}
    for number, step in enumerate(LIFE):
        clock.advance(step.after_s)
        match step.does.split():
            case ["ask", name]:
                permit = breaker.admit(clock.now())
                assert permit is not None, f"step {number}: {step.does}"
                assert permit.is_probe is (step.state is HALF_OPEN)
                out[name] = permit
            case ["refuses"]:
                assert not breaker.would_admit(clock.now())
                assert breaker.admit(clock.now()) is None, f"step {number}"
            case [name, "succeeds"]:
                breaker.succeeded(out.pop(name), clock.now())
            case [name, "fails"]:
                breaker.record_failure(out.pop(name), clock.now())
            case [name, "is", "abandoned"]:
                breaker.abandoned(out.pop(name))
            case other:
                raise AssertionError(other)
        assert breaker.state is step.state, f"step {number}: {step}"
        retry_in_s = breaker.retry_in_s(clock.now())
        assert retry_in_s == pytest.approx(step.retry_in_s), f"step {number}: {step}"
    assert not out
    assert breaker.transitions == {OPEN: 6, HALF_OPEN: 5, CLOSED: 2}


def closed(**policy: Any) -> tuple[Breaker, ManualClock]:
    clock = ManualClock()
    return Breaker(Policy(**policy), Longest(), clock.now()), clock


def ask(breaker: Breaker, clock: ManualClock, *, is_good: bool) -> None:
    permit = breaker.admit(clock.now())
    assert permit is not None
    (breaker.succeeded if is_good else breaker.record_failure)(permit, clock.now())


def test_a_share_of_failures_opens_it_once_there_are_enough_requests() -> None:
    breaker, clock = closed(failures=100, ratio=0.5, least_requests=8, window_s=10)
    for _ in range(3):
        ask(breaker, clock, is_good=True)
        ask(breaker, clock, is_good=False)
    ask(breaker, clock, is_good=True)
    assert breaker.state is CLOSED
    ask(breaker, clock, is_good=False)
    assert breaker.state is OPEN


def test_a_disabled_breaker_never_opens() -> None:
    breaker, clock = closed(failures=0, least_requests=1)
    for _ in range(100):
        ask(breaker, clock, is_good=False)
    assert breaker.state is CLOSED


def test_failures_older_than_the_window_are_forgotten() -> None:
    breaker, clock = closed(failures=100, ratio=0.5, least_requests=8, window_s=10)
    for _ in range(7):
        ask(breaker, clock, is_good=False)
    clock.advance(11)
    for is_good in (True, True, True, True, True, False, False, False):
        ask(breaker, clock, is_good=is_good)
    assert breaker.state is CLOSED
    ask(breaker, clock, is_good=False)
    ask(breaker, clock, is_good=False)
    assert breaker.state is OPEN


def test_open_times_are_jittered() -> None:
    until = set()
    for seed in range(20):
        breaker = Breaker(Policy(failures=1, open_s=8, longest_open_s=8), random.Random(seed), 0.0)
        permit = breaker.admit(0.0)
        assert permit is not None
        breaker.record_failure(permit, 0.0)
        retry_in_s = breaker.retry_in_s(0.0)
        assert retry_in_s is not None
        assert 4 <= retry_in_s <= 8
        until.add(retry_in_s)
    assert len(until) > 10


def test_failed_probes_do_not_reset_the_time_in_trouble() -> None:
    breaker, clock = closed(failures=1, open_s=1, longest_open_s=1)
    clock.advance(5)
    ask(breaker, clock, is_good=False)
    since = breaker.since
    assert since == clock.now()
    for _ in range(3):
        clock.advance(2)
        ask(breaker, clock, is_good=False)
        assert breaker.since == since
    clock.advance(2)
    ask(breaker, clock, is_good=True)
    assert breaker.since == clock.now()


def test_every_state_has_an_exit_and_follows_the_table() -> None:
    assert {state for state, _ in TRANSITIONS} == set(BreakerState)
    assert set(TRANSITIONS.values()) == set(BreakerState)
    assert {event for _, event in TRANSITIONS} == set(Event)


@given(
    st.lists(st.tuples(st.floats(0, 3), st.sampled_from(["ask", "succeed", "fail", "abandon"]), st.integers(0, 9))),
    st.integers(0, 1 << 30),
)
def test_probes_are_bounded_and_recovery_is_always_possible(life: list[tuple[float, str, int]], seed: int) -> None:
    clock = ManualClock()
    breaker = Breaker(POLICY, random.Random(seed), clock.now())
    out: list[Permit] = []
    probes: list[Permit] = []
    for after_s, does, which in life:
        clock.advance(after_s)
        if does == "ask":
            could = breaker.would_admit(clock.now())
            permit = breaker.admit(clock.now())
            assert could is (permit is not None)
            if permit is not None:
                out.append(permit)
                probes += [permit] * permit.is_probe
        elif out:
            permit = out.pop(which % len(out))
            match does:
                case "succeed":
                    breaker.succeeded(permit, clock.now())
                case "fail":
                    breaker.record_failure(permit, clock.now())
                case _:
                    breaker.abandoned(permit)
        terms = [permit.term for permit in out if permit.is_probe]
        assert all(terms.count(term) <= POLICY.probes for term in terms)
    for permit in out:
        breaker.abandoned(permit)
    clock.advance(POLICY.longest_open_s)
    permit = breaker.admit(clock.now())
    assert permit is not None
    breaker.succeeded(permit, clock.now())
    assert breaker.state is CLOSED


# -- lost connections


def test_ten_lost_connections_in_a_row_open_it_where_five_failures_do() -> None:
    breaker, clock = closed()
    for number in range(10):
        assert breaker.state is CLOSED, number
        permit = breaker.admit(clock.now())
        assert permit is not None
        breaker.record_failure(permit, clock.now(), RequestFailure(is_loss=True))
    assert breaker.state is OPEN


@pytest.mark.parametrize("per_s", [1, 20, 1_000])
def test_a_network_that_loses_every_fifth_connection_does_not_open_it(per_s: int) -> None:
    breaker, clock = closed()
    rng = random.Random(per_s)
    for _ in range(50_000):
        clock.advance(1 / per_s)
        permit = breaker.admit(clock.now())
        assert permit is not None
        if rng.random() < 0.2:
            breaker.record_failure(permit, clock.now(), RequestFailure(is_loss=True))
        else:
            breaker.succeeded(permit, clock.now())
    assert breaker.transitions == {}


def test_answers_that_are_cut_off_open_it_only_if_they_are_most() -> None:
    for share, state in ((0.2, CLOSED), (1.0, OPEN)):
        breaker, clock = closed()
        rng = random.Random(1)
        for _ in range(2_000):
            if (permit := breaker.admit(clock.now())) is None:
                break
            breaker.succeeded(permit, clock.now())
            if rng.random() < share:
                breaker.record_failure(permit, clock.now(), RequestFailure(had_succeeded=True, is_loss=True))
        assert breaker.state is state


# -- own probes


def tripped(**policy: Any) -> tuple[Breaker, ManualClock]:
    """An open breaker whose origin is watched, at the end of its pause."""
    breaker, clock = closed(failures=1, **policy)
    ask(breaker, clock, is_good=False)
    breaker.watched(clock.now())
    clock.advance(breaker.first_pause_s)
    return breaker, clock


def probe(breaker: Breaker, clock: ManualClock, *, is_good: bool) -> None:
    permit = breaker.admit(clock.now(), is_own=True)
    assert permit is not None
    (breaker.succeeded if is_good else breaker.record_failure)(permit, clock.now())


def test_own_probes_go_on_at_the_same_pace_however_long_the_origin_is_away() -> None:
    breaker, clock = tripped()
    for _ in range(100):
        probe(breaker, clock, is_good=False)
        assert breaker.admit(clock.now(), is_own=True) is None
        assert breaker.retry_in_s(clock.now()) == 1.0
        clock.advance(1.0)
    probe(breaker, clock, is_good=True)
    clock.advance(1.0)
    probe(breaker, clock, is_good=True)
    assert breaker.state is CLOSED


def test_a_silent_origin_is_probed_by_one_client_in_two_seconds() -> None:
    breaker, clock = tripped()
    admitted = []
    for second in range(40):
        probe(breaker, clock, is_good=False)
        clock.advance(1.0)
        if breaker.would_admit(clock.now()):
            assert breaker.admit(clock.now()) is not None
            assert breaker.admit(clock.now()) is None
            admitted.append(second)
    assert admitted == list(range(0, 40, 2))


def test_a_client_that_is_answered_after_an_own_probe_was_not_closes_it() -> None:
    breaker, clock = tripped()
    clock.advance(10)
    slow = breaker.admit(clock.now())
    assert slow is not None
    probe(breaker, clock, is_good=False)
    clock.advance(3)
    breaker.succeeded(slow, clock.now())
    assert breaker.state is CLOSED


def test_a_client_that_is_not_answered_does_not_delay_the_recovery() -> None:
    breaker, clock = tripped()
    clock.advance(10)
    silent = breaker.admit(clock.now())
    assert silent is not None
    assert breaker.admit(clock.now()) is None
    probe(breaker, clock, is_good=True)
    ask(breaker, clock, is_good=True)
    assert breaker.state is CLOSED
    breaker.record_failure(silent, clock.now())
    assert breaker.state is CLOSED


@pytest.mark.parametrize("how", ["is_answer", "is_loss"])
def test_a_client_may_probe_at_once_where_an_own_probe_fails_at_an_origin_that_is_there(how: str) -> None:
    """Own probes may ask for a path that the origin does not serve."""
    breaker, clock = tripped()
    assert breaker.admit(clock.now()) is None
    permit = breaker.admit(clock.now(), is_own=True)
    assert permit is not None
    breaker.record_failure(permit, clock.now(), RequestFailure(**{how: True}))
    assert breaker.state is HALF_OPEN
    ask(breaker, clock, is_good=True)
    assert breaker.state is CLOSED


@pytest.mark.parametrize("is_good", [True, False])
def test_after_a_good_own_probe_a_client_decides(is_good: bool) -> None:
    breaker, clock = tripped()
    probe(breaker, clock, is_good=True)
    assert breaker.state is HALF_OPEN
    ask(breaker, clock, is_good=is_good)
    assert breaker.state is (CLOSED if is_good else OPEN)


def test_a_client_that_loses_its_connection_does_not_lengthen_the_pause() -> None:
    breaker, clock = tripped()
    for _ in range(5):
        probe(breaker, clock, is_good=True)
        permit = breaker.admit(clock.now())
        assert permit is not None
        breaker.record_failure(permit, clock.now(), RequestFailure(is_loss=True))
        assert (breaker.state, breaker.retry_in_s(clock.now())) == (OPEN, 1.0)
        clock.advance(1.0)


def test_an_origin_that_resets_every_connection_is_probed_every_second_and_by_a_client_every_other() -> None:
    breaker, clock = tripped()
    clients = []
    for second in range(8):
        own = breaker.admit(clock.now(), is_own=True)
        assert own is not None
        breaker.record_failure(own, clock.now(), RequestFailure(is_loss=True))
        if (client := breaker.admit(clock.now())) is not None:
            clients.append(second)
            breaker.record_failure(client, clock.now(), RequestFailure(is_loss=True))
        clock.advance(1.0)
    assert clients == [0, 2, 4, 6]


def test_a_good_own_probe_lets_as_many_clients_in_as_may_probe() -> None:
    breaker, clock = tripped(probes=2)
    for _ in range(3):
        probe(breaker, clock, is_good=True)
        assert [breaker.admit(clock.now()) is not None for _ in range(3)] == [True, True, False]
        clock.advance(1.0)
        probe(breaker, clock, is_good=True)
        assert breaker.admit(clock.now()) is None
        clock.advance(1.0)
    assert breaker.state is HALF_OPEN


def test_a_client_that_leaves_makes_room_for_another_after_the_next_own_probe() -> None:
    breaker, clock = tripped()
    probe(breaker, clock, is_good=True)
    permit = breaker.admit(clock.now())
    assert permit is not None
    breaker.abandoned(permit)
    clock.advance(1.0)
    probe(breaker, clock, is_good=True)
    ask(breaker, clock, is_good=True)
    assert breaker.state is CLOSED


@pytest.mark.parametrize(("is_live", "state"), [(True, CLOSED), (False, HALF_OPEN)])
def test_a_live_request_that_is_held_does_not_keep_own_probes_from_closing_it(
    is_live: bool, state: BreakerState
) -> None:
    breaker, clock = tripped()
    probe(breaker, clock, is_good=True)
    assert breaker.admit(clock.now(), is_live=is_live) is not None
    clock.advance(1.0)
    probe(breaker, clock, is_good=True)
    assert breaker.state is state


def good_probes_until_closed(breaker: Breaker, clock: ManualClock) -> float:
    """Seconds for which own probes are good and no client comes, until they close it."""
    began = clock.now()
    while breaker.state is not CLOSED:
        assert clock.now() - began <= 60
        clock.advance(1.0)
        if (permit := breaker.admit(clock.now(), is_own=True)) is not None:
            breaker.succeeded(permit, clock.now())
    return clock.now() - began


def test_clients_that_fail_where_own_probes_are_good_keep_it_open_until_none_comes_for_long() -> None:
    breaker, clock = tripped()
    for _ in range(20):
        probe(breaker, clock, is_good=True)
        ask(breaker, clock, is_good=False)
        clock.advance(2.0)
        probe(breaker, clock, is_good=True)
    assert breaker.transitions[CLOSED] == 0
    assert good_probes_until_closed(breaker, clock) == pytest.approx(10, abs=3)


def test_own_probes_that_closed_it_wrongly_do_not_close_it_again_while_clients_come() -> None:
    breaker, clock = tripped()
    probe(breaker, clock, is_good=True)
    clock.advance(1.0)
    probe(breaker, clock, is_good=True)
    assert breaker.state is CLOSED
    clock.advance(3.0)
    ask(breaker, clock, is_good=False)
    breaker.watched(clock.now())
    assert good_probes_until_closed(breaker, clock) >= 10


def test_long_pauses_do_not_count_as_time_without_clients() -> None:
    breaker, clock = tripped(open_s=60.0, longest_open_s=60.0)
    for _ in range(5):
        probe(breaker, clock, is_good=True)
        ask(breaker, clock, is_good=False)
        clock.advance(60.0)
    assert breaker.transitions[CLOSED] == 0


def test_an_origin_that_goes_again_at_once_is_paused_for_two_seconds_at_most() -> None:
    breaker, clock = tripped()
    pauses = []
    for _ in range(5):
        probe(breaker, clock, is_good=True)
        ask(breaker, clock, is_good=False)
        breaker.watched(clock.now())
        pauses.append(breaker.retry_in_s(clock.now()))
        clock.advance(2.0)
    assert pauses == [2.0, 2.0, 2.0, 2.0, 2.0]
    probe(breaker, clock, is_good=True)
    ask(breaker, clock, is_good=True)
    clock.advance(2.0)
    ask(breaker, clock, is_good=False)
    assert breaker.retry_in_s(clock.now()) == 1.0

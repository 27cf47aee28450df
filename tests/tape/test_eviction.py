"""Eviction policies: each against its obvious twin, what holds for all of them, and what a call costs."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar, get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from gateway.config.limits import LimitsConfig
from gateway.tape.eviction import POLICIES, Eviction, LeastRecentlyUsed, S3Fifo, Sieve
from tests.tape.eviction_models import model

KEYS = st.integers(0, 11)

P = TypeVar("P", bound=Eviction[int])


def test_the_configuration_names_every_policy_and_takes_the_first() -> None:
    field = LimitsConfig.model_fields["eviction"]
    assert get_args(field.annotation) == tuple(POLICIES)
    assert field.default == next(iter(POLICIES))


class PolicyAgainstTwin(RuleBasedStateMachine):
    """Any calls in any order; `held` is what whoever calls believes to be held."""

    name = next(iter(POLICIES))

    def __init__(self) -> None:
        super().__init__()
        self.policy: Eviction[int] = POLICIES[self.name]()
        self.twin = model(self.name)
        self.held: set[int] = set()

    @rule(key=KEYS)
    def admit(self, key: int) -> None:
        self.policy.admit(key)
        self.twin.admit(key)
        self.held.add(key)

    @rule(key=KEYS)
    def touch(self, key: int) -> None:
        self.policy.touch(key)
        self.twin.touch(key)

    @rule(key=KEYS)
    def forget(self, key: int) -> None:
        self.policy.forget(key)
        self.twin.forget(key)
        self.held.discard(key)

    @rule(spared=KEYS)
    def give_up(self, spared: int) -> None:
        victim = self.policy.victim(spared)
        assert victim == self.twin.victim(spared)
        if victim is None:
            assert self.held <= {spared}
        else:
            assert victim in self.held
            assert victim != spared
            self.held.remove(victim)

    @rule(key=KEYS, spared=KEYS)
    def make_room_for(self, key: int, spared: int) -> None:
        self.admit(key)
        if len(self.held) > 6:
            self.give_up(spared)

    @invariant()
    def it_holds_what_was_admitted_and_neither_forgotten_nor_given_up(self) -> None:
        assert len(self.policy) == len(self.held)
        assert all((key in self.policy) == (key in self.held) for key in range(12))

    def teardown(self) -> None:
        given_up = []
        while (key := self.policy.victim(-1)) is not None:
            given_up.append(key)
        assert sorted(given_up) == sorted(self.held)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_does_what_its_obvious_twin_does(policy: str) -> None:
    class Against(PolicyAgainstTwin):
        name = policy

    run_state_machine_as_test(Against, settings=settings(max_examples=150, stateful_step_count=60))


def order(policy: Eviction[int]) -> list[int]:
    """Every key, in the order in which they are given up."""
    out = []
    while (key := policy.victim(-1)) is not None:
        out.append(key)
    return out


def filled(policy: P, count: int = 10) -> P:
    for key in range(count):
        policy.admit(key)
    return policy


@pytest.mark.parametrize("policy", POLICIES)
def test_keys_that_nobody_touched_go_in_the_order_in_which_they_came(policy: str) -> None:
    assert order(filled(POLICIES[policy]())) == list(range(10))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_key_that_was_touched_outlives_all_that_were_not(policy: str) -> None:
    keys = filled(POLICIES[policy]())
    keys.touch(3)
    assert order(keys) == [0, 1, 2, 4, 5, 6, 7, 8, 9, 3]


def test_least_recently_used_goes_by_the_last_touch() -> None:
    keys = filled(LeastRecentlyUsed[int]())
    for key in (5, 3, 5):
        keys.touch(key)
    assert order(keys)[-2:] == [3, 5]


def test_sieve_goes_on_where_it_stopped() -> None:
    keys = filled(Sieve[int](), 5)
    for key in (0, 1):
        keys.touch(key)
    assert keys.victim(-1) == 2
    keys.admit(5)
    keys.touch(3)
    # 0 and 1 have lost their marks, but the hand stands behind them.
    assert [keys.victim(-1) for _ in range(4)] == [4, 5, 0, 1]


def test_s3_fifo_lets_a_scan_through_and_keeps_what_was_used() -> None:
    keys = filled(S3Fifo[int](), 50)
    for key in range(50):
        keys.touch(key)
    scan = range(100, 1_000)
    for key in scan:
        keys.admit(key)
        keys.victim(key)
    assert sum(key in keys for key in range(50)) >= 50 * (1 - S3Fifo().probation_share)


def test_s3_fifo_moves_its_share_by_who_comes_back() -> None:
    keys = filled(S3Fifo[int]())
    keys.touch(9)
    assert [keys.victim(-1) for _ in range(9)] == list(range(9))
    keys.admit(8)
    assert keys.probation_share > 0.1
    grown = keys.probation_share
    keys.victim(-1)  # 9 or 8, both in the main queue by now
    left = 9 if 9 not in keys else 8
    keys.admit(left)
    assert keys.probation_share < grown


def test_s3_fifo_remembers_no_more_keys_than_it_holds() -> None:
    keys = filled(S3Fifo[int](), 20)
    for key in range(20, 5_000):
        keys.admit(key)
        keys.touch(key - 5)
        keys.victim(key)
    assert all(count <= len(keys) + 1 for count in keys.remembered)


# -- cost --------------------------------------------------------------------------------------------------------------


class Counted:
    """A key that counts how often anything looks at it."""

    looks = 0

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        Counted.looks += 1
        return self.number

    def __eq__(self, other: object) -> bool:
        Counted.looks += 1
        return isinstance(other, Counted) and other.number == self.number


def looks_per_call(create: Callable[[], Eviction[Counted]], size: int) -> float:
    """What a call costs in a policy that holds `size` keys, every one of which was touched as often as counts."""
    policy, rng, calls = create(), random.Random(1), 0
    keys = [Counted(number) for number in range(3 * size)]
    Counted.looks = 0
    for number, key in enumerate(keys):
        policy.admit(key)
        for _ in range(3):
            policy.touch(keys[rng.randrange(max(0, number - size), number + 1)])
        if number >= size:
            policy.victim(key)
        if number % 7 == 0:
            policy.forget(keys[rng.randrange(number + 1)])
        calls += 6
    return Counted.looks / calls


@pytest.mark.parametrize("policy", POLICIES)
def test_a_call_costs_the_same_however_many_keys_are_held(policy: str) -> None:
    small, large = (looks_per_call(POLICIES[policy], size) for size in (50, 5_000))
    assert large < 1.2 * small
    assert large < 12

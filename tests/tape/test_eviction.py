"""Eviction policies: each against a simple model, what holds for all of them, and what a call costs."""

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
from tests.effort import examples
from tests.tape.eviction_models import model

KEYS = st.integers(0, 11)

P = TypeVar("P", bound=Eviction[int])


def test_the_configuration_offers_every_policy_and_defaults_to_the_first() -> None:
    field = LimitsConfig.model_fields["eviction"]
    assert get_args(field.annotation) == tuple(POLICIES)
    assert field.default == next(iter(POLICIES))


class PolicyAgainstModel(RuleBasedStateMachine):
    """Any calls in any order; `held` is the set of keys that the caller expects to be held."""

    name = next(iter(POLICIES))

    def __init__(self) -> None:
        super().__init__()
        self.policy: Eviction[int] = POLICIES[self.name]()
        self.model = model(self.name)
        self.held: set[int] = set()

    @rule(key=KEYS)
    def admit(self, key: int) -> None:
        self.policy.admit(key)
        self.model.admit(key)
        self.held.add(key)

    @rule(key=KEYS)
    def touch(self, key: int) -> None:
        self.policy.touch(key)
        self.model.touch(key)

    @rule(key=KEYS)
    def forget(self, key: int) -> None:
        self.policy.forget(key)
        self.model.forget(key)
        self.held.discard(key)

    @rule(spared=KEYS)
    def evict(self, spared: int) -> None:
        victim = self.policy.victim(spared)
        assert victim == self.model.victim(spared)
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
            self.evict(spared)

    @invariant()
    def it_holds_the_keys_admitted_and_neither_forgotten_nor_evicted(self) -> None:
        assert len(self.policy) == len(self.held)
        assert all((key in self.policy) == (key in self.held) for key in range(12))

    def teardown(self) -> None:
        evicted = []
        while (key := self.policy.victim(-1)) is not None:
            evicted.append(key)
        assert sorted(evicted) == sorted(self.held)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_behaves_like_its_model(policy: str) -> None:
    class Against(PolicyAgainstModel):
        name = policy

    run_state_machine_as_test(Against, settings=settings(max_examples=examples(80, 400), stateful_step_count=60))


def order(policy: Eviction[int]) -> list[int]:
    """Every key in the order of eviction."""
    out = []
    while (key := policy.victim(-1)) is not None:
        out.append(key)
    return out


def filled(policy: P, count: int = 10) -> P:
    for key in range(count):
        policy.admit(key)
    return policy


@pytest.mark.parametrize("policy", POLICIES)
def test_untouched_keys_are_evicted_in_order_of_admission(policy: str) -> None:
    assert order(filled(POLICIES[policy]())) == list(range(10))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_touched_key_outlives_all_untouched_ones(policy: str) -> None:
    keys = filled(POLICIES[policy]())
    keys.touch(3)
    assert order(keys) == [0, 1, 2, 4, 5, 6, 7, 8, 9, 3]


def test_lru_orders_by_the_last_touch() -> None:
    keys = filled(LeastRecentlyUsed[int]())
    for key in (5, 3, 5):
        keys.touch(key)
    assert order(keys)[-2:] == [3, 5]


def test_sieve_resumes_where_its_hand_stopped() -> None:
    keys = filled(Sieve[int](), 5)
    for key in (0, 1):
        keys.touch(key)
    assert keys.victim(-1) == 2
    keys.admit(5)
    keys.touch(3)
    # 0 and 1 are unmarked again, but the hand has passed them.
    assert [keys.victim(-1) for _ in range(4)] == [4, 5, 0, 1]


def test_s3_fifo_keeps_used_keys_through_a_scan() -> None:
    keys = filled(S3Fifo[int](), 50)
    for key in range(50):
        keys.touch(key)
    scan = range(100, 1_000)
    for key in scan:
        keys.admit(key)
        keys.victim(key)
    assert sum(key in keys for key in range(50)) >= 50 * (1 - S3Fifo().probation_share)


def test_s3_fifo_adapts_its_share_to_returning_keys() -> None:
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
    """A key that counts how often it is hashed or compared."""

    accesses = 0

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        Counted.accesses += 1
        return self.number

    def __eq__(self, other: object) -> bool:
        Counted.accesses += 1
        return isinstance(other, Counted) and other.number == self.number


def accesses_per_call(create: Callable[[], Eviction[Counted]], size: int) -> float:
    """The cost of a call in a policy that holds `size` keys, each touched as often as touches count."""
    policy, rng, calls = create(), random.Random(1), 0
    keys = [Counted(number) for number in range(3 * size)]
    Counted.accesses = 0
    for number, key in enumerate(keys):
        policy.admit(key)
        for _ in range(3):
            policy.touch(keys[rng.randrange(max(0, number - size), number + 1)])
        if number >= size:
            policy.victim(key)
        if number % 7 == 0:
            policy.forget(keys[rng.randrange(number + 1)])
        calls += 6
    return Counted.accesses / calls


@pytest.mark.parametrize("policy", POLICIES)
def test_the_cost_of_a_call_does_not_depend_on_the_number_of_keys(policy: str) -> None:
    small, large = (accesses_per_call(POLICIES[policy], size) for size in (50, 5_000))
    assert large < 1.2 * small
    assert large < 12

"""The guard's levels, their order, and that it always recovers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.limits.memory import HYSTERESIS, MARKS, MemoryGuard, Pressure, victims

LIMIT = 1_000_000
BUDGET = 400_000


@pytest.mark.parametrize(
    ("looks", "pressure", "sheds"),
    [
        ([850_000], Pressure.NONE, 0),
        ([850_001], Pressure.CACHE, 0),
        ([920_000], Pressure.CACHE, 0),
        ([920_001], Pressure.CLIENTS, 70_001),
        ([970_000], Pressure.CLIENTS, 120_000),
        ([970_001], Pressure.CONNECTIONS, 120_001),
        ([2_000_000], Pressure.CONNECTIONS, 1_150_000),
        # On the way back each level lasts until memory is 3 % below its mark.
        ([980_000, 941_000], Pressure.CONNECTIONS, 91_000),
        ([980_000, 940_000], Pressure.CLIENTS, 90_000),
        ([980_000, 891_000], Pressure.CLIENTS, 41_000),
        ([980_000, 890_000], Pressure.CACHE, 0),
        ([980_000, 821_000], Pressure.CACHE, 0),
        ([980_000, 820_000], Pressure.NONE, 0),
        ([860_000, 821_000], Pressure.CACHE, 0),
        ([860_000, 821_000, 900_000], Pressure.CACHE, 0),
    ],
)
def test_levels_begin_at_their_marks_and_end_below_them(looks: list[int], pressure: Pressure, sheds: int) -> None:
    guard = MemoryGuard()
    for resident in looks:
        found = guard.look(resident, LIMIT, BUDGET, BUDGET)
    assert (found.pressure, found.shed_bytes) == (pressure, sheds)


@pytest.mark.parametrize(
    ("looks", "resident", "calls"),
    [
        ([], 850_000, False),
        ([], 850_001, True),
        ([860_000], 919_000, False),
        ([860_000], 920_001, True),
        ([980_000], 990_000, False),
        # Other clients have come since some were dropped.
        ([925_000], 934_000, False),
        ([925_000], 936_000, True),
        ([980_000, 941_000], 952_000, True),
    ],
)
def test_a_look_is_called_for_at_a_mark_and_by_what_rises_while_clients_are_dropped(
    looks: list[int], resident: int, calls: bool
) -> None:
    guard = MemoryGuard()
    for before in looks:
        guard.look(before, LIMIT, 0, 0)
    assert guard.calls_for_look(resident, LIMIT) is calls


def test_the_cache_may_grow_to_the_first_mark_and_gives_back_what_is_above_it() -> None:
    guard = MemoryGuard()
    # Of 850,000 bytes 200,000 are free.
    assert guard.look(650_000, LIMIT, 100_000, BUDGET).cache_share == pytest.approx(0.75)
    assert guard.look(880_000, LIMIT, 300_000, BUDGET).cache_share == pytest.approx(0.675)
    # A tenth is left to it.
    assert guard.look(990_000, LIMIT, 100_000, BUDGET).cache_share == pytest.approx(0.1)
    # It grows back by steps.
    shares = [guard.look(100_000, LIMIT, 0, BUDGET).cache_share for _ in range(21)]
    assert shares[:3] == pytest.approx([0.15, 0.20, 0.25])
    assert shares[-1] == 1.0


def test_a_cache_without_a_budget_is_left_alone() -> None:
    assert MemoryGuard().look(LIMIT, LIMIT, 0, 0).cache_share == 0.0


@given(st.lists(st.tuples(st.integers(0, 2 * LIMIT), st.integers(0, BUDGET)), max_size=60))
def test_it_sheds_only_above_the_low_mark_and_always_recovers(looks: list[tuple[int, int]]) -> None:
    guard = MemoryGuard()
    for resident, cache_bytes in looks:
        before = guard.cache_share
        found = guard.look(resident, LIMIT, cache_bytes, BUDGET)
        assert 0.0 <= found.cache_share <= 1.0
        if resident <= (MARKS[Pressure.CLIENTS] - HYSTERESIS) * LIMIT:
            assert found.shed_bytes == 0
        if resident + BUDGET <= MARKS[Pressure.CACHE] * LIMIT:
            assert found.cache_share >= before
        held = found.cache_share * BUDGET
        assert held <= max(BUDGET / 10, MARKS[Pressure.CACHE] * LIMIT - resident + cache_bytes) + 1
        assert found.shed_bytes <= max(0, resident - MARKS[Pressure.CACHE] * LIMIT)
        if resident > MARKS[Pressure.CONNECTIONS] * LIMIT:
            assert found.pressure is Pressure.CONNECTIONS
    for _ in range(21):
        found = guard.look(LIMIT // 4, LIMIT, 0, BUDGET)
    assert found == (Pressure.NONE, 1.0, 0)


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100))), st.booleans(), st.integers(-5, 500))
def test_victims_are_the_costliest_and_no_more_than_needed(
    known: list[tuple[int, int]], is_known: bool, excess: int
) -> None:
    before = [(cost, index) for index, (cost, _) in enumerate(known)]
    asked: list[int] = []

    def cost_now(index: int) -> int:
        asked.append(index)
        return known[index][1]

    found = victims(before, excess, None if is_known else cost_now)
    costs = [cost if is_known else min(cost, now) for cost, now in known]
    taken = [costs[index] for index in found]
    assert list(found.values()) == taken
    assert len(asked) == len(set(asked))
    assert all(cost > 0 for cost in taken)
    assert taken == sorted(costs, reverse=True)[: len(taken)]
    assert sum(taken) >= min(max(0, excess), sum(costs))
    assert sum(taken[:-1]) < excess or not taken

"""Walks through the life of a simulated fleet.  `make simulation` walks longer, and checks that it catches mutants."""

from __future__ import annotations

import pytest

from tests.effort import examples
from tests.fleet.simulation.walk import walk

CLIENTS = ("write", "read", "read_on", "write_and_read", "join")
FAULTS = ("purge", "disagree", "stall", "part", "unlist", "kill", "drain")


@pytest.mark.parametrize("seed", range(examples(1, 60)))
def test_a_fleet_shows_every_acknowledged_byte_once_and_in_order(seed: int) -> None:
    counts = walk(seed, 100, 100, has_faults=False).of
    assert counts["rest"] == 1
    assert min(counts[name] for name in CLIENTS) > 0


@pytest.mark.parametrize("seed", range(examples(1, 60)))
def test_a_fleet_with_faults_shows_every_acknowledged_byte_once_and_in_order(seed: int) -> None:
    counts = walk(seed, 300, 100).of
    assert counts["rest"] == 3
    assert min(counts[name] for name in CLIENTS) > 0
    assert sum(counts[name] for name in FAULTS) > 0


def test_the_same_seed_gives_the_same_walk() -> None:
    first, second = walk(3, 40, 40).of, walk(3, 40, 40).of
    # Headers may differ in length, because some of their numbers grow from walk to walk.
    assert first.pop("delivered bytes") > 0
    assert second.pop("delivered bytes") > 0
    assert first == second

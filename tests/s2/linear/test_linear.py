"""The short form of the checker: linearizable under faults with fixed seeds, and mutants that it has to see."""

from __future__ import annotations

import pytest

from tests.chaos.mutant import Mutant
from tests.s2.linear.appenders import Workload
from tests.s2.linear.hunt import hunt, hunt_lives
from tests.s2.linear.lives import run_lives
from tests.s2.linear.mutants import LIVES, MUTANTS
from tests.s2.linear.run import Size, run

_SHORT = Size(rounds=10)


@pytest.mark.parametrize("gateways", [1, 2])
@pytest.mark.parametrize("workload", Workload, ids=lambda workload: workload.value)
def test_what_clients_see_under_faults_is_linearizable(workload: Workload, gateways: int) -> None:
    result = run(gateways, workload, gateways, size=_SHORT)
    assert not result.verdict.wrong, "\n\n".join(result.verdict.wrong)
    # On a busy machine there are fewer answers, and as much is wrong with none.
    assert result.definite
    assert result.records


@pytest.mark.parametrize("name", ["tail-from-memory", "late-readers-join-a-fetch"])
def test_a_gateway_that_answers_from_memory_is_found_out(name: str) -> None:
    (mutant,) = [one for one in MUTANTS if one.name == name]
    assert hunt(mutant, size=_SHORT) is not None


@pytest.mark.parametrize("seed", [1, 2])
def test_no_answer_has_records_of_two_lives_or_of_two_basins(seed: int) -> None:
    found = run_lives(seed)
    assert not found.wrong, "\n".join(found.wrong)
    assert found.answers


@pytest.mark.parametrize("mutant", LIVES, ids=lambda mutant: mutant.name)
def test_a_gateway_that_mixes_streams_is_found_out(mutant: Mutant) -> None:
    assert hunt_lives(mutant) is not None

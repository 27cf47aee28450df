"""The short form of the checker: linearizable under faults with fixed seeds, and mutants that it has to see."""

from __future__ import annotations

import pytest

from tests.s2.linear.appenders import Workload
from tests.s2.linear.hunt import hunt
from tests.s2.linear.mutants import MUTANTS
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

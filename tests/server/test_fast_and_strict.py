"""Remembered answers are those of a gateway that remembers none."""

from __future__ import annotations

import pytest

from tests.chaos.mutants import FAST_PATH_MUTANTS
from tests.effort import examples, some
from tests.server.fast_and_strict import FastAndStrict, compare, tells

_QUICK = ("hit-ignores-authorization", "hit-ignores-the-tail", "hit-overtakes-the-request-before-it")


def test_remembered_answers_are_those_of_a_gateway_that_remembers_none() -> None:
    compare(examples(5, 3_000))
    assert FastAndStrict.hits > 100, "the fast path took no part"


@pytest.mark.parametrize("name", some(_QUICK, [one.name for one in FAST_PATH_MUTANTS]))
def test_a_fast_path_with_a_fault_is_found_out(name: str) -> None:
    (mutant,) = [one for one in FAST_PATH_MUTANTS if one.name == name]
    with mutant.at_work():
        assert tells(400)

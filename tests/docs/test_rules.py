"""The table of rules names functions, tests and mutants that exist, and leaves out no mutant."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.chaos.mutants import FAST_PATH_MUTANTS, RULE_MUTANTS
from tests.chaos.rules import HOME, PAGE, Rule, rules

RULES = rules()
WHOLE = ("tests/scenarios/", "tests/invariant/", "tests/server/test_fast_and_strict.py")
"""Tests of gateways at their sockets, or of random events."""


def test_every_row_is_a_rule() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    assert len(RULES) == len(rows) - len(re.findall(r"^## ", PAGE.read_text(), re.MULTILINE))
    assert [rule.text for rule in RULES if not rule.text.endswith(".")] == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.text[:60])
def test_the_function_that_applies_a_rule_exists(rule: Rule) -> None:
    found = rule.decider()
    assert callable(found) or isinstance(found, property)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.text[:60])
def test_every_rule_has_tests_that_exist(rule: Rule) -> None:
    assert rule.unit_tests
    assert not [test for test in rule.unit_tests if test.startswith(WHOLE)]
    for test in rule.tests:
        path, *_, name = test.split("::")
        assert re.search(rf"\bdef {name}\(", (HOME / path).read_text()), test


def test_every_mutant_breaks_one_rule() -> None:
    named = Counter(name for rule in RULES for name in rule.mutants)
    assert named == Counter(one.name for one in (*RULE_MUTANTS, *FAST_PATH_MUTANTS))

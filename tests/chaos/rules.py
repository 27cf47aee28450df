"""The rules that decide a read, as `docs/rules.md` lists them, and the tests that hold each of them."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.chaos.mutants import FAST_PATH_MUTANTS, RULE_MUTANTS

HOME: Final = Path(__file__).parents[2]
PAGE: Final = HOME / "docs" / "rules.md"
_CODE: Final = re.compile(r"`([^`]+)`")
_OPTIONS: Final = ("-q", "-x", "-p", "no:cacheprovider", "--tb=no", "--no-header", "--no-summary")


class Rule(NamedTuple):
    """One row of the page."""

    text: str
    place: str
    """The function that applies the rule, dotted."""
    unit_tests: tuple[str, ...]
    """Tests with plain values, as pytest takes them, relative to the project."""
    whole_tests: tuple[str, ...]
    """Tests of whole answers."""
    mutants: tuple[str, ...]

    @property
    def tests(self) -> tuple[str, ...]:
        """All of them."""
        return self.unit_tests + self.whole_tests

    def decider(self) -> object:
        """The function itself.  Raises ImportError or AttributeError if there is none."""
        module, *rest = self.place.split(".")
        while rest and (HOME / module.replace(".", "/")).is_dir():
            module, rest = f"{module}.{rest[0]}", rest[1:]
        found: object = importlib.import_module(module)
        for name in rest:
            found = getattr(found, name)
        return found


def rules() -> list[Rule]:
    """Every rule on the page."""
    found = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and cells[0] != "rule":
            text, place, *lists = cells
            unit_tests, whole_tests, mutants = (tuple(_CODE.findall(cell)) for cell in lists)
            found.append(Rule(text, place.strip("`"), unit_tests, whole_tests, mutants))
    return found


def hunted(names: Sequence[str]) -> int:
    """Run the unit tests of their rules on the mutants of these names, on all of them without names.  Returns the
    status of the process in which pytest does so: 0 if some test failed on each mutant."""
    return subprocess.call([sys.executable, "-m", "tests.chaos.rules", *names], cwd=HOME)


def main(names: Sequence[str]) -> int:
    """The same in this process."""
    chosen = [one for one in (*RULE_MUTANTS, *FAST_PATH_MUTANTS) if not names or one.name in names]
    tests = {name: rule.unit_tests for rule in rules() for name in rule.mutants}
    # Modules keep what they import, so import them before anything is replaced.
    pytest.main([*_OPTIONS, "--collect-only", *sorted({test for one in chosen for test in tests[one.name]})])
    caught = 0
    for one in chosen:
        with one.at_work():
            is_caught = pytest.main([*_OPTIONS, *tests[one.name]]) == pytest.ExitCode.TESTS_FAILED
        caught += is_caught
        print(f"{'caught' if is_caught else 'MISSED'} {one.name:<48} by the unit tests of its rule", flush=True)  # noqa: T201
    print(f"{caught} of {len(chosen)} mutants caught", flush=True)  # noqa: T201
    return int(not chosen or caught < len(chosen))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

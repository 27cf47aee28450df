"""Every mutant, by what is to tell it from a gateway without a fault."""

from __future__ import annotations

from typing import Final

from tests.chaos.mutant import Mutant
from tests.chaos.mutants_of_bytes import BYTES
from tests.chaos.mutants_of_hits import HITS
from tests.chaos.mutants_of_lives import LIVES
from tests.chaos.mutants_of_records import RECORDS
from tests.chaos.mutants_of_rules import RULED

LOG_MUTANTS: Final[tuple[Mutant, ...]] = tuple(RECORDS)
"""Chaos with an access log is to tell these."""

MUTANTS: Final[tuple[Mutant, ...]] = (*LIVES, *BYTES, *LOG_MUTANTS)
"""Chaos is to tell these."""

FAST_PATH_MUTANTS: Final[tuple[Mutant, ...]] = tuple(HITS)
"""The same traffic for two gateways is to tell these (`tests/server/fast_and_strict.py`)."""

RULE_MUTANTS: Final[tuple[Mutant, ...]] = (*MUTANTS, *RULED)
"""The tests of their rules are to tell these (`tests/chaos/rules.py`)."""

RARE: Final = ("overtaken-flight-is-laid", "late-404-is-believed", "delete-404-raises-no-doubt")
"""Those of `MUTANTS` that a minute of chaos seldom tells, because they need several rare events in one order.  The
tests of their rules tell them (`tests/chaos/rules.py`)."""

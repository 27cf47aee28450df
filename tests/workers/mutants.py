"""Gateways with workers that have one fault each (`tests.chaos.mutant`)."""

from __future__ import annotations

from typing import Final

from tests.chaos.mutant import Mutant

MUTANTS: Final[list[Mutant]] = []

"""Every mutant."""

from __future__ import annotations

from typing import Final

from tests.chaos.mutant import Mutant
from tests.chaos.mutants_of_bytes import BYTES
from tests.chaos.mutants_of_lives import LIVES

MUTANTS: Final[tuple[Mutant, ...]] = (*LIVES, *BYTES)

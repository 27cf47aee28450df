"""Each seeded fault is found by the check that is there for it."""

from __future__ import annotations

import pytest

from tests.workers.mutants import CHECKS, MUTANTS
from tests.workers.site import made_site


@pytest.mark.parametrize("name", [one.name for one in MUTANTS])
async def test_a_gateway_with_a_fault_is_found_out(name: str) -> None:
    async with made_site(mutant=name) as site:
        with pytest.raises((AssertionError, ExceptionGroup, TimeoutError)):
            await CHECKS[name](site)

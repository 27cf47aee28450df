"""Each seeded fault is found by the check that is there for it, which says what is wrong."""

from __future__ import annotations

import pytest

from tests.workers.checks import WrongAnswer
from tests.workers.mutants import FINDINGS, MUTANTS
from tests.workers.site import made_site


@pytest.mark.parametrize("name", [one.name for one in MUTANTS])
async def test_a_gateway_with_a_fault_is_found_out(name: str) -> None:
    check, text = FINDINGS[name]
    async with made_site(mutant=name) as site:
        with pytest.raises(WrongAnswer, match=text):
            await check(site)

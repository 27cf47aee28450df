"""Each seeded fault is found by the check that is there for it, which says what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workers.checks import WrongAnswer
from tests.workers.mutants import FINDINGS, MUTANTS
from tests.workers.site import made_site


@pytest.mark.parametrize("name", [one.name for one in MUTANTS])
async def test_a_gateway_with_a_fault_is_found_out(name: str, tmp_path: Path) -> None:
    check, text, has_rules = FINDINGS[name]
    async with made_site(mutant=name, keys=tmp_path if has_rules else None) as site:
        with pytest.raises(WrongAnswer, match=text):
            await check(site)

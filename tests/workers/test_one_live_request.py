"""The origin sees one gateway, however many workers that has."""

from __future__ import annotations

from tests.workers import checks
from tests.workers.site import Site


async def test_readers_at_all_workers_cost_the_origin_as_much_as_those_of_one(site: Site) -> None:
    await checks.check_live_requests(site)
    await checks.check_fetches(site)
    await checks.check_facts(site)
    await checks.check_hops(site)

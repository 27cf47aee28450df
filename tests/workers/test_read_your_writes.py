"""What one worker has acknowledged, every other worker knows at once."""

from __future__ import annotations

import pytest

from tests.workers import checks
from tests.workers.site import Site

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_an_acknowledged_append_is_in_the_next_answer_of_every_worker(shared_site: Site) -> None:
    await checks.check_appends(shared_site)
    await checks.check_followed_appends(shared_site)
    await checks.check_passed_reads(shared_site)


@pytest.mark.parametrize("is_followed", [False, True])
async def test_a_stream_that_one_worker_has_deleted_is_gone_at_every_worker(
    shared_site: Site, is_followed: bool
) -> None:
    await checks.check_deletions(shared_site, is_followed=is_followed)


@pytest.mark.parametrize("is_followed", [False, True])
async def test_a_stream_that_one_worker_has_created_again_is_the_new_one_at_every_worker(
    shared_site: Site, is_followed: bool
) -> None:
    await checks.check_re_creations(shared_site, is_followed=is_followed)


async def test_a_stream_that_the_origin_has_shown_to_one_worker_to_be_gone_is_gone_at_every_worker(
    shared_site: Site,
) -> None:
    await checks.check_ends(shared_site)


async def test_closures_and_purges_are_known_to_every_worker_once_they_are_answered(shared_site: Site) -> None:
    await checks.check_closures(shared_site)
    await checks.check_purges(shared_site)

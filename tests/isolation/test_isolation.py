"""A short run of the isolation of principals, and mutants of the gateway that longer ones must catch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import pytest
import uvloop

from gateway.auth.guard import Guard
from gateway.auth.remembered_verdicts import Allowed, Verdicts
from gateway.server import authorising, header_meanings
from gateway.server.frontend import Frontend
from gateway.server.guarded_live_reads import GuardedRead, GuardedReads
from gateway.server.interpreting import RequestMeaning
from gateway.server.live_requests import LiveRequests
from gateway.server.query_credentials import NamedStream
from tests.chaos.mutants_of_rules import joins_by_any_verdict, named_by_the_first
from tests.isolation.isolation import isolated

STEPS: Final = 250
MOST_STEPS: Final = 1_500
SEEDS: Final = (1, 2, 3)


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


async def test_nothing_of_a_stream_reaches_a_principal_that_may_not_read_it() -> None:
    async with isolated(7) as run:
        for _ in range(STEPS):
            await run.step()
    assert run.violations == []
    assert run.answers > run.refusals > 20


Patch = tuple[Any, str, Any]


def skipped_check() -> list[Patch]:
    return [(Frontend, "_admits", lambda *_: True)]


def shared_verdict() -> list[Patch]:
    # Every header section has the one dictionary.
    return [(header_meanings, "NONE_ALLOWED", {})]


def verdict_on_every_stream() -> list[Patch]:
    def named(parsed: RequestMeaning, _: bytes | None) -> NamedStream | None:
        return NamedStream(parsed.route, "", "") if parsed.read is not None else None

    return [(authorising, "_named_stream", named)]


def join_by_any_verdict() -> list[Patch]:
    return [(LiveRequests, "join", joins_by_any_verdict())]


def judged_by_the_first_credentials_in_a_query() -> list[Patch]:
    return [(header_meanings, "_named", named_by_the_first)]


def forgotten_expiry() -> list[Patch]:
    made = Allowed.__init__

    def without_expiry(self: Allowed, *arguments: Any) -> None:
        made(self, *arguments)
        # Not infinite: a timer of so many seconds raises an error, which would show the mutant by accident.
        self.until += 10**6

    return [(Allowed, "__init__", without_expiry)]


def forgotten_expiry_of_live_reads() -> list[Patch]:
    return [(GuardedReads, "ends_in_s", lambda *_: None)]


def revocation_lost_on_live_reads() -> list[Patch]:
    return [(GuardedRead, "revoke", lambda _: None)]


def revocation_lost_on_remembered_answers() -> list[Patch]:
    return [(Verdicts, "begin_edition", lambda _: None)]


def permissions_of_any_stream() -> list[Patch]:
    return [(Guard, "_check", lambda *_, **__: None)]


MUTANTS: Final = (
    skipped_check,
    shared_verdict,
    verdict_on_every_stream,
    join_by_any_verdict,
    judged_by_the_first_credentials_in_a_query,
    forgotten_expiry,
    forgotten_expiry_of_live_reads,
    revocation_lost_on_live_reads,
    revocation_lost_on_remembered_answers,
    permissions_of_any_stream,
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
async def test_mutant_is_caught(mutant: Callable[[], list[Patch]], monkeypatch: pytest.MonkeyPatch) -> None:
    for where, name, value in mutant():
        monkeypatch.setattr(where, name, value)
    for seed in SEEDS:
        async with isolated(seed) as run:
            for _ in range(MOST_STEPS // len(SEEDS)):
                if run.violations:
                    break
                await run.step()
        if run.violations:
            return
    pytest.fail(f"not caught: {run!r}")

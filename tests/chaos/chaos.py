"""A run of chaos from its beginning to its end."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import uvloop

from tests.chaos import operators
from tests.chaos.client import Client
from tests.chaos.manners import Manners
from tests.chaos.parties import PARTIES, keepers
from tests.chaos.readers import CatchUpReader, Crowd, PollReader, Reader, SseReader
from tests.chaos.run import Place, Run, Violation, places
from tests.chaos.system import System
from tests.chaos.writers import Scribe, Writer
from tests.waiting import eventually, pass_turns

_LEAVE_S: Final = 5.0
"""Within this (real seconds) the gateway has let go of everything that its clients have left."""


@dataclass(frozen=True)
class Size:
    """How much goes on at once."""

    shared_places: int = 3
    catch_up: int = 12
    poll: int = 8
    sse: int = 8
    crowds: int = 4
    """Crowds of long-polls and of SSE readers in turns, with so many members each:"""
    members: int = 5


@dataclass(frozen=True)
class Result:
    """What a run has seen."""

    seed: int
    seconds: float
    counts: Counter[str]
    violations: list[Violation]
    logged: int | None = None
    """Requests whose lines in the access log were found to be right; None without a log."""

    @property
    def answers(self) -> int:
        return sum(self.counts.values())


def chaos(
    seed: int,
    seconds: float,
    *,
    size: Size = Size(),
    most_violations: int = 5,
    most_answers: int = 0,
    is_production: bool | None = None,
    has_auth: bool = False,
    workers: int = 0,
    mutant: str = "",
) -> Result:
    """Run for so many real seconds, or until so many answers (0: any number) or violations.

    `is_production` is whether the gateway has an access log, a proxy in front and tokens; None leaves it to the seed.
    `has_auth` is whether it judges the tokens, too.  With `workers` the gateway is a program with so many, which is
    ended by SIGKILL now and then; `mutant` is one of `tests.workers.mutants`.
    """
    if is_production is None:
        # A worker that is killed takes lines and counters with it.
        is_production = seed % 4 == 2 and not workers
    level = logging.getLogger("gateway").level
    logging.getLogger("gateway").setLevel(logging.CRITICAL)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            manners = Manners.of(seed)
            system = System(
                Random(f"{seed}/system"),
                manners,
                is_production=is_production,
                has_auth=has_auth,
                workers=workers,
                mutant=mutant,
            )
            run = Run(seed, system, places(size.shared_places), most_violations)
            return runner.run(_chaos(run, seconds, size, most_answers))
    finally:
        logging.getLogger("gateway").setLevel(level)


async def _chaos(run: Run, seconds: float, size: Size, most_answers: int) -> Result:
    system = run.system
    await system.start()
    try:
        await _begin(run, size)
        try:
            async with asyncio.timeout(seconds):
                while not run.stopped.is_set() and not (most_answers and run.answers >= most_answers):
                    try:
                        async with asyncio.timeout(0.1):
                            await run.stopped.wait()
                    except TimeoutError:
                        pass
        except TimeoutError:
            pass
        took = run.now()
        await run.close()
        await system.restarted()
        if not run.violations:
            await _left_behind(run)
    finally:
        await run.close()
        await system.restarted()
        await system.stop()
        # Connections that were accepted in the last turn learn that their clients have left; none outlives the loop.
        await pass_turns()
    return Result(
        run.seed, took, run.counts, run.violations, system.ledger.audited if system.ledger is not None else None
    )


async def _begin(run: Run, size: Size) -> None:
    for place in run.places:
        for party in keepers(place.path) or ("anyone",):
            await _write(run, place, party, leads=True)
        if not place.is_own:
            await _write(run, place, "alice", leads=False)
    kinds: list[tuple[type[Reader], int]] = [
        (CatchUpReader, size.catch_up),
        (PollReader, size.poll),
        (SseReader, size.sse),
    ]
    parties = list(PARTIES)
    for kind, count in kinds:
        for number in range(count):
            name = f"{kind.__name__} {number}"
            rng = run.rng(name)
            is_far, speaks_http_2 = rng.random() < 0.3, run.system.ledger is not None and rng.random() < 0.3
            client = Client(run, parties[number % len(parties)], is_far=is_far, name=name, speaks_http_2=speaks_http_2)
            run.start(kind(run, client, rng).work(), name)
    for number in range(size.crowds):
        _gather(run, number, parties[number % len(parties)], size.members)
    work: list[Callable[[Run, Random], Coroutine[Any, Any, None]]] = [
        operators.origin_faults,
        operators.lost_lives,
        operators.trims,
        operators.networks,
        operators.purges,
        operators.reloads,
        operators.drains,
        operators.moods,
        operators.seasons,
        operators.kills,
    ]
    for one in work:
        run.start(one(run, run.rng(one.__name__)), one.__name__)


def _gather(run: Run, number: int, party: str, members: int) -> None:
    """Begin a crowd."""

    def client(name: str) -> tuple[Run, Client, Random]:
        rng = run.rng(name)
        speaks_http_2 = run.system.ledger is not None and rng.random() < 0.3
        return run, Client(run, party, is_far=False, name=name, speaks_http_2=speaks_http_2), rng

    name, kind = f"Crowd {number}", (PollReader, SseReader)[number % 2]
    crowd = Crowd(*client(name), [kind(*client(f"{name}.{member}")) for member in range(members)])
    run.start(crowd.work(), name)


async def _write(run: Run, place: Place, party: str, *, leads: bool) -> None:
    name = f"{place.path[1:].replace('/', '-'):.6}{party[0]}{'l' if leads else 's'}"
    rng = run.rng(f"writer {name}")
    client = Client(run, party, is_far=rng.random() < 0.3)
    writer = Writer(run, place, party, rng, leads, client, Scribe(place, f"{name:<8}"))
    if place.is_own:
        # The gateway takes a PUT for one of all that a path names, and ends the others' live reads: so it comes first.
        await writer.create()
    run.start(writer.work(), f"writer {name}")


async def _left_behind(run: Run) -> None:
    """See that the gateway holds nothing for clients that have left."""
    system = run.system
    await system.end_trouble()
    system.client_side.cut_all()
    left: list[str] = []

    async def is_empty() -> bool:
        left[:] = await system.left_over()
        return not left

    try:
        await eventually(is_empty, within_s=_LEAVE_S, look_s=0.02)
    except AssertionError:
        run.violate(
            "everybody has left",
            ", ".join(left),
            "the gateway still holds resources after its last client has left",
        )

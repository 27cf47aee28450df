"""What is done to the system: faults of the origin, bad networks, restarts, purges, reloads; and the turns of calm."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from random import Random

from gateway.origin.faults import GatedSwitch
from tests.chaos.run import Run
from tests.chaos.system import VARIANTS
from tests.waiting import pause

_KINDS = ("catchup", "catchup", "head", "longpoll", "sse", "create", "create", "append", "delete", "delete", None)
_STATUSES = (429, 500, 502, 503, 504)
_STORM_S = (1.0, 3.0)
_CALM_S = (0.5, 1.0)
_LOOK_S = 0.05
_PAUSE_S = 0.4
_RECOVERY_S = 0.7
_STOPPED = "the machine stopped this process for a while: what waited meanwhile has timed out"
"""A pause of the whole process that may make waits time out."""


async def origin_faults(run: Run, rng: Random) -> None:
    """Set switches at the origin, one after the other, while there is a storm."""
    while True:
        await pause(rng.expovariate(25))
        if not run.is_stormy:
            continue
        faults, kind, times = run.system.origin.faults, rng.choice(_KINDS), rng.randint(1, 3)
        match rng.randrange(9):
            case 0:
                faults.delay(rng.uniform(0.2, 8.0), kind=kind, times=times)
            case 1:
                faults.status(rng.choice(_STATUSES), kind=kind, times=times)
            case 2:
                faults.truncate(
                    rng.randrange(rng.choice((40, 300))), is_chunked=rng.random() < 0.5, kind=kind, times=times
                )
            case 3:
                faults.drop(rng.randrange(rng.choice((40, 300))), kind=kind, times=times)
            case 4:
                faults.refuse(kind=kind, times=times)
            case 5 | 6:
                # What was true when the origin was asked arrives when it is not true any more.
                reads = rng.choice(("catchup", "head", "longpoll"))
                _release_later(run, rng, faults.hold(kind=reads, when="reply", times=times))
            case 7:
                when = rng.choice(("request", "reply"))
                _release_later(run, rng, faults.hold(kind=kind, when=when, times=times))
            case _:
                _release_later(run, rng, faults.stall(rng.randrange(300), kind=kind, times=times))


async def lost_lives(run: Run, rng: Random) -> None:
    """Lose the answers to the next DELETE and PUT, while reads that were answered before are still on their way."""
    while True:
        await pause(rng.expovariate(2))
        if run.is_stormy:
            faults = run.system.origin.faults
            _release_later(run, rng, faults.hold(kind="catchup", when="reply", times=rng.randint(1, 4)))
            for kind in rng.choice((("delete",), ("create",), ("delete", "create"))):
                faults.refuse(kind=kind, times=rng.randint(1, 2))


async def trims(run: Run, rng: Random) -> None:
    """Have the origin trim streams from the front, at any time; some then have no start to read from."""
    while True:
        await pause(rng.expovariate(4))
        history = rng.choice(list(run.histories.values()))
        life = history.last
        if life is None or history.is_over(life) or not (records := life.stream.records):
            continue
        # Most keep something, some nothing.
        upto = rng.choice(records[:-1] or records).end if rng.random() < 0.9 else life.tail
        history.trim(upto, hides_start=rng.random() < 0.2)


def _release_later(run: Run, rng: Random, switch: GatedSwitch) -> None:
    async def release() -> None:
        try:
            await pause(rng.choice((0.02, 0.1, 0.3, 0.9)))
        finally:
            switch.release()

    run.start(release(), "release")


async def networks(run: Run, rng: Random) -> None:
    """Let both networks be bad in turns, while there is a storm."""
    while True:
        await pause(rng.uniform(0.1, 0.5))
        for link in (run.system.origin_side, run.system.client_side):
            link.weather.calm()
            if run.is_stormy:
                link.weather.slices = rng.choice((0.0, 0.1, 0.5))
                link.weather.latency = rng.choice((0.0, 0.1, 0.3))
                link.weather.stall = rng.choice((0.0, 0.0, 0.01))
                link.weather.reset = rng.choice((0.0, 0.01, 0.03))
                link.weather.cut = rng.choice((0.0, 0.01, 0.03))


async def purges(run: Run, rng: Random) -> None:
    """Purge streams, hard and soft, at any time."""
    while True:
        await pause(rng.expovariate(6))
        place = rng.choice(run.places)
        is_soft = rng.random() < 0.5
        run.note(f"{'soft ' * is_soft}purge of {place.path}")
        try:
            await run.system.purge(place.path, is_soft=is_soft)
        except OSError:
            pass  # the gateway is being restarted
        if not is_soft:
            run.forget_lifetimes(place.path)


async def reloads(run: Run, rng: Random) -> None:
    """Change the configuration, at any time."""
    while True:
        await pause(rng.expovariate(0.5))
        variant = rng.choice(VARIANTS)
        run.note(f"reload: {variant}")
        await run.system.reload(variant)


async def drains(run: Run, rng: Random) -> None:
    """Have the gateway drain, and go on before it has come to its end, while there is a storm."""
    while True:
        await pause(rng.expovariate(1))
        if run.is_stormy:
            within_s = rng.choice((2.0, 60.0))
            run.note(f"drain within {within_s:g} s, to be undone")
            await run.system.drain(within_s)
            await pause(rng.choice((0.0, 0.05, 0.3)))
            await run.system.undo_drain()


async def kills(run: Run, rng: Random) -> None:
    """Kill workers, while there is a storm, if the gateway has any."""
    while run.system.workers > 1:
        await pause(rng.expovariate(1))
        if run.is_stormy and (pid := run.system.kill_worker()) is not None:
            run.note(f"SIGKILL for the worker {pid}")
            run.forget_lifetimes()


async def moods(run: Run, rng: Random) -> None:
    """Change whose a stream's answers are, at any time, if the seed has the origin do so."""
    manners = run.system.manners
    while manners.is_personal:
        await pause(rng.expovariate(5))
        path = rng.choice(run.places).path
        run.note(f"answers of {path} for one reader alone: {manners.change(path, rng)}")


async def seasons(run: Run, rng: Random) -> None:
    """Storm and calm in turns; the restarts happen in storms."""
    system = run.system
    while True:
        run.turn(is_calm=False)
        until = run.now() + rng.uniform(*_STORM_S)
        while run.now() < until:
            await pause(rng.uniform(0.1, 0.8))
            choice = rng.random()
            if choice < 0.1:
                run.note("restart of the origin")
                await system.restart_origin(rng.choice((0.0, 0.05, 0.3)))
            elif choice < 0.2:
                run.note("restart of the gateway")
                await system.restart_gateway()
                run.forget_lifetimes()
        run.is_recovering = True
        await system.end_trouble()
        # What was held up or lost is answered, or given up, within the bounds that the configuration sets.
        while not await undisturbed(_RECOVERY_S):
            run.note(_STOPPED)
        await system.end_trouble()
        try:
            await system.until_well()
        except TimeoutError:
            run.violate("after a storm", "no sign of health", "the gateway does not find back to its origin")
        run.is_recovering = False
        run.turn(is_calm=True)
        if not await undisturbed(rng.uniform(*_CALM_S)):
            run.note(_STOPPED)


async def undisturbed(
    calm_s: float,
    now: Callable[[], float] = time.monotonic,
    pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> bool:
    """Wait for so long; False at once if this process is stopped meanwhile, by a machine that has others to serve."""
    until = now() + calm_s
    while (looked_at := now()) < until:
        await pause(_LOOK_S)
        if now() - looked_at > _LOOK_S + _PAUSE_S:
            return False
    return True

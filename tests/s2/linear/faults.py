"""What goes wrong at the origin during a run, by the origin's own fault switches.

Each trouble lasts for some calls of the clients.  Some lose the answer to an append that took effect, some the request
itself, some hold an answer about the tail until appends have made it old.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Final

from gateway.origin.faults import Switch, When
from gateway.origin.s2.app import RunningS2Origin, S2Origin, S2OriginSettings, start_s2_origin
from gateway.origin.s2.calls import Call
from gateway.s2.errors import S2ErrorCode
from tests.s2.linear.progress import Progress

_CALLS: Final = (20, 60)
"""The shortest and the longest time between two troubles, in calls of clients."""
_LONGEST_S: Final = 0.3
"""Longest time of a trouble, in seconds: every client may wait for an answer that is held."""
_READS: Final = (Call.READ, Call.CHECK_TAIL)
_FOLLOWED: Final = (Call.READ_SESSION, Call.READ_EVENTS)

Trouble = Callable[[S2Origin, Random], Switch]


def lost_answers(origin: S2Origin, rng: Random) -> Switch:
    return origin.faults.drop(rng.choice([0, 5]), kind=rng.choice([Call.APPEND, Call.APPEND_SESSION]), times=3)


def lost_requests(origin: S2Origin, rng: Random) -> Switch:
    return origin.faults.refuse(kind=rng.choice([Call.APPEND, *_READS, *_FOLLOWED]), times=3)


def lost_reads(origin: S2Origin, rng: Random) -> Switch:
    return origin.faults.drop(rng.randrange(60), kind=rng.choice([*_READS, *_FOLLOWED]), times=2)


def refusals(origin: S2Origin, rng: Random) -> Switch:
    code = rng.choice([S2ErrorCode.UNAVAILABLE, S2ErrorCode.OTHER, S2ErrorCode.RATE_LIMITED])
    return origin.faults.error(code, kind=rng.choice([Call.APPEND, *_READS]), times=3)


def failed_sessions(origin: S2Origin, rng: Random) -> Switch:
    kind = rng.choice([Call.APPEND_SESSION, *_FOLLOWED])
    return origin.faults.fail_session(S2ErrorCode.UNAVAILABLE, after_messages=rng.randrange(3), kind=kind, times=2)


def held_answers(origin: S2Origin, rng: Random) -> Switch:
    return origin.faults.hold(
        kind=rng.choice([Call.READ, Call.CHECK_TAIL, Call.CHECK_TAIL, Call.APPEND]), when=When.REPLY, times=1
    )


def lagging_sessions(origin: S2Origin, rng: Random) -> Switch:
    origin.faults.fail_session(S2ErrorCode.UNAVAILABLE, kind=rng.choice(_FOLLOWED), times=1)
    return origin.faults.stall(rng.randrange(400), kind=Call.READ_SESSION, times=1)


TROUBLES: Final[tuple[Trouble, ...]] = (
    lost_answers,
    lost_requests,
    lost_reads,
    refusals,
    failed_sessions,
    held_answers,
    held_answers,
    held_answers,
    lagging_sessions,
    lagging_sessions,
)
_RESTARTS: Final = 0.1
"""The part of all troubles that are restarts of the origin."""


class Nemesis:
    """Causes one trouble after the other.  Owner of the running origin, whose streams outlive its restarts."""

    def __init__(self, running: RunningS2Origin, progress: Progress, rng: Random) -> None:
        self.running = running
        self._progress = progress
        self._rng = rng
        self._is_down = False
        self._trouble: Switch | None = None

    async def run(self) -> None:
        """Go on until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LONGEST_S):
                    await self._progress.more(self._rng.randint(*_CALLS))
            self._clear()
            if self._rng.random() < _RESTARTS:
                await self.restart()
            else:
                self._trouble = self._rng.choice(TROUBLES)(self.running.origin, self._rng)

    def _clear(self) -> None:
        self.running.origin.faults.clear()
        if self._trouble is not None:
            # A switch that has held as many requests as it may is not among the origin's any more.
            self._trouble.remove()

    async def restart(self) -> None:
        """Cut all connections as a crash does, and serve the same streams again on the same port."""
        self._is_down = True
        await self._serve_again()

    async def _serve_again(self) -> None:
        stopped = self.running
        await stopped.stop(grace_s=0)
        settings = S2OriginSettings(stopped.host, stopped.port)
        self.running, self._is_down = await start_s2_origin(settings, origin=stopped.origin), False

    async def settle(self) -> None:
        """Have no fault be left; `run` may have been cancelled anywhere."""
        self._clear()
        if self._is_down:
            await self._serve_again()

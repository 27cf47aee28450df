"""The one place where tests wait for what they cannot await.

Most waits of the tests are for an event, a signal or a counter.  What is left is a state that nothing announces, of a
gateway in the same process, another process or a browser: `eventually` looks at it again and again, for a bounded time,
and its failure says which condition did not come true, and how things stood.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final, Protocol

BOUND_S: Final = 20.0
"""Far longer than any state takes to come, on a machine that does several things at once."""
LOOK_S: Final = 0.001
_SELDOM_S: Final = 0.008
_LONGER: Final = 1.2
"""Each pause of `eventually` is this many times as long as the previous pause, up to `_SELDOM_S`.  A slow state is
therefore found late by at most a fifth of its time.  A look every millisecond would take the processor away from the
tested program."""

Condition = Callable[[], bool] | Callable[[], Awaitable[bool]]


async def pass_turns(count: int = 5) -> None:
    """Give every task that can go on the chance to do so `count` times; no time goes by."""
    for _ in range(count):
        await asyncio.sleep(0)


async def pause(seconds: float) -> None:
    """Let time go by: for what makes load or faults at a pace of its own, and for slow clients.  A test that waits for
    something awaits that instead.
    """
    await asyncio.sleep(seconds)


async def eventually(
    condition: Condition,
    *,
    within_s: float = BOUND_S,
    look_s: float = LOOK_S,
    state: Callable[[], object] = lambda: "",
) -> None:
    """Wait until `condition` holds, looking after `look_s` seconds, and then less often (0: in every turn of the loop).

    AssertionError after `within_s` seconds, with the condition's source and what `state` returns by then.
    """
    gives_up_at = time.monotonic() + within_s
    while True:
        holds = condition()
        if not isinstance(holds, bool):
            # A condition that hangs must not outlive the bound.
            with suppress(TimeoutError):
                async with asyncio.timeout(max(LOOK_S, gives_up_at - time.monotonic())):
                    holds = await holds
        if holds is True:
            return
        if time.monotonic() > gives_up_at:
            raise AssertionError(f"not within {within_s:g} s: {_source(condition)} {_seen_by(condition)} {state()}")
        await pause(look_s)
        look_s = max(look_s, min(look_s * _LONGER, _SELDOM_S))


async def at_rest(count: Callable[[], int], look_s: float = 0.05) -> None:
    """Wait until a count that has begun grows no more: the kernel's buffers say of nothing that they are full."""
    before = 0
    async with asyncio.timeout(BOUND_S):
        while (now := count()) != before or not now:
            before = now
            await pause(look_s)


def eventually_on_disk(condition: Callable[[], bool], within_s: float, look_s: float = 0.002) -> None:
    """`eventually` for a test without a loop, which waits for another process."""
    gives_up_at = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < gives_up_at, f"not within {within_s:g} s: {_source(condition)} {_seen_by(condition)}"
        time.sleep(look_s)


class Movable(Protocol):
    """A clock that a test moves."""

    def advance(self, seconds: float) -> None: ...


@asynccontextmanager
async def time_passing(clock: Movable, step_s: float = 0.05, look_s: float = LOOK_S) -> AsyncIterator[None]:
    """Let a manual clock run, `step_s` every `look_s`, while the test waits for what comes of it."""

    async def run() -> None:
        while True:
            await pause(look_s)
            clock.advance(step_s)

    running = asyncio.create_task(run())
    try:
        yield
    finally:
        running.cancel()


def _source(condition: Callable[[], object]) -> str:
    try:
        return inspect.getsource(condition).strip()
    except OSError:
        return repr(condition)


def _seen_by(condition: Callable[[], object]) -> str:
    """What the condition's own variables are."""
    try:
        found = inspect.getclosurevars(condition).nonlocals
    except TypeError:
        return ""
    return ", ".join(f"{name}={value!r:.300}" for name, value in found.items())

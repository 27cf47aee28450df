"""An origin that is down for a while under steady load.

The figures are the requests that reach the origin, the requests that the gateway refuses, and how soon after the outage
the origin is used again.
The origin's address accepts connections, counts and resets them.  The gateway's clock moves by a fixed step for each
request, so that the rate is the stated one.  Workers take real time, so their clock must not run ahead of it.  It waits
for the answer to each request, but no longer than `_ANSWER_S`, because some requests wait for the clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from tests.offload.cases import log_of, message
from tests.offload.crowd import Checker, Client
from tests.offload.spared import catch_up
from tests.offload.stage import JSON, Figure, bounded, manual_clock, stage
from tests.waiting import Movable, eventually, pass_turns, time_passing

_POOL = 400
_TURNS = 8
"""Turns of the loop for each request before the clock moves on."""
_ANSWER_S = 0.02
"""The longest real time for which the clock waits for the answer to a request."""
_STEP_S = 0.1
_PATIENCE_S = 60.0
"""Bound on the recovery after the outage, in seconds."""


async def outage(per_s: int = 500, seconds: float = 10.0, streams: int = 10) -> Figure:
    """Catch-up reads of streams in memory and of others, HEADs and writes, while the origin is down; one client
    follows a stream by SSE throughout."""
    clock = manual_clock()
    messages = [message(JSON, number) for number in range(4)]
    known, log = log_of(JSON, messages[:3]), log_of(JSON, messages)
    async with stage(clock=clock) as on, asyncio.TaskGroup() as group:
        crowd = await on.clients(_POOL)
        for number in range(streams):
            await on.create(f"/s/{number}", JSON)
            for body in messages[:3]:
                await on.append(f"/s/{number}", JSON, body)
            await catch_up(crowd[0], f"/s/{number}", Checker(known, is_json=True))
        await on.create("/cold", JSON)
        await on.append("/cold", JSON, messages[0])
        follower = group.create_task(_follow((await on.clients(1))[0], log))
        await on.waiting("/s/0", 1)

        # The messages of workers take real time: for a clock that runs ahead of it, the outage would be longer.
        look_s = _STEP_S if on.gateway.has_workers else _STEP_S / 100
        await on.crash()
        before = on.figure("", 0)
        refused = 0
        free: asyncio.Queue[Client] = asyncio.Queue()
        for client in crowd:
            free.put_nowait(client)

        async def ask(client: Client, number: int) -> None:
            nonlocal refused
            path = f"/s/{number % streams}"
            match number // streams % 5:
                case 0 | 1:
                    body = bytearray()
                    reply = await client.send("GET", f"{path}?offset=-1", take=body.extend)
                    assert reply.status == 200, reply
                    assert body == b"[%b]" % known
                case 2:
                    reply = await client.send("GET", f"/cold/{number}?offset=-1")
                    assert reply.status != 200, reply
                case 3:
                    reply = await client.send("HEAD", path)
                case _:
                    reply = await client.send("POST", path, {"Content-Type": JSON}, messages[0])
                    assert reply.status != 200, reply
            assert reply.status in (200, 502, 503, 504), reply
            assert reply.status != 503 or "retry-after" in reply.headers, reply
            refused += reply.status == 503
            free.put_nowait(client)

        asks = []
        for number in range(round(per_s * seconds)):
            asks.append(group.create_task(ask(await bounded(free.get()), number)))
            if on.gateway.has_workers:
                await asyncio.wait(asks[-1:], timeout=_ANSWER_S)
            else:
                await pass_turns(_TURNS)
            await on.pass_time(1 / per_s)
        during = on.figure(f"{per_s} requests a second for {seconds:g} s, origin down", 0)
        await _until(clock, lambda: all(task.done() for task in asks), look_s)
        await on.recover()
        recovered_at = clock.now()
        back = group.create_task(_until_back(crowd[0], messages[0]))
        while not back.done():
            # Count turns of the loop rather than seconds, so that the figure does not depend on the machine.
            assert clock.now() - recovered_at < _PATIENCE_S
            await on.pass_time(1 / per_s)
            if on.gateway.has_workers:
                await asyncio.sleep(1 / per_s)
            else:
                await pass_turns(_TURNS)
        back_s = round(clock.now() - recovered_at, 1)
        await on.append("/s/0", JSON, messages[3])
        await on.close_stream("/s/0")
        await _until(clock, follower.done, look_s)
    return replace(
        during,
        asked=during.asked - before.asked,
        given_bytes=during.given_bytes - before.given_bytes,
        fetches=during.attempts,
        live_requests=0,
        live_peak=0,
        connections=during.attempts,
        origin_bytes=0,
        refused=refused,
        back_s=back_s,
    )


async def _follow(client: Client, log: bytes) -> None:
    """Follow by SSE to the end, reconnecting whenever the connection ends before it."""
    checker, at, is_closed = Checker(log, is_json=True), "-1", False
    while not is_closed:
        subscription = await client.subscribe(f"/s/0?offset={at}&live=sse")
        async for control in subscription.follow(checker):
            at, is_closed = control["streamNextOffset"], control.get("streamClosed", False)
    assert checker.position == len(log)


async def _until_back(client: Client, body: bytes) -> None:
    """Request a stream that is not in memory until it is answered."""
    given, status = bytearray(), 0
    while status != 200:
        given.clear()
        status = (await client.send("GET", "/cold?offset=-1", take=given.extend)).status
    assert given == b"[%b]" % body


async def _until(clock: Movable, condition: Callable[[], bool], look_s: float) -> None:
    """Let time pass until the condition holds, `_STEP_S` every `look_s`."""
    async with time_passing(clock, _STEP_S, look_s):
        await eventually(condition)

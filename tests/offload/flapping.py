"""Readers and writers of an origin that is down for a second every few seconds, as in a deploy.

Halfway between two outages, a few of the origin's connections are reset, as by a flaky network.

A refused client soon repeats its request, and ignores the Retry-After of the gateway.  The figures are the number of
requests that the gateway refuses, and the time from each return of the origin to the first answered write.  In the end
each reader must have exactly the messages that the origin holds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from statistics import median
from typing import Final

from gateway.aio.clock import Clock, pause
from tests.offload.crowd import Client, Reply, Tally
from tests.offload.stage import JSON, Stage, manual_clock, stage
from tests.waiting import pass_turns

_STEP_S: Final = 0.05
_TURNS: Final = 12
"""Turns of the loop for each step of the clock."""
_AGAIN_S: Final = (0.2, 0.4)
"""Seconds after which a refused client repeats its request."""
_WRITE_S: Final = 0.5
_RESETS: Final = 4
_LATE_S: Final = 2.0
_PATIENCE_S: Final = 30.0
"""The most seconds of the gateway's clock until all clients have reached the end of their streams."""
_REFUSED: Final = (502, 503, 504)
_LOST: Final = (OSError, EOFError)


@dataclass
class Course:
    """The observations of the clients."""

    asked: int = 0
    attempts: int = 0
    """Connections attempted while the origin was away."""
    refused: int = 0
    """Requests answered 503."""
    refused_late: int = 0
    """The number of these requests that came at least two seconds after the origin's return."""
    failed: int = 0
    """Requests answered 502 or 504, and answers cut short."""
    writes: int = 0
    back_s: list[float] = field(default_factory=list)
    """For each return of the origin, the seconds to the first answer to a write."""

    def __str__(self) -> str:
        return (
            f"{self.refused:,} of {self.asked:,} requests refused, "
            f"{self.refused_late} of them 2 s or more after the origin was back, "
            f"{self.failed:,} failed, {self.writes:,} writes; after {len(self.back_s)} returns the first write was "
            f"answered within {median(self.back_s):.2f} s (median), {max(self.back_s):.2f} s (longest)"
        )


async def flapping(
    *, readers: int = 150, writers: int = 15, outages: int = 50, away_s: float = 1.0, up_s: float = 3.0
) -> Course:
    """Run the case: a third of the readers use long-polls, a third SSE, and a third catch-up reads.  Each writer has
    its own stream."""
    clock = manual_clock()
    async with stage(clock=clock) as on, asyncio.TaskGroup() as group:
        crowd = _Crowd(on, clock, Random(36))
        for number in range(writers):
            await on.create(f"/s/{number}", JSON)
        written = [group.create_task(crowd.write(f"/s/{number}")) for number in range(writers)]
        kinds = (crowd.follow_by_long_poll, crowd.follow_by_sse, crowd.catch_up)
        reading = [group.create_task(kinds[number % 3](f"/s/{number // 3 % writers}")) for number in range(readers)]
        await _pass(on, up_s)
        for _ in range(outages):
            await on.crash()
            crowd.returned_at = None
            await _pass(on, away_s)
            await on.recover()
            crowd.returned_at = clock.now()
            crowd.is_answered = False
            await _pass(on, up_s / 2)
            on.origin.origin.faults.refuse(times=_RESETS)
            await _pass(on, up_s / 2)
        on.origin.origin.faults.clear()
        crowd.is_over = True
        await _until(on, lambda: all(task.done() for task in written))
        for number in range(writers):
            await on.close_stream(f"/s/{number}")
        await _until(on, lambda: all(task.done() for task in reading))
        for number, task in enumerate(reading):
            held = await _held(on, f"/s/{number // 3 % writers}")
            assert task.result() == held, f"reader {number}"
        for number, acknowledged in enumerate(written):
            held = await _held(on, f"/s/{number}")
            # A write whose answer was lost may have been repeated, so its message may be in the stream twice.
            assert list(dict.fromkeys(held)) == list(range(acknowledged.result()))
        crowd.course.asked, crowd.course.attempts = on.tally.requests, on.attempts
    return crowd.course


class _Crowd:
    """The clients, and their observations."""

    def __init__(self, on: Stage, clock: Clock, rng: Random) -> None:
        self._on = on
        self._clock = clock
        self._rng = rng
        self.course = Course()
        self.returned_at: float | None = 0.0
        """When the origin came back; None while it is down."""
        self.is_answered = True
        """Whether a write has been answered since then."""
        self.is_over = False

    async def write(self, path: str) -> int:
        """Append numbers, one after another; return how many were acknowledged."""
        number, client = 0, await self._client()
        while not self.is_over:
            reply, client = await self._ask(client, "POST", path, body=b"%d" % number)
            if reply is None:
                continue
            number += 1
            self.course.writes += 1
            if self.returned_at is not None and not self.is_answered:
                self.is_answered = True
                self.course.back_s.append(self._clock.now() - self.returned_at)
            await pause(self._clock, self._rng.uniform(0.5, 1.5) * _WRITE_S)
        client.close()
        return number

    async def follow_by_long_poll(self, path: str) -> list[int]:
        """Read a stream to its end by long-polls; return its messages."""
        return await self._read(path, "&live=long-poll", 0.0)

    async def catch_up(self, path: str) -> list[int]:
        """Read a stream to its end by catch-up reads; return its messages."""
        return await self._read(path, "", _WRITE_S)

    async def _read(self, path: str, live: str, pause_s: float) -> list[int]:
        got: list[int] = []
        at, client = "-1", await self._client()
        while True:
            body = bytearray()
            reply, client = await self._ask(client, "GET", f"{path}?offset={at}{live}", take=body.extend)
            if reply is None:
                continue
            got += json.loads(body) if body else []
            at = reply.next_offset
            if reply.is_closed and reply.is_up_to_date:
                client.close()
                return got
            await pause(self._clock, pause_s)

    async def follow_by_sse(self, path: str) -> list[int]:
        """Read a stream to its end by SSE, with a connection for each answer; return its messages."""
        got: list[int] = []
        at, is_closed = "-1", False
        while not is_closed:
            client, body = await self._client(), []
            try:
                subscription = await client.subscribe(f"{path}?offset={at}&live=sse", statuses=(200, *_REFUSED))
                if await self._is_refused(subscription.reply):
                    continue
                async for event in subscription.events():
                    if event.name == "data":
                        body = json.loads(event.data)
                    elif event.name == "control":
                        control = json.loads(event.data)
                        at, is_closed = control["streamNextOffset"], control.get("streamClosed", False)
                        got += body
                        body = []
            except _LOST:
                await self._cut()
            finally:
                client.close()
        return got

    async def _client(self) -> Client:
        return await Client.open(self._on.gateway.url, self._on.tally)

    async def _ask(
        self, client: Client, method: str, target: str, body: bytes = b"", take: Callable[[bytes], None] | None = None
    ) -> tuple[Reply | None, Client]:
        """Send one request.  After a refusal or a truncated answer, pause, and return None as the answer.  Also returns
        the client for the next request."""
        headers = {"Content-Type": JSON} if body else {}
        try:
            reply = await client.send(method, target, headers, body, take)
        except _LOST:
            client.close()
            await self._cut()
            return None, await self._client()
        return None if await self._is_refused(reply) else reply, client

    async def _is_refused(self, reply: Reply) -> bool:
        """If the answer is a refusal, count it, and wait as long as an impatient client."""
        if reply.status not in _REFUSED:
            assert reply.status in (200, 204), reply
            return False
        if reply.status == 503:
            self.course.refused += 1
            if self.returned_at is not None and self._clock.now() - self.returned_at >= _LATE_S:
                self.course.refused_late += 1
        else:
            self.course.failed += 1
        await pause(self._clock, self._rng.uniform(*_AGAIN_S))
        return True

    async def _cut(self) -> None:
        self.course.failed += 1
        await pause(self._clock, self._rng.uniform(*_AGAIN_S))


async def _pass(on: Stage, seconds: float) -> None:
    """Advance the gateway's clock by this time, while the clients continue."""
    for _ in range(round(seconds / _STEP_S)):
        await on.pass_time(_STEP_S)
        await pass_turns(_TURNS)


async def _until(on: Stage, is_done: Callable[[], bool]) -> None:
    """Advance the clock until all tasks have ended."""
    for _ in range(round(_PATIENCE_S / _STEP_S)):
        if is_done():
            return
        await _pass(on, _STEP_S)
    raise AssertionError("clients are left behind")


async def _held(on: Stage, path: str) -> list[int]:
    """Return the messages that the origin holds."""
    got: list[int] = []
    client, at, is_over = await Client.open(on.origin.url, Tally()), "-1", False
    while not is_over:
        body = bytearray()
        reply = await client.send("GET", f"{path}?offset={at}", take=body.extend)
        got += json.loads(body)
        at, is_over = reply.next_offset, reply.is_up_to_date
    client.close()
    return got

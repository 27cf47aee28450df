"""A request body whose client is late."""

from __future__ import annotations

import asyncio

import pytest

from gateway.aio.tasks import begin
from gateway.config.limits import LimitsConfig
from gateway.errors import RequestTimeout
from gateway.server import request_body as body_module
from gateway.server.request_body import RequestBody
from tests.waiting import eventually


class Flow:
    """A connection whose late bodies end when the test says so."""

    def __init__(self) -> None:
        self.late_bodies = 0
        self.gate = asyncio.Event()
        self.is_behind = False
        self.checks = 0

    def unread(self, size: int) -> None: ...

    def input_waited_s(self) -> float:
        self.checks += 1
        return asyncio.get_running_loop().time() if self.is_behind else 0.0

    async def late(self) -> None:
        self.late_bodies += 1
        await self.gate.wait()


@pytest.mark.parametrize("length", [100, 100_000, None])
async def test_a_late_body_fails_in_its_turn(length: int | None) -> None:
    flow = Flow()
    body = RequestBody(flow, length)
    limits = LimitsConfig(client_idle_timeout_s=0.05)

    async def read() -> None:
        if await body.gather(limits) is None:
            async for _ in body.chunks(limits):
                pass

    reading = asyncio.create_task(read())
    await eventually(lambda: flow.late_bodies == 1)
    assert not reading.done()
    # What arrives now is too late.
    body.feed(b"x")
    body.complete()
    flow.gate.set()
    with pytest.raises(RequestTimeout):
        await reading
    assert flow.late_bodies == 1


@pytest.mark.parametrize("length", [3, None])
@pytest.mark.parametrize("is_gathered", [True, False])
async def test_a_body_that_arrives_before_its_reader_has_a_task_is_read(
    monkeypatch: pytest.MonkeyPatch, length: int | None, is_gathered: bool
) -> None:
    monkeypatch.setattr(body_module, "_GATHERED_S", 1e6)
    loop, body, limits = asyncio.get_running_loop(), RequestBody(Flow(), length), LimitsConfig()
    found: list[bytes | None] = []

    async def read() -> None:
        if is_gathered:
            found.append(await body.gather(limits))
        else:
            found.append(b"".join([piece async for piece in body.chunks(limits)]))

    def arrive() -> None:
        begin(loop, read())
        body.feed(b"abc")
        body.complete()

    # As a connection does, in which no task runs.
    loop.call_soon(arrive)
    await eventually(lambda: bool(found))
    assert found == [b"abc"]


@pytest.mark.parametrize("is_whole", [False, True])
async def test_a_body_of_unknown_length_that_is_late_while_it_is_gathered_is_not_used(is_whole: bool) -> None:
    flow = Flow()
    body = RequestBody(flow, None)
    gathering = asyncio.create_task(body.gather(LimitsConfig(client_body_timeout_s=0.05)))
    await eventually(lambda: flow.late_bodies == 1)
    if is_whole:
        body.feed(b"x")
        body.complete()
    # Its turn comes only after the time for which it would have been gathered.
    with pytest.raises(RequestTimeout):
        await gathering


TIGHT = [
    LimitsConfig(client_idle_timeout_s=0.3),
    LimitsConfig(client_body_timeout_s=0.3),
    LimitsConfig(client_min_rate=1 << 20, client_idle_timeout_s=0.3),
]


@pytest.mark.parametrize("limits", TIGHT, ids=["idle", "body", "rate"])
async def test_a_body_is_not_late_while_its_input_waits_for_the_gateway(limits: LimitsConfig) -> None:
    flow, loop = Flow(), asyncio.get_running_loop()
    flow.gate.set()
    body = RequestBody(flow, 3)

    def arrive() -> None:
        body.feed(b"abc")
        body.complete()

    def input_waited_s() -> float:
        flow.checks += 1
        if flow.checks == 2:
            # The first check was at the beginning of the wait.  Now a limit has passed.
            loop.call_soon(arrive)
        return loop.time()

    flow.input_waited_s = input_waited_s  # type: ignore[method-assign]
    assert await body.gather(limits) == b"abc"
    assert flow.late_bodies == 0


async def test_a_body_that_arrives_in_the_turn_in_which_its_time_ends_is_read() -> None:
    flow = Flow()
    flow.gate.set()
    body = RequestBody(flow, 3)
    gathering = asyncio.create_task(body.gather(LimitsConfig(client_idle_timeout_s=0.05)))
    await eventually(lambda: flow.checks == 1)

    def input_waited_s() -> float:
        if not body.is_whole:
            body.feed(b"abc")
            body.complete()
        return 0.0

    flow.input_waited_s = input_waited_s  # type: ignore[method-assign]
    assert await gathering == b"abc"


async def test_input_that_waits_for_ever_holds_a_body_for_a_bounded_time() -> None:
    flow = Flow()
    flow.gate.set()
    flow.is_behind = True
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(RequestTimeout):
        await RequestBody(flow, 3).gather(LimitsConfig(client_idle_timeout_s=0.1))
    # uvloop counts milliseconds.
    assert loop.time() - began > 0.19, "the timeout, and as much again for the gateway"


async def test_a_body_that_trickles_while_input_waits_has_a_total_bound() -> None:
    flow = Flow()
    flow.gate.set()
    loop = asyncio.get_running_loop()
    limits = LimitsConfig(client_idle_timeout_s=0.05, client_body_timeout_s=0.1, client_min_rate=0)
    body, began = RequestBody(flow, None), loop.time()
    latest = began

    def input_waited_s() -> float:
        nonlocal latest
        if (now := loop.time()) - latest > 0.04:
            # A byte arrives whenever the idle time has passed.
            latest = now
            body.feed(b"x")
        return now

    flow.input_waited_s = input_waited_s  # type: ignore[method-assign]
    with pytest.raises(RequestTimeout):
        async for _ in body.chunks(limits):
            pass
    assert body.exceeded == "client_body_timeout_s"
    assert loop.time() - began > 0.19

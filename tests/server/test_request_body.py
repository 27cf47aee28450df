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

    def unread(self, size: int) -> None: ...

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

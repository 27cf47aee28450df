"""A write that has to wait is bounded, one that need not is not slowed by its bound; either way it runs just once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer, TestClient
from multidict import CIMultiDict

from gateway.clock import ManualClock
from gateway.metrics_seam import Silent
from gateway.ops.metrics import Metrics
from gateway.server.delivery import Aborted, Delivery


class Transport:
    """Takes note of its end."""

    is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


class Bounded:
    """A delivery to a client that is only a transport."""

    def __init__(self, write_timeout_s: float) -> None:
        self.transport = Transport()
        request = cast(web.BaseRequest, SimpleNamespace(transport=self.transport))
        self._delivery = Delivery(request, Metrics(cache_limit_bytes=0), write_timeout_s)

    async def write(self, write: Any) -> None:
        await self._delivery._bounded(write)


async def test_a_write_that_finds_room_starts_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def write() -> None:
        steps.append("written")

    def no_timer(_: float) -> Any:
        raise AssertionError("a timer")

    steps: list[str] = []
    monkeypatch.setattr(asyncio, "timeout", no_timer)
    await Bounded(1.0).write(write())
    assert steps == ["written"]


async def test_a_write_that_waits_more_than_once_is_carried_through() -> None:
    loop = asyncio.get_running_loop()
    first: asyncio.Future[str] = loop.create_future()
    second: asyncio.Future[str] = loop.create_future()
    seen: list[str] = []

    async def write() -> None:
        seen.append(await first)
        try:
            await second
        except OSError as error:
            seen.append(str(error))
        await asyncio.sleep(0)
        seen.append("end")

    loop.call_soon(first.set_result, "first")
    loop.call_soon(second.set_exception, OSError("second"))
    await Bounded(10.0).write(write())
    assert seen == ["first", "second", "end"]


async def test_a_write_that_waits_too_long_ends_the_connection() -> None:
    bounded = Bounded(0.01)
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def write() -> None:
        await never

    with pytest.raises(Aborted):
        await bounded.write(write())
    assert bounded.transport.is_aborted
    assert never.cancelled()


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "later"])
async def test_a_client_that_has_gone_is_an_aborted_delivery(waits: bool) -> None:
    bounded = Bounded(10.0)

    async def write() -> None:
        if waits:
            await asyncio.sleep(0)
        raise ConnectionResetError

    with pytest.raises(Aborted):
        await bounded.write(write())
    assert bounded.transport.is_aborted


async def test_a_cancelled_delivery_cancels_its_write() -> None:
    bounded = Bounded(10.0)
    began: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def write() -> None:
        began.set_result(None)
        await never

    task = asyncio.create_task(bounded.write(write()))
    await began
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert never.cancelled()
    assert not bounded.transport.is_aborted


async def test_when_an_answer_began_and_how_much_of_it_was_sent_is_noted() -> None:
    clock, recorder, noted = ManualClock(now=7.0), Silent(), list[Delivery]()

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        delivery = Delivery(request, recorder, 10.0, clock.now)
        assert (delivery.first_byte_at, delivery.sent_bytes) == (None, 0)
        noted.append(delivery)
        if request.path == "/text":
            return await delivery.text(200, CIMultiDict(), b"12345")

        async def body() -> AsyncIterator[bytes]:
            for chunk in (b"12", b"345", b"6"):
                clock.advance(1.0)
                yield chunk

        return await delivery.stream(web.StreamResponse(), body())

    client: TestClient[web.BaseRequest, None]
    async with TestClient(RawTestServer(answer)) as client:
        assert await (await client.get("/text")).read() == b"12345"
        assert await (await client.get("/stream")).read() == b"123456"
    text, stream = noted
    assert (text.first_byte_at, text.sent_bytes) == (7.0, 5)
    assert (stream.first_byte_at, stream.sent_bytes) == (7.0, 6)
    assert recorder.counts["downstream_bytes",] == 11

"""Answers of a handler: framed by the version of HTTP, and bounded if the client does not read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import cast

import pytest
from multidict import CIMultiDict

from gateway.aio.clock import ManualClock
from gateway.config.limits import LimitsConfig
from gateway.errors import UpstreamBroken
from gateway.server.client_connections import Clients
from gateway.server.connection import Connection
from gateway.server.delivery import Aborted, Delivery
from gateway.server.request import Answered, Request
from gateway.telemetry.metrics import NoMetrics
from tests.waiting import eventually

BOUND_S = 10.0

Answering = Callable[[Request, Delivery], Awaitable[Answered | None]]


class Bench:
    """A server whose only handler is `answering`; keeps the delivery of each request."""

    def __init__(self, answering: Answering, **limits: float) -> None:
        self.clock = ManualClock(now=7.0)
        self.recorder = NoMetrics()
        self.deliveries: list[Delivery] = []
        self.errors: list[BaseException] = []
        self._answering = answering
        self._limits = LimitsConfig.model_validate(limits)

    async def _answer(self, request: Request) -> Answered | None:
        delivery = Delivery(request, self.recorder, self.clock.now)
        self.deliveries.append(delivery)
        try:
            return await self._answering(request, delivery)
        except BaseException as error:
            self.errors.append(error)
            raise

    async def __aenter__(self) -> Bench:
        self.clients = Clients(self._answer, self._limits, None, self.clock, self.recorder)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self.clients), "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self.clients.abort()
        assert len(self.clients) == 0

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, line: bytes = b"GET / HTTP/1.1") -> bytes:
        """Everything that a connection receives after one request, which is its last."""
        reader, writer = await self.connect()
        writer.write(line + b"\r\nHost: h\r\nConnection: close\r\n\r\n")
        async with asyncio.timeout(BOUND_S):
            said = await reader.read()
        writer.close()
        return said


async def pieces(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def _text(request: Request, delivery: Delivery) -> Answered:
    return delivery.text(200, CIMultiDict({"X": "y"}), b"12345")


async def test_a_short_body_has_a_content_length_and_a_head_response_has_no_body() -> None:
    async with Bench(_text) as bench:
        head, _, body = (await bench.ask()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\nX: y\r\nContent-Length: 5\r\nConnection: close\r\nDate: ")
        assert body == b"12345"
        head, _, body = (await bench.ask(b"HEAD / HTTP/1.1")).partition(b"\r\n\r\n")
        assert b"Content-Length: 5\r\n" in head
        assert body == b""


async def test_a_delivery_records_its_first_byte_and_its_size() -> None:
    async def answer(request: Request, delivery: Delivery) -> Answered:
        assert (delivery.first_byte_at, delivery.sent_bytes) == (None, 0)

        async def body() -> AsyncIterator[bytes]:
            for chunk in (b"12", b"345", b"6"):
                bench.clock.advance(1.0)
                yield chunk

        return await delivery.stream(200, None, CIMultiDict(), None, body())

    async with Bench(answer) as bench:
        assert (await bench.ask()).endswith(b"\r\n\r\n2\r\n12\r\n3\r\n345\r\n1\r\n6\r\n0\r\n\r\n")
        (delivery,) = bench.deliveries
        assert (delivery.first_byte_at, delivery.sent_bytes) == (7.0, 6)
        assert bench.recorder.counts["downstream_bytes",] == 6


@pytest.mark.parametrize(
    ("line", "status", "length", "framing", "body"),
    [
        (b"GET / HTTP/1.1", 200, None, b"Transfer-Encoding: chunked", b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"),
        (b"GET / HTTP/1.1", 200, 3, b"Content-Length: 3", b"abc"),
        (b"GET / HTTP/1.0", 200, None, b"Connection: close", b"abc"),
        (b"HEAD / HTTP/1.1", 200, None, b"Connection: close", b""),
        (b"GET / HTTP/1.1", 204, None, b"Connection: close", b""),
        (b"GET / HTTP/1.1", 304, None, b"Connection: close", b""),
    ],
)
async def test_a_streamed_body_is_framed_by_version_and_status(
    line: bytes, status: int, length: int | None, framing: bytes, body: bytes
) -> None:
    async def answer(request: Request, delivery: Delivery) -> Answered:
        return await delivery.stream(status, None, CIMultiDict(), length, pieces(b"ab", b"", b"c"))

    async with Bench(answer) as bench:
        head, _, came = (await bench.ask(line)).partition(b"\r\n\r\n")
        assert framing in head
        assert (b"Transfer-Encoding" in head) is (framing.startswith(b"Transfer"))
        assert came == body


async def test_a_body_that_fails_is_not_ended_by_a_last_chunk() -> None:
    async def answer(request: Request, delivery: Delivery) -> Answered:
        async def body() -> AsyncIterator[bytes]:
            yield b"abc"
            raise UpstreamBroken

        return await delivery.stream(200, None, CIMultiDict(), None, body())

    async with Bench(answer) as bench:
        reader, writer = await bench.connect()
        writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        came = b""
        try:
            async with asyncio.timeout(BOUND_S):
                while data := await reader.read(1_000):
                    came += data
        except ConnectionError:
            pass
        assert not came.endswith(b"0\r\n\r\n")
        assert isinstance(bench.errors[0], Aborted)
        writer.close()


async def test_a_client_that_reads_nothing_is_closed_and_its_handler_ends() -> None:
    async def answer(request: Request, delivery: Delivery) -> Answered:
        return await delivery.stream(200, None, CIMultiDict(), None, pieces(*[b"x" * 65_536] * 1_000))

    async with Bench(answer, client_write_timeout_s=0.05, send_buffer_bytes=65_536) as bench:
        _, writer = await bench.connect()
        cast(asyncio.Transport, writer.transport).pause_reading()
        writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        await eventually(lambda: bool(bench.errors) and not len(bench.clients))
        assert isinstance(bench.errors[0], ConnectionError)
        assert bench.recorder.counts["slow_consumer", "closed"] == 1
        writer.close()


@pytest.mark.parametrize("is_detached", [False, True])
async def test_a_handler_whose_client_leaves_is_cancelled_unless_it_carries_a_write(is_detached: bool) -> None:
    begun, release = asyncio.Event(), asyncio.Event()
    ended: list[str] = []

    async def answer(request: Request, delivery: Delivery) -> Answered:
        request.is_detached = is_detached
        begun.set()
        try:
            await release.wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        ended.append("done")
        return delivery.text(200, CIMultiDict(), b"")

    async with Bench(answer) as bench:
        _, writer = await bench.connect()
        writer.write(b"POST / HTTP/1.1\r\nHost: h\r\n\r\n")
        async with asyncio.timeout(BOUND_S):
            await begun.wait()
            (client,) = bench.clients
            assert isinstance(client, Connection)
            writer.close()
            await eventually(lambda: client.transport is None)
            release.set()
            await bench.clients.emptied(BOUND_S)
    assert ended == ["done" if is_detached else "cancelled"]


async def test_an_unexpected_error_is_a_500_without_details(caplog: pytest.LogCaptureFixture) -> None:
    async def answer(request: Request, delivery: Delivery) -> Answered:
        raise KeyError("secret")

    async with Bench(answer) as bench:
        said = await bench.ask()
    assert said.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
    assert said.endswith(b"\r\n\r\nInternal error\n")
    assert "secret" in caplog.text
    assert b"secret" not in said

"""Exchanges with a socket as origin: what is sent, what is repeated, how every wait ends."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from multidict import CIMultiDict

from gateway.aio.clock import ManualClock
from gateway.config.origins import OriginsConfig
from gateway.errors import GatewayError, UpstreamBroken, UpstreamTimeout, UpstreamUnreachable
from gateway.http.reply_parser import Interim
from gateway.upstream import connection as connection_module
from gateway.upstream.breaker import BreakerState
from gateway.upstream.client import Exchanges
from gateway.upstream.failures import reason_of
from gateway.upstream.incoming import no_op
from gateway.upstream.kept_connections import KeepAlive
from gateway.upstream.origin_call import Bounds, OriginCall
from gateway.upstream.origin_state import Origin as Books
from gateway.upstream.origin_state import OriginRequest
from gateway.upstream.reply import Reply
from gateway.upstream.slots import SlotLimits
from tests.waiting import at_rest, eventually, pause

T = TypeVar("T")

GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood"
ENDLESS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LARGE = 8 << 20
PATIENT = Bounds(connect_s=20.0, first_byte_s=20.0, idle_s=20.0, total_s=20.0)


async def bounded(work: Awaitable[T]) -> T:
    async with asyncio.timeout(20):
        return await work


class Peer:
    """One connection on the origin's side."""

    def __init__(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number = number
        self.reader = reader
        self.writer = writer

    async def asked(self) -> bytes:
        """The next request's head."""
        return await self.reader.readuntil(b"\r\n\r\n")

    async def says(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def hang_up(self) -> None:
        self.writer.transport.abort()


Script = Callable[[Peer], Awaitable[None]]


class Origin:
    """Listens and passes each connection to a script; the connection closes when the script returns."""

    def __init__(self, script: Script) -> None:
        self.connections = 0
        self.port = 0
        self._script = script
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            await self._script(Peer(self.connections, reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def stop(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def origin(script: Script) -> AsyncIterator[Origin]:
    running = Origin(script)
    server = await asyncio.start_server(running.serve, "127.0.0.1", 0, limit=1 << 16)
    running.port = server.sockets[0].getsockname()[1]
    try:
        yield running
    finally:
        server.close()
        await running.stop()
        await server.wait_closed()


@pytest.fixture
async def exchanges() -> AsyncIterator[Exchanges]:
    made = Exchanges(SlotLimits(16))
    yield made
    assert made.open_connections == 0, "every connection is given back or dropped"
    await made.close()


async def send(
    exchanges: Exchanges,
    url: str,
    method: str = "GET",
    bounds: Bounds | None = None,
    on_sent: Callable[[], object] = no_op,
    sent: OriginRequest | None = None,
    **more: Any,
) -> Reply:
    call = OriginCall(method, url + "/s", CIMultiDict(), bounds or PATIENT, **more)
    return await bounded(exchanges.send(call, on_sent, sent))


async def body_of(reply: Reply) -> bytes:
    async with reply:
        return await bounded(reply.read(2 * LARGE))


async def always_good(peer: Peer) -> None:
    while True:
        await peer.asked()
        await peer.says(GOOD)


# -- what is repeated


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_read_on_a_dead_kept_connection_is_sent_once_more(exchanges: Exchanges, method: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.asked()
        if peer.number == 1:
            await peer.says(b"HTTP/1.1 204 N\r\n\r\n")
            await peer.asked()
            return
        await peer.says(b"HTTP/1.1 204 N\r\n\r\n")
        await peer.asked()

    sent: list[None] = []
    async with origin(script) as running:
        await body_of(await send(exchanges, running.url))
        reply = await send(exchanges, running.url, method, on_sent=lambda: sent.append(None))
        await body_of(reply)
        assert (reply.status, running.connections, len(sent)) == (204, 2, 2)


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 2", b"HTTP/1.1 103 E\r\n\r\n"])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
async def test_nothing_else_is_repeated(exchanges: Exchanges, method: str, said: bytes) -> None:
    """Not even a read once a byte of its answer has arrived."""
    if method == "GET" and not said:
        return

    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.says(GOOD)
        await peer.asked()
        await peer.says(said)

    sent: list[None] = []
    async with origin(script) as running:
        await body_of(await send(exchanges, running.url))
        with pytest.raises(UpstreamUnreachable) as failed:
            await send(exchanges, running.url, method, on_sent=lambda: sent.append(None))
        assert not failed.value.is_unsent
        assert (running.connections, len(sent)) == (1, 1)


async def test_repetitions_are_bounded(exchanges: Exchanges) -> None:
    asked: list[int] = []

    async def script(peer: Peer) -> None:
        await peer.asked()
        asked.append(peer.number)
        if peer.number == 1:
            await peer.says(GOOD)
            await peer.asked()
            asked.append(peer.number)

    async with origin(script) as running:
        await body_of(await send(exchanges, running.url))
        with pytest.raises(UpstreamUnreachable):
            await send(exchanges, running.url)
        # A new connection that closes without an answer counts as the origin's answer.
        with pytest.raises(UpstreamUnreachable):
            await send(exchanges, running.url)
        assert asked == [1, 1, 2, 3]


# -- connections


async def test_connections_are_kept_used_again_and_dropped_when_idle_for_long(exchanges: Exchanges) -> None:
    async with origin(always_good) as running:
        for _ in range(5):
            assert await body_of(await send(exchanges, running.url)) == b"good"
        assert running.connections == 1
        shared = exchanges.connections()["shared"]
        assert (shared.busy, shared.idle) == (0, 1)
        exchanges.keep(KeepAlive(idle_s=0.05))
        await body_of(await send(exchanges, running.url))
        await eventually(lambda: exchanges.connections()["shared"].idle == 0)


async def test_a_connection_is_given_back_before_its_small_answer_is_read(exchanges: Exchanges) -> None:
    async with origin(always_good) as running:
        first = await send(exchanges, running.url)
        await eventually(lambda: exchanges.open_connections == 0)
        second = await send(exchanges, running.url)
        assert [await body_of(first), await body_of(second)] == [b"good", b"good"]
        assert running.connections == 1


@pytest.mark.parametrize("said", [b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", b"\r\n", b"x"])
async def test_a_connection_with_unrequested_bytes_is_not_reused(exchanges: Exchanges, said: bytes) -> None:
    go_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.says(GOOD)
        await go_on.wait()
        await peer.says(said)
        await peer.asked()
        await peer.says(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate")

    async with origin(script) as running:
        assert await body_of(await send(exchanges, running.url)) == b"good"
        go_on.set()
        await eventually(lambda: exchanges.connections()["shared"].idle == 0)
        assert await body_of(await send(exchanges, running.url)) == b"good"
        assert running.connections == 2


async def test_a_full_pool_queues_requests() -> None:
    exchanges = Exchanges(SlotLimits(1))
    gate = asyncio.Event()
    order: list[str] = []

    async def script(peer: Peer) -> None:
        while True:
            head = await peer.asked()
            order.append(head.split(b" ")[1].decode())
            await gate.wait()
            await peer.says(GOOD)

    async def one(name: str) -> None:
        await body_of(
            await bounded(exchanges.send(OriginCall("GET", f"{running.url}/{name}", CIMultiDict(), Bounds())))
        )

    async with origin(script) as running:
        asking = [asyncio.create_task(one(name)) for name in "abcd"]
        await eventually(lambda: order == ["/a"])
        asking[2].cancel()
        gate.set()
        await asyncio.gather(*asking, return_exceptions=True)
        assert order == ["/a", "/b", "/d"]
        assert (running.connections, exchanges.open_connections) == (1, 0)
        await exchanges.close()


async def test_live_requests_use_a_separate_pool() -> None:
    exchanges = Exchanges(SlotLimits(1))
    async with origin(always_good) as running:
        held = [await send(exchanges, running.url, is_live=True) for _ in range(3)]
        assert await body_of(await send(exchanges, running.url)) == b"good"
        for reply in held:
            await body_of(reply)
    await exchanges.close()


async def test_a_dead_address_does_not_prevent_the_next() -> None:
    async def look_up(host: str, port: int) -> list[str]:
        return ["127.0.0.9", "127.0.0.1"]

    exchanges = Exchanges(SlotLimits(4), look_up=look_up)
    async with origin(always_good) as running:
        assert await body_of(await send(exchanges, f"http://origin.test:{running.port}")) == b"good"
    await exchanges.close()


async def test_an_unresolvable_name_is_reported_as_such() -> None:
    async def look_up(host: str, port: int) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    exchanges = Exchanges(SlotLimits(4), look_up=look_up)
    with pytest.raises(UpstreamUnreachable) as failed:
        await send(exchanges, "http://origin.test")
    assert failed.value.is_unsent
    assert reason_of(failed.value.__cause__ or failed.value) == "name does not resolve"
    assert exchanges.open_connections == 0
    await exchanges.close()


async def test_a_silent_name_server_is_bounded_by_the_connect_timeout() -> None:
    async def look_up(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    exchanges = Exchanges(SlotLimits(4), look_up=look_up)
    with pytest.raises(UpstreamTimeout) as failed:
        await send(exchanges, "http://origin.test", bounds=replace(Bounds(), connect_s=0.05))
    assert failed.value.is_unsent
    assert reason_of(failed.value.__cause__ or failed.value) == "connect timed out"
    await exchanges.close()


async def test_a_plain_server_fails_the_tls_handshake(exchanges: Exchanges) -> None:
    async def script(peer: Peer) -> None:
        await peer.says(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with origin(script) as running:
        with pytest.raises(UpstreamUnreachable) as failed:
            await send(exchanges, running.url.replace("http:", "https:"))
        assert failed.value.is_unsent
        assert reason_of(failed.value.__cause__ or failed.value) == "TLS failed"


async def test_a_cancelled_wait_leaves_no_connection_behind(exchanges: Exchanges) -> None:
    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.reader.read()

    async with origin(script) as running:
        asking = asyncio.create_task(send(exchanges, running.url))
        await eventually(lambda: exchanges.connections()["shared"].busy == 1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await eventually(lambda: exchanges.open_connections == 0)


async def left(exchanges: Exchanges, running: Origin, method: str = "GET", **more: Any) -> None:
    """Send a request, and cancel it before it is answered."""
    asking = asyncio.create_task(send(exchanges, running.url, method, **more))
    await eventually(lambda: exchanges.connections()["shared"].busy == 1)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def test_a_connection_is_kept_whose_read_is_answered_soon_after_it_was_left(exchanges: Exchanges) -> None:
    gate = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.asked()
        await gate.wait()
        await peer.says(GOOD)
        await peer.asked()
        await peer.says(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother")
        await peer.reader.read()

    async with origin(script) as running:
        await left(exchanges, running)
        assert exchanges.connections()["shared"].busy == 1, "it counts until it is free"
        gate.set()
        await eventually(lambda: exchanges.connections()["shared"].idle == 1)
        assert await body_of(await send(exchanges, running.url)) == b"other"
        assert running.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", id="announced"),
        pytest.param(ENDLESS + b"8000\r\n" + b"x" * 0x8000 + b"\r\n" + b"8001\r\n" + b"x" * 0x8001, id="sent"),
        pytest.param(b"garbage", id="malformed"),
    ],
)
async def test_a_connection_is_dropped_whose_read_was_left_and_is_answered_at_length(
    exchanges: Exchanges, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "ABANDONED_S", 60.0)
    gate = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.asked()
        await gate.wait()
        await peer.says(answer)
        await peer.reader.read()

    async with origin(script) as running:
        await left(exchanges, running)
        gate.set()
        await eventually(lambda: exchanges.open_connections == 0)


async def test_a_write_that_is_left_drops_its_connection_at_once(
    exchanges: Exchanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "ABANDONED_S", 60.0)

    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.reader.read()

    async with origin(script) as running:
        await left(exchanges, running, "POST", body=b"x")
        assert exchanges.open_connections == 0


def books_of(running: Origin) -> Books:
    """The state of this origin."""
    return Books(running.url, OriginsConfig(), random.Random(1), lambda: 0.0, News())


async def recorded(exchanges: Exchanges, running: Origin, books: Books, method: str = "GET", **more: Any) -> Reply:
    """Send a request whose outcome the origin's state records."""
    sent = books.admit(0.0, is_live=more.pop("is_live", False))
    assert sent is not None
    return await send(exchanges, running.url, method, sent=sent, **more)


@pytest.mark.parametrize("is_reset", [False, True], ids=["closed", "reset"])
async def test_a_write_lost_on_a_kept_connection_is_no_failure_of_the_origin(
    exchanges: Exchanges, is_reset: bool
) -> None:
    """The origin closes kept connections whenever it likes, and the write may have crossed the close."""

    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.says(GOOD)
        await peer.asked()
        if is_reset:
            peer.hang_up()

    async with origin(script) as running:
        books = books_of(running)
        for _ in range(20):
            await body_of(await recorded(exchanges, running, books, "POST", body=b"x"))
            with pytest.raises(UpstreamUnreachable):
                await recorded(exchanges, running, books, "POST", body=b"x")
        assert (books.failures, books.breaker.state) == (0, BreakerState.CLOSED)


async def test_a_read_that_fails_on_a_new_connection_too_is_a_failure_of_the_origin(exchanges: Exchanges) -> None:
    async def script(peer: Peer) -> None:
        await peer.asked()
        if peer.number == 1:
            await peer.says(GOOD)
            await peer.asked()

    async with origin(script) as running:
        books = books_of(running)
        await body_of(await recorded(exchanges, running, books))
        with pytest.raises(UpstreamUnreachable):
            await recorded(exchanges, running, books)
        assert books.failures == 1


@pytest.mark.parametrize(("is_live", "failures"), [(True, 0), (False, 1)])
async def test_a_live_read_that_is_given_up_is_no_failure_of_the_origin(
    exchanges: Exchanges, is_live: bool, failures: int
) -> None:
    """An origin may hold it for longer than the gateway waits."""

    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.reader.read()

    async with origin(script) as running:
        books, bounds = books_of(running), replace(PATIENT, first_byte_s=0.05)
        with pytest.raises(UpstreamTimeout):
            await recorded(exchanges, running, books, bounds=bounds, is_live=is_live)
        assert books.failures == failures


class News:
    """Ignores all events."""

    def say(self, line: str) -> None: ...

    def on_open(self, origin: Books) -> None: ...

    def on_change(self, origin: Books) -> None: ...


class Heard:
    """A requester that keeps the outcomes."""

    def __init__(self) -> None:
        self.interim: list[Interim] = []
        self.replies: list[Reply] = []
        self.failures: list[GatewayError] = []

    def sent(self) -> None: ...

    def informed(self, interim: Interim) -> None:
        self.interim.append(interim)

    def head_arrived(self, reply: Reply) -> None:
        self.replies.append(reply)
        reply.close()

    def failed(self, error: GatewayError) -> None:
        self.failures.append(error)


async def uploaded() -> AsyncIterator[bytes]:
    """A body that does not come to its end."""
    yield b"part"
    await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("has_upload", [False, True])
@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("turns", [0, 1, 2, 5, 40])
async def test_a_request_that_is_called_off_ends_however_far_it_is(
    exchanges: Exchanges, turns: int, is_kept: bool, has_upload: bool
) -> None:
    """Because its origin is to be asked no more: another one is, instead."""

    async def script(peer: Peer) -> None:
        if is_kept:
            await peer.asked()
            await peer.says(GOOD)
        await peer.reader.read()

    async with origin(script) as running:
        if is_kept:
            await body_of(await send(exchanges, running.url))
        clock = ManualClock()
        books = Books(running.url, OriginsConfig(), random.Random(1), clock.now, News())
        sent = books.admit(clock.now(), is_live=True)
        assert sent is not None
        heard = Heard()
        method, body = ("POST", uploaded()) if has_upload else ("GET", None)
        exchanges.ask(heard, OriginCall(method, f"{running.url}/s", CIMultiDict(), PATIENT, body), sent)
        for _ in range(turns):
            await asyncio.sleep(0)
        sent.restart_elsewhere()
        await eventually(lambda: bool(heard.failures))
        assert [type(error) for error in heard.failures] == [UpstreamUnreachable]
        assert "0 in flight" in repr(books)
        assert "closed" in repr(books), "it is no failure of the origin"


# -- bounds


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"", UpstreamTimeout),
        (b"HTTP/1.1 200 OK\r\n", UpstreamTimeout),
        (b"HTTP/1.1 103 E\r\n\r\n", UpstreamTimeout),
        (b"nonsense", UpstreamBroken),
        (b"HTTP/1.1 101 S\r\n\r\n", UpstreamBroken),
    ],
)
async def test_a_missing_head_times_out(exchanges: Exchanges, said: bytes, error: type[GatewayError]) -> None:
    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.says(said)
        await peer.reader.read()

    async with origin(script) as running:
        bounds = replace(PATIENT, first_byte_s=0.2) if error is UpstreamTimeout else PATIENT
        with pytest.raises(error) as failed:
            await send(exchanges, running.url, bounds=bounds)
        assert not failed.value.is_unsent


@pytest.mark.parametrize("total_s", [20.0, 0.5])
async def test_interim_replies_move_the_time_for_the_head_within_that_of_the_whole(
    exchanges: Exchanges, total_s: float
) -> None:
    """A known server sends 102 while it holds a long-poll, so that intermediaries do not give up."""

    async def script(peer: Peer) -> None:
        await peer.asked()
        for _ in range(5):
            await pause(0.2)
            await peer.says(b"HTTP/1.1 102 Processing\r\n\r\n")
        await peer.says(GOOD)
        await peer.asked()

    async with origin(script) as running:
        bounds = replace(PATIENT, first_byte_s=0.7, total_s=total_s)
        if total_s > 1:
            assert await body_of(await send(exchanges, running.url, bounds=bounds, is_live=True)) == b"good"
        else:
            with pytest.raises(UpstreamTimeout):
                await send(exchanges, running.url, bounds=bounds, is_live=True)


@pytest.mark.parametrize("framing", [b"Content-Length: 9\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n", b"\r\n"])
async def test_a_stalled_body_times_out(exchanges: Exchanges, framing: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.says(b"HTTP/1.1 200 OK\r\n" + framing)
        await peer.reader.read()

    bounds = replace(PATIENT, idle_s=0.1)
    async with origin(script) as running, await send(exchanges, running.url, bounds=bounds) as reply:
        with pytest.raises(UpstreamTimeout):
            await body_of(reply)


@pytest.mark.parametrize("framing", [b"Content-Length: 9\r\n\r\nab", b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n"])
async def test_a_truncated_body_is_never_complete(exchanges: Exchanges, framing: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.says(b"HTTP/1.1 200 OK\r\n" + framing)

    async with origin(script) as running, await send(exchanges, running.url) as reply:
        chunks = reply.chunks()
        assert await bounded(anext(chunks)) == b"ab"
        with pytest.raises(UpstreamBroken):
            await bounded(anext(chunks))


async def test_a_body_without_a_length_ends_with_the_connection(exchanges: Exchanges) -> None:
    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.says(b"HTTP/1.1 200 OK\r\n\r\nab")

    async with origin(script) as running:
        reply = await send(exchanges, running.url)
        assert not reply.head.is_delimited
        assert await body_of(reply) == b"ab"


# -- flow


async def test_reading_pauses_until_the_reader_takes_data(exchanges: Exchanges) -> None:
    sent = 0

    async def script(peer: Peer) -> None:
        nonlocal sent
        await peer.asked()
        peer.writer.transport.set_write_buffer_limits(high=0)
        await peer.says(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (8 * LARGE))
        for _ in range(8 * LARGE // (1 << 16)):
            await peer.says(bytes(1 << 16))
            sent += 1 << 16

    async with origin(script) as running:
        reply = await send(exchanges, running.url)
        await at_rest(lambda: sent)
        # The kernels' buffers on both sides, and the reader's own.
        assert sent < 4 * LARGE
        size = 0
        async with reply:
            async for chunk in reply.chunks():
                size += len(chunk)
        assert size == 8 * LARGE


async def test_an_upload_is_no_faster_than_the_origin_reads(exchanges: Exchanges) -> None:
    go_on = asyncio.Event()
    made = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal made
        for _ in range(8 * LARGE // (1 << 16)):
            made += 1 << 16
            yield bytes(1 << 16)

    async def script(peer: Peer) -> None:
        assert b"Transfer-Encoding: chunked\r\n" in await peer.asked()
        await go_on.wait()
        while await peer.reader.readuntil(b"\r\n") != b"0\r\n":
            await peer.reader.readexactly((1 << 16) + 2)
        await peer.reader.readexactly(2)
        await peer.says(GOOD)
        await peer.asked()

    async with origin(script) as running:
        asking = asyncio.create_task(send(exchanges, running.url, "POST", body=chunks()))
        await at_rest(lambda: made)
        assert made < 4 * LARGE
        go_on.set()
        assert await body_of(await bounded(asking)) == b"good"
        assert made == 8 * LARGE
        assert exchanges.connections()["shared"].idle == 1


async def test_an_answer_may_come_before_the_upload_has_ended(exchanges: Exchanges) -> None:
    """Its connection is reused only if the upload ends too."""
    ended: list[str] = []

    async def chunks() -> AsyncIterator[bytes]:
        try:
            yield b"one"
            await asyncio.Event().wait()
        finally:
            ended.append("upload")

    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.says(b"HTTP/1.1 413 Too Large\r\nContent-Length: 4\r\n\r\ngood")
        await peer.reader.read()
        ended.append("connection")

    async with origin(script) as running:
        reply = await send(exchanges, running.url, "POST", body=chunks())
        assert reply.status == 413
        assert await body_of(reply) == b"good"
        await eventually(lambda: sorted(ended) == ["connection", "upload"])
        assert exchanges.connections()["shared"].idle == 0


@pytest.mark.parametrize("length", [None, "3", "100"])
async def test_a_truncated_upload_is_never_a_complete_request(exchanges: Exchanges, length: str | None) -> None:
    """Nor does one with another length than announced."""
    got: list[bytes] = []

    async def chunks() -> AsyncIterator[bytes]:
        yield b"one"
        if length is None:
            raise RuntimeError("gone")
        if length == "3":
            yield b"two"

    async def script(peer: Peer) -> None:
        await peer.asked()
        try:
            got.append(await peer.reader.read(100))
            got.append(await peer.reader.read())
        except ConnectionError:
            pass
        got.append(b"end")

    headers = CIMultiDict({} if length is None else {"Content-Length": length})
    async with origin(script) as running:
        with pytest.raises(UpstreamBroken) as failed:
            await bounded(exchanges.send(OriginCall("POST", running.url + "/s", headers, Bounds(), chunks())))
        assert not failed.value.is_unsent
        await eventually(lambda: bool(got) and got[-1] == b"end")
        assert b"0\r\n\r\n" not in b"".join(got)


async def test_an_ambiguous_request_is_not_sent(exchanges: Exchanges) -> None:
    async with origin(always_good) as running:
        for headers, target in [({"X": "a\r\nY: b"}, "/s"), ({}, "/s HTTP/1.1\r\nX: y")]:
            with pytest.raises(UpstreamBroken):
                await bounded(exchanges.send(OriginCall("GET", running.url + target, CIMultiDict(headers), Bounds())))
        assert running.connections == 0


async def test_a_connection_lost_before_use_returns_its_slot(
    exchanges: Exchanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like a port forwarder without a target: it accepts and closes."""
    dial = exchanges.dialer.dial

    async def lost(*asked: Any) -> Any:
        connection = await dial(*asked)
        connection.drop()
        return connection

    monkeypatch.setattr(exchanges.dialer, "dial", lost)

    async def waits(peer: Peer) -> None:
        await peer.reader.read()

    async with origin(waits) as there:
        with pytest.raises(UpstreamUnreachable) as error:
            await bounded(exchanges.send(OriginCall("GET", f"{there.url}/s", CIMultiDict(), PATIENT)))
    assert error.value.is_unsent
    assert exchanges.open_connections == 0

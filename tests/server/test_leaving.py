"""A client that leaves at any moment of its request leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from pathlib import Path
from types import coroutine
from typing import Any, cast

import pytest
from hyperframe.frame import RstStreamFrame

from gateway.app import RunningGateway, start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.origin.app import start_origin
from gateway.origin.requests import Kind
from gateway.server.connection import Connection
from gateway.server.http2.channel import StreamChannel
from gateway.server.http2.connection import Http2Connection
from gateway.server.request import Answered, Handler, Request, Work
from tests.ops.log_reading import lines_of
from tests.scenarios.http2_wire import Http2Wire
from tests.server.conftest import connect, get, write
from tests.waiting import eventually, pass_turns

_MOST_WAITS = 40
"""More than a request waits for."""


@coroutine
def _interrupted(work: Work, at: int, interrupt: Callable[[], None]) -> Generator[Any, Any, Answered | None]:
    """The work of a request, interrupted in the loop's turn in which it goes on after its wait number `at` (0: in which
    it begins)."""
    waits = 0
    error: BaseException | None = None
    while True:
        if waits == at and error is None:
            interrupt()
        waits += 1
        try:
            waited_for = work.send(None) if error is None else work.throw(error)
        except StopIteration as ended:
            return cast("Answered | None", ended.value)
        try:
            error = None
            yield waited_for
        except BaseException as raised:
            error = raised


def _lose(gateway: RunningGateway) -> None:
    """End the client's connection, or its stream, as the loop does when it learns that the client has left."""
    (client,) = gateway.clients
    if isinstance(client, Http2Connection):
        client.data_received(RstStreamFrame(1).serialize())
    else:
        assert isinstance(client, Connection)
        transport = client.transport
        assert transport is not None
        # The loop tells a protocol of the end once.
        transport.set_protocol(asyncio.Protocol())
        transport.abort()
        client.connection_lost(ConnectionResetError())


@pytest.mark.parametrize("version", ["1.1", "2"])
@pytest.mark.parametrize("query", ["offset=now&live=sse", "offset=now&live=long-poll", "offset=-1"])
@pytest.mark.parametrize("is_logged", [False, True])
async def test_a_reader_that_leaves_in_the_turn_in_which_its_request_goes_on_is_gone_and_has_a_line(
    version: str, query: str, is_logged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = await start_origin()
    path = tmp_path / "access.log"
    log = {"sink": "file", "path": str(path)} if is_logged else {}
    gateway = await start_gateway(
        GatewayConfig.for_origin(
            origin.url, listen="127.0.0.1:0", admin="127.0.0.1:0", fast_path=False, live_linger_s=0, **log
        )
    )
    engine, clients, handler = gateway.engine, gateway.clients, gateway.clients.handler
    at = 0
    is_lost = is_answered = False

    def lose() -> None:
        nonlocal is_lost
        is_lost = True
        _lose(gateway)

    async def to_its_end(work: Work) -> Answered | None:
        nonlocal is_answered
        answered = await work
        is_answered = True
        return answered

    def handle(request: Request) -> Work | None:
        work = handler(request)
        return _interrupted(to_its_end(work), at, lose) if work is not None and request.method == "GET" else work

    for kind in (Connection, StreamChannel):

        def go_on(channel: Any, request: Request, rest: Handler, going: Callable[..., None] = kind.go_on) -> None:
            def go(request: Request) -> Work | None:
                nonlocal is_answered
                if not at:
                    lose()
                work = rest(request)
                is_answered = work is None
                return _interrupted(to_its_end(work), at or _MOST_WAITS, lose) if work is not None else None

            going(channel, request, go)

        monkeypatch.setattr(kind, "go_on", go_on)

    def left_over() -> list[object]:
        reads = clients.accounts.live_reads("127.0.0.1")
        return [held for held in (list(engine.live.topics()), engine.fetches, reads) if held]

    async def read(target: str) -> None:
        reader, writer = await connect(gateway)
        try:
            if version == "2":
                await Http2Wire(reader, writer).ask(target)
            else:
                writer.write(get(target))
            await eventually(lambda: is_lost or is_answered)
            if is_lost:
                await eventually(lambda: not left_over(), state=lambda: f"at {at}: {left_over()}")
        finally:
            writer.transport.abort()

    clients.handler = handle
    try:
        while is_lost or not at:
            assert at < _MOST_WAITS
            await write(gateway, "PUT", f"/{at}", Content_Type="text/plain")
            await eventually(lambda: not any(account.is_used for account in clients.accounts))
            for stream in list(engine.store):
                engine.purge.drop_stream(stream)
            is_lost = is_answered = False
            await read(f"/{at}?{query}")
            at += 1
        assert at > 1
    finally:
        await gateway.stop()
        await origin.stop()
    if is_logged:
        lines = [line for line in lines_of(path) if line["is_final"] and line["method"] == "GET"]
        assert [line["stream"] for line in lines] == [f"/{number}" for number in range(at)]


@pytest.mark.parametrize("version", ["1.1", "2"])
async def test_a_first_read_whose_client_leaves_in_the_turn_that_brings_it_asks_for_nothing(version: str) -> None:
    origin = await start_origin()
    gateway = await start_gateway(GatewayConfig.for_origin(origin.url, listen="127.0.0.1:0", admin="127.0.0.1:0"))
    clients, handler = gateway.clients, gateway.clients.handler
    is_lost = False

    def handle(request: Request) -> Work | None:
        nonlocal is_lost
        work = handler(request)
        assert work is None
        _lose(gateway)
        is_lost = True
        return None

    try:
        clients.handler = handle
        reader, writer = await connect(gateway)
        if version == "2":
            await Http2Wire(reader, writer).ask("/s?offset=-1")
        else:
            writer.write(get("/s?offset=-1"))
        await eventually(lambda: is_lost)
        writer.transport.abort()
        await pass_turns()
        assert (
            origin.origin.counters.requests[Kind.CATCHUP]
            == len(gateway.engine.store)
            == len(gateway.engine.fetches)
            == 0
        )
    finally:
        await gateway.stop()
        await origin.stop()

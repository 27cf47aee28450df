"""First reads that arrive together take their steps together, and something happens between two of these steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from gateway.aio.batches import Batch
from gateway.app import RunningGateway
from gateway.server.connection import Connection
from gateway.server.http2.connection import Http2Connection
from gateway.tape.stream import End
from tests.scenarios.http2_wire import Http2Wire
from tests.scenarios.wire import Wire
from tests.server.conftest import Pair, write
from tests.waiting import eventually


def _body(path: str) -> bytes:
    return path.encode() * 100


def _purge(gateway: RunningGateway) -> None:
    for stream in list(gateway.engine.store):
        gateway.engine.live.drop_stream(stream, End.PURGED)


def _delete(gateway: RunningGateway) -> None:
    for stream in list(gateway.engine.store):
        gateway.engine.live.drop_stream(stream, End.DELETED)


def _evict(gateway: RunningGateway) -> None:
    """Have the cache shrink to nothing for a moment."""
    budget = gateway.engine.store.budget_bytes
    gateway.engine.store.resize(0)
    gateway.engine.store.resize(budget)


def _leave(gateway: RunningGateway) -> None:
    """Have the connection of the first client end."""
    for client in list(gateway.clients):
        if isinstance(client, Connection | Http2Connection) and client.transport is not None:
            transport = client.transport
            # The loop tells a protocol of the end once.
            transport.set_protocol(asyncio.Protocol())
            transport.abort()
            client.connection_lost(ConnectionResetError())
            return


def _stop_fetching(gateway: RunningGateway) -> None:
    gateway.engine.fetches.close()


@pytest.mark.parametrize("version", ["1.1", "2"])
@pytest.mark.parametrize("interrupt", [_purge, _delete, _evict, _leave, _stop_fetching])
async def test_reads_that_arrive_together_are_answered_whatever_happens_between_their_steps(
    pair: Pair,
    version: str,
    interrupt: Callable[[RunningGateway], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    gateway, run = pair.fast, Batch._run
    at, runs = 0, 0

    def count_run(batch: Batch[object]) -> None:
        nonlocal runs
        if runs == at:
            interrupt(gateway)
        runs += 1
        run(batch)

    monkeypatch.setattr(Batch, "_run", count_run)
    while runs >= at:
        paths = [f"/{at}-{number}" for number in range(3)]
        for path in paths:
            await write(pair.strict, "PUT", path, _body(path), Content_Type="text/plain")
        runs = 0
        # Each client reads two streams, and so does another one with each of these.
        reads = [(paths[number], paths[number - 1]) for number in range(3)]
        wires = [await (Http2Wire if version == "2" else Wire).open(gateway.gateway_url) for _ in reads]
        # All of them are sent in one turn of the loop.
        for wire, targets in zip(wires, reads, strict=True):
            for target in targets:
                if isinstance(wire, Http2Wire):
                    await wire.ask(f"{target}?offset=-1")
                else:
                    wire.writer.write(f"GET {target}?offset=-1 HTTP/1.1\r\nHost: edge.test\r\n\r\n".encode())
        for wire, targets in list(zip(wires, reads, strict=True))[interrupt is _leave :]:
            for number, target in enumerate(targets):
                if isinstance(wire, Http2Wire):
                    answer = await wire.answer_of(wire.calls[2 * number + 1])
                else:
                    answer = await wire.answer()
                if interrupt is not _stop_fetching or answer.status == 200:
                    assert (answer.status, answer.body) == (200, _body(target)), (at, target)
                else:
                    assert answer.status in (502, 503, 504)
        for wire in wires:
            await wire.closed()
        await eventually(lambda: not len(gateway.engine.fetches))
        assert not [stream for stream in gateway.engine.store if stream.holds]
        assert runs > 0
        _purge(gateway)
        at += 1
    assert at > 4
    assert not [record for record in caplog.records if record.levelname == "ERROR"]

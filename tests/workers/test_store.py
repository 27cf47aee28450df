"""The store on disk of several workers: each owner's bytes outlast restarts, deaths and upgrades, and whatever worker
relays a purge, a DELETE or a PUT, no worker serves earlier bytes from its disk.

The streams are made again behind the samples of the proofs: with equal offsets, and with bytes that differ only where
no proof looks.  So a folder that has missed a removal is found by its wrong bytes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from random import Random

import pytest

from gateway.config.gateway import GatewayConfig
from gateway.origin.app import OriginSettings, RunningOrigin, start_origin
from gateway.origin.requests import Kind
from tests.offload.crowd import Client, Tally
from tests.waiting import eventually
from tests.workers.process import GatewayProcess, runs
from tests.workers.site import Site, read_all

TEXT = {"Content-Type": "text/plain"}
PIECE = 16_000
COUNT = 24
"""A stream has so many pieces.  The proofs compare the first 64 KiB and the last 4 KiB."""
MIDDLE = COUNT // 2
STREAMS = 6
"""Enough that each worker owns one, as good as always: the keys of the tests are fixed."""
WORKERS = 2
PATHS = [f"/s{number}" for number in range(STREAMS)]

Begin = Callable[..., AbstractAsyncContextManager[Site]]


def pieces(path: str, life: int = 0) -> list[bytes]:
    """A stream's messages.  Another life of the stream differs in the middle alone."""
    found = [Random(f"{path} {number}").randbytes(PIECE // 2).hex().encode() for number in range(COUNT)]
    found[MIDDLE] = (b"%d" % life) * PIECE
    return found


def body(path: str, life: int = 0) -> bytes:
    return b"".join(pieces(path, life))


@pytest.fixture
async def origin() -> AsyncIterator[RunningOrigin]:
    made = await start_origin(OriginSettings(max_chunk_bytes=2 * PIECE))
    yield made
    await made.stop(grace_s=0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "store"
    made.mkdir()
    # The owners of the streams are the same in each run.
    (made / "hash.key").write_bytes(b"0123456789abcdef")
    return made


@pytest.fixture
def begin(origin: RunningOrigin, folder: Path) -> Begin:
    """Runs gateways with one folder, one after the other."""

    @asynccontextmanager
    async def running(workers: int = WORKERS) -> AsyncIterator[Site]:
        gateway = await GatewayProcess.start(config_of(origin, folder), workers)
        site = Site(origin, gateway)
        try:
            yield site
        finally:
            for client in site.clients:
                client.close()
            if runs(gateway.pid):
                await gateway.stop()
            else:
                await gateway.kill_all()

    return running


def config_of(origin: RunningOrigin, folder: Path) -> GatewayConfig:
    return GatewayConfig.for_origin(
        origin.url,
        listen="127.0.0.1:0",
        admin="127.0.0.1:0",
        client_new_streams_per_s=0,
        shutdown_timeout_s=0.3,
        store={"path": str(folder), "max_bytes": "64MiB", "segment_bytes": "1MiB"},
    )


async def make(client: Client, path: str, life: int = 0) -> None:
    """Make a stream in place of an earlier one."""
    await client.send("DELETE", path)
    assert (await client.send("PUT", path, TEXT)).status == 201
    for piece in pieces(path, life):
        assert (await client.send("POST", path, TEXT, piece)).status in (200, 204)


async def read(client: Client, path: str) -> bytes:
    """A stream up to its tail."""
    found, at, is_at_tail = b"", "-1", False
    while not is_at_tail:
        reply, part = await read_all(client, path, at)
        assert reply.status == 200, (path, at, reply.status)
        found, at, is_at_tail = found + part, reply.next_offset, reply.is_up_to_date
    return found


async def on_disk(begin: Begin, workers: int = WORKERS) -> None:
    """Have a gateway write all streams to disk, and stop."""
    async with begin(workers) as site:
        author = await site.origin_client()
        for path in PATHS:
            await make(author, path)
        client = await site.client()
        for path in PATHS:
            assert await read(client, path) == body(path)


def stored(folder: Path) -> set[str]:
    """The paths in an index."""
    with closing(sqlite3.connect(folder / "index.sqlite")) as database:
        found = database.execute("SELECT DISTINCT json_extract(CAST(key AS TEXT), '$[1]') FROM streams").fetchall()
        return {path for (path,) in found}


async def test_after_a_restart_each_owner_has_its_streams_on_disk(begin: Begin, folder: Path) -> None:
    await on_disk(begin)
    first, second = stored(folder), stored(folder / "1")
    assert first | second == set(PATHS)
    assert first
    assert second
    assert not first & second, "only the owner writes a stream"
    async with begin() as site:
        counters = site.origin.origin.counters
        counters.reset()
        for client in await site.client_of_each():
            for path in PATHS:
                assert await read(client, path) == body(path)
        # The proofs of the end and of the first 64 KiB, once for both workers.
        assert counters.total_body_bytes < STREAMS * 150_000
        assert counters.requests[Kind.CATCHUP] <= STREAMS * 6
        figures = await site.gateway.figures()
        assert figures["durable_gateway_store_read_bytes_total"] > 0.7 * STREAMS * COUNT * PIECE
        assert figures["durable_gateway_store_streams"] == STREAMS
        assert figures["durable_gateway_store_limit_bytes"] == 64 << 20

"""The store on disk of several workers: each owner's bytes outlast restarts, deaths and upgrades, and whatever worker
relays a purge, a DELETE or a PUT, no worker serves earlier bytes from its disk.

The streams are made again behind the samples of the proofs: with equal offsets, and with bytes that differ only where
no proof looks.  So a folder that has missed a removal is found by its wrong bytes.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from pathlib import Path
from random import Random

import pytest

from gateway.config.gateway import GatewayConfig
from gateway.origin.app import OriginSettings, RunningOrigin, start_origin
from gateway.origin.handlers import Handlers
from gateway.origin.requests import Kind
from tests.offload.crowd import Client
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
async def origin(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RunningOrigin]:
    """Its ETags name no incarnation, so that only the bytes tell two lives of a stream apart."""

    def etag(stream: object, start: str, end: str, *, is_closed: bool) -> str:
        return f'"{start}:{end}:{is_closed}"'

    monkeypatch.setattr(Handlers, "_etag", staticmethod(etag))
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


async def owner_of(site: Site, folder: Path, path: str) -> tuple[int, Client]:
    """The process that owns a stream, and a connection to another one."""
    owner = pid_of_slot(site.gateway, folder, 0 if path in stored(folder) else 1)
    clients = zip(site.gateway.worker_pids(), await site.client_of_each(), strict=True)
    (other,) = (client for pid, client in clients if pid != owner)
    return owner, other


def pid_of_slot(gateway: GatewayProcess, folder: Path, slot: int) -> int:
    """The worker that has a slot's folder open."""
    name = str(folder / "1" / "slot.lock" if slot else folder / "slot.lock")
    (pid,) = (pid for pid in gateway.worker_pids() if name in opened_by(pid))
    return pid


def opened_by(pid: int) -> set[str]:
    found = set()
    with suppress(FileNotFoundError, ProcessLookupError):
        for one in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                found.add(str(one.readlink()))
    return found


async def all_read(site: Site, path: str, life: int) -> None:
    """See that each worker serves this life of the stream."""
    for client in await site.client_of_each():
        assert await read(client, path) == body(path, life)


@pytest.mark.parametrize("lies", ["stopped", "dead"])
async def test_a_stream_made_again_while_its_owner_could_not_notice_does_not_come_from_its_disk(
    begin: Begin, folder: Path, lies: str
) -> None:
    await on_disk(begin)
    path = PATHS[0]
    async with begin() as site:
        owner, other = await owner_of(site, folder, path)
        assert await read(other, path) == body(path)
        supervisor = site.gateway.pid
        if lies == "dead":
            # The supervisor does not notice, so the slot stays without a worker.
            os.kill(supervisor, signal.SIGSTOP)
            site.gateway.kill(owner)
        else:
            os.kill(owner, signal.SIGSTOP)
        try:
            await make(other, path, life=1)
        finally:
            os.kill(supervisor, signal.SIGCONT)
        if lies == "stopped":
            site.gateway.kill(owner)
        await eventually(site.gateway.is_well, look_s=0.01)
        await eventually(lambda: is_open(site.gateway, folder), look_s=0.01)
        await all_read(site, path, 1)
        figures = await site.gateway.figures()
        # The first guard has dropped it, not the last.
        assert figures["durable_gateway_store_errors_total"] == 0


def is_open(gateway: GatewayProcess, folder: Path) -> bool:
    """Whether the workers have opened all folders."""
    opened = set().union(*map(opened_by, gateway.worker_pids()))
    return {str(folder / "index.sqlite"), str(folder / "1" / "index.sqlite")} <= opened


async def test_a_stream_made_again_at_another_worker_leaves_the_owners_disk_at_once(begin: Begin, folder: Path) -> None:
    await on_disk(begin)
    path = PATHS[0]
    async with begin() as site:
        _, other = await owner_of(site, folder, path)
        await make(other, path, life=1)
        await eventually(lambda: path not in stored(folder) | stored(folder / "1"), look_s=0.01, within_s=1)
        for pid in (site.gateway.pid, *site.gateway.worker_pids()):
            os.kill(pid, signal.SIGKILL)
        await site.gateway.kill_all()
    async with begin() as site:
        await all_read(site, path, 1)
        await all_read(site, PATHS[1], 0)


async def test_a_purge_reaches_the_disk_of_a_worker_that_is_dead(begin: Begin, folder: Path) -> None:
    await on_disk(begin)
    path = PATHS[0]
    async with begin() as site:
        author = await site.origin_client()
        slot = 0 if path in stored(folder) else 1
        # The slot's workers die again and again, so the next one starts late.
        (survivor,) = set(site.gateway.worker_pids()) - {pid_of_slot(site.gateway, folder, slot)}
        for _ in range(6):
            site.gateway.kill(await newest(site.gateway, survivor))
        await make(author, path, life=1)
        assert (await site.gateway.admin("/api/purge", {"stream": path})).status == 200
        assert site.gateway.worker_pids() == [survivor], "too late: the slot has a worker again"
        marked = folder / "1" / "behind" if slot else folder / "behind"
        assert marked.exists()
        await eventually(site.gateway.is_well, look_s=0.01)
        await eventually(lambda: is_open(site.gateway, folder), look_s=0.01)
        await all_read(site, path, 1)
        await eventually(lambda: not marked.exists(), look_s=0.01)


async def newest(gateway: GatewayProcess, survivor: int) -> int:
    """Wait for a worker next to the survivor, and return its pid."""
    found: set[int] = set()

    def is_found() -> bool:
        found.update({*gateway.worker_pids()} - {survivor, *gateway.killed})
        return bool(found)

    await eventually(is_found)
    return found.pop()


async def test_a_purge_leaves_the_disks_of_all_workers_before_it_is_answered(begin: Begin, folder: Path) -> None:
    await on_disk(begin)
    async with begin() as site:
        answer = await site.gateway.admin("/api/purge", {"all": True})
        assert json.loads(answer.body) == {"purged": STREAMS}
        assert stored(folder) | stored(folder / "1") == set()


async def test_the_number_of_workers_may_change(begin: Begin, folder: Path) -> None:
    await on_disk(begin, 1)
    assert stored(folder) == set(PATHS)
    async with begin(2) as site:
        counters = site.origin.origin.counters
        counters.reset()
        client = await site.client()
        for path in PATHS:
            assert await read(client, path) == body(path)
        assert counters.total_body_bytes < STREAMS * COUNT * PIECE * 0.9
        # A stream whose owner is another worker now is followed here no more, and yet it is removed.
        await make(client, PATHS[0], life=1)
        await eventually(lambda: PATHS[0] not in stored(folder))
    assert (folder / "1").is_dir()
    async with begin(1) as site:
        await eventually(lambda: not (folder / "1").exists())
        counters.reset()
        client = await site.client()
        for path in PATHS[1:]:
            assert await read(client, path) == body(path)
        assert counters.total_body_bytes < STREAMS * 150_000
        assert await read(client, PATHS[0]) == body(PATHS[0], 1)


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_second_gateway_does_not_start(begin: Begin, folder: Path, origin: RunningOrigin, workers: int) -> None:
    async with begin():
        with pytest.raises(AssertionError, match=f"store.path: another process uses {folder}"):
            await GatewayProcess.start(config_of(origin, folder), workers)


async def test_an_upgrade_goes_on_with_the_folders(begin: Begin, folder: Path) -> None:
    await on_disk(begin)
    async with begin() as site:
        client = await site.client()
        assert await read(client, PATHS[1]) == body(PATHS[1])
        await make(client, PATHS[0], life=1)
        await site.gateway.upgrade()
        await eventually(lambda: is_open(site.gateway, folder), look_s=0.01)
        counters = site.origin.origin.counters
        counters.reset()
        for client in await site.client_of_each():
            for path in PATHS[1:]:
                assert await read(client, path) == body(path)
        assert counters.total_body_bytes < STREAMS * 150_000
        await all_read(site, PATHS[0], 1)
        figures = await site.gateway.figures()
        assert figures["durable_gateway_store_read_bytes_total"] > 0


async def test_workers_that_are_killed_while_they_write_leave_nothing_torn(begin: Begin, folder: Path) -> None:
    rng = Random(3)
    async with begin() as site:
        author = await site.origin_client()
        lives = dict.fromkeys(PATHS, 0)
        for path in PATHS:
            await make(author, path)
        for _ in range(8):
            client = await site.client()
            try:
                for path in rng.sample(PATHS, 3):
                    if rng.random() < 0.4:
                        await make(client, path, lives[path] + 1)
                        lives[path] += 1
                    assert await read(client, path) == body(path, lives[path])
            except (OSError, EOFError, asyncio.IncompleteReadError):
                lives = {path: await life_of(author, path) for path in PATHS}
            site.gateway.kill_worker(rng)
            await eventually(site.gateway.is_well, look_s=0.01)
        for path in PATHS:
            await all_read(site, path, await life_of(author, path))
        figures = await site.gateway.figures()
        assert figures["durable_gateway_store_errors_total"] == 0
    async with begin() as site:
        author = await site.origin_client()
        for path in PATHS:
            await all_read(site, path, await life_of(author, path))


async def life_of(author: Client, path: str) -> int:
    """The life of a stream that the origin has."""
    found = await read(author, path)
    (life,) = (life for life in range(10) if body(path, life) == found)
    return life

"""The store on disk of several workers: each owner's bytes outlast restarts, deaths and upgrades, and whatever worker
relays a purge, a DELETE or a PUT, no worker serves earlier bytes from its disk.

The streams are made again behind the samples of the proofs: with equal offsets, and with bytes that differ only where
no proof looks.  So a folder that has missed a removal is found by its wrong bytes.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
import pytest_asyncio

from gateway.config.gateway import GatewayConfig
from gateway.origin.app import OriginSettings, RunningOrigin, start_origin
from gateway.origin.handlers import Handlers
from gateway.origin.requests import Kind
from gateway.workers.shared_memory import HASHES
from gateway.workers.worker_owners import owner, path_hash
from tests.offload.crowd import Client
from tests.waiting import eventually, pause
from tests.workers.process import GatewayProcess, children, runs
from tests.workers.site import Site, read_all

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = {"Content-Type": "text/plain"}
PIECE = 32_000
COUNT = 12
"""A stream has so many pieces.  The proofs compare the first 64 KiB and the last 4 KiB."""
MIDDLE = COUNT // 2
KEY = b"0123456789abcdef"
PATHS: list[str] = []
"""Streams that stay as they are.  Each worker owns two of them, which depends on the origin's port."""
WORKERS = 2
KILLS = 6
PROOF = 150_000
"""More bytes than the proofs of a stream take, and far fewer than the stream has."""

Begin = Callable[..., AbstractAsyncContextManager[Site]]


def pieces(path: str, life: int = 0) -> list[bytes]:
    """A stream's messages.  Another life of the stream differs in the middle alone."""
    found = [Random(f"{path} {number}").randbytes(PIECE // 2).hex().encode() for number in range(COUNT)]
    found[MIDDLE] = (b"%d" % life) * PIECE
    return found


def body(path: str, life: int = 0) -> bytes:
    return b"".join(pieces(path, life))


class Before(NamedTuple):
    """An origin, and the folder that a gateway of two workers has left, with all of its streams."""

    origin: RunningOrigin
    folder: Path
    victims: list[str]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def before(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Before]:
    folder = tmp_path_factory.mktemp("store")
    (folder / "hash.key").write_bytes(KEY)

    def etag(stream: object, start: str, end: str, *, is_closed: bool) -> str:
        return f'"{start}:{end}:{is_closed}"'

    with pytest.MonkeyPatch.context() as patched:
        # The ETags name no incarnation, so that only the bytes tell two lives of a stream apart.
        patched.setattr(Handlers, "_etag", staticmethod(etag))
        origin = await start_origin(OriginSettings(max_chunk_bytes=PIECE))
        names = [f"/s{number}" for number in range(64)]
        owners = {path: owner(path_hash(KEY, origin.url, path) % HASHES, range(WORKERS)) for path in names}
        PATHS[:] = [path for slot in range(WORKERS) for path in [one for one in names if owners[one] == slot][:2]]
        victims = [f"/v{number}" for number in range(16)]
        async with begun(origin, folder) as site:
            author = await site.origin_client()
            client = await site.client()
            for path in [*PATHS, *victims]:
                await make(author, path)
                assert await read(client, path) == body(path)
        yield Before(origin, folder, victims)
        await origin.stop(grace_s=0)


@pytest.fixture
def folder(tmp_path: Path, before: Before) -> Path:
    shutil.copytree(before.folder, tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture
def victim(before: Before) -> str:
    """A stream that the test may make again."""
    return before.victims.pop()


@pytest.fixture
def begin(before: Before, folder: Path) -> Begin:
    """Runs gateways with one folder, one after the other."""
    return lambda workers=WORKERS: begun(before.origin, folder, workers)


@asynccontextmanager
async def begun(origin: RunningOrigin, folder: Path, workers: int = WORKERS) -> AsyncIterator[Site]:
    gateway = await GatewayProcess.start(config_of(origin, folder), workers)
    site = Site(origin, gateway)
    try:
        yield site
    finally:
        for client in site.clients:
            client.close()
        if runs(gateway.pid):
            await gateway.stop()
            assert not marks(folder), "an orderly end leaves no folder behind"
        else:
            await gateway.kill_all()


def marks(folder: Path) -> list[Path]:
    """The marks of folders that have missed removals."""
    return list(folder.rglob("behind"))


def config_of(origin: RunningOrigin, folder: Path | None = None) -> GatewayConfig:
    store = {"path": str(folder), "max_bytes": "64MiB", "segment_bytes": "1MiB"} if folder is not None else {}
    return GatewayConfig.for_origin(
        origin.url,
        listen="127.0.0.1:0",
        admin="127.0.0.1:0",
        client_new_streams_per_s=0,
        shutdown_timeout_s=0.3,
        store=store,
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


def stored(folder: Path) -> set[str]:
    """The paths in an index."""
    with closing(sqlite3.connect(folder / "index.sqlite")) as database:
        found = database.execute("SELECT DISTINCT json_extract(CAST(key AS TEXT), '$[1]') FROM streams").fetchall()
        return {path for (path,) in found}


def slot_of(folder: Path, path: str) -> int:
    """The slot that has a stream on disk."""
    (slot,) = (slot for slot, one in enumerate([folder, folder / "1"]) if path in stored(one))
    return slot


async def test_after_a_restart_each_owner_has_its_streams_on_disk(begin: Begin, folder: Path) -> None:
    assert [slot_of(folder, path) for path in PATHS] == [0, 0, 1, 1], "only the owner writes a stream"
    async with begin() as site:
        counters = site.origin.origin.counters
        counters.reset()
        for client in await site.client_of_each():
            for path in PATHS:
                assert await read(client, path) == body(path)
        # The proofs of the end and of the first 64 KiB, once for both workers.
        assert counters.total_body_bytes < PROOF * len(PATHS)
        assert counters.requests[Kind.CATCHUP] <= len(PATHS) * 6
        figures = await site.gateway.figures()
        assert figures["durable_gateway_store_read_bytes_total"] > 0.7 * len(PATHS) * COUNT * PIECE
        assert figures["durable_gateway_store_streams"] >= len(PATHS)
        assert figures["durable_gateway_store_limit_bytes"] == 64 << 20


async def owner_of(site: Site, folder: Path, path: str) -> tuple[int, Client]:
    """The process that owns a stream, and a connection to another one."""
    own = pid_of_slot(site.gateway, folder, slot_of(folder, path))
    clients = zip(site.gateway.worker_pids(), await site.client_of_each(), strict=True)
    (other,) = (client for pid, client in clients if pid != own)
    return own, other


def pid_of_slot(gateway: GatewayProcess, folder: Path, slot: int) -> int:
    """The worker that has a slot's folder open."""
    name = str(folder / "1" / "slot.lock" if slot else folder / "slot.lock")
    (pid,) = (pid for pid in gateway.worker_pids() if name in opened_by(pid))
    return pid


def opened_by(pid: int) -> set[str]:
    """The files that a process has open."""
    found = set()
    with suppress(FileNotFoundError, ProcessLookupError):
        for one in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                found.add(str(one.readlink()))
    return found


async def whole(site: Site, folder: Path) -> None:
    """Wait until all workers serve, and have opened their stores."""

    def is_open() -> bool:
        opened = set().union(*map(opened_by, site.gateway.worker_pids()))
        return {str(folder / "index.sqlite"), str(folder / "1" / "index.sqlite")} <= opened

    await eventually(site.gateway.is_well, look_s=0.01)
    await eventually(is_open, look_s=0.01)


async def all_read(site: Site, path: str, life: int) -> None:
    """See that each worker serves this life of the stream."""
    for client in await site.client_of_each():
        assert await read(client, path) == body(path, life)


async def killed(site: Site) -> None:
    """Kill all processes of the gateway at once."""
    for pid in (site.gateway.pid, *site.gateway.worker_pids()):
        os.kill(pid, signal.SIGKILL)
    await site.gateway.kill_all()


@pytest.mark.parametrize("lies", ["stopped", "dead", "replaced"])
async def test_a_stream_made_again_while_its_owner_could_not_notice_does_not_come_from_its_disk(
    begin: Begin, folder: Path, victim: str, lies: str
) -> None:
    async with begin() as site:
        pid, other = await owner_of(site, folder, victim)
        assert await read(other, victim) == body(victim)
        supervisor = site.gateway.pid
        if lies == "dead":
            # The supervisor does not notice, so the slot stays without a worker.
            os.kill(supervisor, signal.SIGSTOP)
            site.gateway.kill(pid)
        elif lies == "replaced":
            # The other worker owns the stream until the slot has a worker again.
            await kept_dead(site.gateway, pid)
        else:
            os.kill(pid, signal.SIGSTOP)
        try:
            await make(other, victim, life=1)
            if lies == "replaced":
                assert await read(other, victim) == body(victim, 1)
        finally:
            os.kill(supervisor, signal.SIGCONT)
        if lies == "stopped":
            site.gateway.kill(pid)
        await whole(site, folder)
        await all_read(site, victim, 1)
        figures = await site.gateway.figures()
        # The first guard has dropped it, not the last.
        assert figures["durable_gateway_store_errors_total"] == 0


async def test_a_stream_made_again_at_another_worker_leaves_the_owners_disk_at_once(
    begin: Begin, folder: Path, victim: str
) -> None:
    async with begin() as site:
        _, other = await owner_of(site, folder, victim)
        await make(other, victim, life=1)
        await eventually(lambda: victim not in stored(folder) | stored(folder / "1"), look_s=0.01, within_s=1)
        await killed(site)
    async with begin() as site:
        await all_read(site, victim, 1)
        counters = site.origin.origin.counters
        counters.reset()
        await all_read(site, PATHS[0], 0)
        assert counters.total_body_bytes < PROOF, "the other streams are still on disk"


async def test_a_folder_that_has_missed_a_removal_is_emptied_after_the_death_of_the_gateway(
    begin: Begin, folder: Path, victim: str
) -> None:
    async with begin() as site:
        pid, other = await owner_of(site, folder, victim)
        missed = folder / "1" if slot_of(folder, victim) else folder
        os.kill(site.gateway.pid, signal.SIGSTOP)
        site.gateway.kill(pid)
        await make(other, victim, life=1)
        await eventually(lambda: marks(folder) == [missed / "behind"], look_s=0.01, within_s=20)
        await killed(site)
        assert victim in stored(missed)
    async with begin() as site:
        await all_read(site, victim, 1)


async def test_a_stream_made_again_after_the_deaths_of_the_supervisor_and_of_the_owner_does_not_come_from_disk(
    begin: Begin, folder: Path, victim: str
) -> None:
    """The last worker ends in order, and nobody else can mark the folder of the dead one."""
    async with begin() as site:
        pid, other = await owner_of(site, folder, victim)
        author = await site.origin_client()
        (survivor,) = set(site.gateway.worker_pids()) - {pid}
        os.kill(site.gateway.pid, signal.SIGSTOP)
        site.gateway.kill(pid)
        os.kill(site.gateway.pid, signal.SIGKILL)
        assert (await other.send("DELETE", victim)).status < 300
        await make(author, victim, life=1)
        await eventually(lambda: not runs(survivor), look_s=0.01, within_s=20)
    async with begin() as site:
        await all_read(site, victim, 1)


async def test_a_purge_reaches_the_disk_of_a_worker_that_is_dead(begin: Begin, folder: Path, victim: str) -> None:
    async with begin() as site:
        author, slot = await site.origin_client(), slot_of(folder, victim)
        await kept_dead(site.gateway, pid_of_slot(site.gateway, folder, slot))
        await make(author, victim, life=1)
        assert (await site.gateway.admin("/api/purge", {"stream": victim})).status == 200
        assert marks(folder) == [(folder / "1" if slot else folder) / "behind"]
        os.kill(site.gateway.pid, signal.SIGCONT)
        await whole(site, folder)
        await all_read(site, victim, 1)
        await eventually(lambda: not marks(folder), look_s=0.01)


async def kept_dead(gateway: GatewayProcess, pid: int) -> None:
    """Kill a worker, and keep its slot without another one until the supervisor goes on."""
    (survivor,) = set(gateway.worker_pids()) - {pid}
    # The first death is followed by another worker at once, and each further one later: the fourth after 0.4 s.
    for _ in range(3):
        gateway.kill(await newest(gateway, survivor))
    while True:
        gateway.kill(await newest(gateway, survivor))
        await eventually(lambda: gateway.worker_pids() == [survivor])
        # The supervisor notes the death.
        await pause(0.1)
        os.kill(gateway.pid, signal.SIGSTOP)
        if gateway.worker_pids() == [survivor]:
            return
        os.kill(gateway.pid, signal.SIGCONT)


async def newest(gateway: GatewayProcess, survivor: int) -> int:
    """Wait for a worker next to the survivor, and return its pid."""
    found: set[int] = set()

    def is_found() -> bool:
        found.update({*gateway.worker_pids()} - {survivor, *gateway.killed})
        return bool(found)

    await eventually(is_found)
    return found.pop()


async def test_a_purge_leaves_the_disks_of_all_workers_before_it_is_answered(begin: Begin, folder: Path) -> None:
    async with begin() as site:
        count = len(stored(folder) | stored(folder / "1"))
        answer = await site.gateway.admin("/api/purge", {"all": True})
        assert json.loads(answer.body) == {"purged": count}
        assert stored(folder) | stored(folder / "1") == set()


async def test_a_purge_leaves_all_other_streams_on_disk(begin: Begin, folder: Path, victim: str) -> None:
    async with begin() as site:
        left = (stored(folder) | stored(folder / "1")) - {victim}
        refused = [site.gateway.admin("/api/purge", {"prefix": "/"}) for _ in range(3)]
        assert {answer.status for answer in await asyncio.gather(*refused)} == {422}
        purges = [site.gateway.admin("/api/purge", {"stream": path}) for path in (victim, "/none", "/neither")]
        assert {answer.status for answer in await asyncio.gather(*purges)} == {200}
        # Several looks of each worker.
        await pause(0.5)
        assert stored(folder) | stored(folder / "1") == left


async def test_the_number_of_workers_may_change(begin: Begin, folder: Path, victim: str) -> None:
    own = [path for path in PATHS if slot_of(folder, path) == 0]
    counters = None
    async with begin(1) as site:
        counters = site.origin.origin.counters
        await eventually(lambda: not (folder / "1").exists())
        client = await site.client()
        counters.reset()
        for path in own:
            assert await read(client, path) == body(path)
        assert counters.total_body_bytes < PROOF * len(own)
        for path in [*PATHS, victim]:
            assert await read(client, path) == body(path)
    assert stored(folder) >= {*PATHS, victim}
    async with begin(2) as site:
        client = await site.client()
        counters.reset()
        for path in own:
            assert await read(client, path) == body(path)
        assert counters.total_body_bytes < PROOF * len(own)
        # Its owner may be another worker now, and yet it is removed here.
        await make(client, victim, life=1)
        await eventually(lambda: victim not in stored(folder))
    async with begin(1) as site:
        client = await site.client()
        counters.reset()
        for path in PATHS:
            assert await read(client, path) == body(path)
        assert counters.total_body_bytes < PROOF * len(PATHS), "those of the second worker have stayed"
        assert await read(client, victim) == body(victim, 1)


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_second_gateway_does_not_start(before: Before, begin: Begin, folder: Path, workers: int) -> None:
    async with begin():
        with pytest.raises(AssertionError, match=f"store.path: another process uses {folder}"):
            await GatewayProcess.start(config_of(before.origin, folder), workers)


async def test_an_upgrade_goes_on_with_the_folders(before: Before, begin: Begin, folder: Path) -> None:
    first, second = before.victims.pop(), before.victims.pop()
    async with begin() as site:
        client = await site.client()
        assert await read(client, PATHS[0]) == body(PATHS[0])
        await make(client, first, life=1)
        upgrading = asyncio.create_task(site.gateway.upgrade())
        await eventually(lambda: "serves, and this one drains" in site.gateway.said(), look_s=0.05)
        # The next version serves, and the folders still belong to the version before.
        client = await site.client()
        assert await read(client, second) == body(second)
        await make(client, second, life=1)
        await upgrading
        await whole(site, folder)
        counters = site.origin.origin.counters
        counters.reset()
        for client in await site.client_of_each():
            for path in PATHS:
                assert await read(client, path) == body(path)
        assert counters.total_body_bytes < PROOF * len(PATHS)
        for path in (first, second):
            await all_read(site, path, 1)


async def test_a_purge_during_an_upgrade_leaves_all_other_streams_on_disk(
    begin: Begin, folder: Path, victim: str
) -> None:
    async with begin() as site:
        left = (stored(folder) | stored(folder / "1")) - {victim}
        upgrading = asyncio.create_task(site.gateway.upgrade())
        await eventually(lambda: "serves, and this one drains" in site.gateway.said(), look_s=0.01)
        while (await site.gateway.admin("/api/purge", {"stream": victim})).status == 503:
            await pause(0.02)
        await upgrading
        await whole(site, folder)
        await eventually(lambda: not marks(folder), look_s=0.01)
        assert stored(folder) | stored(folder / "1") == left
        # And they are written again.
        for client in await site.client_of_each():
            assert await read(client, victim) == body(victim)
        await eventually(lambda: victim in stored(folder) | stored(folder / "1"), look_s=0.05)


@pytest.mark.parametrize("removes", ["a stream made again", "a purge"])
async def test_what_is_removed_while_an_upgrade_has_the_store_off_does_not_come_from_disk(
    before: Before, begin: Begin, folder: Path, victim: str, removes: str
) -> None:
    """Three versions share one memory, and the second one has no store."""
    async with begin() as site:
        assert await read(await site.client(), victim) == body(victim)
        site.gateway.write(config_of(before.origin))
        await site.gateway.upgrade()
        if removes == "a purge":
            await make(await site.origin_client(), victim, life=1)
            await site.gateway.purge(victim, is_soft=False)
        else:
            await make(await site.client(), victim, life=1)
        site.gateway.write(config_of(before.origin, folder))
        await site.gateway.upgrade()
        await whole(site, folder)
        await all_read(site, victim, 1)


async def test_an_upgrade_after_one_that_was_killed_goes_on_with_the_folders(begin: Begin, folder: Path) -> None:
    """Four workers have places for two versions."""
    async with begin(4) as site:
        known = stored(folder)
        gateway, ours = site.gateway, set(site.gateway.worker_pids())
        os.kill(gateway.pid, signal.SIGUSR2)
        await eventually(lambda: bool(set(children(gateway.pid)) - ours), look_s=0.01)
        (killed,) = set(children(gateway.pid)) - ours
        await eventually(lambda: len(children(killed)) == 4, look_s=0.01)
        workers = children(killed)
        os.kill(killed, signal.SIGKILL)
        await eventually(lambda: not any(map(runs, workers)), look_s=0.01)
        await eventually(lambda: "not upgraded" in gateway.said(), look_s=0.01)
        await gateway.upgrade()
        await whole(site, folder)
        await eventually(lambda: not marks(folder), look_s=0.01)
        assert stored(folder) == known != set()


async def test_workers_that_are_killed_while_they_write_leave_nothing_torn(before: Before, tmp_path: Path) -> None:
    rng, folder = Random(3), tmp_path / "empty"
    paths = [f"/k{number}" for number in range(4)]
    async with begun(before.origin, folder) as site:
        author = await site.origin_client()
        lives = dict.fromkeys(paths, 0)
        for path in paths:
            await make(author, path)
        for _ in range(KILLS):
            client = await site.client()
            try:
                for path in rng.sample(paths, 2):
                    if rng.random() < 0.4:
                        await make(client, path, lives[path] + 1)
                        lives[path] += 1
                    assert await read(client, path) == body(path, lives[path])
            except (OSError, EOFError, asyncio.IncompleteReadError):
                lives = {path: await life_of(author, path) for path in paths}
            site.gateway.kill_worker(rng)
            await eventually(site.gateway.is_well, look_s=0.01)
        for path in paths:
            await all_read(site, path, await life_of(author, path))
        figures = await site.gateway.figures()
        assert figures["durable_gateway_store_errors_total"] == 0
        await killed(site)
    async with begun(before.origin, folder) as site:
        for path in paths:
            await all_read(site, path, lives[path])


async def life_of(author: Client, path: str) -> int:
    """The life of a stream that the origin has."""
    found = await read(author, path)
    (life,) = (life for life in range(10 * KILLS) if body(path, life) == found)
    return life

"""What the public admin port asks of workers, and what it makes of their answers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest
from aiohttp import ClientSession, UnixConnector, web

from gateway.aio.clock import ManualClock
from gateway.commands.purge import PURGE_S
from gateway.ops.admin.app import admin_endpoints
from gateway.ops.admin.directory import Directory
from gateway.ops.admin.endpoint import Refused, adapter_of
from gateway.ops.gathering.adoption import version_before
from gateway.ops.gathering.ended_counts import EndedCounts
from gateway.ops.gathering.endpoints import (
    ALONE,
    GATHERINGS,
    Gathered,
    done_before,
    done_by_all,
    done_by_some,
    make_adapters,
)
from gateway.ops.gathering.peers import CHANGE_S, PeerAnswer, Peers
from gateway.ops.gathering.private import Handler, WorkerSettings, private_application
from gateway.ops.gathering.worker_admin import WorkerAdmin
from gateway.ops.partition_ids import PartitionIds
from gateway.workers.place import WorkerPlace
from gateway.workers.shared_memory import SharedMemory, SlotState
from tests.waiting import pass_turns

DONE = PeerAnswer(0, 200, b"{}")
UNKNOWN = PeerAnswer(1, 404, b'{"error": "no such stream is held"}')
LATE = PeerAnswer(2, 504, b"")


def unused() -> Any:
    """A gateway that has had no request yet.  The engine's parts are used only when one arrives."""
    engine = SimpleNamespace(clock=None, fleet=None, live=None, s2=SimpleNamespace(streams=None), worker_store=None)
    return SimpleNamespace(engine=engine, is_replaced=False)


def test_each_endpoint_says_how_it_is_gathered() -> None:
    subject = unused()
    endpoints = admin_endpoints(subject, Directory(subject.engine, PartitionIds()))
    assert {(one.method, one.path) for one in endpoints} == GATHERINGS.keys() | ALONE


def test_a_worker_makes_no_adapter_that_the_supervisor_could_have_made() -> None:
    subject, counts = unused(), EndedCounts("", 0)
    adapter_of.cache_clear()
    make_adapters()
    made = adapter_of.cache_info().misses
    private_application(subject, PartitionIds(), counts)
    gathered = Gathered(subject, Peers([], lambda _: 0), counts, lambda: None)
    for endpoint in admin_endpoints(subject, Directory(subject.engine, PartitionIds())):
        gathered.route(endpoint)
    adapter_of(WorkerSettings)
    assert adapter_of.cache_info().misses == made


def test_a_look_up_needs_one_worker_that_knows() -> None:
    assert done_by_some([UNKNOWN, DONE, LATE]) == [DONE]


def test_a_look_up_that_no_worker_can_answer_is_refused_as_one_refuses_it() -> None:
    with pytest.raises(Refused, match="no such stream is held") as refused:
        done_by_some([LATE, UNKNOWN])
    assert refused.value.status == 404


def test_a_look_up_without_any_answer_is_refused() -> None:
    with pytest.raises(Refused, match="no worker answers") as refused:
        done_by_some([LATE])
    assert refused.value.status == 503


def test_a_change_that_a_worker_has_not_made_names_the_worker() -> None:
    with pytest.raises(Refused) as refused:
        done_by_all([DONE, LATE])
    assert str(refused.value) == "not done by all workers: worker 2: it has not answered in time; done by 0"
    assert refused.value.status == 503


def test_a_change_that_all_workers_refuse_is_refused_in_their_words() -> None:
    refusals = [PeerAnswer(slot, 422, b'{"error": "route: unknown key"}') for slot in range(3)]
    with pytest.raises(Refused, match=r"^route: unknown key$") as refused:
        done_by_all(refusals)
    assert refused.value.status == 422


def test_a_change_that_all_workers_refuse_in_different_words_is_refused_for_good() -> None:
    refusals = [PeerAnswer(slot, 409, b'{"error": "%d are left"}' % slot) for slot in range(2)]
    with pytest.raises(Refused, match=r"^worker 0: 0 are left; worker 1: 1 are left$") as refused:
        done_by_all(refusals)
    assert refused.value.status == 409


def test_a_change_by_all_workers_is_done() -> None:
    assert done_by_all([DONE, PeerAnswer(1, 202, b"{}")]) == [DONE, PeerAnswer(1, 202, b"{}")]


def test_a_change_that_the_version_before_has_not_made_is_refused() -> None:
    ended = PeerAnswer(3, 503, b"", has_ended=True)
    assert done_before([]) == done_before([ended]) == []
    assert done_before([DONE, ended]) == [DONE]
    with pytest.raises(Refused) as refused:
        done_before([DONE, LATE, ended])
    assert refused.value.status == 503
    assert str(refused.value) == (
        "done by the workers of this version, but not by all workers of the version before, which drains: "
        "worker 2: it has not answered in time"
    )


def test_workers_of_earlier_versions_are_named_by_their_version(tmp_path: Path) -> None:
    paths = [str(tmp_path / version / f"peer{slot}") for version in ("v1", "v0") for slot in range(2)]
    (tmp_path / "v1").mkdir()
    Path(paths[0]).touch()
    before = version_before(paths)
    assert before is not None
    late = PeerAnswer(3, 504, b"", earlier=before.earlier[3])
    refusal = PeerAnswer(1, 422, b'{"error": "keys: unknown key"}')
    with pytest.raises(Refused) as refused:
        done_before([refusal, late])
    assert refused.value.status == 503
    assert str(refused.value).endswith(
        ": worker 1 refuses the request: keys: unknown key; worker 1 of an earlier version: it has not answered in time"
    )


def test_the_command_waits_for_both_rounds_of_a_purge() -> None:
    assert GATHERINGS["POST", "/api/purge"].rounds * CHANGE_S < PURGE_S


@web.middleware
async def refusing(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Refused as error:
        return web.json_response({"error": str(error)}, status=error.status)


class Sites:
    """Workers of two versions, which answer each change, and the admin port of the later version."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runners: list[web.AppRunner] = []
        self.asked: list[tuple[str, str, bytes]] = []
        self.on_asked: Callable[[], None] = lambda: None
        """Called with each request to a worker."""

    async def serve(self, name: str, *routes: web.RouteDef) -> str:
        runner = web.AppRunner(made := web.Application(middlewares=[refusing]))
        made.add_routes(routes)
        await runner.setup()
        await web.UnixSite(runner, path := str(self._folder / name)).start()
        self._runners.append(runner)
        return path

    async def worker(self, name: str, *statuses: int) -> str:
        """A worker that gives these statuses in turn, and 200 after them."""
        left = list(statuses)

        async def answer(request: web.Request) -> web.Response:
            self.asked.append((name, request.raw_path, await request.read()))
            self.on_asked()
            if left and (status := left.pop(0)) != 200:
                return web.Response(status=status)
            return web.Response(body=orjson.dumps({"live_reads": 2} if "revoke" in request.path else {"names": [7]}))

        return await self.serve(name, web.post("/{rest:.*}", answer), web.put("/{rest:.*}", answer))

    def ended(self, name: str) -> str:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(path := str(self._folder / name))
        return path

    async def admin(self, *predecessors: str) -> tuple[WorkerAdmin, str]:
        shared = SharedMemory.create(1)
        shared.set_slot(0, SlotState.SERVING, 1, 1)
        own = await self.worker("own")
        place = SimpleNamespace(folder="", slot=0, shared=shared, peer_paths=(own,), predecessors=predecessors)
        subject = unused()
        subject.engine.origins = subject.engine.health = SimpleNamespace()
        subject.metrics = SimpleNamespace(operations=SimpleNamespace(purge=lambda **_: None))
        admin = WorkerAdmin(cast(WorkerPlace, place), subject, PartitionIds())
        endpoints = admin_endpoints(subject, Directory(subject.engine, PartitionIds()))
        changes = [one for one in endpoints if one.path in ("/api/revoke", "/api/purge")]
        return admin, await self.serve("admin", *map(admin.answering.route, changes))

    async def close(self) -> None:
        for runner in self._runners:
            await runner.cleanup()


@pytest.fixture
async def sites() -> AsyncIterator[Sites]:
    with TemporaryDirectory() as folder:
        made = Sites(Path(folder))
        yield made
        await made.close()


@pytest.mark.parametrize("drains", [True, False])
@pytest.mark.parametrize(
    ("path", "body", "target", "each", "of_each"),
    [
        ("/api/revoke", {"subject": "principal", "name": "eve"}, "/api/revoke", 1, {"live_reads": 2}),
        ("/api/purge", {"all": True}, "/worker/purge", 2, {"purged": 1}),
    ],
)
async def test_what_an_operator_takes_away_is_taken_away_at_the_version_that_drains_too(
    sites: Sites, path: str, body: dict[str, object], target: str, each: int, of_each: dict[str, int], drains: bool
) -> None:
    before = [await sites.worker("old0"), sites.ended("old1")] if drains else []
    admin, socket_path = await sites.admin(*before)
    async with (
        asyncio.timeout(30.0),
        ClientSession(connector=UnixConnector(socket_path)) as session,
        session.post(f"http://admin{path}", json=body) as reply,
    ):
        assert reply.status == 200
        answer = await reply.json()
    await admin._peers.close()
    asked = [(name, where) for name, where, _ in sites.asked]
    assert sorted(asked) == [("old0", target)] * each * drains + [("own", target)] * each
    assert all(orjson.loads(given) == body for *_, given in sites.asked)
    sums = {"live_reads": 2 + 2 * drains, "purged": 1}
    assert answer == {name: sums[name] for name in of_each}


@pytest.mark.parametrize("statuses", [(504,), (200, 504), (504, 504)])
async def test_a_purge_is_done_twice_at_this_version_even_if_the_version_before_is_late(
    sites: Sites, statuses: tuple[int, ...]
) -> None:
    """After one round alone, a worker may keep bytes that it has fetched from an owner that had not purged yet."""
    admin, socket_path = await sites.admin(await sites.worker("old0", *statuses))
    async with (
        asyncio.timeout(30.0),
        ClientSession(connector=UnixConnector(socket_path)) as session,
        session.post("http://admin/api/purge", json={"all": True}) as reply,
    ):
        answer = await reply.json()
    await admin._peers.close()
    assert reply.status == 503
    assert answer["error"] == (
        "done by the workers of this version, but not by all workers of the version before, which drains: "
        "worker 0: it has not answered in time"
    )
    assert sorted(name for name, *_ in sites.asked) == ["old0", "old0", "own", "own"]


async def test_a_replaced_worker_answers_until_each_worker_of_the_next_version_has_asked_once_more(
    sites: Sites,
) -> None:
    admin, _ = await sites.admin()
    admin.answering._subject.engine.clock = clock = ManualClock()
    await asyncio.wait_for(admin.finish_answers(), 30.0)
    admin.begin_last_answers()
    finishing = asyncio.create_task(admin.finish_answers())
    # Between two questions of one worker lie a pause of 0.5 s, and 2 s in which another worker does not answer.
    clock.advance(2.5)
    await pass_turns()
    assert not finishing.done()
    clock.advance(0.5)
    await asyncio.wait_for(finishing, 30.0)


async def test_a_change_is_not_confirmed_by_a_version_that_is_replaced_while_it_makes_the_change(sites: Sites) -> None:
    """The next version may have begun to fetch before the purge."""
    admin, socket_path = await sites.admin()

    def leave() -> None:
        admin.answering._subject.is_replaced = True

    sites.on_asked = leave
    async with (
        asyncio.timeout(30.0),
        ClientSession(connector=UnixConnector(socket_path)) as session,
        session.post("http://admin/api/purge", json={"all": True}) as reply,
    ):
        answer = await reply.json()
    await admin._peers.close()
    assert reply.status == 503
    assert answer["error"].startswith("another version of the gateway replaces this one")
    assert [name for name, *_ in sites.asked] == ["own", "own"]

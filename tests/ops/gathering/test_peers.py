"""Questions to all workers: real Unix sockets, and workers that die and start again."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from aiohttp import web

from gateway.ops.gathering.peers import PeerAnswer, Peers

BOUND_S = 30.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Crew:
    """Some workers, each with a socket that outlives it."""

    def __init__(self, folder: Path) -> None:
        self.paths = [str(folder / f"peer{slot}") for slot in range(3)]
        self.sockets = [socket.socket(socket.AF_UNIX) for _ in self.paths]
        for sock, path in zip(self.sockets, self.paths, strict=True):
            sock.bind(path)
            sock.listen()
        self.generations: dict[int, int | None] = dict.fromkeys(range(3))
        self.runners: list[web.AppRunner] = []
        self.asked: list[tuple[int, str, bytes]] = []
        self.peers = Peers(self.paths, lambda slot: self.generations[slot])

    async def start(self, slot: int, handler: Handler | None = None) -> None:
        """Start the next worker of a slot."""

        async def answer(request: web.Request) -> web.StreamResponse:
            self.asked.append((slot, request.raw_path, await request.read()))
            return web.Response(text=f"worker {slot}")

        application = web.Application()
        application.router.add_route("*", "/{rest:.*}", handler or answer)
        runner = web.AppRunner(application, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.SockSite(runner, self.sockets[slot].dup()).start()
        self.runners.append(runner)
        self.generations[slot] = (self.generations[slot] or 0) + 1

    def end(self, slot: int, *, is_file_left: bool) -> None:
        """Close the socket of a worker that seems to live."""
        self.generations[slot] = 1
        self.sockets[slot].close()
        if not is_file_left:
            Path(self.paths[slot]).unlink()

    async def close(self) -> None:
        await self.peers.close()
        for runner in self.runners:
            await runner.cleanup()
        for sock in self.sockets:
            sock.close()


@pytest.fixture
async def crew() -> AsyncIterator[Crew]:
    with TemporaryDirectory() as folder:
        made = Crew(Path(folder))
        yield made
        await made.close()


async def test_all_living_workers_are_asked_with_the_same_words(crew: Crew) -> None:
    for slot in (0, 2):
        await crew.start(slot)
    answers = await crew.peers.ask_all("POST", "/api/x?a=%2F", b"body")
    assert answers == [PeerAnswer(0, 200, b"worker 0"), PeerAnswer(2, 200, b"worker 2")]
    assert sorted(crew.asked) == [(slot, "/api/x?a=%2F", b"body") for slot in (0, 2)]
    assert await crew.peers.ask_all("GET", "/", but=2) == [PeerAnswer(0, 200, b"worker 0")]


async def test_without_a_living_worker_there_is_no_answer(crew: Crew) -> None:
    assert await crew.peers.ask_all("GET", "/") == []


@pytest.mark.parametrize("is_file_left", [True, False])
async def test_a_worker_is_not_asked_again_where_no_process_listens(crew: Crew, is_file_left: bool) -> None:
    """The supervisor, which keeps the sockets open, has ended too."""
    await crew.start(0)
    crew.end(1, is_file_left=is_file_left)
    async with asyncio.timeout(BOUND_S):
        answers = await crew.peers.ask_all("GET", "/", within_s=10 * BOUND_S)
    assert [(answer.slot, answer.is_good, answer.has_ended) for answer in answers] == [
        (0, True, False),
        (1, False, True),
    ]


async def test_a_worker_that_does_not_answer_in_time_is_named(crew: Crew) -> None:
    async def hang(_: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    await crew.start(0)
    await crew.start(1, hang)
    assert await crew.peers.ask_all("GET", "/", within_s=0.2) == [
        PeerAnswer(0, 200, b"worker 0"),
        PeerAnswer(1, 504, b""),
    ]


async def test_the_successor_of_a_worker_that_dies_is_asked_instead(crew: Crew) -> None:
    async def die_once(request: web.Request) -> web.StreamResponse:
        if crew.generations[1] == 1:
            crew.generations[1] = 2
            assert request.transport is not None
            request.transport.abort()
        return web.Response(text="the successor")

    await crew.start(1, die_once)
    assert await crew.peers.ask_all("POST", "/change", b"{}") == [PeerAnswer(1, 200, b"the successor")]


async def test_a_worker_that_was_replaced_after_its_answer_is_asked_again(crew: Crew) -> None:
    has_answered = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        crew.asked.append((0, request.raw_path, await request.read()))
        has_answered.set()
        return web.Response()

    async def answer_last(_: web.Request) -> web.StreamResponse:
        # The other worker has answered, and has died since.
        await has_answered.wait()
        crew.generations[0] = 2
        return web.Response()

    await crew.start(0, answer)
    await crew.start(1, answer_last)
    answers = await crew.peers.ask_all("POST", "/change", b"{}")
    assert [answer.slot for answer in answers] == [0, 1]
    assert crew.asked == [(0, "/change", b"{}")] * 2


async def test_a_worker_that_dies_for_good_is_left_out(crew: Crew) -> None:
    async def die(request: web.Request) -> web.StreamResponse:
        crew.generations[1] = None
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    await crew.start(0)
    await crew.start(1, die)
    assert await crew.peers.ask_all("GET", "/") == [PeerAnswer(0, 200, b"worker 0")]

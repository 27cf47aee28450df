"""The drain over HTTP/1.1: each answer says that its connection closes, and none closes before."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from gateway.origin.app import RunningOrigin
from gateway.origin.counters import Counters
from tests.scenarios.conftest import Edge, Start, bounded
from tests.waiting import eventually

pytestmark = [pytest.mark.http_1, pytest.mark.http_1_origin]

REQUESTS: dict[str, tuple[str, str, bytes | None]] = {
    "hit": ("GET", "/s?offset=-1", None),
    "miss": ("GET", "/s?offset=-1&v=2", None),
    "HEAD": ("HEAD", "/s", None),
    "append": ("POST", "/s", b"more"),
    "not found": ("GET", "/none?offset=-1", None),
    "invalid": ("GET", "/s?offset=1&offset=2", None),
    "long-poll": ("GET", "/s?offset=-1&live=long-poll", None),
}


@pytest.fixture
def settings() -> dict[str, Any]:
    return {"live_linger_s": 5, "shutdown_timeout_s": 0.5}


def closes(headers: Mapping[str, str]) -> bool:
    return headers.get("Connection") == "close"


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_kept_connection_is_answered_and_told_to_close_while_draining(edge: Edge, name: str) -> None:
    method, target, body = REQUESTS[name]
    await edge.put("/s", b"hello", "text/plain")
    wire = await edge.wire()
    for _ in range(3):  # From the second time on, the answer may be remembered.
        await wire.ask(target, {"Content-Type": "text/plain"}, method, body)
        before = await wire.answer(method)
        assert not closes(before.headers)
    edge.gateway.drain()
    await wire.ask(target, {"Content-Type": "text/plain"}, method, body)
    after = await wire.answer(method)
    assert (after.status, closes(after.headers)) == (before.status, True)
    assert await wire.is_ended()


@pytest.mark.parametrize("mode", ["sse", "long-poll"])
async def test_a_live_read_that_begins_while_draining_says_close(edge: Edge, counters: Counters, mode: str) -> None:
    await edge.put("/s", b"hello", "text/plain")
    target = f"/s?offset=now&live={mode}"
    for _ in range(3):  # Joins by the request's bytes, too.
        before = await edge.begin(target)
        if mode == "sse":
            assert not closes((await before.head()).headers)
    await bounded(counters.parked_is(1))
    edge.gateway.drain(1)
    wire = await edge.begin(target)
    async with edge.time_passing():
        assert closes((await wire.head()).headers)
        await wire.body()
    assert await wire.is_ended()


async def test_a_long_poll_that_waits_when_the_drain_begins_says_close(edge: Edge, counters: Counters) -> None:
    await edge.put("/s", b"hello", "text/plain")
    wires = [await edge.begin("/s?offset=now&live=long-poll") for _ in range(3)]
    await bounded(counters.parked_is(1))
    await eventually(lambda: sum(topic.readers for topic in edge.gateway.engine.live.topics()) == 3)
    edge.gateway.drain(1)
    async with edge.time_passing():
        for wire in wires:
            answer = await wire.answer()
            assert (answer.status, closes(answer.headers)) == (204, True)
            assert await wire.is_ended()


async def test_the_connection_of_an_sse_answer_that_ends_in_the_drain_takes_one_more_request(
    edge: Edge, counters: Counters
) -> None:
    await edge.put("/s", b"hello", "text/plain")
    wire = await edge.begin("/s?offset=-1&live=sse")
    assert not closes((await wire.head()).headers)
    await bounded(counters.parked_is(1))
    edge.gateway.drain(1)
    async with edge.time_passing():
        await wire.body()
    await wire.ask("/s?offset=-1")
    assert closes((await wire.answer()).headers)
    assert await wire.is_ended()


async def test_idle_connections_stay_open_until_the_deadline_of_a_stop(start: Start, origin: RunningOrigin) -> None:
    edge = await start(origin.url, shutdown_timeout_s=2)
    await edge.put("/s", b"hello", "text/plain")
    wires = [await edge.wire() for _ in range(3)]
    for wire in wires:
        await wire.ask("/s?offset=-1")
        assert not closes((await wire.answer()).headers)
    silent = await edge.wire()
    stopping = asyncio.create_task(edge.gateway.stop())
    await eventually(lambda: edge.gateway.clients.is_draining)
    for wire in wires[:2]:
        await wire.ask("/s?offset=-1")
        answer = await wire.answer()
        assert (answer.status, answer.body, closes(answer.headers)) == (200, b"hello", True)
    # At the deadline the others end in order: not by a reset.
    for idle in (wires[2], silent):
        assert await bounded(idle.reader.read()) == b""
    await bounded(stopping)


async def test_a_stop_without_connections_does_not_wait_for_its_deadline(start: Start, origin: RunningOrigin) -> None:
    edge = await start(origin.url, shutdown_timeout_s=600)
    await edge.put("/s", b"hello", "text/plain")
    await bounded(edge.gateway.stop())


async def test_new_connections_are_answered_until_the_deadline_of_a_stop(start: Start, origin: RunningOrigin) -> None:
    edge = await start(origin.url, shutdown_timeout_s=2)
    await edge.put("/s", b"hello", "text/plain")
    idle = await edge.wire()
    await idle.ask("/s?offset=-1")
    await idle.answer()
    stopping = asyncio.create_task(edge.gateway.stop())
    await eventually(lambda: edge.gateway.clients.is_draining)
    answer = await edge.get("/s?offset=-1")
    assert (answer.body, closes(answer.headers)) == (b"hello", True)
    await bounded(stopping)
    with pytest.raises(ConnectionRefusedError):
        await edge.wire()


async def test_a_port_that_processes_share_is_left_to_the_others_at_once(start: Start, origin: RunningOrigin) -> None:
    await put(await start(origin.url))
    first = await start(origin.url, listeners=[{"address": "127.0.0.1:0", "reuse_port": True}], shutdown_timeout_s=2)
    address = first.url.removeprefix("http://")
    second = await start(origin.url, listeners=[{"address": address, "reuse_port": True}])
    # The kernel gives some of them to each.
    wires = [await first.wire() for _ in range(40)]
    stopping = asyncio.create_task(first.gateway.stop())
    await eventually(lambda: first.gateway.clients.is_draining)
    for wire in wires:
        await wire.ask("/s?offset=-1")
    answers = [await wire.answer() for wire in wires]
    assert {answer.body for answer in answers} == {b"hello"}
    assert {closes(answer.headers) for answer in answers} == {True, False}
    await bounded(stopping)
    later = [await second.get("/s?offset=-1") for _ in range(10)]
    assert not any(closes(answer.headers) for answer in later)


async def put(edge: Edge) -> None:
    await edge.put("/s", b"hello", "text/plain")


async def test_a_drain_that_is_undone_leaves_nothing_behind(edge: Edge, counters: Counters) -> None:
    await put(edge)
    reader = await edge.begin("/s?offset=-1&live=sse")
    await reader.head()
    await bounded(counters.parked_is(1))
    edge.gateway.drain(10)
    assert edge.gateway.undo_drain()
    assert edge.gateway.is_ready
    edge.clock.advance(20)
    assert (await edge.post("/s", b"!", "text/plain")).status == 204

    # The reader that the drain would have ended is still there.
    while (event := await reader.event()) is None or "!" not in event.data:
        assert event is not None
    wire = await edge.wire()
    for _ in range(4):
        await wire.ask("/s?offset=-1")
        answer = await wire.answer()
        assert (answer.body, closes(answer.headers)) == (b"hello!", False)
    remembered = edge.gateway.clients.remembered
    assert remembered is None or remembered.served


async def test_a_live_read_after_an_undone_drain_says_nothing_of_it(edge: Edge) -> None:
    await put(edge)
    target, is_closing = "/s?offset=-1&live=sse", []
    for drains in (False, True, False, False):
        if drains:
            edge.gateway.drain(10)
        wire = await edge.begin(target)
        is_closing.append(closes((await wire.head()).headers))
        if drains:
            assert edge.gateway.undo_drain()
    assert is_closing == [False, True, False, False]


async def test_an_sse_reader_that_could_not_last_a_second_is_asked_to_come_back(edge: Edge) -> None:
    await edge.put("/s", b"abc")
    edge.gateway.engine.begin_drain(0.2, 0.5)
    refused = await edge.get("/s?offset=-1&live=sse")
    assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
    assert (await edge.get("/s?offset=-1")).body == b"abc"

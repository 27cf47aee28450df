"""Bulk tails."""

from __future__ import annotations

import asyncio

import pytest

from gateway.origin.app import RunningOrigin
from tests.ops.admin.conftest import Bench
from tests.waiting import eventually


async def append(bench: Bench, path: str, body: bytes) -> str:
    async with bench.session.post(
        bench.gateway.gateway_url + path, data=body, headers={"Content-Type": "text/plain"}
    ) as answer:
        assert answer.status == 204
        return answer.headers["Stream-Next-Offset"]


async def test_tails_are_told_by_path_page_by_page(bench: Bench) -> None:
    wanted = {}
    for number in range(5):
        path = f"/t/{number}"
        await bench.put(path)
        wanted[path] = await append(bench, path, b"x" * number if number else b"y")
    first = await bench.get("/api/tails?prefix=/t/&limit=3")
    rest = await bench.get(f"/api/tails?prefix=/t/&limit=3&after={first['next']}")
    assert list(first["tails"]) == ["/t/0", "/t/1", "/t/2"]
    assert {**first["tails"], **rest["tails"]} == wanted
    assert rest["next"] is None
    assert (await bench.get("/api/tails?prefix=/none")) == {"tails": {}, "next": None}


async def test_tails_are_told_of_the_streams_asked_for_and_null_where_none_is_known(bench: Bench) -> None:
    await bench.put("/known")
    tail = await append(bench, "/known", b"more")
    told = await bench.post("/api/tails", {"streams": ["/known", "/unknown", "/%6Bnown"]})
    assert told == {"tails": {"/known": tail, "/unknown": None, "/%6Bnown": tail}, "next": None}


async def test_of_several_partitions_the_one_speaks_that_saw_the_origin_last(
    bench: Bench, origin: RunningOrigin
) -> None:
    await bench.put("/both")
    await bench.read("/both?offset=-1", Authorization="Bearer a")
    before = (await bench.get("/api/tails?prefix=/both"))["tails"]["/both"]
    # Behind the gateway's back: only who asks the origin again comes to know.
    async with bench.session.post(origin.url + "/both", data=b"later", headers={"Content-Type": "text/plain"}) as done:
        tail = done.headers["Stream-Next-Offset"]
    bench.clock.advance(1)
    await bench.read("/both?offset=-1", Authorization="Bearer a")
    assert tail != before
    assert (await bench.get("/api/tails?prefix=/both"))["tails"] == {"/both": tail}
    assert (await bench.post("/api/tails", {"streams": ["/both"]}))["tails"] == {"/both": tail}


async def test_a_reader_who_was_refused_takes_nobodys_tail_away_and_leaves_nothing_behind(
    bench: Bench, origin: RunningOrigin
) -> None:
    await bench.put("/open")
    await bench.read("/open?offset=-1")
    told = await bench.get("/api/tails")
    assert told["tails"]["/open"] is not None
    bench.clock.advance(1)
    for kind in ("head", "catchup"):
        origin.origin.faults.status(401, times=None, kind=kind)
    held = origin.origin.faults.hold(kind="catchup")
    refused = asyncio.create_task(bench.read("/open?offset=-1", Authorization="Bearer x"))
    await held.waiting(1)
    assert len((await bench.get("/api/streams"))["streams"]) == 2
    assert await bench.get("/api/tails") == told
    assert (await bench.post("/api/tails", {"streams": ["/open"]}))["tails"] == told["tails"]
    held.release()
    assert (await refused)[0] == 401

    async def is_one() -> bool:
        return len((await bench.get("/api/streams"))["streams"]) == 1

    await eventually(is_one)
    assert await bench.get("/api/tails") == told


async def test_what_is_wrong_in_very_many_places_is_refused_in_one_line(bench: Bench) -> None:
    for body in ({str(number): 1 for number in range(2_000)}, {"streams": [1] * 2_000}):
        told = await bench.ask("POST", "/api/tails", body)
        assert told.status == 422
        assert told.body == {"error": "body: should be as documented, and is wrong in many places"}


@pytest.mark.parametrize(
    "body", [{}, {"streams": "/a"}, {"streams": ["a"]}, {"streams": ["/a?live=sse"]}, {"streams": [1]}]
)
async def test_what_is_no_list_of_paths_is_refused(bench: Bench, body: object) -> None:
    told = await bench.ask("POST", "/api/tails", body)
    assert told.status == 422
    assert list(told.body) == ["error"]

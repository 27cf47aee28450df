"""Bulk tails."""

from __future__ import annotations

import pytest

from gateway.origin.app import RunningOrigin
from tests.ops.admin.conftest import Bench


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


@pytest.mark.parametrize(
    "body", [{}, {"streams": "/a"}, {"streams": ["a"]}, {"streams": ["/a?live=sse"]}, {"streams": [1]}]
)
async def test_what_is_no_list_of_paths_is_refused(bench: Bench, body: object) -> None:
    told = await bench.ask("POST", "/api/tails", body)
    assert told.status == 422
    assert list(told.body) == ["error"]

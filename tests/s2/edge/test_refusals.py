"""What the origin refuses is refused in the same words through the gateway."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from gateway.origin.faults import When
from gateway.origin.s2.calls import Call
from tests.s2.edge.clients import BOUND_S, STREAM, Edge
from tests.s2.edge.test_writes import RANGE, texts
from tests.waiting import eventually

RECORDS = f"/v1/streams/{STREAM}/records"
LONG = "a" * 513


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", f"{RECORDS}?seq_num=0", {"s2_basin": ""}),
        ("GET", f"{RECORDS}?seq_num=0", {"s2_basin": "Basin-00"}),
        ("GET", f"{RECORDS}?seq_num=0", {"s2_basin": "basin-that-is-not"}),
        ("GET", f"{RECORDS}?seq_num=0", {"s2_format": "hex"}),
        ("GET", f"{RECORDS}?seq_num=-1", {}),
        ("GET", f"{RECORDS}?seq_num=18446744073709551616", {}),
        ("GET", f"{RECORDS}?seq_num=0&seq_num=1", {}),
        ("GET", f"{RECORDS}?seq_num=0&wait=1.5", {}),
        ("GET", f"{RECORDS}?seq_num=0&clamp=1", {}),
        ("GET", f"{RECORDS}?count=x", {"accept": "text/event-stream"}),
        ("GET", f"{RECORDS}?seq_num=0", {"accept": "text/event-stream", "last_event_id": "1,2"}),
        ("GET", f"{RECORDS}?seq_num=0&tail_offset=1", {"content_type": "s2s/proto"}),
        ("GET", f"/v1/streams/{LONG}/records?seq_num=0", {}),
        ("GET", f"/v1/streams/{LONG}/records/tail", {}),
        ("GET", "/v1/streams/%FF/records?seq_num=0", {}),
        ("GET", "/v1/streams/unknown/records?seq_num=0", {}),
        ("GET", "/v1/streams/unknown/records/tail", {}),
        ("GET", "/v1/streams/unknown/records?seq_num=0", {"accept": "text/event-stream"}),
        ("GET", "/v1/streams?limit=x", {}),
        ("GET", "/v1/streams?prefix=b&start_after=a", {}),
        ("GET", "/v1/basins/short", {}),
        ("PUT", f"{RECORDS}", {}),
        ("GET", "/v1/streams/a/b/records?seq_num=0", {}),
        ("GET", "/v1/nothing", {}),
    ],
)
async def test_a_request_is_refused_as_by_the_origin(
    edge: Edge, method: str, path: str, headers: dict[str, str]
) -> None:
    await edge.direct.append("a")
    direct = await edge.direct.send(method, path, **headers)
    through = await edge.client.send(method, path, **headers)
    assert direct.status >= 400
    assert (through.status, through.body) == (direct.status, direct.body)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"records": []},
        {"records": [{}] * 1001},
        {"records": [{"body": "x" * (1024 * 1024 - 7)}]},
        {"records": [{"body": 1}]},
        {"records": [{"headers": [["a"]]}]},
        {"records": [{"headers": [["", "drop"]]}]},
        {"records": [{"headers": [["", "trim"]], "body": "7 bytes"}]},
        {"records": [{"headers": [["", "fence"]], "body": "x" * 37}]},
        {"records": [{"headers": [["", "fence"], ["a", "b"]]}]},
        {"records": [{"timestamp": -1}]},
        {"records": [{}], "match_seq_num": -1},
        {"records": [{}], "match_seq_num": 7},
        {"records": [{}], "fencing_token": "x"},
        {"records": [{}], "fencing_token": "x" * 37},
    ],
    ids=lambda body: str(body)[:50],
)
async def test_an_append_is_refused_as_by_the_origin(edge: Edge, body: object) -> None:
    await edge.direct.append("a")
    direct, through = await edge.direct.send("POST", RECORDS, body), await edge.client.send("POST", RECORDS, body)
    assert direct.status in (400, 412, 422)
    assert (through.status, through.body) == (direct.status, direct.body)


async def test_the_largest_append_passes_and_is_read_whole(edge: Edge) -> None:
    most, full = [{"body": "x"}] * 1_000, [{"body": "x" * (1024 * 1024 - 8)}]
    for records in (most, full):
        assert (await edge.client.send("POST", RECORDS, {"records": records})).status == 200
    assert len((await edge.client.read("seq_num=0")).texts) == 1_000
    assert len((await edge.client.read("seq_num=1000")).texts[0]) == 1024 * 1024 - 8


@pytest.mark.parametrize("how", ["unary", "session"])
async def test_that_a_stream_was_missing_is_not_said_after_it_was_created(edge: Edge, how: str) -> None:
    """The origin was asked for it before, and its answer has not come."""
    answer = edge.faults.hold(kind=Call.READ, times=1, when=When.REPLY)
    early = asyncio.ensure_future(edge.client.read(RANGE))
    await answer.waiting(1)
    await edge.client.append("a")
    late = asyncio.ensure_future(texts(edge.client, how))
    await eventually(lambda: [one.users for one in edge.gateway.engine.s2.streams] == [2])
    answer.release()
    assert (await early).status == 404
    assert await late == ["a"]


async def test_a_missing_stream_is_asked_for_once_more_for_all_who_came_meanwhile(edge: Edge) -> None:
    answer = edge.faults.hold(kind=Call.READ, times=1, when=When.REPLY)
    early = asyncio.ensure_future(edge.client.read(RANGE))
    await answer.waiting(1)
    late = [asyncio.ensure_future(edge.client.read(RANGE)) for _ in range(20)]
    await eventually(lambda: [one.users for one in edge.gateway.engine.s2.streams] == [21])
    answer.release()
    assert {(await one).status for one in (early, *late)} == {404}
    assert edge.counters.requests[Call.READ] == 2


ASK = b"GET /v1/streams/x/records HTTP/1.1\r\n"
BAD_HEADS = {
    "no host": (ASK + b"\r\n", 400),
    "two hosts": (ASK + b"Host: a\r\nHost: b\r\n\r\n", 400),
    "a control character": (b"GET /v1/streams/x%01y/records HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "two slashes": (b"GET //v1/streams/x HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "no head": (b"GET /v1/streams\x01/x HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "a bad name": (ASK + b"Host: a\r\nbad name: x\r\n\r\n", 400),
    "a bad length": (ASK + b"Host: a\r\nContent-Length: x\r\n\r\n", 400),
    "a long target": (b"GET /v1/streams/" + b"x" * 9_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
    "a long field": (ASK + b"Host: a\r\nX: " + b"x" * 9_000 + b"\r\n\r\n", 431),
    "a method": (b"TRACE /v1/streams/x HTTP/1.1\r\nHost: a\r\n\r\n", 501),
    "a body": (ASK.replace(b"GET", b"POST") + b"Host: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
}


@pytest.mark.parametrize("name", BAD_HEADS)
async def test_a_request_that_cannot_be_parsed_is_refused_in_s2s_form(edge: Edge, name: str) -> None:
    head, status = BAD_HEADS[name]
    reader, writer = await asyncio.open_connection("127.0.0.1", int(edge.gateway.gateway_url.rpartition(":")[2]))
    async with asyncio.timeout(BOUND_S):
        writer.write(head)
        answer = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readuntil(b"}")
        writer.close()
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"content-type: application/json\r\n" in answer.lower()
    assert sorted(orjson.loads(body)) == ["code", "message"]

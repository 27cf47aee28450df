"""The origin's HTTP, request by request: encodings, errors, codings, both versions on one port."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

import httpx
import pytest
import zstandard
from hpack import Decoder

from gateway.aio.clock import ManualClock
from gateway.http.http2 import frames
from gateway.origin.s2.app import RunningS2Origin
from gateway.origin.s2.calls import Call
from gateway.s2 import json_format, protobuf
from gateway.s2.errors import S2ErrorCode
from gateway.s2.json_format import Format
from gateway.s2.records import AppendInput, AppendRecord, Header
from tests.http.http2.peer import GET, NO_SETTINGS, request
from tests.s2.origin.appends import BASIN, bodies
from tests.s2.origin.conftest import BOUND_S

RECORDS = "/streams/s/records"
TAIL = "/streams/s/records/tail"
BINARY = AppendInput((AppendRecord(b"\xff\x00", (Header(b"\xfe", b""),)), AppendRecord(b"")))


def appended(*texts: str) -> bytes:
    return json_format.encode_append_input(bodies(*texts), Format.RAW)


async def append(http: httpx.AsyncClient, *texts: str) -> None:
    assert (await http.post(RECORDS, content=appended(*texts))).status_code == 200


async def refused(reply: httpx.Response) -> tuple[int, Any]:
    assert reply.headers["content-type"] == "application/json"
    body = reply.json()
    return reply.status_code, body.get("code", body)


async def test_both_versions_share_a_port(http: httpx.AsyncClient, version: str) -> None:
    reply = await http.get("/../health")
    assert (reply.status_code, reply.http_version, reply.text) == (200, version, "OK")


async def test_a_client_that_half_closes_is_answered(origin: RunningS2Origin) -> None:
    url = httpx.URL(origin.url)
    async with asyncio.timeout(BOUND_S):
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
        writer.write_eof()
        said = await reader.read()
        writer.close()
    assert said.startswith(b"HTTP/1.1 200 ")
    assert said.endswith(b"OK")


async def test_a_field_value_is_any_bytes(http: httpx.AsyncClient) -> None:
    assert (await http.get("/../health", headers={b"x": b"\xff"})).status_code == 200


async def test_connect_is_answered_as_any_other_unknown_call(origin: RunningS2Origin) -> None:
    """Over HTTP/2 it has neither a scheme nor a path (RFC 9113 section 8.5)."""
    url = httpx.URL(origin.url)
    async with asyncio.timeout(BOUND_S):
        reader, writer = await asyncio.open_connection(url.host, url.port)
        connect = request(1, [(":method", "CONNECT"), (":authority", "other:443")])
        writer.write(frames.PREFACE + NO_SETTINGS + connect + request(3, [*GET[:-1], (":path", "/health")]))
        decoder, statuses = Decoder(), dict[int, str]()
        while len(statuses) < 2:
            high, low, kind, _, stream_id = frames.read_head(await reader.readexactly(frames.HEAD_BYTES))
            payload = await reader.readexactly(high << 16 | low)
            if kind == frames.HEADERS:
                ((_, status), *_) = decoder.decode(payload)
                statuses[stream_id] = str(status)
        writer.close()
    assert statuses == {1: "404", 3: "200"}


@pytest.mark.parametrize("format_", Format)
async def test_json_carries_records_both_ways(http: httpx.AsyncClient, format_: Format) -> None:
    append_ = BINARY if format_ is Format.BASE64 else bodies("é\u2028", "")
    headers = {"s2-format": format_, "content-type": "application/json"}
    reply = await http.post(RECORDS, content=json_format.encode_append_input(append_, format_), headers=headers)
    assert json_format.decode_append_ack(reply.content).end.seq_num == 2

    read = await http.get(RECORDS, params={"seq_num": 0}, headers={"s2-format": format_})
    batch = json_format.decode_read_batch(read.content, format_)
    assert [(one.headers, one.body) for one in batch.records] == [(one.headers, one.body) for one in append_.records]


@pytest.mark.parametrize("media_type", ["application/protobuf", "application/x-protobuf"])
async def test_protobuf_carries_records_both_ways(http: httpx.AsyncClient, media_type: str) -> None:
    headers = {"content-type": media_type, "accept": media_type}
    reply = await http.post(RECORDS, content=protobuf.encode_append_input(BINARY), headers=headers)
    assert reply.headers["content-type"] == "application/protobuf"
    assert protobuf.decode_append_ack(reply.content).end.seq_num == 2

    read = await http.get(RECORDS, params={"seq_num": 0}, headers=headers)
    assert [one.body for one in protobuf.decode_read_batch(read.content).records] == [b"\xff\x00", b""]


async def test_each_error_has_its_status_and_body(http: httpx.AsyncClient, clock: ManualClock) -> None:
    await append(http, "a", "b")
    tail = {"seq_num": 2, "timestamp": int(clock.wall() * 1000)}

    async def read(query: str, path: str = RECORDS, **headers: str) -> tuple[int, Any]:
        return await refused(await http.get(f"{path}?{query}", headers=headers))

    async def write(content: bytes, path: str = RECORDS, **headers: str) -> tuple[int, Any]:
        return await refused(await http.post(path, content=content, headers=headers))

    assert await read("seq_num=2") == (416, {"tail": tail})
    assert await read("seq_num=9") == (416, {"tail": tail})
    assert await read("tail_offset=0&count=0") == (416, {"tail": tail})
    assert await read("seq_num=9&clamp=true") == (416, {"tail": tail})
    assert await read("seq_num=x") == (400, "bad_query")
    assert await read("seq_num=0&tail_offset=0") == (422, "invalid")
    assert await read("seq_num=0", "/streams/nothing/records") == (404, "stream_not_found")
    assert await read("seq_num=0", **{"s2-basin": "basin-without-name"}) == (404, "basin_not_found")
    assert await read("seq_num=0", **{"s2-basin": ""}) == (400, "bad_header")
    assert await read("seq_num=0", **{"s2-format": "hex"}) == (400, "bad_header")
    assert await read("seq_num=0", "/streams/%ff/records") == (400, "bad_path")
    assert await read("seq_num=0", accept="text/event-stream", **{"last-event-id": "1"}) == (400, "bad_header")
    assert await write(b"{") == (400, "bad_json")
    assert await write(b'{"records":[]}') == (422, "invalid")
    assert await write(b"\xff", **{"content-type": "application/protobuf"}) == (400, "bad_proto")
    assert await write(appended("c"), **{"content-encoding": "gzip"}) == (400, "bad_header")
    assert await write(appended("c"), **{"s2-stream-config": "[]"}) == (400, "bad_header")
    assert await write(b'{"records":[{}],"match_seq_num":7}') == (412, {"seq_num_mismatch": 2})
    assert await write(b'{"records":[{}],"fencing_token":"x"}') == (412, {"fencing_token_mismatch": ""})
    assert await write(b'{"stream":"s"}', "/streams") == (409, "resource_already_exists")
    assert (await http.get("/nothing")).status_code == 404
    assert (await http.put("/streams")).status_code == 405
    assert (await http.get(TAIL)).json() == {"tail": tail}


@pytest.mark.parametrize("path", ["/streams/a%2Fb%20c/records", "/streams/%C3%A9%3F/records"])
async def test_names_of_streams_may_hold_anything(http: httpx.AsyncClient, origin: RunningS2Origin, path: str) -> None:
    reply = await http.post(path, content=appended("x"))
    assert reply.status_code == 200
    assert set(origin.origin.account.basin(BASIN).streams) <= {"a/b c", "é?"}


async def test_bodies_are_compressed_either_way(http: httpx.AsyncClient) -> None:
    plain = appended("x" * 3_000)
    for coding, compressed in (("gzip", gzip.compress(plain)), ("zstd", zstandard.ZstdCompressor().compress(plain))):
        reply = await http.post(RECORDS, content=compressed, headers={"content-encoding": coding})
        assert reply.status_code == 200
        read = await http.get(RECORDS, params={"seq_num": 0}, headers={"accept-encoding": coding})
        assert read.headers["content-encoding"] == coding
        assert len(read.json()["records"][0]["body"]) == 3_000


async def test_a_body_over_the_limit_is_refused(http: httpx.AsyncClient) -> None:
    too_large = gzip.compress(bytes(9 * 1024 * 1024))
    reply = await http.post(RECORDS, content=too_large, headers={"content-encoding": "gzip"})
    assert await refused(reply) == (422, "invalid")


async def test_a_read_waits_for_a_record(http: httpx.AsyncClient, origin: RunningS2Origin) -> None:
    await append(http, "a")
    waiting = asyncio.create_task(http.get(RECORDS, params={"seq_num": 1, "wait": 60}))
    await origin.origin.counters.parked_is(1)
    await append(http, "b")
    assert [record["body"] for record in (await waiting).json()["records"]] == ["b"]


async def test_a_read_waits_no_longer_than_it_says(
    http: httpx.AsyncClient, origin: RunningS2Origin, clock: ManualClock
) -> None:
    await append(http, "a")
    waiting = asyncio.create_task(http.get(RECORDS, params={"seq_num": 1, "wait": 600}))
    await origin.origin.counters.parked_is(1)
    clock.advance(60)
    batch = (await waiting).json()
    assert (batch["records"], batch["tail"]["seq_num"]) == ([], 1)


async def test_a_stream_that_is_created_again_starts_at_zero(http: httpx.AsyncClient) -> None:
    await append(http, "a")
    assert (await http.delete("/streams/s")).status_code == 202
    assert (await http.get(TAIL)).status_code == 404
    assert (await http.post("/streams", json={"stream": "s"})).status_code == 201
    assert (await http.get(TAIL)).json()["tail"] == {"seq_num": 0, "timestamp": 0}


async def test_retention_follows_the_clock(http: httpx.AsyncClient, clock: ManualClock) -> None:
    await http.post("/streams", json={"stream": "s", "config": {"retention_policy": {"age": 100}}})
    await append(http, "a")
    clock.advance(50)
    await append(http, "b")
    clock.advance(50)
    read = await http.get(RECORDS, params={"seq_num": 0})
    assert [record["body"] for record in read.json()["records"]] == ["b"]


async def test_counters_count_each_record_as_often_as_it_is_sent(
    http: httpx.AsyncClient, origin: RunningS2Origin
) -> None:
    counters = origin.origin.counters
    await append(http, "a", "b")
    for _ in range(3):
        await http.get(RECORDS, params={"seq_num": 0})
    await http.get(TAIL)

    assert (counters.requests[Call.APPEND], counters.requests[Call.READ], counters.requests[Call.CHECK_TAIL]) == (
        1,
        3,
        1,
    )
    assert (counters.records_appended, counters.records_sent[Call.READ], counters.total_records_sent) == (2, 6, 6)
    counters.reset()
    assert (counters.total_requests, counters.total_records_sent) == (0, 0)


async def test_faults_answer_hold_and_reset(http: httpx.AsyncClient, origin: RunningS2Origin) -> None:
    faults = origin.origin.faults
    await append(http, "a")
    faults.error(S2ErrorCode.RATE_LIMITED, kind=Call.READ)
    assert await refused(await http.get(RECORDS, params={"seq_num": 0})) == (429, "rate_limited")

    held = faults.hold(kind=Call.CHECK_TAIL)
    checking = asyncio.create_task(http.get(TAIL))
    await held.waiting(1)
    await append(http, "b")
    held.release()
    assert (await checking).json()["tail"]["seq_num"] == 2

    faults.refuse(kind=Call.CHECK_TAIL)
    with pytest.raises(httpx.TransportError):
        await http.get(TAIL)
    assert (await http.get(TAIL)).status_code == 200

    for cut in (faults.drop, faults.truncate):
        cut(10, kind=Call.CHECK_TAIL)
        with pytest.raises(httpx.TransportError):
            await http.get(TAIL)
        assert (await http.get(TAIL)).status_code == 200
    with pytest.raises(ValueError, match="raw"):
        faults.raw(b"")


async def test_a_refusal_is_cut_like_any_answer(
    http: httpx.AsyncClient, origin: RunningS2Origin, caplog: pytest.LogCaptureFixture
) -> None:
    await append(http, "a")
    origin.origin.faults.drop(10, kind=Call.READ)
    with pytest.raises(httpx.TransportError):
        await http.get(RECORDS, params={"seq_num": 1})
    assert (await http.get(RECORDS, params={"seq_num": 1})).status_code == 416
    assert caplog.records == []


async def test_a_reply_is_held_after_its_decision(http: httpx.AsyncClient, origin: RunningS2Origin) -> None:
    await append(http, "a")
    held = origin.origin.faults.hold(kind=Call.READ, when="reply")
    reading = asyncio.create_task(http.get(RECORDS, params={"seq_num": 0}))
    await held.waiting(1)
    await append(http, "b")
    held.release()
    assert [record["body"] for record in (await reading).json()["records"]] == ["a"]


async def test_hundreds_of_requests_at_once(http: httpx.AsyncClient) -> None:
    await append(http, *map(str, range(300)))
    async with asyncio.timeout(BOUND_S):
        reads = await asyncio.gather(*(http.get(RECORDS, params={"seq_num": n}) for n in range(200)))
    assert [len(read.json()["records"]) for read in reads] == [300 - n for n in range(200)]


async def test_what_is_no_http_is_refused(origin: RunningS2Origin) -> None:
    for nonsense in (b"GET / HTTP/1.1\r\nbad header\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(40)):
        reader, writer = await asyncio.open_connection("127.0.0.1", origin.port)
        writer.write(nonsense)
        async with asyncio.timeout(BOUND_S):
            answer = await reader.read()
        assert answer.startswith((b"HTTP/1.1 400", b"\x00"))
        writer.close()
    assert origin.origin.counters.total_requests == 0

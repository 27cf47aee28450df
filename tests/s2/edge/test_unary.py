"""Unary reads through the gateway: what is answered from memory, and what the origin is asked for."""

from __future__ import annotations

import asyncio

import pytest

from gateway.origin.s2.calls import Call
from gateway.s2 import protobuf
from tests.s2.edge.clients import Edge
from tests.waiting import eventually

RELAYED = 'durable-gateway; fwd=bypass; fwd-status=200; detail="Vary: Origin"'


async def test_a_closed_range_is_fetched_once(edge: Edge) -> None:
    await edge.client.append(*"abcdef")
    counters = edge.counters
    counters.reset()
    for _ in range(3):
        answer = await edge.client.read("seq_num=1&count=3")
        assert answer.texts == ["b", "c", "d"]
    assert counters.requests[Call.READ] == 1
    assert counters.total_records_sent == 3
    assert (await edge.client.read("seq_num=2&count=2")).headers["Cache-Status"].endswith("; hit")
    assert counters.total_requests == 1


async def test_a_read_of_held_records_that_has_asked_for_the_tail_asks_nothing_more(edge: Edge) -> None:
    await edge.client.append(*"abcdef")
    await edge.client.read("seq_num=0&count=6")
    counters = edge.counters
    counters.reset()
    assert (await edge.client.read("tail_offset=2")).texts == ["e", "f"]
    assert counters.total_requests == 1


async def test_answers_are_those_of_the_origin(edge: Edge) -> None:
    await edge.client.append("a", "b", timestamp=10)
    await edge.client.append("c", "d", "e", timestamp=20)
    for _ in range(3):
        for query in (
            "seq_num=0",
            "seq_num=0&count=2",
            "seq_num=1&bytes=20",
            "seq_num=1&bytes=18",
            "seq_num=1&bytes=4",
            "seq_num=0&until=20",
            "seq_num=0&until=21",
            "seq_num=2&until=5",
            "seq_num=5",
            "seq_num=5&clamp=true",
            "seq_num=6",
            "seq_num=6&clamp=true",
            "timestamp=0",
            "timestamp=10&count=1",
            "timestamp=11",
            "timestamp=20&count=2",
            "timestamp=21",
            "timestamp=21&clamp=true",
            "tail_offset=0",
            "tail_offset=2",
            "tail_offset=9&count=3",
            "",
            "count=0&seq_num=0",
            "seq_num=0&timestamp=0",
            "seq_num=x",
            "timestamp=20&until=20",
        ):
            for headers in ({}, {"Accept": "application/protobuf"}, {"s2_format": "base64"}):
                direct = await edge.direct.read(query, **headers)
                through = await edge.client.read(query, **headers)
                assert (through.status, through.body) == (direct.status, direct.body), (query, headers)
                assert through.headers["Content-Type"] == direct.headers["Content-Type"]


async def test_a_read_sees_what_was_appended_before_it(edge: Edge) -> None:
    for count in range(1, 6):
        await edge.direct.append(str(count))
        assert len((await edge.client.read()).texts) == count
        assert (await edge.client.tail()).json["tail"]["seq_num"] == count  # type: ignore[index]
        assert (await edge.client.read(f"seq_num={count}")).json["tail"]["seq_num"] == count  # type: ignore[index]


async def test_200_readers_of_a_cold_range_fetch_each_record_once(edge: Edge) -> None:
    for _ in range(4):
        await edge.client.append(*(f"{number}" for number in range(500)))
    counters = edge.counters
    counters.reset()
    gate = edge.faults.hold(kind=Call.READ)
    queries = [f"seq_num={start}&count={count}" for start in (0, 100, 900) for count in (50, 500, 1_000)]
    reads = [asyncio.ensure_future(edge.client.read(queries[number % len(queries)])) for number in range(200)]
    # Requests arrive in any order, and a fetch that begins first may cover the ranges of all others.
    await eventually(lambda: edge.gateway.connections == 200)
    await gate.waiting(1)
    gate.release()
    for number, answer in enumerate(await asyncio.gather(*reads)):
        count = int(queries[number % len(queries)].rpartition("=")[2])
        assert len(answer.texts) == count
    assert counters.total_records_sent <= 1_900 + 1_000
    counters.reset()
    again = await asyncio.gather(*(edge.client.read(query) for query in queries))
    assert [len(answer.texts) for answer in again] == [50, 500, 1_000] * 3
    assert counters.total_requests == 0


async def test_readers_of_one_range_share_one_fetch(edge: Edge) -> None:
    await edge.client.append(*"abcdef")
    counters = edge.counters
    counters.reset()
    gate = edge.faults.hold(kind=Call.READ)
    reads = [asyncio.ensure_future(edge.client.read("seq_num=0&count=6")) for _ in range(200)]
    await gate.waiting(1)
    gate.release()
    assert all(answer.texts == list("abcdef") for answer in await asyncio.gather(*reads))
    assert counters.total_records_sent == 6


async def test_the_origin_fails_and_what_is_held_is_still_served(edge: Edge) -> None:
    await edge.client.append(*"abc")
    await edge.client.read("seq_num=0&count=2")
    edge.faults.replace(503, {}, b"no", times=None, kind=Call.READ)
    assert (await edge.client.read("seq_num=0&count=2")).texts == ["a", "b"]
    assert (await edge.client.read("seq_num=0&count=3")).status == 503


async def test_a_read_at_the_tail_waits_for_a_record(edge: Edge) -> None:
    await edge.client.append("a")
    waiting = [asyncio.ensure_future(edge.client.read("seq_num=1&wait=30")) for _ in range(20)]
    await edge.counters.sessions_are(Call.READ_SESSION, 1)
    await edge.client.append("b", "c")
    for answer in await asyncio.gather(*waiting):
        assert answer.texts == ["b", "c"]
    assert edge.counters.sessions_peak[Call.READ_SESSION] == 1


async def test_a_wait_that_passes_is_answered_with_no_records(edge: Edge) -> None:
    await edge.client.append("a")
    waiting = asyncio.ensure_future(edge.client.read("seq_num=1&wait=7"))
    await edge.counters.sessions_are(Call.READ_SESSION, 1)
    edge.clock.advance(8)
    answer = await waiting
    assert answer.json["records"] == []
    assert answer.json["tail"]["seq_num"] == 1  # type: ignore[index]


class TestScripts:
    @pytest.fixture
    def settings(self) -> dict[str, object]:
        return {"cors": {"allow_origins": ["https://app.example"]}}

    async def test_scripts_may_send_s2s_headers(self, edge: Edge) -> None:
        await edge.client.append("a")
        asked = {"Origin": "https://app.example", "Access-Control-Request-Method": "PATCH"}
        preflight = await edge.client.send("OPTIONS", "/v1/streams/s/records", **asked)
        assert preflight.status == 204
        allowed = preflight.headers["Access-Control-Allow-Headers"].lower().split(", ")
        assert {"authorization", "s2-basin", "s2-format", "s2-encryption-key", "last-event-id"} <= set(allowed)
        assert "PATCH" in preflight.headers["Access-Control-Allow-Methods"]
        answer = await edge.client.read("seq_num=0&count=1", Origin="https://app.example")
        events = await edge.client.events("seq_num=0&count=1", Origin="https://app.example")
        for headers in (answer.headers, events.reply.headers):
            assert headers["Access-Control-Allow-Origin"] == "https://app.example"
        await events.rest()


async def test_reads_of_pages_have_the_origins_cors_fields_unless_the_gateway_has_its_own(edge: Edge) -> None:
    await edge.client.append("a")
    await edge.client.read("seq_num=0&count=1")
    page = {"Origin": "https://app.example"}
    for _ in range(2):
        events = await edge.client.events("seq_num=0&count=1", **page)
        answers = (await edge.client.read("seq_num=0&count=1", **page), await edge.client.tail(**page), events.reply)
        assert [(one.status, one.headers["Cache-Status"]) for one in answers] == [(200, RELAYED)] * 3
        await events.rest()
    assert "hit" in (await edge.client.read("seq_num=0&count=1")).headers["Cache-Status"]


async def test_formats_share_the_tape(edge: Edge) -> None:
    await edge.client.append("a", "b")
    await edge.client.read("seq_num=0&count=2")
    edge.counters.reset()
    answer = await edge.client.read("seq_num=0&count=2", Accept="application/x-protobuf")
    assert [record.body for record in protobuf.decode_read_batch(answer.body).records] == [b"a", b"b"]
    assert (await edge.client.read("seq_num=0&count=2", s2_format="base64")).texts == ["YQ==", "Yg=="]
    assert edge.counters.total_requests == 0

"""What an S2 origin or a client of one can make grow, or last, has a bound."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest
from s2_sdk import S2, AppendInput, Endpoints, Record

from gateway.engine.s2.streams import PAUSES_S
from gateway.origin.s2.calls import Call
from gateway.s2.errors import S2ErrorCode
from gateway.s2.records import ReadBatch
from gateway.s2.session import Terminal
from gateway.server import relaying
from gateway.upstream import s2_client
from tests.s2.edge.clients import BASIN, BOUND_S, Client, Edge, SessionReader, SseReader
from tests.waiting import eventually, time_passing


async def test_a_batch_that_is_too_large_is_refused(edge: Edge) -> None:
    await edge.client.append("a")
    edge.faults.replace(200, {"content-type": "application/protobuf"}, bytes(4 * 1024 * 1024 + 1), kind=Call.READ)
    assert (await edge.client.read()).status == 502
    assert (await edge.client.read()).texts == ["a"]


@pytest.mark.parametrize("body", [b"\xff\xff", b""], ids=["broken", "empty"])
async def test_a_batch_that_is_not_one_is_refused(edge: Edge, body: bytes) -> None:
    await edge.client.append("a")
    edge.faults.replace(200, {}, body, kind=Call.READ, times=1)
    assert (await edge.client.read("seq_num=0&count=1")).status in ((502,) if body else (200,))
    assert (await edge.client.read("seq_num=0&count=1")).texts == ["a"]


async def test_a_session_at_the_origin_that_falls_silent_is_opened_again(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s2_client, "SILENCE_S", 0.2)
    await edge.client.append("a")
    edge.faults.stall(after_bytes=0, kind=Call.READ_SESSION)
    session = await edge.client.session("seq_num=1")
    assert isinstance(await session.next(), ReadBatch)
    async with asyncio.timeout(BOUND_S):
        await edge.counters.reached(Call.READ_SESSION, 2)
    await edge.client.append("b")
    assert await session.texts(1) == ["b"]
    session.close()


async def test_nothing_is_fetched_while_the_process_is_short_of_memory(edge: Edge) -> None:
    await edge.client.append(*"abc", timestamp=5)
    assert (await edge.client.read("seq_num=0&count=1")).texts == ["a"]
    edge.counters.reset()
    edge.gateway.engine.store.may_grow = False
    for query in ("seq_num=1", "seq_num=1&count=1", "timestamp=6&count=3", "tail_offset=1"):
        answer = await edge.client.read(query)
        assert (answer.status, "Retry-After" in answer.headers) == (503, True), query
        assert await edge.client.status(query) == 503
        assert await edge.client.events_status(query) == 503
    assert edge.counters.total_records_sent == 0
    assert (await edge.client.read("seq_num=0&count=1")).texts == ["a"]
    assert (await edge.client.tail()).status == 200
    edge.gateway.engine.store.may_grow = True
    assert (await edge.client.read("seq_num=1&count=1")).texts == ["b"]


@pytest.mark.parametrize("how", ["events", "base64 events", "session"])
async def test_readers_of_a_large_record_share_its_bytes(edge: Edge, slow_client: Client, how: str) -> None:
    await edge.client.append("")
    readers: list[SseReader | SessionReader] = []
    for _ in range(30):
        form = {"s2_format": "base64"} if how.startswith("base64") else {}
        opened = await (slow_client.session() if how == "session" else slow_client.events(**form))
        assert len(await opened.texts(1)) == 1
        readers.append(opened)
    await edge.counters.sessions_are(Call.READ_SESSION, 1)
    await eventually(lambda: "catching up" not in repr(edge.gateway.engine.s2.readers))
    tracemalloc.start()
    try:
        await edge.direct.append("x" * 1_000_000)
        await eventually(lambda: all(reader.at == 2 for reader in edge.gateway.engine.s2.readers))
        # The clients have not read it, so it waits for all of them.
        assert tracemalloc.get_traced_memory()[0] < 15 * 1_000_000
    finally:
        tracemalloc.stop()
    for reader in readers:
        assert len(await reader.texts(1)) == 1
        reader.close()


@pytest.mark.parametrize("how", ["session", "events"])
async def test_sessions_that_are_not_read_hold_little_and_count_whole(
    edge: Edge, slow_client: Client, how: str
) -> None:
    texts = [f"{number}" + "x" * 100_000 for number in range(30)]
    for begin in range(0, len(texts), 10):
        await edge.client.append(*texts[begin : begin + 10])
    opened = slow_client.session if how == "session" else slow_client.events
    full = await edge.client.session("seq_num=0&count=30")
    assert await full.texts(30) == texts
    readers: list[SseReader | SessionReader] = []
    tracemalloc.start()
    try:
        readers += [await opened(f"seq_num={start}&count=14") for start in range(16)]
        await eventually(lambda: all(wire_is_full(edge)))
        held, _ = tracemalloc.get_traced_memory()
        await edge.gateway.memory.look()
        counted = edge.gateway.memory.client_bytes
    finally:
        tracemalloc.stop()
    # For each of them: bytes written and not sent, one batch, and the bytes that the test's own client has received.
    assert held < 16 * 950_000
    unsent, _ = edge.gateway.clients.unsent()
    assert unsent < counted < unsent + 16 * 300_000
    for start, reader in enumerate(readers):
        assert await reader.texts(14) == texts[start : start + 14]
        reader.close()


def wire_is_full(edge: Edge) -> list[bool]:
    """Of each session, whether its client has left as much unread as may wait."""
    return [reader._wire.is_full for reader in edge.gateway.engine.s2.readers]


async def test_a_stream_is_given_up_after_so_many_attempts(edge: Edge) -> None:
    await edge.client.append("a")
    session = await edge.client.session("seq_num=1")
    assert isinstance(await session.next(), ReadBatch)
    await edge.counters.sessions_are(Call.READ_SESSION, 1)
    edge.counters.reset()
    edge.faults.error(S2ErrorCode.UNAVAILABLE, times=None, kind=Call.READ_SESSION)
    edge.origin.cut_connections()
    async with time_passing(edge.clock):
        end = await session.next()
    assert isinstance(end, Terminal)
    assert end.status == 503
    assert edge.counters.requests[Call.READ_SESSION] == len(PAUSES_S)
    # The next reader is a new beginning, once the origin is asked again.
    edge.faults.clear()
    async with asyncio.timeout(BOUND_S), time_passing(edge.clock):
        while (again := await edge.client.session("seq_num=1")).status != 200:
            again.close()
    assert isinstance(await again.next(), ReadBatch)
    await edge.counters.sessions_are(Call.READ_SESSION, 1)
    again.close()


class TestIdleAppendSession:
    @pytest.fixture
    def settings(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
        monkeypatch.setattr(relaying, "SESSION_IDLE_S", 0.2)
        return {"origin_http": "2"}

    async def test_an_append_session_may_be_idle_for_so_long(self, edge: Edge) -> None:
        url = edge.gateway.gateway_url
        async with asyncio.timeout(BOUND_S), S2("token", endpoints=Endpoints(account=url, basin=url)) as s2:
            session = s2.basin(BASIN).stream("s").append_session()
            await (await session.submit(AppendInput(records=[Record(body=b"x")])))
            await edge.counters.sessions_are(Call.APPEND_SESSION, 0)


class TestNewStreams:
    @pytest.fixture
    def settings(self) -> dict[str, object]:
        return {"client_new_streams_per_s": 1}

    async def test_a_net_reads_new_streams_at_a_bounded_rate(self, edge: Edge) -> None:
        for stream in "abcd":
            await edge.direct.append("x", stream=stream)
        assert (await edge.client.read("seq_num=0&count=1", stream="a")).status == 200
        assert (await edge.client.tail(stream="b")).status == 200
        refused = await edge.client.read("seq_num=0", stream="c")
        assert (refused.status, refused.json["code"]) == (429, "rate_limited")
        assert int(refused.headers["Retry-After"]) >= 1
        assert (await edge.client.events(stream="c")).status == 429
        # What is in memory may be read.
        assert (await edge.client.read("seq_num=0&count=1", stream="a")).status == 200
        edge.clock.advance(1.0)
        assert (await edge.client.session(stream="d")).status == 200
        assert (await edge.client.tail(stream="c")).status == 429
        exposition = edge.gateway.metrics.exposition()[0].decode()
        assert 'durable_gateway_client_limited_total{limit="client_new_streams_per_s"} 3' in exposition


class TestMissingStreams:
    @pytest.fixture
    def settings(self) -> dict[str, object]:
        return {"absent_per_s": 10, "client_new_streams_per_s": 0}

    async def test_a_flood_of_unknown_names_costs_the_origin_a_bounded_rate(self, edge: Edge) -> None:
        await edge.client.append("x")
        assert (await edge.client.read("seq_num=0&count=1")).status == 200
        edge.counters.reset()
        statuses = [(await edge.client.read(stream=f"unknown-{number}")).status for number in range(40)]
        # Of five seconds' worth, one client leaves half to others.
        assert statuses == [404] * 25 + [503] * 15
        refused = await edge.client.tail(stream="unknown-40")
        assert (refused.status, refused.json["code"]) == (503, "unavailable")
        assert edge.counters.requests[Call.READ] == 25
        assert edge.counters.requests[Call.CHECK_TAIL] == 0
        # What is in memory is read, and what is written exists.
        assert (await edge.client.read("seq_num=0&count=1")).status == 200
        await edge.client.append("x", stream="new")
        edge.clock.advance(1.0)
        assert (await edge.client.read(stream="new")).status == 200
        more = [(await edge.client.read(stream=f"more-{number}")).status for number in range(12)]
        assert more == [404] * 10 + [503] * 2

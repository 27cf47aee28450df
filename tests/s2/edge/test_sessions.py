"""Live reads through the gateway: one session at the origin for all, whatever their format."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import cycle
from urllib.parse import unquote

import pytest
from s2_sdk import S2, Endpoints, ReadSession, SeqNum

from gateway.origin.s2.calls import Call
from gateway.s2.records import ReadBatch, StreamPosition
from gateway.s2.session import Terminal
from gateway.s2.sse import Done, Failure, Ping
from tests.s2.edge.clients import BASIN, STREAM, Client, Edge, SessionReader, SseReader
from tests.waiting import eventually


async def _close(session: ReadSession) -> None:
    """Close an SDK's session.  On Python 3.11 `asyncio.wait_for` may lose the cancellation by which that is done: then
    it is tried again."""
    while True:
        try:
            async with asyncio.timeout(1.0):
                return await session.close()
        except TimeoutError:
            pass


async def test_500_followers_in_mixed_transports_are_one_session_at_the_origin(edge: Edge) -> None:
    """HTTP/1.1 and HTTP/2, SSE and sessions, each in all its formats, and reads that wait."""
    await edge.client.append("a")
    formats = cycle(["sse", "base64", "s2s", "zstd", "gzip"])

    async def follower(kind: str) -> SseReader | SessionReader:
        if kind == "sse":
            return await edge.client.events()
        if kind == "base64":
            return await edge.client.events("seq_num=1")
        return await edge.client.session(**({} if kind == "s2s" else {"Accept-Encoding": kind}))

    kinds = [next(formats) for _ in range(400)]
    readers = await asyncio.gather(*map(follower, kinds))
    url = edge.gateway.gateway_url
    s2 = S2("token", endpoints=Endpoints(account=url, basin=url))
    sessions = [s2.basin(BASIN).stream(unquote(STREAM)).read_session(start=SeqNum(0)) for _ in range(100)]
    over_http2 = await asyncio.gather(*(session.__aenter__() for session in sessions))

    async def texts(session: ReadSession) -> list[str]:
        found: list[str] = []
        while len(found) < 2:
            found += [record.body.decode() for record in (await anext(session)).records]
        return found

    following = [asyncio.ensure_future(texts(session)) for session in over_http2]
    waiting = [asyncio.ensure_future(edge.client.read("seq_num=1&wait=60")) for _ in range(20)]
    await edge.counters.sessions_are(Call.READ_SESSION, 1)
    for _ in range(10):
        await asyncio.sleep(0)
    big = "b" * 5_000
    await edge.client.append(big)
    for kind, reader in zip(kinds, readers, strict=True):
        assert await reader.texts(1 if kind == "base64" else 2) == ([big] if kind == "base64" else ["a", big])
    for answer in await asyncio.gather(*waiting):
        assert answer.texts == [big]
    assert await asyncio.gather(*following) == [["a", big]] * 100
    assert edge.counters.sessions_peak[Call.READ_SESSION] == 1
    assert edge.counters.requests[Call.READ_EVENTS] == 0
    # The session begins with the record before the tail.
    assert edge.counters.records_sent[Call.READ_SESSION] == 2
    for reader in readers:
        reader.close()
    for session in sessions:
        await _close(session)
    await s2.close()


async def test_a_session_catches_up_then_follows(edge: Edge) -> None:
    for start in range(0, 3_000, 1_000):
        await edge.client.append(*(str(number) for number in range(start, start + 1_000)))
    reader = await edge.client.session()
    assert await reader.texts(3_000) == [str(number) for number in range(3_000)]
    beat = await reader.next()
    assert isinstance(beat, ReadBatch)
    assert beat.tail is not None
    assert beat.tail.seq_num == 3_000
    await edge.client.append("next")
    assert await reader.texts(1) == ["next"]
    reader.close()


async def test_sse_ids_count_what_this_response_has_sent(edge: Edge) -> None:
    await edge.client.append("a", "b")
    first = await edge.client.events("seq_num=0")
    second = await edge.client.events("seq_num=1")
    assert str((await first.batch()).id) == "1,2,18"
    assert str((await second.batch()).id) == "1,1,9"
    assert isinstance(await first.next(), Ping)
    assert isinstance(await second.next(), Ping)
    await edge.client.append("c")
    assert str((await first.batch()).id) == "2,3,27"
    assert str((await second.batch()).id) == "2,2,18"
    resumed = await edge.client.events("seq_num=0&count=4", **{"Last-Event-ID": "1,2,18"})
    assert str((await resumed.batch()).id) == "2,1,9"
    for reader in (first, second, resumed):
        reader.close()


async def test_limits_end_a_session_in_order(edge: Edge) -> None:
    await edge.client.append(*"abc", timestamp=1)
    await edge.client.append(*"de", timestamp=5)
    sse = await edge.client.events("seq_num=0&count=2")
    assert (await sse.texts(2), await sse.rest()) == (["a", "b"], [Done()])
    session = await edge.client.session("seq_num=0&until=5")
    assert (await session.texts(3), await session.next()) == (["a", "b", "c"], None)
    bounded = await edge.client.session("seq_num=3&count=10")
    assert (await bounded.texts(2), await bounded.next()) == (["d", "e"], None)


async def test_limits_hold_for_what_comes_live(edge: Edge) -> None:
    await edge.client.append("a")
    sse = await edge.client.events("seq_num=0&count=3&wait=60")
    assert await sse.texts(1) == ["a"]
    assert isinstance(await sse.next(), Ping)
    await edge.client.append(*"bcd")
    assert (await sse.texts(2), await sse.rest()) == (["b", "c"], [Done()])


async def test_a_wait_ends_a_session_in_order(edge: Edge) -> None:
    await edge.client.append("a")
    session = await edge.client.session("seq_num=0&wait=7")
    assert await session.texts(1) == ["a"]
    assert isinstance(await session.next(), ReadBatch)
    edge.clock.advance(6)
    await edge.client.append("b")
    assert await session.texts(1) == ["b"]
    edge.clock.advance(6)
    await edge.client.append("c")
    assert await session.texts(1) == ["c"]
    edge.clock.advance(8)
    assert await session.next() is None


async def test_a_session_that_starts_beyond_the_tail_is_refused(edge: Edge) -> None:
    await edge.client.append("a")
    assert (await edge.client.session("seq_num=2")).status == 416
    assert (await edge.client.events("seq_num=1&count=1")).status == 416
    clamped = await edge.client.session("seq_num=9&clamp=true")
    beat = await clamped.next()
    assert isinstance(beat, ReadBatch)
    assert beat.tail is not None
    assert beat.tail.seq_num == 1
    await edge.client.append("b")
    assert await clamped.texts(1) == ["b"]
    clamped.close()


async def test_a_session_without_limits_that_does_not_wait_ends_at_the_tail(edge: Edge) -> None:
    """S2 refuses a start at the tail only where a limit says that the read wants records."""
    await edge.client.append("a")
    for start, texts in (("seq_num=0", ["a"]), ("seq_num=1", []), ("tail_offset=0", []), ("seq_num=9&clamp=true", [])):
        session = await edge.client.session(f"{start}&wait=0")
        assert session.status == 200
        assert await session.texts(len(texts)) == texts
        assert await session.next() is None
        events = await edge.client.events(f"{start}&wait=0")
        assert (await events.rest())[-1] == Done()
    for limited in ("seq_num=1&wait=0&count=1", "seq_num=1&until=9"):
        assert (await edge.client.session(limited)).status == 416
    assert edge.counters.requests[Call.READ_SESSION] == 0
    assert edge.gateway.engine.s2.sessions == 0


async def test_a_stream_that_is_not_there_is_said_by_the_origin(edge: Edge) -> None:
    for reader in (await edge.client.session(), await edge.client.events()):
        assert reader.status == 404
    assert (await edge.client.read()).json["code"] == "stream_not_found"


async def test_an_idle_session_is_sent_heartbeats(edge: Edge) -> None:
    await edge.client.append("a")
    session, sse = await edge.client.session("seq_num=1"), await edge.client.events("seq_num=1")
    await edge.counters.sessions_are(Call.READ_SESSION, 1)
    for _ in range(3):
        beat, ping = await session.next(), await sse.next()
        assert isinstance(beat, ReadBatch)
        assert isinstance(ping, Ping)
        assert beat.tail == ping.tail
        assert beat.tail is not None
        assert beat.tail.seq_num == 1
        edge.clock.advance(5)
        edge.clock.advance(5)
    session.close()
    sse.close()


async def test_the_session_at_the_origin_ends_some_time_after_the_last_reader(edge: Edge) -> None:
    await edge.client.append("a")
    reader = await edge.client.session()
    assert await reader.texts(1) == ["a"]
    await edge.counters.sessions_are(Call.READ_SESSION, 1)
    reader.close()
    await eventually(lambda: edge.gateway.engine.s2.sessions == 0)
    edge.clock.advance(5)
    await edge.counters.sessions_are(Call.READ_SESSION, 0)
    assert "0 in use" in repr(edge.gateway.engine.s2)


async def test_a_drain_ends_sessions_with_an_error(edge: Edge) -> None:
    await edge.client.append("a")
    session, sse = await edge.client.session(), await edge.client.events()
    assert await session.texts(1) == await sse.texts(1) == ["a"]
    assert isinstance(await session.next(), ReadBatch)
    assert isinstance(await sse.next(), Ping)
    edge.gateway.drain()
    edge.clock.advance(2)
    end = await session.next()
    assert isinstance(end, Terminal)
    assert end.status == 503
    assert b"server_draining" in end.body
    (failure,) = await sse.rest()
    assert isinstance(failure, Failure)
    assert b"server_draining" in failure.body


async def test_a_drain_ends_no_session_and_no_waiting_read_of_another_worker(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = edge.gateway.engine.s2
    for name in ("start_session", "unary"):
        method = getattr(reads, name)
        monkeypatch.setattr(reads, name, lambda read, *rest, to=method: to(replace(read, is_handed=True), *rest))
    await edge.client.append("a")
    session = await edge.client.session()
    assert await session.texts(1) == ["a"]
    waiting = asyncio.ensure_future(edge.client.read("seq_num=1&wait=60"))
    await eventually(lambda: "1 followed" in repr(reads.streams))
    edge.gateway.drain()
    later = await edge.client.session()
    assert await later.texts(1) == ["a"]
    edge.clock.advance(2)
    await edge.direct.append("b")
    assert await session.texts(1) == await later.texts(1) == (await waiting).texts == ["b"]


async def test_a_client_that_does_not_read_goes_on_from_the_tape(edge: Edge, slow_client: Client) -> None:
    await edge.client.append("first")
    slow, quick = await slow_client.session(), await edge.client.session()
    assert await quick.texts(1) == ["first"]
    sent = []
    for number in range(40):
        text = f"{number}" + "x" * 500_000
        sent.append(text)
        await edge.client.append(text)
        assert await quick.texts(1) == [text]
    positions = [reader.at for reader in edge.gateway.engine.s2.readers]
    assert min(positions) < max(positions) == 41
    assert await slow.texts(41) == ["first", *sent]
    assert edge.counters.sessions_peak[Call.READ_SESSION] == 1
    slow.close()
    quick.close()


async def test_a_wait_does_not_pass_before_a_client_has_read_what_came(edge: Edge, slow_client: Client) -> None:
    await edge.client.append("first")
    slow = await slow_client.session("seq_num=0&wait=7")
    assert await slow.texts(1) == ["first"]
    await edge.counters.sessions_are(Call.READ_SESSION, 1)
    sent = [f"{number}" + "x" * 500_000 for number in range(20)]
    for text in sent:
        await edge.client.append(text)
    await eventually(lambda: all(one.topic.position == 21 for one in edge.gateway.engine.s2.streams if one.topic))
    (reader,) = edge.gateway.engine.s2.readers
    assert reader.at < 21
    for _ in range(3):
        edge.clock.advance(8)
    assert await slow.texts(20) == sent
    edge.clock.advance(8)
    while isinstance(end := await slow.next(), ReadBatch):
        assert not end.records
    assert end is None


async def test_a_reader_ahead_of_the_session_at_the_origin_is_sent_nothing_twice(edge: Edge) -> None:
    await edge.client.append("a")
    stalled = edge.faults.stall(after_bytes=20, kind=Call.READ_SESSION)
    first = await edge.client.session("seq_num=1")
    assert isinstance(await first.next(), ReadBatch)
    await edge.counters.sessions_are(Call.READ_SESSION, 1)
    await edge.direct.append("b")
    await stalled.waiting(1)
    # The session has not brought the second record, which this reader is given by a read.
    second, sse = await edge.client.session("seq_num=0"), await edge.client.events("seq_num=0")
    assert await second.texts(2) == await sse.texts(2) == ["a", "b"]
    stalled.release()
    assert await first.texts(1) == ["b"]
    await edge.direct.append("c")
    assert await first.texts(1) == await second.texts(1) == await sse.texts(1) == ["c"]
    for reader in (first, second, sse):
        reader.close()


@pytest.mark.parametrize("is_sse", [False, True])
async def test_a_session_is_not_given_the_tail_of_before_its_request(edge: Edge, is_sse: bool) -> None:
    await edge.client.append("a", timestamp=5)
    stalled = edge.faults.stall(after_bytes=20, kind=Call.READ_SESSION)
    first = await edge.client.session("seq_num=1")
    assert (await first.next()) == ReadBatch((), StreamPosition(1, 5))
    await edge.counters.sessions_are(Call.READ_SESSION, 1)
    assert (await edge.client.read("seq_num=0")).texts == ["a"]
    await edge.client.append("b")
    await stalled.waiting(1)
    # To the gateway's session at the origin the stream still ends after the first record.
    if is_sse:
        events = await edge.client.events("seq_num=0")
        begun = (await events.batch()).batch
        events.close()
    else:
        second = await edge.client.session("seq_num=0")
        message = await second.next()
        assert isinstance(message, ReadBatch)
        begun = message
        second.close()
    assert [record.body for record in begun.records] == [b"a"]
    assert begun.tail is None
    stalled.release()
    first.close()


async def test_a_tail_position_is_said_with_what_comes_live(edge: Edge) -> None:
    await edge.client.append("a", timestamp=5)
    session = await edge.client.session("seq_num=1")
    assert (await session.next()) == ReadBatch((), StreamPosition(1, 5))
    await edge.client.append("b", timestamp=7)
    batch = await session.next()
    assert isinstance(batch, ReadBatch)
    assert batch.tail == StreamPosition(2, 7)
    session.close()


async def test_a_drain_answers_reads_that_wait(edge: Edge) -> None:
    await edge.client.append("a")
    waiting = asyncio.ensure_future(edge.client.read("seq_num=1&wait=60"))
    await edge.counters.sessions_are(Call.READ_SESSION, 1)
    await eventually(lambda: edge.gateway.engine.s2.streams.followed == 1)
    edge.gateway.drain()
    answer = await waiting
    assert (answer.status, answer.json["code"]) == (503, "server_draining")
    late = await edge.client.session()
    assert await late.texts(1) == ["a"]
    edge.clock.advance(2)
    while isinstance(end := await late.next(), ReadBatch):
        pass
    assert isinstance(end, Terminal)


class TestBounds:
    @pytest.fixture
    def settings(self) -> dict[str, object]:
        return {"followed_streams": 2, "client_followed_streams": 1}

    async def test_a_client_may_have_so_many_streams_followed(self, edge: Edge) -> None:
        for stream in "ab":
            await edge.client.append("x", stream=stream)
        first = await edge.client.session(stream="a")
        assert await first.texts(1) == ["x"]
        await edge.counters.sessions_are(Call.READ_SESSION, 1)
        refused = await edge.client.read("seq_num=1&wait=60", stream="b")
        assert (refused.status, refused.json["code"]) == (429, "rate_limited")
        assert "Retry-After" in refused.headers
        # A session has begun by the time it would wait.
        session = await edge.client.session(stream="b")
        assert await session.texts(1) == ["x"]
        assert isinstance(await session.next(), Terminal)
        assert edge.counters.sessions[Call.READ_SESSION] == 1
        for reader in (first, session):
            reader.close()
        # The place is free some time after its last reader has left.
        await eventually(lambda: edge.gateway.engine.s2.sessions == 0)
        edge.clock.advance(5)
        await edge.counters.sessions_are(Call.READ_SESSION, 0)
        again = await edge.client.session("seq_num=1", stream="b")
        assert isinstance(await again.next(), ReadBatch)
        again.close()


class TestMemory:
    @pytest.fixture
    def settings(self) -> dict[str, object]:
        return {"cache_bytes": "1MiB"}

    async def test_sessions_go_on_although_the_tape_holds_little(self, edge: Edge, slow_client: Client) -> None:
        texts = [f"{number}" + "x" * 300_000 for number in range(20)]
        await edge.client.append(texts[0])
        slow, quick = await slow_client.session(), await edge.client.events()
        assert await quick.texts(1) == texts[:1]
        for text in texts[1:]:
            await edge.client.append(text)
            assert await quick.texts(1) == [text]
        assert await slow.texts(20) == texts
        assert (await edge.client.read("seq_num=3&count=2")).texts == texts[3:5]
        assert edge.gateway.engine.store.cost <= 1 << 20

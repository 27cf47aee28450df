"""SSE reads, read sessions and append sessions over both versions of HTTP, under a manual clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived
from h2.settings import SettingCodes, Settings

from gateway.aio.clock import ManualClock
from gateway.commands.s2_events import EventReader
from gateway.origin.s2.app import RunningS2Origin
from gateway.origin.s2.calls import Call
from gateway.s2 import json_format, protobuf, sse
from gateway.s2.errors import S2ErrorCode
from gateway.s2.json_format import Format
from gateway.s2.records import AppendInput, AppendRecord, ReadBatch, StreamPosition
from gateway.s2.session import Compression, Frame, FrameReader, Message, Terminal, encode_message, encode_terminal
from tests.s2.origin.appends import BASIN, bodies
from tests.s2.origin.conftest import BOUND_S
from tests.s2.origin.test_http import RECORDS, append

SESSION = {"content-type": "s2s/proto"}
EVENTS = {"accept": "text/event-stream"}


class Frames:
    """The frames of an answer, as they come."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._parts = response.aiter_raw()
        self._reader = FrameReader()
        self._ready: list[Frame] = []

    async def next(self) -> Frame | None:
        """The next frame; None at the end."""
        async with asyncio.timeout(BOUND_S):
            while not self._ready:
                part = await anext(self._parts, None)
                if part is None:
                    self._reader.finish()
                    return None
                self._ready += self._reader.feed(part)
        return self._ready.pop(0)

    async def batch(self) -> ReadBatch:
        frame = await self.next()
        assert isinstance(frame, Message), frame
        return protobuf.decode_read_batch(frame.body)

    async def texts(self) -> list[str]:
        return [record.body.decode() for record in (await self.batch()).records]


class Events:
    """The events of an answer, as they come."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._parts = response.aiter_raw()
        self._reader = EventReader(Format.RAW)
        self._ready: list[sse.Event] = []

    async def next(self) -> sse.Event | None:
        """The next event; None at the end."""
        async with asyncio.timeout(BOUND_S):
            while not self._ready:
                part = await anext(self._parts, None)
                if part is None:
                    return None
                self._ready += self._reader.feed(part)
        return self._ready.pop(0)


@asynccontextmanager
async def session(http: httpx.AsyncClient, query: str, **headers: str) -> AsyncIterator[Frames]:
    async with http.stream("GET", f"{RECORDS}?{query}", headers={**SESSION, **headers}) as response:
        assert (response.status_code, response.headers["content-type"]) == (200, "s2s/proto")
        yield Frames(response)


@asynccontextmanager
async def events(http: httpx.AsyncClient, query: str, **headers: str) -> AsyncIterator[Events]:
    async with http.stream("GET", f"{RECORDS}?{query}", headers={**EVENTS, **headers}) as response:
        assert (response.status_code, response.headers["content-type"]) == (200, "text/event-stream")
        yield Events(response)


# -- read sessions


async def test_a_session_catches_up_says_so_and_goes_on(
    http: httpx.AsyncClient, origin: RunningS2Origin, version: str
) -> None:
    await append(http, "a", "b")
    async with session(http, "seq_num=0") as frames:
        caught_up = await frames.batch()
        tail = StreamPosition(2, caught_up.records[-1].timestamp)
        assert ([record.body for record in caught_up.records], caught_up.tail) == ([b"a", b"b"], tail)
        assert await frames.batch() == ReadBatch((), tail)
        await append(http, "c")
        live = await frames.batch()
        assert live.tail is not None
        assert ([record.body for record in live.records], live.tail.seq_num) == ([b"c"], 3)
        assert origin.origin.counters.sessions[Call.READ_SESSION] == 1
    if version == "HTTP/1.1":
        # Over HTTP/2 this client does not say that it has left.
        async with asyncio.timeout(BOUND_S):
            await origin.origin.counters.sessions_are(Call.READ_SESSION, 0)


async def test_an_idle_session_has_a_heartbeat_with_the_tail_it_has_reached(
    http: httpx.AsyncClient, origin: RunningS2Origin, clock: ManualClock
) -> None:
    await append(http, "a")
    async with session(http, "tail_offset=0") as frames:
        first = await frames.batch()
        for _ in range(3):
            await origin.origin.counters.parked_is(1)
            clock.advance(10)
            assert await frames.batch() == first
    assert origin.origin.counters.heartbeats_sent == 4


async def test_a_session_with_a_wait_ends_in_order_when_it_is_over(
    http: httpx.AsyncClient, origin: RunningS2Origin, clock: ManualClock
) -> None:
    await append(http, "a")
    async with session(http, "seq_num=0&wait=7") as frames:
        await frames.batch()
        await frames.batch()
        await origin.origin.counters.parked_is(1)
        clock.advance(6)
        await append(http, "b")
        assert await frames.texts() == ["b"]
        await origin.origin.counters.parked_is(1)
        clock.advance(6)
        await append(http, "c")
        assert await frames.texts() == ["c"]
        await origin.origin.counters.parked_is(1)
        clock.advance(7)
        assert await frames.next() is None


async def test_a_session_ends_in_order_at_its_limits(http: httpx.AsyncClient) -> None:
    await append(http, *"abcde")
    async with session(http, "seq_num=1&count=3") as frames:
        assert await frames.texts() == ["b", "c", "d"]
        assert await frames.next() is None


@pytest.mark.parametrize("coding", ["zstd", "gzip"])
async def test_large_frames_are_compressed_if_the_client_may_read_them(
    http: httpx.AsyncClient, origin: RunningS2Origin, coding: str
) -> None:
    await append(http, "x" * 100_000)
    async with session(http, "seq_num=0&count=1", **{"accept-encoding": coding}) as frames:
        assert len((await frames.batch()).records[0].body) == 100_000
    assert origin.origin.counters.body_bytes[Call.READ_SESSION] < 2_000


async def test_a_session_that_cannot_begin_is_an_answer_with_an_error(http: httpx.AsyncClient) -> None:
    await append(http, "a")
    for headers in (SESSION, EVENTS):
        reply = await http.get(f"{RECORDS}?seq_num=5", headers=headers)
        assert (reply.status_code, reply.json()["tail"]["seq_num"]) == (416, 1)
        assert (await http.get("/streams/nothing/records", headers=headers)).status_code == 404


async def test_a_session_ends_with_a_terminal_frame_when_the_stream_is_deleted(http: httpx.AsyncClient) -> None:
    await append(http, "a")
    async with session(http, "tail_offset=0") as frames, events(http, "tail_offset=0") as read:
        await frames.batch()
        await read.next()
        await http.delete("/streams/s")
        terminal = await frames.next()
        assert isinstance(terminal, Terminal)
        assert (terminal.status, b"unavailable" in terminal.body) == (503, True)
        assert await frames.next() is None
        failure = await read.next()
        assert isinstance(failure, sse.Failure)
        assert failure.body == terminal.body
        assert await read.next() is None


# httpx gives up an answer that is under way when it reads the GOAWAY; S2's SDKs do not.
@pytest.mark.parametrize("version", ["HTTP/1.1"], indirect=True)
async def test_sessions_end_when_the_origin_drains(http: httpx.AsyncClient, origin: RunningS2Origin) -> None:
    await append(http, "a")
    async with session(http, "tail_offset=0") as frames:
        await frames.batch()
        waiting = asyncio.create_task(http.get(f"{RECORDS}?seq_num=1&wait=60"))
        await origin.origin.counters.parked_is(2)
        await origin.stop(grace_s=BOUND_S)
        terminal = await frames.next()
        assert isinstance(terminal, Terminal)
        assert (terminal.status, b"server_draining" in terminal.body) == (503, True)
        assert (await waiting).json()["code"] == "server_draining"


async def test_fault_switches_end_sessions(http: httpx.AsyncClient, origin: RunningS2Origin) -> None:
    faults = origin.origin.faults
    await append(http, "a")
    faults.fail_session(S2ErrorCode.STORAGE, after_messages=1)
    async with session(http, "seq_num=0") as frames:
        assert await frames.texts() == ["a"]
        terminal = await frames.next()
        assert isinstance(terminal, Terminal)
        assert terminal.status == 500

    faults.finish_session(after_messages=1)
    async with session(http, "seq_num=0") as frames:
        assert await frames.texts() == ["a"]
        assert await frames.next() is None

    faults.advise_reconnect(after_messages=1)
    async with session(http, "seq_num=0") as frames:
        advice = [await frames.next() for _ in range(2)]
        assert [isinstance(one, Message) and one.is_reconnect_advised for one in advice] == [False, True]

    stalled = faults.stall(4, kind=Call.READ_SESSION)
    async with session(http, "seq_num=0") as frames:
        await stalled.waiting(1)
        stalled.release()
        assert await frames.texts() == ["a"]


async def test_a_client_that_reads_nothing_holds_nothing_up(
    http: httpx.AsyncClient, origin: RunningS2Origin, clock: ManualClock
) -> None:
    counters, now = origin.origin.counters, clock.wall()
    large = AppendInput((AppendRecord(bytes(1_000_000)),))
    stream = origin.origin.account.create_basin("another-basin", {}, now).create_stream("s", {}, now)
    for _ in range(40):
        stream.append(large, now)
    async with session(http, "seq_num=0", **{"s2-basin": "another-basin"}) as frames:
        await frames.batch()
        # Not on the same connection: over HTTP/2 the unread bytes use up what it may send.
        async with httpx.AsyncClient(
            base_url=http.base_url, headers=http.headers, trust_env=False, verify=False
        ) as other:
            await append(other, "a")
        assert counters.records_sent[Call.READ_SESSION] < 40
        for _ in range(39):
            await frames.batch()


# -- SSE


async def test_events_carry_ids_that_count_and_pings_with_the_tail(
    http: httpx.AsyncClient, origin: RunningS2Origin, clock: ManualClock
) -> None:
    await append(http, "a", "bb")
    async with events(http, "seq_num=0") as read:
        batch = await read.next()
        assert isinstance(batch, sse.BatchEvent)
        assert (batch.id, len(batch.batch.records)) == (sse.EventId(1, 2, 19), 2)
        ping = await read.next()
        assert isinstance(ping, sse.Ping)
        assert ping.tail is not None
        assert (ping.tail.seq_num, ping.timestamp) == (2, int(clock.wall() * 1000))
        await append(http, "c")
        batch = await read.next()
        assert isinstance(batch, sse.BatchEvent)
        assert batch.id == sse.EventId(2, 3, 28)
        await origin.origin.counters.parked_is(1)
        clock.advance(10)
        assert isinstance(await read.next(), sse.Ping)


async def test_events_end_with_done_and_are_resumed_by_the_last_id(http: httpx.AsyncClient) -> None:
    await append(http, *"abcde")
    async with events(http, "seq_num=1&count=3", **{"last-event-id": "1,1,9"}) as read:
        batch = await read.next()
        assert isinstance(batch, sse.BatchEvent)
        assert [record.body for record in batch.batch.records] == [b"c", b"d"]
        assert batch.id == sse.EventId(3, 2, 18)
        assert isinstance(await read.next(), sse.Done)
        assert await read.next() is None


# -- append sessions


def frame(append_: AppendInput) -> bytes:
    return encode_message(protobuf.encode_append_input(append_), Compression.NONE)


async def answers(http: httpx.AsyncClient, body: bytes, size: int = 7) -> list[Frame]:
    """What an append session with this body is answered, which is sent in parts of `size` bytes."""

    async def parts() -> AsyncIterator[bytes]:
        for at in range(0, len(body), size):
            yield body[at : at + size]

    async with http.stream("POST", RECORDS, headers=SESSION, content=parts()) as response:
        assert response.status_code == 200
        frames, found = Frames(response), []
        while (one := await frames.next()) is not None:
            found.append(one)
    return found


async def test_an_append_session_acknowledges_in_order(http: httpx.AsyncClient, origin: RunningS2Origin) -> None:
    body = b"".join(frame(bodies(f"{number}", "x")) for number in range(20))
    found = await answers(http, body)
    ends = [protobuf.decode_append_ack(one.body).end.seq_num for one in found if isinstance(one, Message)]
    assert ends == list(range(2, 42, 2))
    assert origin.origin.counters.records_appended == 40


@pytest.mark.parametrize(
    ("poison", "status", "code"),
    [
        (frame(bodies("b", match_seq_num=7)), 412, b"seq_num_mismatch"),
        (frame(bodies("b", fencing_token="x")), 412, b"fencing_token_mismatch"),
        (frame(AppendInput(())), 422, b"invalid"),
        (encode_message(b"\xff"), 400, b"bad_proto"),
        (encode_terminal(500, b"{}"), 400, b"bad_frame"),
        (b"\x00\x00\x00\x00", 400, b"bad_frame"),
    ],
)
async def test_the_first_failure_of_an_append_session_poisons_the_rest(
    http: httpx.AsyncClient, origin: RunningS2Origin, poison: bytes, status: int, code: bytes
) -> None:
    first, last = await answers(http, frame(bodies("a")) + poison + frame(bodies("c")), size=10_000)
    assert isinstance(first, Message)
    assert isinstance(last, Terminal)
    assert (last.status, code in last.body) == (status, True)
    assert origin.origin.account.basin(BASIN).streams["s"].tail.seq_num == 1


async def test_an_append_session_that_ends_inside_a_frame_is_told_so(http: httpx.AsyncClient) -> None:
    *_, last = await answers(http, frame(bodies("a"))[:-1])
    assert isinstance(last, Terminal)
    assert (last.status, b"bad_frame" in last.body) == (400, True)


async def test_an_append_session_over_http_1_answers_while_it_is_sent(
    origin: RunningS2Origin, clock: ManualClock
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", origin.port)
    head = f"POST /v1{RECORDS} HTTP/1.1\r\nhost: x\r\ns2-basin: {BASIN}\r\ncontent-type: s2s/proto\r\n"
    writer.write(f"{head}transfer-encoding: chunked\r\n\r\n".encode())
    frames = FrameReader()

    async def answer(append_: AppendInput) -> Frame:
        sent = frame(append_)
        writer.write(b"%x\r\n%s\r\n" % (len(sent), sent))
        size = int(await reader.readline(), 16)
        (found,) = frames.feed(await reader.readexactly(size))
        assert await reader.readline() == b"\r\n"
        return found

    async with asyncio.timeout(BOUND_S):
        await reader.readuntil(b"\r\n\r\n")
        for number in range(3):
            ack = await answer(bodies("x"))
            assert isinstance(ack, Message)
            assert protobuf.decode_append_ack(ack.body).end.seq_num == number + 1
        # What is appended to a stream that is gone must not be acknowledged.
        origin.origin.account.basin(BASIN).delete_stream("s", clock.wall())
        terminal = await answer(bodies("x"))
        assert isinstance(terminal, Terminal)
        assert (terminal.status, b"unavailable" in terminal.body) == (503, True)
        assert await reader.read() == b"0\r\n\r\n"
    writer.close()


async def test_an_answer_over_http_2_keeps_to_the_clients_window(origin: RunningS2Origin, clock: ManualClock) -> None:
    stream = origin.origin.account.basin(BASIN).create_stream("s", {}, clock.wall())
    stream.append(AppendInput((AppendRecord(bytes(5_000)),)), clock.wall())
    reader, writer = await asyncio.open_connection("127.0.0.1", origin.port)
    client = H2Connection(H2Configuration(client_side=True))
    client.local_settings = Settings(client=True, initial_values={SettingCodes.INITIAL_WINDOW_SIZE: 100})
    client.initiate_connection()
    path = f"/v1{RECORDS}?seq_num=0"
    fields = {":method": "GET", ":path": path, ":scheme": "http", ":authority": "x", "s2-basin": BASIN}
    client.send_headers(1, list(fields.items()), end_stream=True)
    body = b""
    async with asyncio.timeout(BOUND_S):
        while not body.endswith(b"}"):
            writer.write(client.data_to_send())
            # h2 takes more than its window for an error of the connection.
            for event in client.receive_data(await reader.read(65_536)):
                if isinstance(event, DataReceived):
                    body += event.data or b""
                    if event.flow_controlled_length:
                        client.acknowledge_received_data(event.flow_controlled_length, 1)
    assert len(json_format.decode_read_batch(body, Format.RAW).records[0].body) == 5_000
    writer.close()

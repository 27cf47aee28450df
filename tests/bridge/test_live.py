"""Live reads of bridged streams: one session at the origin for all, and what interrupts it."""

from __future__ import annotations

import asyncio

import pytest

from gateway.bridge.content import CLOSE_TOKEN
from gateway.origin.s2.calls import Call
from gateway.s2.errors import S2ErrorCode
from gateway.s2.records import Fence, Trim
from tests.bridge.clients import Bridged
from tests.waiting import eventually, time_passing


@pytest.fixture(params=["1.1", "2"], ids=["http/1.1", "h2"])
def settings(request: pytest.FixtureRequest) -> dict[str, object]:
    return {"origin_http": request.param}


async def test_an_sse_reader_gets_what_is_there_and_what_comes(bridged: Bridged) -> None:
    await bridged.writer.create()
    await bridged.writer.append(b"0", b"1")
    events = await bridged.reader.events()
    assert await events.messages(2) == [0, 1]
    await bridged.writer.append(b"2")
    assert await events.messages(1) == [2]
    control = await events.control()
    assert control["streamNextOffset"] == "00000000000000000003"
    assert control["upToDate"] is True
    events.close()


async def test_live_readers_of_all_kinds_cost_the_origin_one_session(bridged: Bridged) -> None:
    await bridged.writer.create()
    await bridged.writer.append(b"0")
    readers = [await bridged.reader.events() for _ in range(10)]
    for reader in readers:
        assert await reader.messages(1) == [0]
    at = "00000000000000000001"
    polls = [asyncio.ensure_future(bridged.reader.read(at, live="long-poll")) for _ in range(10)]
    await eventually(lambda: sum(topic.readers for topic in bridged.gateway.engine.live.topics()) >= 20)
    await bridged.writer.append(b"1")
    for reader in readers:
        assert await reader.messages(1) == [1]
        reader.close()
    for poll in polls:
        assert (await poll).json == [1]
    assert bridged.counters.requests[Call.READ_SESSION] == 1
    assert bridged.counters.sessions_peak[Call.READ_SESSION] == 1


async def test_a_close_reaches_every_reader(bridged: Bridged) -> None:
    await bridged.writer.create()
    await bridged.writer.append(b"0")
    events = await bridged.reader.events()
    assert await events.messages(1) == [0]
    at = "00000000000000000001"
    poll = asyncio.ensure_future(bridged.reader.read(at, live="long-poll"))
    await eventually(lambda: sum(topic.readers for topic in bridged.gateway.engine.live.topics()) >= 2)
    ack = await bridged.writer.command(Fence(CLOSE_TOKEN))
    assert ack.end.seq_num == 2
    while not (control := await events.control()).get("streamClosed"):
        pass
    assert control["streamNextOffset"] == at
    assert await events.next() is None
    polled = await poll
    assert (polled.status, polled.end, polled.is_closed) == (204, at, True)
    for offset in ("-1", at, "now"):
        caught_up = await bridged.reader.read(offset)
        assert (caught_up.end, caught_up.is_closed) == (at, True)
    head = await bridged.reader.send("HEAD")
    assert (head.end, head.is_closed) == (at, True)


@pytest.mark.parametrize("how", ["finish", "terminal", "truncate", "reconnect"])
async def test_a_session_that_is_interrupted_goes_on_with_nothing_lost_or_repeated(bridged: Bridged, how: str) -> None:
    await bridged.writer.create()
    await bridged.writer.append(b"0")
    match how:
        case "finish":
            bridged.faults.finish_session(after_messages=2, times=2, kind=Call.READ_SESSION)
        case "terminal":
            bridged.faults.fail_session(S2ErrorCode.UNAVAILABLE, after_messages=2, times=2, kind=Call.READ_SESSION)
        case "truncate":
            bridged.faults.truncate(after_bytes=40, times=2, kind=Call.READ_SESSION)
        case "reconnect":
            bridged.faults.advise_reconnect(after_messages=1, times=2, kind=Call.READ_SESSION)
    async with time_passing(bridged.clock):
        events = await bridged.reader.events()
        for number in range(1, 9):
            await bridged.writer.append(str(number).encode())
        assert await events.messages(9) == list(range(9))
    assert bridged.counters.requests[Call.READ_SESSION] > 1
    # The origin may see the next session, on a new connection, before the end of the session that it advised to leave.
    await bridged.counters.sessions_are(Call.READ_SESSION, 1)
    assert bridged.counters.sessions_peak[Call.READ_SESSION] == 1 or how == "reconnect"
    events.close()


async def test_a_trim_below_the_readers_goes_unnoticed(bridged: Bridged) -> None:
    await bridged.writer.create()
    await bridged.writer.append(b"0", b"1")
    events = await bridged.reader.events()
    assert await events.messages(2) == [0, 1]
    await bridged.writer.command(Trim(2))
    await bridged.writer.append(b"2")
    assert await events.messages(1) == [2]
    events.close()
    assert (await bridged.reader.read("00000000000000000002")).json == [2]
